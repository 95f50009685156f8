"""What Hydra calls: our sweeper and launcher, from parsed arguments to the jobs that a sweep is asked to run."""

from pathlib import Path

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus, setup_globals
from hydra.types import HydraContext, RunMode
from omegaconf import OmegaConf

from runner import secrets
from runner.errors import ConfigError
from runner.schema import Mode
from runner.sweep import search as searches
from runner.sweep.source import Listed
from runner.sweep.space import space
from runner.sweep_schema import Method
from tests.composed import CONF
from tests.fakes import make_experiment

LOG = "optimizer.lr=tag(log,interval(0.001,1))"


class Jobs:
    """Runner's own task function: keeps what a sweep would be started with."""

    def __init__(self, values=None):
        self.values, self.asked = values or {}, None

    def __call__(self, composed):
        raise AssertionError("a multirun is no single job")

    def sweep(self, compose, folder, typed, first, common, open_source, yaml):
        self.compose, self.folder, self.typed, self.first = compose, folder, list(typed), list(first)
        self.common, self.open_source, self.yaml = common, open_source, yaml
        return self.values


@pytest.fixture
def context(tmp_path, monkeypatch):
    """Gives (Hydra's context, the config of a command line), in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    for name, empty in (("_known", set()), ("_uris", {}), ("_pattern", None)):
        monkeypatch.setattr(secrets, name, empty)
    GlobalHydra.instance().clear()
    setup_globals()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()

        def of(*overrides):
            return HydraContext(loader, None), loader.load_configuration(
                "config", list(overrides), RunMode.MULTIRUN
            )

        yield of


def plugin(kind, context, jobs, *overrides):
    """Ours, as Hydra makes it of the config (it loads its plugins' modules anew: their classes are not those of an import)."""
    hydra_context, config = context(*overrides)
    make = getattr(Plugins.instance(), f"instantiate_{kind}")
    return make(hydra_context=hydra_context, task_function=jobs, config=config)


def swept(context, *arguments):
    """The jobs that our own sweeper and launcher ask for."""
    jobs = Jobs()
    single = (each for each in arguments if "," not in each and "(" not in each)
    sweeper = plugin("sweeper", context, jobs, *single)
    assert type(sweeper).__name__ == "RunnerSweeper"  # conf/config.yaml selects it
    sweeper.sweep(list(arguments))
    return jobs


def trials(jobs, **settings):
    source = jobs.open_source(make_experiment({k.replace("__", "."): v for k, v in settings.items()}), [])
    return [trial.overrides for trial in iter(source.next, None)]


def test_a_grid_is_what_hydra_s_own_sweeper_makes_of_it(context):
    jobs = swept(context, "optimizer=sgd,adam", "seed=range(1,3)", "trainer.epochs=4")
    assert jobs.typed == ["optimizer=sgd,adam", "seed=range(1,3)", "trainer.epochs=4"]
    assert jobs.first == ["optimizer=sgd", "seed=1", "trainer.epochs=4"]
    assert jobs.common == ["trainer.epochs=4"]
    assert trials(jobs) == [
        ("optimizer=sgd", "seed=1", "trainer.epochs=4"),
        ("optimizer=sgd", "seed=2", "trainer.epochs=4"),
        ("optimizer=adam", "seed=1", "trainer.epochs=4"),
        ("optimizer=adam", "seed=2", "trainer.epochs=4"),
    ]
    assert jobs.folder.is_absolute()
    assert jobs.folder.is_relative_to(Path.cwd() / "outputs/multiruns")


def test_a_job_composed_by_the_launcher_is_the_one_hydra_s_resolvers_see(context):
    jobs = swept(context, "optimizer=sgd,adam")
    job = jobs.compose(["optimizer=adam"], 7, jobs.folder)
    assert job.optimizer._target_ == "torch.optim.Adam"
    assert HydraConfig.get().job.num == 7
    assert HydraConfig.get().runtime.output_dir == str(jobs.folder / "7")
    assert Path(OmegaConf.to_container(job.hydra)["sweep"]["dir"]) != jobs.folder  # unresolved, …
    assert Path(job.hydra.sweep.dir).absolute() == jobs.folder  # … with the command's time


def test_an_interval_is_refused_by_a_grid_with_what_to_type(context):
    jobs = swept(context, LOG, "seed=1,2")
    assert jobs.first == ["optimizer.lr=0.001", "seed=1"]
    with pytest.raises(ConfigError) as refused:
        trials(jobs)
    assert str(refused.value) == (
        f"{LOG}: a grid needs values, not an interval; type optimizer.lr=0.1,0.01, or search=tpe"
    )


def test_another_search_is_opened_with_the_goal_s_direction(context, monkeypatch):
    asked = []
    monkeypatch.setattr(searches, "open_search", lambda *arguments: asked.append(arguments) or Listed([]))
    jobs = swept(context, LOG)
    settings = {"search__method": Method.tpe, "checkpoint__mode": Mode.max}
    assert trials(jobs, **settings) == []
    ((search, overrides, maximise, earlier),) = asked
    assert (search.method, maximise, earlier) == (Method.tpe, True, [])
    assert [override.input_line for override in overrides] == [LOG]
    trials(jobs, search__method=Method.asha)
    assert asked[1][2] is False


def test_a_batch_of_a_foreign_sweeper_is_run_and_its_values_given_back(context):
    jobs = Jobs({5: 0.5, 6: None})
    launcher = plugin("launcher", context, jobs, "trainer.epochs=2")
    assert type(launcher).__name__ == "WarmLauncher"
    batch = [["seed=1", "study=null", "optimizer.lr=0.5"], ["seed=2", "study=null"], ["study=null", "seed=3"]]
    returned = launcher.launch(batch, 5)
    assert [each.return_value for each in returned] == [0.5, None, None]
    assert {each.status for each in returned} == {JobStatus.COMPLETED}
    assert [each.overrides for each in returned] == batch
    assert jobs.typed == ["seed=1 study=null optimizer.lr=0.5", "seed=2 study=null", "study=null seed=3"]
    assert (jobs.first, jobs.common) == (batch[0], ["study=null"])
    source = jobs.open_source(make_experiment(), [])
    assert [(trial.number, trial.overrides) for trial in iter(source.next, None)] == [
        (5 + index, tuple(overrides)) for index, overrides in enumerate(batch)
    ]


def test_our_sweeper_leaves_jobs_to_another_launcher(context, monkeypatch):
    launched = []
    sweeper = plugin("sweeper", context, Jobs(), "hydra/launcher=basic")

    def launch(job_overrides, initial_job_idx):
        launched.append((job_overrides, initial_job_idx))
        return [JobReturn(status=JobStatus.COMPLETED) for _ in job_overrides]

    monkeypatch.setattr(sweeper.launcher, "launch", launch)
    sweeper.sweep(["seed=1,2"])
    assert launched == [([["seed=1"], ["seed=2"]], 0)]


def test_what_hydra_made_of_the_command_is_kept_without_secrets(context):
    jobs = swept(context, "seed=1,2", "tracking.uri=postgresql://me:verysecretword@host/db")
    assert "verysecretword" not in jobs.yaml
    assert OmegaConf.create(jobs.yaml).tracking.uri == f"postgresql://{secrets.MASK}@host/db"
    job = jobs.compose(["tracking.uri=postgresql://me:verysecretword@host/db", "seed=1"], 0, jobs.folder)
    assert job.tracking.uri == "postgresql://me:verysecretword@host/db"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["seed=1"], ("seed=1",)),
        (["seed=3,1,2"], ("seed=3",)),
        (["model=mlp,cnn", "model.hidden=[8],[16]"], ("model=mlp", "model.hidden=[8]")),
        (["seed=range(5,9,2)"], ("seed=5",)),
        (["tracking.run_name='a b','c d'"], ("tracking.run_name='a b'",)),
        ([LOG], ("optimizer.lr=0.001",)),
        (["+model.wider=1,2"], ("+model.wider=1",)),
        (["seed=1,2", "seed=7"], ("seed=7",)),  # the last one of a key counts
    ],
)
def test_the_job_that_stands_for_all_has_the_first_of_each_value(overrides, expected):
    assert space(OverridesParser.create().parse_overrides(overrides)).first() == expected
