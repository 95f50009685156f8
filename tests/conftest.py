"""What every test is kept from: the user's own settings, and what an earlier test has left in the environment."""

from __future__ import annotations

import os

import pytest

SETTINGS = (
    "MLFLOW_TRACKING_URI",  # mlflow.set_tracking_uri leaves it there
    "MLFLOW_EXPERIMENT_NAME",
    "MLFLOW_RUN_ID",
    "RAY_ADDRESS",
    "HYDRA_FULL_ERROR",
)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        monkeypatch.setenv(name, "")  # so that what the test sets there is undone too
        monkeypatch.delenv(name)


def environment() -> dict[str, str]:
    """This process's, for a command, without what would choose a store or a cluster."""
    return {key: value for key, value in os.environ.items() if key not in SETTINGS}
