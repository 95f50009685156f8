"""search=pbt: what a population may search over, and the first options of its members. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from hydra.core.override_parser.types import Override

from runner import ranges
from runner.errors import ConfigError, refuse
from runner.options import MAY_CHANGE, Bounds, may_change, with_options
from runner.schema import Experiment, Ingest
from runner.sweep.source import Listed
from runner.sweep.space import Interval, Space, Values, space

MOST = 64  # members


class Members(Listed):
    """The jobs are the members with their first options; `options` has those by number, `space` what they may become."""

    def __init__(self, found: Space, drawn: Sequence[dict[str, float]]) -> None:
        super().__init__([overrides(found, each) for each in drawn])
        self.options = list(drawn)
        self.space = {key: numbers(key, axis) for key, axis in found.axes.items()}


def open_population(settings: Experiment, typed: Sequence[Override]) -> Members:
    """Raises ConfigError for what a population cannot search over, or not with these settings."""
    search, found = settings.search, space(typed)
    if not found.axes:
        example = "'optimizer.lr=tag(log,interval(0.001,1))'"
        raise refuse("search.method", "pbt", "no key has several values to search over", example)
    for key, axis in found.axes.items():
        for number in ends(numbers(key, axis)):
            ranges.check_values(with_options(settings, {key: number}))
    check(settings, found)
    return Members(found, first_options(found, search.population, search.seed))


def numbers(key: str, axis: Values | Interval) -> list[float] | Bounds:
    """Those that an axis may have; a list is in order, as the next one is the neighbour that is tried. Raises ConfigError."""
    text = ",".join(axis.texts) if isinstance(axis, Values) else f"interval({axis.low},{axis.high})"
    if not may_change(key):
        why = f"pbt changes what does not end a training: {MAY_CHANGE}"
        raise refuse(key, text, why, "search=tpe")
    if isinstance(axis, Interval):
        return Bounds(*axis)
    try:
        return sorted({number(each) for each in axis.texts})
    except ValueError as error:
        raise refuse(key, text, "pbt changes numbers", "search=tpe") from error


def number(text: str) -> float:
    """Raises ValueError, also for a number that is not finite."""
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(text)
    return int(text) if text.lstrip("+-").isdecimal() else found


def ends(values: list[float] | Bounds) -> list[float]:
    return values if isinstance(values, list) else [values.low, values.high]


def first_options(found: Space, population: int, seed: int) -> list[dict[str, float]]:
    """Spread over each axis in as many parts as there are members, a part each, in an order of its own (McKay, Beckman and
    Conover 1979, "A Comparison of Three Methods for Selecting Values of Input Variables", Latin hypercube sampling)."""
    drawn = random.Random(seed)
    columns = {}
    for key, axis in found.axes.items():
        parts = drawn.sample(range(population), population)
        values = numbers(key, axis)
        columns[key] = [at(values, (part + drawn.random()) / population) for part in parts]
    return [{key: column[member] for key, column in columns.items()} for member in range(population)]


def at(values: list[float] | Bounds, place: float) -> float:
    """The value at a place from 0 to below 1 of those there are."""
    if isinstance(values, list):
        return values[int(place * len(values))]
    low, high = values.low, values.high + 1 if values.whole else values.high
    where = low * (high / low) ** place if values.log else low + (high - low) * place
    return math.floor(where) if values.whole else min(where, values.high)


def overrides(found: Space, options: dict[str, float]) -> tuple[str, ...]:
    texts = {**found.fixed, **{key: repr(value) for key, value in options.items()}}
    return tuple(f"{key}={texts[key]}" for key in found.order)


def check(settings: Experiment, found: Space) -> None:
    """What a population needs of all the rest. Raises ConfigError."""
    search, trainer = settings.search, settings.trainer
    every, per = search.perturb_every_epochs, trainer.validate_every_epochs
    if search.population > MOST:
        raise refuse("search.population", search.population, f"{MOST} at most", f"search.population={MOST}")
    if search.trials is not None:
        why = "all members of a population are there from the start"
        raise refuse("search.trials", search.trials, why, f"search.population={min(search.trials, MOST)}")
    if settings.sweep.max_concurrent is not None:
        why = "Tune trains as many members at a time as there are CPUs for"
        raise _not_with(
            "sweep.max_concurrent", settings.sweep.max_concurrent, why, "scaling.resources_per_worker.CPU=…"
        )
    if not settings.checkpoint.enabled:
        why = "a member goes on from a checkpoint"
        raise _not_with("checkpoint.enabled", "false", why, "checkpoint.enabled=true")
    if settings.dataset.ingest is Ingest.ray_data:
        raise _not_with("dataset.ingest", "ray_data", "is not there yet", "dataset.ingest=tensors")
    if trainer.validate_every_steps is not None or every % per:
        key = "epochs" if trainer.validate_every_steps is None else "steps"
        value = per if trainer.validate_every_steps is None else trainer.validate_every_steps
        why = f"members are compared by a validation after epoch {every}, {2 * every}, …"
        raise _not_with(f"trainer.validate_every_{key}", value, why, "trainer.validate_every_epochs=1")
    if trainer.max_steps is None and every >= trainer.epochs:
        why = f"the training ends after {trainer.epochs} epochs, so that nothing would be taken over"
        raise refuse("search.perturb_every_epochs", every, why, "search.perturb_every_epochs=1")
    from runner import build, lightning

    if lightning.is_module(build.locate(settings.model.target["_target_"])):
        for key in found.axes:
            if key.startswith("optimizer."):
                raise refuse(key, "…", "a LightningModule makes its own optimizer", "search=tpe")


def _not_with(key: str, value: object, why: str, instead: str) -> ConfigError:
    return refuse(key, value, f"search=pbt: {why}", instead)
