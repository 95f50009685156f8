"""Ray itself: one `ray.init` for all jobs of a process, quiet, and the same environment on every node."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

from runner.errors import LaunchError, PreflightError, first_line, refuse
from runner.executors import ray_node
from runner.executors.warden import end_with_driver
from runner.reach import unreachable
from runner.resources import Machine

# Read by Ray when it is imported or started, so they are set before either, and travel in the runtime_env.
ENVIRONMENT = {
    "RAY_TRAIN_V2_ENABLED": "0",  # HorovodTrainer exists in Train V1 only; see use_train
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # else Ctrl-C in fit() returns as if nothing had happened
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "PL_DISABLE_FORK": "1",  # as Tune sets it for its own processes: Lightning must not fork a process that has threads
    "RAY_worker_niceness": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "KINETO_LOG_LEVEL": "5",  # torch.profiler prints what is no error
    # Of Train V2: its looks at the workers, its loggers (print() would go to one of them), its metrics.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
}
PROJECT = Path(__file__).resolve().parents[2]
NOT_SHIPPED = ("outputs", "__pycache__", "node_modules", "venv")


def cluster_address(configured: str | None) -> str | None:
    """The cluster to join, or None for a Ray of our own on this machine."""
    address = configured or os.environ.get("RAY_ADDRESS")
    return None if address in (None, "", "local") else address


def use_train(is_v2: bool, executor: str) -> None:
    """Which Ray Train this process and all of Ray's have, before it is imported and Ray started. Raises ConfigError where it is
    the other one already."""
    imported = sys.modules.get("ray.train")
    if imported is not None and hasattr(imported, "UserCallback") != is_v2:  # which V2 alone has
        used = "V1" if is_v2 else "V2"
        raise refuse(
            "executor",
            executor,
            f"this process has used Ray Train {used}, and has one version of it",
            "the same in a new process",
        )
    ENVIRONMENT["RAY_TRAIN_V2_ENABLED"] = str(int(is_v2))


def start(address: str | None, cpus: float, import_roots: tuple[str, ...], verbose: bool) -> None:
    """Start a local Ray or join a cluster, once a process. Raises LaunchError."""
    os.environ.update(ENVIRONMENT)
    if address is not None:
        reach(address)
    warnings.filterwarnings("ignore", category=FutureWarning, module="ray")
    import ray

    if ray.is_initialized():
        return
    # Quiet below CRITICAL: what Ray logs as an error arrives as an exception too, and is reported once.
    level = logging.INFO if verbose else logging.CRITICAL
    for name in ("ray", "ray.tune", "ray.train", "ray._private", "ray.data"):
        logging.getLogger(name).setLevel(level)
    options: dict[str, Any] = {
        "log_to_driver": verbose,
        "logging_level": level,
        "configure_logging": verbose,
        "include_dashboard": None if verbose else False,
    }
    if address is None:
        os.environ.pop("RAY_ADDRESS", None)
        options |= {"address": "local", "num_cpus": int(cpus)}
    else:
        options = {key: options[key] for key in ("log_to_driver", "logging_level", "configure_logging")}
        options |= {"address": address, "runtime_env": runtime_env(import_roots)}
    before = signal.getsignal(signal.SIGTERM)
    terminated = False
    try:
        if address is None:
            end_with_driver()
        with (
            ray_node.own_process_groups(),
            contextlib.nullcontext() if verbose or address else ray_node.lean(),
        ):
            ray.init(**options)
        if not verbose:
            ray_node.silence()
    except SystemExit:  # Ray's own handler of SIGTERM, which it installs while it starts
        terminated = True
    except Exception as error:
        where = f"scaling.address={address}: " if address else ""
        raise LaunchError(f"{where}Ray could not be started: {first_line(error)}") from error
    finally:
        if _token_file().exists():
            _token_file().chmod(0o600)  # Ray leaves it readable by all
        # Ray's own handler would end the process without a final status.
        signal.signal(signal.SIGTERM, before)
    if terminated:
        signal.raise_signal(signal.SIGTERM)


def reach(address: str) -> None:
    """Raise PreflightError in seconds for what is no address, and where nothing listens (Ray itself would try for ever); use
    the user's token."""
    if _token_file().exists() and "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"  # `ray start` does the same; a driver that joins does not
        if "ray" in sys.modules:  # which has read it
            from ray._raylet import Config  # type: ignore[attr-defined]

            Config.initialize("")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    if not (host and port.isdecimal()):
        raise PreflightError(
            f"scaling.address={address}: must be host:port, ray://host:port, auto or local; type scaling.address=local"
        )
    if reason := unreachable(host, int(port)):
        raise PreflightError(
            f"scaling.address={address}: nothing answers there ({reason}); start a cluster with "
            f"`ray start --head --port={port}`, or type scaling.address=local"
        )


def stop(seconds: float = 3.0) -> None:
    """Leave Ray in bounded time; what is left of a local Ray after that is killed."""
    ray = sys.modules.get("ray")
    if ray is None:
        return
    leaving = threading.Thread(target=ray.shutdown, daemon=True)
    leaving.start()
    leaving.join(seconds)
    _kill_children()


def abandon() -> None:
    """After a signal, which Ray's processes may have got too: a local Ray is killed (one whose GCS is gone would keep this
    process for a minute), a cluster is left in bounded time."""
    if not _kill_children():
        stop()


def _kill_children() -> bool:
    """Whether there were any."""
    import psutil

    children = psutil.Process().children(recursive=True)
    for process in children:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return bool(children)


def runtime_env(import_roots: tuple[str, ...]) -> dict[str, Any]:
    """What every node of a cluster needs: the code of this project and of the user, and the environment."""
    modules = [str(path) for root in import_roots for path in shipped(Path(root))]
    return {"env_vars": ENVIRONMENT, "py_modules": modules, "excludes": ["**/__pycache__"]}


def shipped(root: Path) -> list[Path]:
    """The modules and packages directly under an import root; of this project, the three that a worker imports."""
    if root.resolve() == PROJECT:
        return [PROJECT / name for name in ("runner", "models", "datasets")]
    packages = [path for path in root.iterdir() if path.is_dir() and path.name not in NOT_SHIPPED]
    packages = [path for path in packages if not path.name.startswith(".") and any(path.glob("*.py"))]
    return sorted([*packages, *root.glob("*.py")])


def cluster_machine(horovod_gpu: bool) -> Machine:
    """The cluster's totals; where it grows by itself, those that it may grow to."""
    import ray
    from ray._private.state import state

    total, limit = ray.cluster_resources(), state.get_max_resources_from_cluster_config() or {}
    total = {kind: max(total.get(kind, 0), limit.get(kind, 0)) for kind in ("CPU", "GPU", *total, *limit)}
    cpus, gpus = total.pop("CPU"), total.pop("GPU")
    return Machine(cpus=cpus, gpus=gpus, horovod_gpu=horovod_gpu, is_cluster=True, custom=total)


def _token_file() -> Path:
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
