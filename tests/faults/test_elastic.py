"""Workers that come and go within one training, on stand-in hosts and on this one."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.elastic import Disturbance, Stint, kept, stints
from tests.faults.outcome import Outcome

pytestmark = pytest.mark.faults
BATCH, ROWS, LR = 8, 320, 0.01
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


def lr_at(outcome: Outcome, step: int) -> float:
    """In MLflow, which has a point where the LR changes."""
    points = {known: values[0] for (key, known), values in outcome.metrics().items() if key == "lr"}
    return points[max(known for known in points if known <= step)]


def test_the_others_go_on_at_once_with_the_lr_of_their_number_and_hosts_that_join_train(elastic):
    outcome, found, disturbance = elastic(
        "lost-and-joined",
        3,
        lambda number, size: ("kill", "join")[number],
        2,
        "executor.keep=per_worker_batch",
        "trainer.epochs=6",
    )
    assert outcome.end == (0, "FINISHED", "FINISHED"), outcome.text
    assert [stint.size for stint in found] == [3, 2, 3]
    lost, joined = (
        stint.began - moment for stint, (moment, *_) in zip(found[1:], disturbance.done, strict=True)
    )
    assert lost < 5
    assert joined < 15
    assert [lr_at(outcome, stint.first + 1) for stint in found] == pytest.approx([0.03, 0.02, 0.03])
    assert_each_row_once(found, 6)
    print(f"a lost rank: {lost:.1f} s; a host that joined: {joined:.1f} s")


def test_on_one_host_a_lost_rank_comes_back(here, home):
    folder, listed = home / "outputs" / "runs" / "faults" / "one-host" / "fault", home / "two-lines"
    listed.write_text("a\nb\n")  # nobody reads it
    disturbance = Disturbance(listed, folder, lambda number, size: "kill", 1)
    disturbance.start()
    outcome = here(
        "one-host", "experiment=recorded", "executor=elastic", "executor.commit_steps=1", "trainer.epochs=8"
    )
    disturbance.join()
    found = stints(folder)
    assert outcome.end == (0, "FINISHED", "FINISHED"), outcome.text
    assert [stint.size for stint in found] == [2, 1, 2]
    assert found[1].began - disturbance.done[0][0] < 5
    assert_each_row_once(found, 8)
    assert "1 worker joined; goes on from step" in outcome.events


def test_an_error_of_a_rank_is_told_and_the_others_go_on(here):
    raises = ("model.kind=raises", "model.rank=1", "model.at=9")
    outcome = here("degraded", "executor=elastic", "executor.commit_steps=1", *raises)
    assert outcome.end == (0, "FINISHED", "FINISHED"), outcome.text
    assert outcome.result["degraded"].startswith("rank 1: ValueError: the sky fell (")
    assert outcome.tags["runner.degraded"] == outcome.result["degraded"]
    assert "degraded: rank 1: ValueError: the sky fell (" in outcome.events
    assert "goes on from step 8 with 1 worker instead of 2" in outcome.text


def test_fewer_than_the_minimum_is_an_error_at_the_timeout(here):
    waits = ("executor=elastic", "executor.min_workers=2", "executor.timeout_s=3", "executor.cooldown_s=null")
    outcome = here("too-few", *waits, "model.kind=sigkill", "model.rank=1", "model.at=9")
    assert outcome.end == (1, "FAILED", "FAILED"), outcome.text
    too_few = (
        "executor.min_workers=2: after executor.timeout_s=3 there was room for 1; type executor.min_workers=1"
    )
    assert outcome.error.startswith(f"{too_few}; lost: rank 1 ended without a Python error")


def test_too_few_at_the_start(here):
    waits = ("executor.min_workers=2", "executor.timeout_s=2", "executor.discovery='echo host-1'")
    outcome = here("too-few-at-first", "executor=elastic", *waits)
    assert outcome.end == (1, "FAILED", "FAILED"), outcome.text
    assert outcome.error == (
        "executor.min_workers=2: after executor.timeout_s=2 there was room for 1; type executor.min_workers=1"
    )


def test_the_workers_may_change_so_often(here):
    killed = ("model.kind=sigkill", "model.rank=1", "model.at=9")
    outcome = here("reset-limit", "executor=elastic", "executor.reset_limit=0", *killed)
    assert outcome.end == (1, "FAILED", "FAILED"), outcome.text
    assert outcome.error.startswith(
        "the workers changed more often than executor.reset_limit=0; the last time: rank 1"
    )


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
    outcome, found, disturbance = elastic(
        f"ten-{keep}",
        2,
        action,
        10,
        "executor.max_workers=4",
        f"executor.keep={keep}",
        f"trainer.epochs={epochs}",
    )
    for (moment, what, size), stint in zip(disturbance.done, found[1:], strict=False):
        print(f"{what}: {size} workers after {stint.began - moment:.1f} s")
    assert outcome.end == (0, "FINISHED", "FINISHED"), outcome.text
    assert len(disturbance.done) == 10
    assert [stint.size for stint in found] == [2, *(size for _, _, size in disturbance.done)]
    assert_each_row_once(found, epochs)
    steps = 0
    for stint in found:  # the LR and the effective batch right after each change
        forwards = [rows for of, _, rows in kept(found) if of is stint]
        accumulated = 2 if keep == "global_batch" and stint.size == 1 else 1
        batch = 2 * BATCH if keep == "global_batch" else stint.size * BATCH
        assert max(len(rows) for rows in forwards) * accumulated == batch
        assert lr_at(outcome, steps + 1) == pytest.approx(LR * batch / BATCH)
        steps += len(forwards) // accumulated
