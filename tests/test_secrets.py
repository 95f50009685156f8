"""Secrets: which names and texts are, and that they do not get into anything that is written."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from runner import __main__ as door
from runner import config, identity, secrets
from runner.rank_log import captured
from runner.run_folder import RESULT, read_result, write_result
from tests.composed import compose

CANARY = "canary-4711"


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    """What a test makes this process learn is forgotten."""
    for name, empty in (("_known", set()), ("_uris", {}), ("_pattern", None)):
        monkeypatch.setattr(secrets, name, empty)


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "db_password",
        "dataset.api_token",
        "token",
        "secretKey",
        "aws_secret_access_key",
        "apiKey",
        "HF_TOKEN",
        "client-secret",
        "model.credentials",
        "AZURE_STORAGE_CONNECTION_STRING",
        "private_key",
    ],
)
def test_names_of_secrets(name):
    assert secrets.looks_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "max_tokens",
        "tokenizer",
        "pad_token",
        "mask_token",
        "token_dim",
        "key",
        "horovod.key",
        "PWD",
        "GPG_KEY",
        "monkey",
        "keys",
        "secretary",
    ],
)
def test_names_of_none(name):
    assert not secrets.looks_secret(name)


def test_a_known_secret_is_masked_in_every_spelling():
    secret = """it's "p/w" 100 %"""
    secrets.learn({"dataset": {"password": secret}})
    assert secrets.mask(f"<{secret}>") == "<<secret>>"
    assert secrets.mask(json.dumps({"a": secret})) == '{"a": "<secret>"}'
    assert (
        secrets.mask("https://host/?p=it%27s%20%22p%2Fw%22%20100%20%25&q=1") == "https://host/?p=<secret>&q=1"
    )
    assert (
        secrets.mask(f"no login with {secret!r} or {(secret,)}")
        == "no login with '<secret>' or ('<secret>',)"
    )
    assert CANARY not in secrets.mask(yaml.safe_dump({"a": secret}))
    assert yaml.safe_load(secrets.mask(yaml.safe_dump({"a": secret}))) == {"a": "<secret>"}


def test_the_longest_of_two_secrets_goes_first():
    secrets.learn({"password": "abcdef", "token": "abcdef-ghijkl"})
    assert secrets.mask("abcdef-ghijkl abcdef") == "<secret> <secret>"


def test_each_line_of_a_key_is_a_secret():
    secrets.learn({"private_key": "-----BEGIN-----\nMIIEvQIBADANBg\n-----END-----"})
    assert secrets.mask("it begins with MIIEvQIBADANBg") == "it begins with <secret>"


def test_short_secrets_are_masked_at_their_key_only():
    secrets.learn({"password": "abc"})
    assert secrets.mask("an abc") == "an abc"
    assert secrets.masked({"password": "abc", "name": "abc"}) == {"password": "<secret>", "name": "abc"}


def test_whole_numbers_and_what_lies_below_a_secret_key():
    node = {
        "password": 12345678,
        "credentials": {"user": "me", "pins": [4711, None, True]},
        "epochs": 12345678,
    }
    secrets.learn(node)
    assert secrets.masked(node) == {
        "password": "<secret>",
        "credentials": {"user": "<secret>", "pins": ["<secret>", None, True]},
        "epochs": 12345678,
    }
    assert secrets.mask("pin 12345678") == "pin <secret>"


def test_a_metric_at_a_secret_name_is_none():
    assert secrets.masked({"val/loss_per_token": 0.5}) == {"val/loss_per_token": 0.5}


@pytest.mark.parametrize(
    ("uri", "masked"),
    [
        ("http://me:pass@host:5000/x", "http://<secret>@host:5000/x"),
        ("mysql+pymysql://me:p%40ss@host/db", "mysql+pymysql://<secret>@host/db"),
        ("https://token@host", "https://<secret>@host"),
        ("http://me:${oc.env:P}@host", "http://me:${oc.env:P}@host"),
        ("http://${oc.env:U}:${oc.env:P}@host", "http://${oc.env:U}:${oc.env:P}@host"),
        ("http://me:${oc.env:P,default}@host", "http://<secret>@host"),
        ("sqlite:////a/b@c.db", "sqlite:////a/b@c.db"),
        ("http://host/a@b", "http://host/a@b"),
        ("see http://a:b@c, and http://d:e@f", "see http://<secret>@c, and http://<secret>@f"),
    ],
)
def test_user_info_of_uris(uri, masked):
    assert secrets.mask(uri) == masked


def test_a_password_of_a_uri_is_a_secret_by_itself():
    secrets.learn({"tracking": {"uri": f"http://me:{CANARY}@host"}})
    assert secrets.mask(f"401 for {CANARY}") == "401 for <secret>"
    assert secrets.unmasked("http://<secret>@host") == f"http://me:{CANARY}@host"
    assert secrets.unmasked("http://<secret>@other") == "http://<secret>@other"


def test_overrides_of_secrets():
    overrides = ("model=mlp", "+dataset.password=abc", "dataset.token=a,b", "tracking.uri=http://me:you@host")
    assert secrets.masked(overrides) == (
        "model=mlp",
        "+dataset.password=<secret>",
        "dataset.token=<secret>",
        "tracking.uri=http://<secret>@host",
    )


def test_the_process_tells_its_secrets(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "from-the-environment")
    monkeypatch.setenv("SOME_URL", "https://me:in-a-variable@host")
    secrets.learn_from_process(["model=mlp", "+dataset.password='one secret',another"])
    assert (
        secrets.mask("from-the-environment in-a-variable one secret another mlp")
        == "<secret> <secret> <secret> <secret> mlp"
    )


def test_references_to_secrets_stay(monkeypatch):
    monkeypatch.setenv("MY_PASSWORD", CANARY)
    composed = compose(
        ["+model.password=${oc.env:MY_PASSWORD}", "+model.token=${oc.env:NOT_SET,canary-default}"]
    )
    stored = yaml.safe_load(config.to_yaml(composed))["model"]
    assert stored["password"] == "${oc.env:MY_PASSWORD}"
    assert stored["token"] == "<secret>"


def test_a_secret_makes_no_other_run():
    values = {"model": {"width": 1}, "dataset": {"password": "one", "url": "http://me:one@host"}}
    other = {"model": {"width": 1}, "dataset": {"password": "two", "url": "http://me:two@host"}}
    assert identity.fingerprint(values) == identity.fingerprint(other)
    assert identity.fingerprint(values) != identity.fingerprint({**other, "model": {"width": 2}})
    identity.check_changes(["dataset.password=three"])


@dataclass(frozen=True)
class Inner:
    password: str = CANARY
    numbers: list[float] = field(default_factory=lambda: [1.0])


@dataclass(frozen=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    target: dict[str, Any] = field(
        default_factory=lambda: {"token": 123456789, "url": f"http://me:{CANARY}@host"}
    )
    other: object = field(default_factory=object)


def test_what_is_hidden_comes_back(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "for-the-workers")
    outer = Outer()
    secrets.learn(outer)
    hidden, kept = secrets.hide(outer)
    assert CANARY not in repr(hidden)
    assert "123456789" not in repr(hidden)
    assert hidden.other is outer.other
    monkeypatch.delenv("MLFLOW_TRACKING_TOKEN")
    assert secrets.reveal(hidden, kept) == outer
    assert os.environ["MLFLOW_TRACKING_TOKEN"] == "for-the-workers"


def test_nothing_to_hide_is_the_same_object():
    inner = Inner(password="")
    assert secrets.hide(inner)[0] is inner


def test_streams_and_files_are_masked(tmp_path):
    secrets.learn({"password": CANARY})
    stream = io.StringIO()
    print("a", CANARY, file=secrets.MaskedStream(stream))
    secrets.MaskedStream(stream).writelines([CANARY, "\n"])
    assert stream.getvalue() == "a <secret>\n<secret>\n"
    with captured(tmp_path / "rank.log"):
        print("b", CANARY)
        print("c", CANARY, file=sys.stderr)
    assert (tmp_path / "rank.log").read_text() == "b <secret>\nc <secret>\n"
    write_result(tmp_path, {"error": f"no login with {CANARY}"})
    assert CANARY not in (tmp_path / RESULT).read_text()
    assert read_result(tmp_path) == {"error": "no login with <secret>"}


CONFIG = "\n".join(
    ["_target_: models.mlp.MLP", f"password: {CANARY}", "token: ${oc.env:CANARY_TOKEN}", "in_features: null"]
)


@pytest.mark.parametrize(
    "flags",
    [
        ("--cfg", "job"),
        ("--cfg", "all", "--resolve"),
        ("--info", "all"),
        ("dry_run=true",),
        ("-m", "seed=1,2"),
    ],
)
def test_what_hydra_prints_and_what_is_refused(tmp_path, flags):
    """Also a command that is refused (the model takes no password) says no secret and leaves none."""
    (tmp_path / "confs" / "model").mkdir(parents=True)
    (tmp_path / "confs" / "model" / "own.yaml").write_text(CONFIG)
    line = [
        "--config-dir",
        "confs",
        "model=own",
        *flags,
        f"+model.api_key={CANARY}",
        f"tracking.uri=http://me:{CANARY}@h:1",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "runner", *line, "hydra.sweep.subdir=${hydra.job.override_dirname}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(door.PROJECT), "CANARY_TOKEN": f"{CANARY}-token"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (0 if flags[0] in ("--cfg", "--info") else 2), done.stderr
    said = done.stdout + done.stderr
    assert CANARY not in said
    assert "Traceback" not in said
    if flags[0] in ("--cfg", "--info"):
        assert "password: <secret>" in said
    for path in (tmp_path / "outputs").rglob("*"):
        assert CANARY not in str(path)
        assert path.is_dir() or CANARY.encode() not in path.read_bytes(), path
