"""A population on the driver: what its members hear, how they end, and when all of them are done again. Tune is a stand-in."""

from dataclasses import replace
from pathlib import Path

import pytest

from runner.diagnosis import Diagnosis
from runner.errors import TrainingError
from runner.executors.board import Board
from runner.executors.tuned import PopulationBoard
from runner.job import Memory
from runner.sweep.job import IDENTITY, Action
from runner.sweep.population import Member, Population, member_of, whole
from tests.fakes import make_experiment, plan_for
from tests.sweeps import begun, job_of
from tests.test_worker import job_of as training_of

OPTIONS = {"optimizer.lr": 0.1, "optimizer.momentum": 0.9}
RATE = "lr 0.12 (base, batch 32) × 2 (linear: 64/32) = 0.24"


class Tune(Population):
    """Its events are given."""

    def __init__(self, *batches):
        self._batches, self.joined, self.ended = list(batches), [], []
        self.broken = None

    def join(self, number, job, memory, resources):
        self.joined.append((number, resources.num_workers))

    def events(self, since):
        self.asked = since
        return self._batches.pop(0)

    def end(self, why):
        self.ended.append(why)

    def diagnose(self, job, since, account):
        return Diagnosis(TrainingError(account), account.startswith("final"))


@pytest.fixture
def ended(monkeypatch):
    """Why any population was ended."""
    said = []
    monkeypatch.setattr(Tune, "end", lambda self, why: said.append(why))
    return said


@pytest.fixture
def trained(tmp_path):
    def train(*batches, number=1):
        tune, received, restarted = Tune(*batches), [], []
        member = Member(tune, number, make_experiment({"trainer.max_failures": 1}), dict(OPTIONS))
        job = training_of(tmp_path)
        try:
            member.train(job, Memory({}), None, received.append, lambda *each: restarted.append(each))
        finally:
            member.release()
            member.release()
        return tune, received, restarted

    return train


def resumed(**values):
    plain = {
        "resumed": "step-00000046",
        "history": [],
        "took_over": None,
        "options": OPTIONS,
        "learning_rate": RATE,
    }
    return {**plain, **values}


def test_a_member_hears_its_own_reports_until_its_end(trained):
    tune, received, _ = trained(
        [("report", 0, {"history": [1]}), ("report", 1, {"history": [2]})],
        [],
        [("ended", 0, None), ("report", 1, {"best": {}}), ("ended", 1, None)],
    )
    assert received == [{"history": [2]}, {"best": {}}]
    assert (tune.joined, tune.asked, tune.ended) == ([(1, 1)], 2, [])


def test_a_pause_says_nothing_and_a_take_over_is_an_event_with_what_changed(trained):
    first, second = {**OPTIONS, "optimizer.lr": 0.12}, {"optimizer.lr": 0.12, "optimizer.momentum": 0.9}
    _, received, _ = trained(
        [("report", 1, resumed())],
        [("report", 1, resumed(options=first, took_over=(3, 6)))],
        [("report", 1, resumed(options=second, took_over=(0, 8)))],
        [("ended", 1, None)],
    )
    assert received == [
        {"resumed": "step-00000046", "history": [], "event": None},
        {
            "resumed": "step-00000046",
            "history": [],
            "event": f"took over job 3 at epoch 6: optimizer.lr 0.1 → 0.12; {RATE}",
            "changed": ["optimizer.lr=0.12", "optimizer.momentum=0.9"],
        },
        {
            "resumed": "step-00000046",
            "history": [],
            "event": f"took over job 0 at epoch 8: its options stay; {RATE}",
            "changed": ["optimizer.lr=0.12", "optimizer.momentum=0.9"],
        },
    ]


def test_a_lost_process_is_a_restart_of_that_member(trained):
    tune, _, restarted = trained(
        [("recovers", 1, "rank 1 died")], [("recovers", 0, "rank 0 died")], [("ended", 1, None)]
    )
    assert restarted == [(1, "rank 1 died")]
    assert tune.ended == []


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        ([[("recovers", 1, "final: a ValueError")]], "^final: a ValueError$"),
        ([[("failed", 1, "it did not start")]], "^it did not start$"),
        (
            [[("recovers", 1, "rank 1 died")], [("failed", 1, "rank 0 died")]],
            r"^rank 0 died; 1 restart did not help \(trainer\.max_failures=1\)$",
        ),
    ],
)
def test_a_member_that_cannot_go_on_ends_all(trained, ended, batches, said):
    with pytest.raises(TrainingError, match=said):
        trained(*batches)
    assert ended == ["job 1 failed, and a population goes on as a whole"]


def test_a_training_that_diverged_at_its_end_fails_alone(trained):
    with pytest.raises(TrainingError, match="all ranks: step 9: the loss is not finite"):
        trained([("ended", 1, "step 9: the loss is not finite")])


# The population


def population_of(size=2):
    members = type("Members", (), {"options": [OPTIONS] * size, "space": {}})()
    return Population(make_experiment(), members, Path("/ray"))


def test_there_is_room_for_all_members_whatever_the_machine_has():
    assert population_of(5).room(plan_for(2, 8).resources) == 5


def test_after_an_end_all_members_say_why(tmp_path):
    population = population_of()
    population.end("job 1 failed")
    population.end("job 0 failed")
    with pytest.raises(TrainingError, match="job 1 failed"):
        population.events(0)


def test_after_a_stop_all_members_are_interrupted():
    population = population_of()
    population.stop()
    with pytest.raises(KeyboardInterrupt):
        population.events(0)
    with pytest.raises(KeyboardInterrupt):
        population.lease(0, make_experiment(), plan_for(2, 8).resources, Path("/run"))


def test_the_board_tells_of_failures_and_remembers_who_was_restarted():
    board = PopulationBoard()
    assert isinstance(board, Board)
    board.recovers(2, "why")
    board.failed(0, "why not")
    assert board.events(0, 1) == [("recovers", 2, "why"), ("failed", 0, "why not")]
    assert [board.is_restarted(number) for number in range(3)] == [False, False, True]
    assert board.is_over() is False


# Whether it is done again


def test_a_member_is_like_no_other_run_but_that_of_its_sweep(tmp_path):
    job = job_of(tmp_path)
    first, again, other = (member_of(job, sweep) for sweep in ("sweep", "sweep", "other sweep"))
    assert first.identity == again.identity == first.request.tags[IDENTITY]
    assert len({job.identity, first.identity, other.identity}) == 3
    assert member_of(replace(job, trial=replace(job.trial, number=1)), "sweep").identity != first.identity


def test_a_population_is_cached_whole_or_begins_anew_in_folders_of_its_own(tmp_path):
    said = []
    cached = [replace(job_of(tmp_path, number), action=Action.CACHED) for number in range(2)]
    assert whole(cached, said.append) == cached
    fresh = [job_of(tmp_path, number) for number in range(2)]
    assert whole(fresh, said.append) == fresh
    assert said == []
    stood = begun(tmp_path / "1")
    request = replace(fresh[1].request, resumes=stood)
    found = whole([cached[0], replace(fresh[1], action=Action.RESUME, request=request)], said.append)
    assert [(job.action, job.request.run_dir.name, job.request.resumes) for job in found] == [
        (Action.RUN, "0", None),
        (Action.RUN, "1-1", None),
    ]
    assert said == ["a population goes on as a whole: this one was not finished, and starts anew"]
