"""One experiment by every executor: what it comes to, how it goes on, what a lost or failing rank does. Prints a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.faults.outcome import Outcome

COLUMNS = ("train", "exception", "resume", "SIGKILL", "hash at 2 workers")
WORKERS = {"local": 1}  # of the others: 2
NO_CELL = {
    ("local", "SIGKILL"): "its one process is the driver's: see rows 14 and 15",
    ("local", "hash at 2 workers"): "one process; at one worker it is that of horovod_trainer",
}
EXECUTORS = ("horovod_trainer", "local", "elastic")
OPTIONS = {"elastic": ("executor.min_workers=2", "executor.commit_steps=1")}
IN_EVERY_TEST = ("local",)  # the default is in all tests; the others' cells are filled by make faults
_cells: dict[tuple[str, str], str] = {}

Run = Callable[..., Outcome]


def each(*executors: str) -> list[object]:
    return [
        pytest.param(name, marks=() if name in IN_EVERY_TEST else pytest.mark.faults) for name in executors
    ]


@pytest.fixture(scope="module", autouse=True)
def table(request: pytest.FixtureRequest) -> Iterator[None]:
    """Printed at the end, as far as it was filled."""
    yield
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    rows = [["executor", *COLUMNS]]
    for executor in EXECUTORS:
        cells = [_cells.get((executor, column)) or NO_CELL.get((executor, column), "–") for column in COLUMNS]
        rows.append([executor, *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    reporter.write_line("")
    for row in rows:
        reporter.write_line("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)))


@pytest.fixture
def by(here: Run) -> Run:
    """by(executor, name, *overrides, verb=None) → the outcome of a run by it."""

    def run(executor: str, name: str, *overrides: str, verb: str | None = None) -> Outcome:
        chosen = (f"executor={executor}", f"scaling.num_workers={WORKERS.get(executor, 2)}")
        chosen += ("model.alone=true",) if executor == "local" else ()
        chosen += OPTIONS.get(executor, ())
        return here(f"{executor}-{name}", *(() if verb else chosen), *overrides, verb=verb)

    return run


@pytest.mark.parametrize("executor", each(*EXECUTORS))
def test_it_trains_to_the_same_weights(by, uninterrupted, executor):
    outcome = by(executor, "whole")
    outcome.assert_equals(uninterrupted(WORKERS.get(executor, 2)))
    _cells[executor, "train"] = f"{outcome.result['seconds']['total']:.1f} s"
    if executor not in WORKERS:
        _cells[executor, "hash at 2 workers"] = outcome.result["weights_sha256"][:12]


@pytest.mark.parametrize("executor", each(*EXECUTORS))
def test_an_exception_is_told_and_the_run_goes_on_from_its_checkpoint(by, uninterrupted, executor):
    rank = WORKERS.get(executor, 2) - 1
    failed = by(executor, "raises", "model.kind=raises", f"model.rank={rank}", "model.at=9")
    assert failed.end == (1, "FAILED", "FAILED"), failed.text
    assert f"rank {rank}: ValueError: the sky fell" in failed.text
    _cells[executor, "exception"] = f"rank {rank}, {failed.result['error'].partition(' (')[0]!r}"
    resumed = by(executor, "raises", verb="resume")
    resumed.assert_equals(uninterrupted(WORKERS.get(executor, 2)))
    (line,) = [line for _, line in resumed.lines if line.startswith("goes on from step-")]
    _cells[executor, "resume"] = f"{line}, hash equal"


@pytest.mark.parametrize("executor", each(*(name for name in EXECUTORS if (name, "SIGKILL") not in NO_CELL)))
def test_a_killed_rank_costs_a_restart_and_no_bit(by, uninterrupted, executor):
    killed = ("model.kind=sigkill", "model.rank=1", "model.at=9", "model.after=step-00000006")
    outcome = by(executor, "sigkill", *killed)
    assert outcome.end == (0, "FINISHED", "FINISHED"), outcome.text
    outcome.assert_equals(uninterrupted(2))
    if executor == "elastic":  # the other rank lives on
        assert (outcome.result["restarts"], len(outcome.result["changes_of_workers"])) == (0, 1)
        assert "goes on from step 8 with 2 workers: global batch 32" in outcome.text
    else:
        assert outcome.result["restarts"] == 1
    told = "rank 1 " if executor == "elastic" else "restart 1 of 3: rank 1 "
    _cells[executor, "SIGKILL"] = f"seen {outcome.seen(told):.1f} s, hash equal"
