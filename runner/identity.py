"""Which keys a run's numbers depend on: its fingerprint, and what may change when it goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from runner.config import flatten
from runner.errors import ConfigError, nearest
from runner.secrets import looks_secret, masked

# A key, or where it ends in "." or "_" the beginning of several. They do not change a weight.
IMMATERIAL = (
    "verbose",
    "dry_run",
    "resume",
    "study",
    "allowed_targets",
    "skip_checks",
    "tracking.",
    "executor.",  # of as many workers
    "search.",
    "sweep.",
    "scaling.placement_strategy",
    "scaling.custom_resources",
    "scaling.accelerator_type",
    "scaling.address",
    "dataset.loader_workers",
    "trainer.max_failures",
    "trainer.watchdog_seconds",
    "trainer.profile_steps",
    "checkpoint.enabled",
    "checkpoint.every_",
    "checkpoint.keep",
    "checkpoint.keep_best",
    "horovod.nics",
    "horovod.timeout_s",
    "horovod.placement_group_timeout_s",
    "horovod.verbose",
    "horovod.key",
    "horovod.ssh_",
    "horovod.gloo_timeout_s",
    "horovod.stall_",
    "horovod.timeline",
)
# What of the others a run that goes on may change: how long it is, how it is watched, and on what it is trained.
CHANGEABLE = (
    "trainer.epochs",
    "trainer.max_steps",
    "trainer.patience",
    "trainer.min_delta",
    "trainer.validate_every_",
    "trainer.on_nonfinite",
    "trainer.log_norms",
    "scaling.num_workers",
    "scaling.use_gpu",
    "scaling.resources_per_worker.",
    *IMMATERIAL,
)


def fingerprint(values: dict[str, Any]) -> str:
    """sha256, in hexadecimal, over all keys and values of a config that its numbers depend on."""
    material = {
        key: value
        for key, value in flatten(masked(values))  # a new password makes no other run
        if not _is_among(key, IMMATERIAL)
    }
    return hashlib.sha256(json.dumps(material, sort_keys=True, default=str).encode()).hexdigest()


def is_immaterial(override: str) -> bool:
    """Whether an override, `key=value`, changes no number."""
    return _is_among(override.lstrip("+~").partition("=")[0], IMMATERIAL)


def check_changes(overrides: Iterable[str]) -> None:
    """Raise ConfigError for an override (`key=value`) that would make another run of one that goes on."""
    for override in overrides:
        key, has_value, _ = override.partition("=")
        if has_value and (_is_among(key, CHANGEABLE) or looks_secret(key)):
            continue
        known = [name + "…" * name.endswith((".", "_")) for name in CHANGEABLE]
        close = nearest(key, known)
        raise ConfigError(
            f"{override}: a run that goes on keeps its model, data, optimizer, seed and batch; what may change: "
            f"{', '.join(known)}" + (f"; did you mean {close}?" if close else "")
        )


def _is_among(key: str, names: Iterable[str]) -> bool:
    return any(key == name or (name.endswith((".", "_")) and key.startswith(name)) for name in names)
