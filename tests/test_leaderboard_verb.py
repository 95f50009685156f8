"""`python -m runner leaderboard` on a real store, and what a launcher calls at the end of a sweep."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from mlflow import MlflowClient
from rich.console import Console

from runner.__main__ import run
from runner.errors import ConfigError, PreflightError
from runner.report import leaderboard_files, leaderboard_plots
from runner.report.console import Screen
from runner.report.leaderboard import Row, board
from runner.schema import Mode
from runner.tracking import NullRecord
from runner.tracking.found import find, stored
from runner.verbs.leaderboard import USAGE, leaderboard

FILES = {"leaderboard.csv", "leaderboard.html", "parallel.png", "parameters.png"}


class Store:
    """A sweep of four jobs, whose folder has an apostrophe; an older one whose folder is gone; a run that is none."""

    def __init__(self, folder: Path) -> None:
        self.uri = f"sqlite:///{folder}/mlflow.db"
        self.client = MlflowClient(self.uri)
        self._experiment = self.client.create_experiment("e", (folder / "artifacts").as_uri())
        self.folder = folder / "it's" / "10-00-00"
        self.folder.mkdir(parents=True)
        self.single = self._run(10, {"runner.kind": "run"})
        self.older = self._run(20, self._kind(folder / "gone", "val/accuracy", "max"))
        self.job = self._run(21, self._asked(self.older, 0, "FINISHED", "a=1"), {"best/val/accuracy": 0.5})
        self.sweep = self._run(30, self._kind(self.folder, "val/loss", "min"))
        for number, value in enumerate((0.5, 0.25)):
            asked = self._asked(
                self.sweep, number, "FINISHED", f"optimizer.lr={10**-number}", "x.token=abcdefgh"
            )
            metrics = {"best/val/loss": value, "best/val/f1": 0.75, "epoch": 3.0, "seconds/total": 12.0}
            self._run(31 + number, asked, metrics)
        pruned = {"runner.pruned": "after 1 of 3 epochs"}
        self._run(
            33, self._asked(self.sweep, 2, "PRUNED", "optimizer.lr=2") | pruned, {"best/val/loss": 0.75}
        )
        failed = {"runner.error": "rank 0: ValueError: no"}
        self._run(34, self._asked(self.sweep, 3, None, "optimizer.lr=4") | failed, status="FAILED")
        self.empty = self._run(5, self._kind(folder / "empty", "val/loss", "min"))

    def _run(
        self,
        start: int,
        tags: dict[str, str],
        metrics: dict[str, float] | None = None,
        status: str = "FINISHED",
    ) -> str:
        run = self.client.create_run(self._experiment, start_time=start, tags=tags, run_name=f"run {start}")
        for name, value in (metrics or {}).items():
            self.client.log_metric(run.info.run_id, name, value)
        self.client.set_terminated(run.info.run_id, status)
        return str(run.info.run_id)

    def _kind(self, folder: Path, monitor: str, mode: str) -> dict[str, str]:
        tags = {"kind": "multirun", "run_dir": str(folder), "monitor": monitor, "mode": mode}
        return {f"runner.{name}": value for name, value in tags.items()}

    def _asked(self, parent: str, number: int, status: str | None, *overrides: str) -> dict[str, str]:
        tags = {
            "mlflow.parentRunId": parent,
            "runner.job": str(number),
            "runner.overrides": json.dumps(overrides),
        }
        return tags | ({"runner.status": status} if status else {})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One for this file: creating it takes seconds."""
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def screen() -> tuple[Screen, io.StringIO]:
    output = io.StringIO()
    return Screen(Console(file=output, highlight=False, soft_wrap=True)), output


def said(*arguments: str) -> list[str]:
    """Lines of the command, which ends well."""
    shown, output = screen()
    assert leaderboard(list(arguments), shown) == 0
    return output.getvalue().splitlines()


def test_without_a_name_it_is_the_newest_sweep(store: Store) -> None:
    lines = said(f"tracking.uri={store.uri}")
    assert lines == [
        "── leaderboard of run 30: best val/loss, lower is better",
        "   job  val/loss  optimizer.lr  x.token   val/f1  epochs  time  status",
        "1  1    0.25      0.1           <secret>  0.75    3       12 s  FINISHED",
        "2  0    0.5       1             <secret>  0.75    3       12 s  FINISHED",
        "3  2    0.75      2             –         –       –       –     PRUNED after 1 of 3 epochs",
        "4 jobs: 2 finished, 1 pruned, 1 failed",
        "job 3 FAILED: rank 0: ValueError: no  [optimizer.lr=4]",
        f"page {store.folder}/leaderboard/leaderboard.html",
    ]
    folder = store.folder / "leaderboard"
    assert {path.name for path in folder.iterdir()} == FILES
    with (folder / "leaderboard.csv").open(newline="") as file:
        assert [row["job"] for row in csv.DictReader(file)] == ["1", "0", "2", "3"]
    assert (
        "abcdefgh" not in (folder / "leaderboard.html").read_text() + (folder / "leaderboard.csv").read_text()
    )


def test_a_sweep_is_named_by_its_run_or_by_its_folder(store: Store) -> None:
    newest = said(f"tracking.uri={store.uri}")
    assert said(store.sweep, f"tracking.uri={store.uri}") == newest
    assert said(f"sweep={store.folder}/", f"tracking.uri={store.uri}") == newest
    assert said(str(store.folder), f"tracking.uri={store.uri}") == newest


def test_where_the_sweep_s_folder_is_gone_the_files_are_under_outputs(store: Store, here: Path) -> None:
    lines = said(f"sweep={store.older}", f"tracking.uri={store.uri}")
    assert lines[-1] == f"page outputs/leaderboards/{store.older}/leaderboard.html"
    assert lines[2].split() == ["1", "0", "0.5", "–", "–", "FINISHED"]  # one job: no override differs
    written = {path.name for path in (here / "outputs" / "leaderboards" / store.older).iterdir()}
    assert written == {"leaderboard.csv", "leaderboard.html"}


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("sweep={job}", "sweep={job}: a job, not a sweep; type sweep={older}"),
        ("sweep={single}", f"sweep={{single}}: no sweep: its run does not say by which metric jobs are ranked; type {USAGE}"),
        ("{none}", "sweep={none}: {uri} has no such run; type tracking.uri=… of the store that has it"),
        ("nowhere", f"sweep=nowhere: neither the MLflow run of a sweep nor the folder of one that {{uri}} has; type {USAGE}"),
        ("{empty}", "sweep={empty}: none of its jobs is in MLflow yet; type python -m runner sync, then this again"),
        ("model=mlp", f"leaderboard: model=mlp is no argument of it; type {USAGE}"),
    ],
)  # fmt: skip
def test_what_is_no_sweep_is_refused_in_a_line(store: Store, argument: str, message: str) -> None:
    names = {
        "job": store.job,
        "older": store.older,
        "single": store.single,
        "none": "0" * 32,
        "empty": store.empty,
    }
    with pytest.raises(ConfigError) as refused:
        said(argument.format(**names), f"tracking.uri={store.uri}")
    assert str(refused.value) == message.format(**names, uri=store.uri)
    assert refused.value.exit_code == 2


def test_without_a_store_or_a_sweep_in_it_that_is_said(here: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^leaderboard: sqlite:////.*/outputs/mlflow.db has no sweep; type python -m"
    ):
        run(["leaderboard"])
    assert not list(here.rglob("mlflow.db"))
    with pytest.raises(ConfigError, match=r"^sweep=0{32}: sqlite:////nowhere/x.db has no such run"):
        run(["leaderboard", "0" * 32, "tracking.uri=sqlite:////nowhere/x.db"])
    with pytest.raises(PreflightError, match=r"^tracking.uri=http://127.0.0.1:9: nothing answers there"):
        run(["leaderboard", "tracking.uri=http://127.0.0.1:9"])


def test_runs_are_found_by_tags_with_either_quote_and_by_their_id(store: Store) -> None:
    assert [each.run_id for each in find(store.uri, {"runner.run_dir": str(store.folder)})] == [store.sweep]
    assert [each.run_id for each in find(store.uri, {"runner.kind": "multirun"})] == [
        store.sweep,
        store.older,
        store.empty,
    ]
    found = stored(store.uri, store.job)
    assert found is not None
    assert (found.name, found.metrics) == ("run 21", {"best/val/accuracy": 0.5})
    assert stored(store.uri, "0" * 32) is None
    assert stored("sqlite:////nowhere/x.db", store.job) is None


class Record(NullRecord):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.artifacts: list[Path] = []

    def log_artifact(self, path: Path) -> None:
        self.artifacts.append(path)


ENDED = board(
    "s", None, "val/loss", Mode.min, [Row(job, (f"a={job}",), "FINISHED", 0.5 + job) for job in range(3)]
)


def test_the_end_of_a_sweep_is_shown_written_and_logged(here: Path) -> None:
    (shown, output), record = screen(), Record()
    leaderboard_files.report(ENDED, here / "sweep" / "leaderboard", record, shown)
    assert output.getvalue().splitlines()[0] == "── leaderboard of s: best val/loss, lower is better"
    assert {path.name for path in (here / "sweep" / "leaderboard").iterdir()} == FILES
    assert record.artifacts == [here / "sweep" / "leaderboard"]


def test_a_plot_that_fails_costs_a_line(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ValueError("no colours left")

    monkeypatch.setattr(leaderboard_plots, "draw", fails)
    (shown, output), record = screen(), Record()
    leaderboard_files.report(ENDED, here, record, shown)
    line = "the leaderboard's plots could not be written: ValueError: no colours left"
    assert output.getvalue().splitlines()[-2:] == [line, "page leaderboard.html"]
    assert record.artifacts == [here]


def test_a_folder_that_cannot_be_made_costs_lines(here: Path) -> None:
    (here / "file").touch()
    shown, output = screen()
    assert not leaderboard_files.write(ENDED, here / "file" / "leaderboard", shown)
    assert [line.split(":")[0] for line in output.getvalue().splitlines()] == [
        f"the leaderboard's {name} could not be written" for name in ("table", "page", "plots")
    ]
