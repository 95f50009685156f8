"""What a search may try, from Hydra's sweep syntax, and the way back from the overrides of an earlier job."""

import re

import pytest
from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from runner.errors import ConfigError
from runner.sweep.space import MOST_VALUES, Interval, Values, space
from tests.composed import CONF


def parsed(*texts, loader: ConfigLoader | None = None):
    return OverridesParser.create(config_loader=loader).parse_overrides(list(texts))


def of(*texts):
    return space(parsed(*texts))


def read(override):
    """The value that Hydra reads from `key=value`."""
    (one,) = parsed(override)
    return one.value()


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("1,2", [1, 2]),
        ("choice(0.1,1e-05,-3,1e16)", [0.1, 1e-05, -3, 1e16]),
        ("true,false,null", [True, False, None]),
        ("mlp,cnn", ["mlp", "cnn"]),
        ("'a,b',\"it's\",'1',1", ["a,b", "it's", "1", 1]),
        (r"a\,b,c\ d,e\=f", ["a,b", "c d", "e=f"]),
        ("choice([64],[64,64],[])", [[64], [64, 64], []]),
        ("{a:1},{a:{b:x}}", [{"a": 1}, {"a": {"b": "x"}}]),
        ("choice(x)", ["x"]),
        ("sort(3,1,2)", [1, 2, 3]),
        ("sort(3,1,2,reverse=true)", [3, 2, 1]),
        ("shuffle(3,1,2)", [3, 1, 2]),  # a search has an order of its own
        ("int(1.5,2)", [1, 2]),
        ("a,b,a", ["a", "b"]),  # once is enough
        ("${seed},${trainer.epochs}", ["${seed}", "${trainer.epochs}"]),
    ],
)
def test_values_without_an_order_are_categories(written, values):
    axis = of(f"key={written}").axes["key"]
    assert axis.distribution() == CategoricalDistribution(axis.texts)
    assert [read(f"key={axis.text(name)}") for name in axis.distribution().choices] == values


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("range(1,5)", [1, 2, 3, 4]),
        ("range(3)", [0, 1, 2]),
        ("range(1,9,2)", [1, 3, 5, 7]),
        ("range(5,1,-2)", [5, 3]),
        ("range(0,0.5,0.2)", [0.0, 0.2, 0.4]),
        ("shuffle(range(1,5))", [1, 2, 3, 4]),
        ("float(range(1,3))", [1.0, 2.0]),
    ],
)
def test_the_values_of_a_range_keep_their_order(written, values):
    axis = of(f"key={written}").axes["key"]
    assert axis.distribution() == IntDistribution(0, len(values) - 1)
    found = [read(f"key={axis.text(place)}") for place in range(len(values))]
    assert found == pytest.approx(values, rel=1e-12)  # Hydra adds 0.2 up, in decimals of the binary number
    assert list(map(type, found)) == list(map(type, values))


@pytest.mark.parametrize(
    ("written", "distribution"),
    [
        ("interval(0.001,0.1)", FloatDistribution(0.001, 0.1)),
        ("interval(1,8)", FloatDistribution(1, 8)),
        ("interval(0,0)", FloatDistribution(0, 0)),
        ("tag(log,interval(1e-5,1))", FloatDistribution(1e-05, 1, log=True)),
        ("int(interval(1,8))", IntDistribution(1, 8)),
        ("tag(log,int(interval(1,256)))", IntDistribution(1, 256, log=True)),
    ],
)
def test_an_interval_is_numbers_between_its_ends(written, distribution):
    axis = of(f"key={written}").axes["key"]
    assert axis.distribution() == distribution
    assert type(axis.distribution()) is type(distribution)


@pytest.mark.parametrize(
    "number", [0.1, 1e-05, 1 / 3, 5e-324, 1.7976931348623157e308, 1e16, 123456789.123, -0.25, 1.0]
)
def test_a_number_of_an_interval_is_read_again_to_the_last_bit(number):
    axis = Interval(-1.0, 2e308 if number > 1e300 else 1e300)
    assert read(f"key={axis.text(number)}") == number == axis.parameter(axis.text(number))
    assert type(read(f"key={axis.text(number)}")) is float


def test_groups_are_tried_as_well_those_of_a_glob_too():
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        axes = space(
            parsed("model=mlp,cnn", "loss=glob(*)", "metrics=glob(*,exclude=[auto,multi*])", loader=loader)
        ).axes
    assert axes == {
        "model": Values(("mlp", "cnn")),
        "loss": Values(("auto", "huber")),
        "metrics": Values(("classification", "regression")),
    }


def test_a_job_has_the_overrides_in_the_order_of_the_command_and_the_last_of_a_key():
    found = of(
        "model=mlp",
        "optimizer.lr=0.1,0.2",
        "+model.a='b c'",
        "seed=1,2",
        "~tracking",
        "model=cnn",
        "seed=range(3)",
    )
    assert found.points == 6
    jobs = [found.overrides(found.point(number)) for number in range(6)]
    assert jobs[0] == ("model=cnn", "optimizer.lr=0.1", "+model.a='b c'", "seed=0", "~tracking=null")
    assert [(job[1], job[3]) for job in jobs] == [
        (f"optimizer.lr={lr}", f"seed={seed}") for lr in ("0.1", "0.2") for seed in (0, 1, 2)
    ]


def test_a_key_has_several_values_or_one_as_it_was_last_said():
    assert of("a=1,2", "b=1", "a=3", "b=1,2").axes == {"b": Values(("1", "2"))}
    assert of("a=1,2", "b=1", "a=3", "b=1,2").fixed == {"a": "3"}


def test_the_overrides_of_an_earlier_job_are_parameters_again():
    found = of("a='x,y',z", "b=range(0.5,3)", "c=interval(0,1)", "d=int(interval(1,8))", "model=mlp")
    assert found.points is None
    parameters = {"a": "'x,y'", "b": 2, "c": 0.1, "d": 8}
    overrides = found.overrides(parameters)
    assert overrides == ("a='x,y'", "b=2.5", "c=0.1", "d=8", "model=mlp")
    assert found.parameters(overrides) == parameters
    assert found.parameters(("model=cnn", "d=8", "c=1e-1", "b=2.50", "a='x,y'", "new=1")) == parameters


@pytest.mark.parametrize(
    "changed",
    [
        "a=y",
        "b=2.6",
        "b=3.5",
        "c=1.01",
        "c=-0.1",
        "c=x",
        "c=nan",
        "c=true",
        "d=9",
        "d=2.5",
        "d=null",
        "d=",
        "c=[1]",
        "a=(",
        "c=1,2",
    ],
)
def test_what_is_not_in_today_s_space_has_no_parameters(changed):
    found = of("a='x,y',z", "b=range(0.5,3)", "c=interval(0,1)", "d=int(interval(1,8))")
    sound = {"a": "'x,y'", "b": "2.5", "c": "0.1", "d": "8"}
    key, _, value = changed.partition("=")
    assert found.parameters([f"{key}={value}" for key, value in sound.items()])
    assert found.parameters([f"{key}={value}" for key, value in {**sound, key: value}.items()]) is None
    assert found.parameters(["a=z", "b=2.5", "c=0.1"]) is None


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("lr=tag(log,interval(0,1))", "lr=tag(log,interval(0,1)): a logarithm needs numbers above 0; type 'lr=tag(log,interval(0.001,1))'"),
        ("lr=tag(ln,interval(1,2))", "lr=tag(ln,interval(1,2)): the only tag is log, of an interval; type 'lr=tag(log,interval(0.001,1))'"),
        ("lr=tag(log,range(1,5))", "lr=tag(log,range(1,5)): the only tag is log, of an interval; type 'lr=tag(log,interval(0.001,1))'"),
        ("lr=interval(2,1)", "lr=interval(2,1): an interval goes from a number to a larger one; type 'lr=interval(0.001,1)'"),
        ("lr=interval(0,inf)", "lr=interval(0,inf): an interval goes from a number to a larger one; type 'lr=interval(0.001,1)'"),
        ("lr=interval(nan,1)", "lr=interval(nan,1): an interval goes from a number to a larger one; type 'lr=interval(0.001,1)'"),
        ("lr=range(1,5,0)", "lr=range(1,5,0): a range has finite bounds and a step other than 0; type 'lr=range(1,5)'"),
        ("lr=range(0,inf)", "lr=range(0,inf): a range has finite bounds and a step other than 0; type 'lr=range(1,5)'"),
        ("lr=range(1,5,-1)", "lr=range(1,5,-1): there is no such value"),
        (f"lr=range({MOST_VALUES + 1})", "lr=range(10001): has more than 10000 values; type 'lr=interval(0,10001)'"),
        ("lr=range(1,0,-1e-12)", "lr=range(1,0,-1e-12): has more than 10000 values; type 'lr=interval(0,1)'"),
        ("search.seed=1,2", "search.seed=1,2: is said of the whole sweep, so it has one value"),
        ("sweep=choice(a,b)", "sweep=choice(a,b): is said of the whole sweep, so it has one value"),
    ],
)  # fmt: skip
def test_what_cannot_be_searched_is_refused_in_a_line(written, said):
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}$"):
        of(written)
