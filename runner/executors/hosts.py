"""Where the workers of an elastic training may be, asked once a second."""

from __future__ import annotations

import math
import subprocess
import time
from dataclasses import dataclass, field

from runner.errors import LaunchError
from runner.resources import ResourcePlan

SCRIPT_SECONDS = 10.0


@dataclass
class Hosts:
    """Horovod's discovery. Each place for a worker is a host to Horovod, which gives up a host as a whole: so a lost worker takes
    no other with it. There are `most` of them.

    Places are those that `script` prints (lines `host` or `host:slots`, as for horovodrun), else those of all nodes. On a Ray of
    this machine alone (`is_local`) every host is this machine. The place of a lost worker is there again after `cooldown_s`
    (shortest, longest; twice as long each time), under a new name: Horovod starts no second worker under the same.
    """

    resources: ResourcePlan
    most: int
    is_local: bool
    script: str | None = None
    cooldown_s: tuple[float, float] | None = None  # None: never again
    nodes: dict[str, str] = field(default_factory=dict)  # the node's id, of each name that there was
    _lost: dict[str, int] = field(default_factory=dict)  # workers, by place
    _until: dict[str, float] = field(default_factory=dict)  # time.monotonic(), by place
    _named: dict[str, str] = field(default_factory=dict)  # the place of each name

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """The names of the places, one slot each."""
        now, found = time.monotonic(), {}
        for place, node_id in list(self._places().items())[: self.most]:
            if self._until.get(place, 0.0) <= now:
                lives = self._lost.get(place, 0)
                name = f"{place}.{lives}" if lives else place
                self._named[name], self.nodes[name], found[name] = place, node_id, 1
        return found

    def lost(self, name: str) -> None:
        """Its worker is gone."""
        place = self._named[name]
        self._lost[place] = self._lost.get(place, 0) + 1
        wait = math.inf
        if self.cooldown_s is not None:
            shortest, longest = self.cooldown_s
            wait = min(longest, shortest * 2 ** (self._lost[place] - 1))
        self._until[place] = max(self._until.get(place, 0.0), time.monotonic() + wait)

    def ban(self, name: str) -> None:
        """Its place is never filled again."""
        self._until[self._named[name]] = math.inf

    @property
    def left(self) -> int:
        """Places that there are, or will be again after their cooldown."""
        places = list(self._places())[: self.most]
        return sum(self._until.get(place, 0.0) < math.inf for place in places)

    def _places(self) -> dict[str, str]:
        """With the node of each."""
        import ray

        alive = [node for node in ray.nodes() if node["Alive"]]
        found: dict[str, str] = {}
        if self.script is None:
            for node in alive:
                for index in range(self._slots(node["Resources"])):
                    found[f"{node['NodeManagerAddress']}-{index}"] = node["NodeID"]
            return found
        names = {
            node[key]: node["NodeID"]
            for node in alive
            for key in ("NodeManagerHostname", "NodeManagerAddress")
        }
        for host, slots in printed_hosts(self.script).items():
            node_id = names.get(host, alive[0]["NodeID"] if self.is_local else None)
            if node_id is not None:
                found |= {f"{host}-{index}": node_id for index in range(slots)}
        return found

    def _slots(self, resources: dict[str, float]) -> int:
        slots = int(resources.get("CPU", 0) / self.resources.cpus_per_worker + 1e-6)
        if self.resources.use_gpu:
            slots = min(slots, int(resources.get("GPU", 0) / self.resources.gpus_per_worker + 1e-6))
        return slots


def printed_hosts(script: str) -> dict[str, int]:
    """What a discovery script prints: slots by host. Raises LaunchError."""
    try:
        done = subprocess.run(
            script, shell=True, capture_output=True, text=True, timeout=SCRIPT_SECONDS, check=True
        )
        lines = [line.strip().partition(":") for line in done.stdout.splitlines() if line.strip()]
        return {host: int(slots or 1) for host, _, slots in lines}
    except (subprocess.SubprocessError, ValueError) as error:
        raise LaunchError(f"executor.discovery={script}: {error}") from error
