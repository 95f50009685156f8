"""Named checks: side by side, left out by name, the first failure raised or all of them shown."""

from __future__ import annotations

import threading

import pytest

from runner.checks import Checks
from runner.errors import ConfigError, PreflightError
from tests.composed import load


def passes():
    return "all is well"


def fails():
    raise PreflightError("a=1: cannot be; type a=2")


def said(checks):
    return [(outcome.name, outcome.status, outcome.text) for outcome in checks.outcomes]


def test_what_a_check_says_is_kept():
    checks = Checks()
    checks.run("one", passes)
    assert said(checks) == [("one", "ok", "all is well")]


def test_a_failure_raises_its_own_error():
    checks = Checks()
    with pytest.raises(PreflightError, match="a=1: cannot be"):
        checks.run("one", fails)
    assert said(checks) == [("one", "FAIL", "a=1: cannot be; type a=2")]


def test_a_check_is_left_out_by_its_name():
    checks = Checks(skip=["one"])
    checks.run("one", fails)
    checks.begin("one", fails)
    checks.join()
    assert said(checks) == [("one", "skip", "skip_checks=[one]")]


def test_checks_run_side_by_side():
    both = threading.Barrier(2, timeout=10)

    def meets():
        both.wait()
        return "met"

    checks = Checks()
    checks.begin("one", meets)
    checks.begin("two", meets)
    checks.join()
    assert said(checks) == [("one", "ok", "met"), ("two", "ok", "met")]


def test_the_first_failure_in_order_is_raised():
    def fails_otherwise():
        raise PreflightError("b=1: neither")

    checks = Checks()
    checks.begin("one", passes)
    checks.begin("two", fails)
    checks.begin("three", fails_otherwise)
    with pytest.raises(PreflightError, match="a=1"):
        checks.join()


def test_all_failures_are_seen_where_they_are_asked_for():
    checks = Checks(keep_going=True)
    checks.begin("one", fails)
    checks.run("two", fails)
    checks.run("three", passes)
    checks.join()
    assert [outcome.status for outcome in checks.outcomes] == ["FAIL", "ok", "FAIL"]
    assert [outcome.name for outcome in checks.outcomes] == ["two", "three", "one"]


def test_what_others_stand_on_raises_even_so():
    checks = Checks(skip=["one"], keep_going=True)
    assert checks.need("data", lambda: [1, 2], lambda made: f"{len(made)} rows") == [1, 2]
    assert said(checks) == [("data", "ok", "2 rows")]
    with pytest.raises(PreflightError):
        checks.need("one", fails, str)
    with pytest.raises(PreflightError):
        checks.run("two", fails, must=True)


def test_of_a_name_the_last_outcome_counts():
    checks = Checks()
    checks.run("memory", lambda: "the weights fit")
    checks.run("memory", lambda: "all fits")
    assert said(checks) == [("memory", "ok", "all fits")]


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(
        ConfigError,
        match=r"^skip_checks=memoory: the checks that can be left out are .*; type skip_checks=\[memory\]$",
    ):
        load("skip_checks=[memoory]")
