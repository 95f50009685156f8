"""Where the workers of an elastic training may be, asked once a second."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field

from runner.errors import LaunchError
from runner.resources import ResourcePlan

SCRIPT_SECONDS = 10.0


@dataclass
class Hosts:
    """Horovod's discovery. Each place for a worker is a host to Horovod, which gives up a host as a whole: so a lost worker takes
    no other with it. There are `most` of them.

    Places are those that `script` prints (lines `host` or `host:slots`, as for horovodrun), else those of all nodes. On a Ray of
    this machine alone (`is_local`) every host is this machine.
    """

    resources: ResourcePlan
    most: int
    is_local: bool
    script: str | None = None
    nodes: dict[str, str] = field(default_factory=dict)  # of each place that there was
    banned: set[str] = field(default_factory=set)  # places that are not filled again

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """The places, one slot each."""
        import ray

        alive = [node for node in ray.nodes() if node["Alive"]]
        found: dict[str, str] = {}
        if self.script is None:
            for node in alive:
                for index in range(self._slots(node["Resources"])):
                    found[f"{node['NodeManagerAddress']}-{index}"] = node["NodeID"]
        else:
            names = {
                node[key]: node["NodeID"]
                for node in alive
                for key in ("NodeManagerHostname", "NodeManagerAddress")
            }
            for host, slots in printed_hosts(self.script).items():
                node_id = names.get(host, alive[0]["NodeID"] if self.is_local else None)
                for index in range(slots if node_id is not None else 0):
                    found[f"{host}-{index}"] = node_id
        found = dict(list(found.items())[: self.most])
        self.nodes |= found
        return {place: 1 for place in found if place not in self.banned}

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
