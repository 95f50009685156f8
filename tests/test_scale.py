"""Axes of a sweep's pictures: which kind, where a value stands, which ticks."""

from __future__ import annotations

import pytest

from runner.report.scale import Kind, as_number, scale_of


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "2", "4"], Kind.linear),
        (["0.001", "0.0999"], Kind.linear),
        (["0.001", "0.1"], Kind.log),  # two decades
        (["0", "0.001", "0.1"], Kind.linear),  # which has no logarithm
        (["-1", "100"], Kind.linear),
        ([1.0, 1.2, 1.5, 10.0], Kind.log),  # one decade, and half of them in a fraction of it
        ([1.0, 4.0, 6.0, 10.0], Kind.linear),
        ([1.0, 1.0, 1.0, 9.0], Kind.linear),
        (["0.5"], Kind.linear),
        (["sgd", "adam"], Kind.names),
        (["1", "null"], Kind.names),
        (["1", "inf"], Kind.names),
        (["true", "false"], Kind.names),
    ],
)
def test_the_kind_of_an_axis(values: list[str | float], kind: Kind) -> None:
    assert scale_of(values).kind is kind


def test_values_stand_between_the_smallest_and_the_largest() -> None:
    assert [scale_of(["2", "4", "10"]).place(value) for value in ("2", "4", "10")] == [0, 0.25, 1]
    decades = scale_of(["1e-4", "0.01", "1"])
    assert [decades.place(value) for value in ("1e-4", "0.001", 0.01, "1")] == pytest.approx(
        [0, 0.25, 0.5, 1]
    )
    assert decades.place("0") is None
    assert decades.place("adam") is None
    assert scale_of(["3", "3"]).place("3") == 0.5
    assert scale_of([]).place(1.0) is None


def test_names_stand_side_by_side_numbers_first() -> None:
    scale = scale_of(["sgd", "10", "2", "adam", "sgd"])
    assert scale.names == ("2", "10", "adam", "sgd")
    assert [scale.place(name) for name in scale.names] == [0.125, 0.375, 0.625, 0.875]
    assert scale.place("lion") is None
    assert scale.ticks == [(0.125, "2"), (0.375, "10"), (0.625, "adam"), (0.875, "sgd")]


def test_few_numbers_whose_ticks_would_meet_stand_side_by_side() -> None:
    values = ["0", "1e-5", "1e-3", "0.01"]
    assert scale_of(values, is_chosen=True).ticks == [
        (0.125, "0"),
        (0.375, "1e-5"),
        (0.625, "1e-3"),
        (0.875, "0.01"),
    ]
    assert scale_of(values).kind is Kind.linear
    assert scale_of(["16", "32", "64", "128"], is_chosen=True).kind is Kind.linear
    assert scale_of([str(value) for value in range(100)], is_chosen=True).kind is Kind.linear


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0.1], ["0.1"]),
        ([1, 2, 4, 8], ["2", "4", "6", "8"]),
        ([0.6666, 0.933, 2.048, 2.186, 60431, 579993], ["1", "10", "100", "1000", "1e4", "1e5"]),
        (range(3, 40), ["10", "20", "30"]),
        ([0.0123, 0.4, 0.5, 0.873], ["0.2", "0.4", "0.6", "0.8"]),
        ([0.065, 0.07, 0.08, 0.09, 0.1, 0.2, 0.5, 0.82], ["0.1", "0.2", "0.5"]),
        ([2e-4, 3e-3, 0.01, 0.3], ["0.0003", "0.001", "0.003", "0.01", "0.03", "0.1", "0.3"]),
        ([3e-7, 2.0], ["1e-6", "1e-5", "0.0001", "0.001", "0.01", "0.1", "1"]),
        ([1e-9, 1e8], ["1e-9", "1e-6", "0.001", "1", "1000", "1e6"]),
    ],
)
def test_ticks_are_round(values: list[float], labels: list[str]) -> None:
    ticks = scale_of(values).ticks
    assert [label for _, label in ticks] == labels
    assert all(-1e-9 <= place <= 1 + 1e-9 for place, _ in ticks)


def test_few_values_that_somebody_chose_are_themselves_the_ticks() -> None:
    assert scale_of(["1", "2", "4", "8"], is_chosen=True).ticks == [
        (0, "1"),
        (1 / 7, "2"),
        (3 / 7, "4"),
        (1, "8"),
    ]
    assert len(scale_of([str(value) for value in range(8)], is_chosen=True).ticks) == 4


def test_of_many_names_some_have_a_tick() -> None:
    scale = scale_of([f"name-{index:02d}" for index in range(50)])
    assert [label for _, label in scale.ticks] == [f"name-{index:02d}" for index in range(0, 50, 3)]


def test_what_is_a_number() -> None:
    texts = ("1e-3", "-2", "1_000", " 1", "nan", "inf", "[1]", "", "None")
    assert [as_number(text) for text in texts] == [0.001, -2.0, *[None] * 7]
