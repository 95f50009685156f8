"""What a search may try, from Hydra's own sweep syntax (https://hydra.cc/docs/1.3/advanced/override_grammar/extended/).

| written | tried |
|---|---|
| `a,b` `choice(a,b)` `glob(*)` | each value; none is between two others |
| `range(1,9,2)` `range(0.1,1,0.3)` | each value, in their order |
| `interval(0.001,1)` | any number between; Hydra's interval is always of real numbers |
| `int(interval(1,8))` | whole numbers, 8 too |
| `tag(log,interval(0.001,1))` | the same, uniform in the logarithm |

Optuna is given names for values: the text of a choice, the place of a range's value. What it answers becomes text again that
Hydra reads as exactly that value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.errors import OverrideParseException

from runner.errors import refuse
from runner.options import Bounds

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

MOST_VALUES = 10_000  # of one key
LOG = "log"
OF_THE_SWEEP = ("search", "sweep", "hydra")


@dataclass(frozen=True)
class Values:
    """What can be listed. `texts` are as an override has them."""

    texts: tuple[str, ...]
    ordered: bool = False

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import CategoricalDistribution, IntDistribution

        return (
            IntDistribution(0, len(self.texts) - 1) if self.ordered else CategoricalDistribution(self.texts)
        )

    def text(self, parameter: Any) -> str:
        return self.texts[parameter] if self.ordered else parameter

    def parameter(self, text: str) -> Any:
        """Optuna's name for what stands in an override; None where it is none of these."""
        if text not in self.texts:
            return None
        return self.texts.index(text) if self.ordered else text


class Interval(Bounds):
    def distribution(self) -> BaseDistribution:
        from optuna.distributions import FloatDistribution, IntDistribution

        kind: Any = IntDistribution if self.whole else FloatDistribution
        return kind(self.low, self.high, log=self.log)

    def text(self, parameter: Any) -> str:
        return repr(parameter)  # the shortest text that is read as the same number

    def parameter(self, text: str) -> Any:
        try:
            number = int(text) if self.whole else float(text)
        except ValueError:
            return None
        return number if self.low <= number <= self.high else None


@dataclass(frozen=True)
class Space:
    """`order` has every key of a job's overrides, `fixed` the text of those with one value, `axes` the others."""

    order: tuple[str, ...]
    fixed: dict[str, str]
    axes: dict[str, Values | Interval]

    @property
    def points(self) -> int | None:
        """How many there are; None: more than can be counted."""
        sizes = [len(axis.texts) if isinstance(axis, Values) else None for axis in self.axes.values()]
        return None if None in sizes else math.prod(size for size in sizes if size)

    def point(self, number: int) -> dict[str, Any]:
        """Optuna's names for one of the `points`; the last key changes fastest, as in Hydra's own sweeps."""
        found = {}
        for key, axis in reversed(self.axes.items()):
            assert isinstance(axis, Values)
            number, place = divmod(number, len(axis.texts))
            found[key] = axis.parameter(axis.texts[place])
        return {key: found[key] for key in self.axes}

    def distributions(self) -> dict[str, BaseDistribution]:
        return {key: axis.distribution() for key, axis in self.axes.items()}

    def first(self) -> tuple[str, ...]:
        """The overrides of a job that has the first value of each key."""
        return self.overrides(
            {
                key: axis.parameter(axis.texts[0]) if isinstance(axis, Values) else axis.low
                for key, axis in self.axes.items()
            }
        )

    def overrides(self, parameters: dict[str, Any]) -> tuple[str, ...]:
        """What a job's command line says."""
        texts = {**self.fixed, **{key: self.axes[key].text(value) for key, value in parameters.items()}}
        return tuple(f"{key}={texts[key]}" for key in self.order)

    def parameters(self, overrides: Sequence[str]) -> dict[str, Any] | None:
        """The way back: None where these overrides are not in this space."""
        try:
            parsed = OverridesParser.create().parse_overrides(list(overrides))
        except OverrideParseException:
            return None
        single = [each for each in parsed if not each.is_sweep_override()]
        texts = {each.get_key_element(): each.get_value_element_as_str() for each in single}
        found = {key: axis.parameter(texts[key]) for key, axis in self.axes.items() if key in texts}
        return None if len(found) < len(self.axes) or None in found.values() else found


def space(overrides: Sequence[Override]) -> Space:
    """Of parsed overrides, where the last one of a key counts. Raises ConfigError."""
    fixed: dict[str, str] = {}
    axes: dict[str, Values | Interval] = {}
    order: dict[str, None] = {}
    for override in overrides:
        key = override.get_key_element()
        fixed.pop(key, None)
        axes.pop(key, None)
        order[key] = None
        if override.is_sweep_override():
            axes[key] = _axis(override)
        else:
            fixed[key] = override.get_value_element_as_str()
    return Space(tuple(order), fixed, axes)


def _axis(override: Override) -> Values | Interval:
    key, text = override.get_key_element(), override.get_value_string()
    if override.key_or_group.split(".")[0].split("/")[0] in OF_THE_SWEEP:
        raise refuse(key, text, "is said of the whole sweep, so it has one value")
    sweep: Any = override.value()
    for tag in sorted(getattr(sweep, "tags", ())):
        if tag != LOG or not isinstance(sweep, IntervalSweep):
            instead = f"{key}=tag(log,interval(0.001,1))"
            raise refuse(key, text, f"the only tag is {LOG}, of an interval", f"'{instead}'")
    if isinstance(sweep, IntervalSweep):
        return _interval(key, text, sweep)
    if isinstance(sweep, RangeSweep):
        _check_range(key, text, sweep)
    if getattr(sweep, "shuffle", False):  # Hydra would shuffle anew each time that it is asked
        override = replace(override, _value=replace(sweep, shuffle=False))
    texts = tuple(dict.fromkeys(override.sweep_string_iterator()))
    if not texts:
        raise refuse(key, text, "there is no such value")
    return Values(texts, ordered=isinstance(sweep, RangeSweep))


def _interval(key: str, text: str, sweep: IntervalSweep) -> Interval:
    low, high, log = sweep.start, sweep.end, LOG in sweep.tags
    assert low is not None
    assert high is not None
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise refuse(
            key, text, "an interval goes from a number to a larger one", f"'{key}=interval(0.001,1)'"
        )
    if log and low <= 0:
        raise refuse(key, text, "a logarithm needs numbers above 0", f"'{key}=tag(log,interval(0.001,1))'")
    return Interval(low, high, log)


def _check_range(key: str, text: str, sweep: RangeSweep) -> None:
    """Before Hydra lists it, which may have no end."""
    start, stop, step = sweep.start, sweep.stop, sweep.step
    assert start is not None
    assert stop is not None
    if not all(map(math.isfinite, (start, stop, step))) or step == 0:
        raise refuse(key, text, "a range has finite bounds and a step other than 0", f"'{key}=range(1,5)'")
    if (stop - start) / step > MOST_VALUES:
        raise refuse(
            key,
            text,
            f"has more than {MOST_VALUES} values",
            f"'{key}=interval({min(start, stop)},{max(start, stop)})'",
        )
