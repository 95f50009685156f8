"""An axis of a plot: where on it a value stands, from 0 to 1, and its ticks. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

DECADES = 2  # from which a logarithmic axis reads better
CROWDED = 0.25  # of a linear axis: where half of all values stand in so little of it, one decade is enough
FEW = 7  # chosen values, up to which each has its tick
MANY = 5  # ticks elsewhere
CLOSEST = 0.06  # between ticks
MOST_NAMES = 24  # with ticks


class Kind(Enum):
    linear = "linear"
    log = "log"
    names = "names"


@dataclass(frozen=True)
class Scale:
    """From the smallest value to the largest; names stand in a row, with half a place before the first and after the last."""

    kind: Kind
    values: tuple[float, ...] = ()  # each once, rising
    names: tuple[str, ...] = ()
    is_chosen: bool = False  # by a user, not measured: then few values are themselves the ticks

    def place(self, text: str | float) -> float | None:
        """None for what the axis does not have."""
        if self.kind is Kind.names:
            name = str(text)
            return (self.names.index(name) + 0.5) / len(self.names) if name in self.names else None
        value = as_number(text)
        if value is None or (self.kind is Kind.log and value <= 0) or not self.values:
            return None
        low, high = self._of(self.values[0]), self._of(self.values[-1])
        return (self._of(value) - low) / (high - low) if high > low else 0.5

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """(place, label), rising."""
        if self.kind is Kind.names:
            every = math.ceil(len(self.names) / MOST_NAMES)
            return [((index + 0.5) / len(self.names), name) for index, name in enumerate(self.names)][::every]
        if not self.values:
            return []
        is_each = len(self.values) == 1 or (self.is_chosen and self.is_few)
        chosen = self.values if is_each else self._decades() if self.kind is Kind.log else self._steps()
        places = [(place, _label(value)) for value in chosen if (place := self.place(value)) is not None]
        kept: list[tuple[float, str]] = []
        for place, label in places:
            if not kept or place - kept[-1][0] >= CLOSEST:
                kept.append((place, label))
        return kept

    @property
    def is_few(self) -> bool:
        """Whether jobs share its values, so that a median of each says something."""
        return len(self.values or self.names) <= FEW

    def _of(self, value: float) -> float:
        return math.log10(value) if self.kind is Kind.log else value

    def _steps(self) -> list[float]:
        """Multiples of 1, 2 or 5 times a power of ten."""
        low, high = self.values[0], self.values[-1]
        power = 10.0 ** math.floor(math.log10((high - low) / MANY))
        step = next(power * factor for factor in (1, 2, 5, 10) if (high - low) / (power * factor) <= MANY)
        first = math.ceil(low / step - 1e-9)
        return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]

    def _decades(self) -> list[float]:
        """Powers of ten, and of few what lies between them."""
        low, high = self.values[0] * (1 - 1e-9), self.values[-1] * (1 + 1e-9)
        powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
        factors = (1, 2, 5) if len(powers) <= 2 else (1, 3) if len(powers) <= 4 else (1,)
        found = [10.0**power * factor for power in powers for factor in factors]
        within = [value for value in found if low <= value <= high]
        return within[:: math.ceil(len(within) / (MANY + 2))]


def scale_of(values: Iterable[str | float], is_chosen: bool = False) -> Scale:
    """Numbers that span DECADES, or one and crowd at the lower end, get a logarithmic axis; where one is no number, all are
    names. So are few chosen numbers whose ticks would meet, such as 0, 1e-4 and 1e-3."""
    given = list(values)
    found = list(dict.fromkeys(given))
    numbers = [number for value in given if (number := as_number(value)) is not None]
    names = Scale(Kind.names, names=_in_order([str(value) for value in found]))
    if len(numbers) < len(given):
        return names
    rising = tuple(sorted(set(numbers)))
    scale = Scale(Kind.log if _is_wide(sorted(numbers)) else Kind.linear, rising, is_chosen=is_chosen)
    if is_chosen and scale.is_few and len(scale.ticks) < len(rising):
        return names
    return scale


def _is_wide(numbers: Sequence[float]) -> bool:
    if not numbers or numbers[0] <= 0:
        return False
    low, high = numbers[0], numbers[-1]
    decades = math.log10(high / low) + 1e-9
    return decades >= DECADES or (decades >= 1 and statistics.median(numbers) - low < CROWDED * (high - low))


def as_number(value: str | float) -> float | None:
    """None for what is none, or not finite."""
    try:
        number = float(value)
    except ValueError:
        return None
    is_written_so = not isinstance(value, str) or not set(value) & set(
        "_ \n\t"
    )  # Python reads 1_000 as a number
    return number if math.isfinite(number) and is_written_so else None


def _label(value: float) -> str:
    """0.001, 1e-5"""
    return f"{value:.4g}".replace("e-0", "e-").replace("e+0", "e")


def _in_order(names: Sequence[str]) -> tuple[str, ...]:
    """Numbers first, by size, then the others by the alphabet."""
    sizes = {name: as_number(name) for name in names}
    return tuple(sorted(names, key=lambda name: (sizes[name] is None, sizes[name] or 0.0, name)))
