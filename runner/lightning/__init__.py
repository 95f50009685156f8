"""A LightningModule is trained by duck typing: the package `lightning` is never imported, and need not be installed."""

from runner.lightning.module import check, is_module, restored, saved
from runner.lightning.objective import LightningObjective
from runner.lightning.optimizers import base_lr, check_rule, configure

__all__ = [
    "LightningObjective",
    "base_lr",
    "check",
    "check_rule",
    "configure",
    "is_module",
    "restored",
    "saved",
]
