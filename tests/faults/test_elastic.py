"""Workers that come and go within one training, on stand-in hosts and on this one."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.elastic import Disturbance, Stint, kept, stints
from tests.faults.outcome import Outcome

pytestmark = pytest.mark.faults
BATCH, ROWS, LR, BASE = 8, 320, 0.01, 8
Run = Callable[..., Outcome]


@pytest.fixture
def elastic(here: Run, home: Path) -> Callable[..., tuple[Outcome, list[Stint], Disturbance]]:
    """elastic(name, hosts, actions, changes, *overrides) → outcome, stints, what was done, of a training on stand-in hosts."""

    def run(
        name: str, hosts: int, actions: Callable[[int, int], str], changes: int, *overrides: str
    ) -> tuple[Outcome, list[Stint], Disturbance]:
        folder, listed = home / "outputs" / "runs" / "faults" / name / "fault", home / f"{name}-hosts"
        listed.write_text("".join(f"host-{number}\n" for number in range(1, hosts + 1)))
        disturbance = Disturbance(listed, folder, actions, changes)
        disturbance.start()
        outcome = here(
            name,
            "experiment=recorded",
            "executor=elastic",
            f"executor.discovery='cat {listed}'",
            "executor.commit_steps=1",
            "scaling.resources_per_worker.CPU=0.2",
            f"scaling.num_workers={hosts}",
            *overrides,
        )
        disturbance.changes = 0
        disturbance.join()
        return outcome, stints(folder), disturbance

    return run


def assert_each_row_once(found: list[Stint], epochs: int) -> None:
    rows = [row for _, _, rows in kept(found) for row in rows]
    assert len(rows) == epochs * ROWS
    for epoch in range(epochs):
        assert sorted(rows[epoch * ROWS : (epoch + 1) * ROWS]) == list(range(ROWS)), f"epoch {epoch}"


def lrs(outcome: Outcome) -> dict[int, float]:
    """LR in MLflow, by the step from which it holds."""
    return {step: values[0] for (key, step), values in outcome.metrics().items() if key == "lr"}


def lr_of(changes: dict[int, float], step: int) -> float:
    return changes[min(known for known in changes if known >= step)]


def test_a_lost_rank_the_others_go_on_at_once_with_the_lr_of_their_number(elastic):
    outcome, found, done = elastic(
        "lost", 2, lambda number, size: "kill", 1, "executor.keep=per_worker_batch", "executor.max_workers=4"
    )
    assert outcome.end == (0, "FINISHED", "FINISHED"), outcome.text
    before, after = found
    assert (before.size, after.size) == (2, 1)
    assert after.began - done.done[0][0] < 5
    assert_each_row_once(found, 3)
    print("seconds to go on", after.began - done.done[0][0], outcome.result["changes_of_workers"])


def test_hosts_that_join_train(elastic):
    outcome, found, done = elastic("joined", 1, lambda number, size: "join", 1, "executor.max_workers=2")
    assert outcome.end == (0, "FINISHED", "FINISHED"), outcome.text
    assert [stint.size for stint in found] == [1, 2]
    assert found[1].began - done.done[0][0] < 15
    assert_each_row_once(found, 3)
    print("seconds to join", found[1].began - done.done[0][0], outcome.result["changes_of_workers"])


@pytest.mark.parametrize("keep", ["per_worker_batch", "global_batch"])
def test_ten_random_joins_and_losses(elastic, keep):
    chance = random.Random(7)

    def action(number: int, size: int) -> str:
        if size <= 1:
            return "join"
        if size >= 4:
            return chance.choice(["kill", "leave"])
        return chance.choice(["join", "kill", "leave"])

    epochs = 12
    outcome, found, done = elastic(
        f"ten-{keep}",
        2,
        action,
        10,
        "executor.max_workers=4",
        f"executor.keep={keep}",
        f"trainer.epochs={epochs}",
    )
    print([(what, size) for _, what, size in done.done], [stint.size for stint in found])
    for (moment, what, size), stint in zip(done.done, found[1:], strict=False):
        print(f"{what}: {size} workers after {stint.began - moment:.1f} s")
    print("\n".join(outcome.result.get("changes_of_workers", [])))
    assert outcome.end == (0, "FINISHED", "FINISHED"), outcome.text
    assert len(done.done) == 10
    assert [stint.size for stint in found] == [2, *(size for _, _, size in done.done)]
    assert_each_row_once(found, epochs)
