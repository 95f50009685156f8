"""What a run came from: the commit, the changes on top, the environment."""

import json
import subprocess
import sys

import torch

from runner.provenance import environment, git_state


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    done = subprocess.run(
        ["git", *identity, "-C", str(folder), *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout


def test_commit_and_difference_of_a_checkout(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "code.py").write_text("a = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    assert git_state(tmp_path) == (commit, "")
    (tmp_path / "code.py").write_text("a = 2\n")
    found, diff = git_state(tmp_path)
    assert found == commit
    assert "-a = 1\n+a = 2\n" in diff


def test_outside_of_a_checkout_there_is_neither(tmp_path):
    assert git_state(tmp_path) == (None, "")


def test_without_git_there_is_neither(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) == (None, "")


def test_the_environment_lists_interpreter_and_packages():
    facts = json.loads(environment())
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["packages"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert list(facts["packages"]) == sorted(facts["packages"])
