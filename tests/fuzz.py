"""What hypothesis tries out: command lines and configs made of the schema and of conf/, valid and broken, and files with
other bytes in them."""

from __future__ import annotations

import dataclasses
import os
import types
from enum import Enum
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from runner import schema
from runner.config import flatten
from tests.composed import CONF, compose

SOAK = "RUNNER_SOAK_"


def tries(name: str, everyday: int, soak: int | None = None) -> settings:
    """Of a test: as many examples, the same ones each time; with `soak`, fresh ones, whose number RUNNER_SOAK_<name> changes."""
    count = everyday if soak is None else int(os.environ.get(f"{SOAK}{name}", str(soak)))
    return settings(
        max_examples=count,
        derandomize=soak is None,
        database=None,
        deadline=None,  # the machine may be busy with something else
        suppress_health_check=list(HealthCheck),
        print_blob=soak is not None,
    )


def _leaves(kind: Any, prefix: str) -> dict[str, Any]:
    """Dotted key → type, of a dataclass and those in it; an open group's target is not among them."""
    found: dict[str, Any] = {}
    for name, inner in get_type_hints(kind).items():
        key = f"{prefix}{name}"
        if dataclasses.is_dataclass(inner):
            found |= _leaves(inner, f"{key}.")
        elif name != "target":
            found[key] = inner
    return found


KEYS = _leaves(schema.Experiment, "")
GROUPS = {
    str(folder.relative_to(CONF)): sorted(option.stem for option in folder.glob("*.yaml"))
    for folder in sorted(CONF.iterdir())
    if folder.is_dir()
}
# Arguments of the targets that conf/config.yaml selects; they have no type in the schema.
ARGUMENTS = sorted(
    key
    for key, _ in flatten({str(key): value for key, value in compose().items() if key in GROUPS})
    if key not in KEYS and not key.startswith("hydra")
)

# Of a value that no type asks for: what people and programs write, and what a parser may stumble over.
ODD = (
    "", "null", "???", "true", "no", "nan", "-inf", "1e400", "-1", "0", "0.5", "1e-300", "9" * 30, "-" + "9" * 400, "0x10", "1_000",
    "[]", "{}", "[1,2]", "[[[]]]", "{a:1}", "{a:{b:[1,{c:2}]}}", "[1,", "{a", "'", '"', "'a b'", "a b", "a,b", "1,2", "range(1,3)",
    "choice(1,2)", "interval(0,1)", "glob(*)", "str(3)", "int(x)", "${seed}", "${nothing}", "${model}", "${", "}", "${oc.env:NO_SUCH}",
    "${oc.env:HOME}", "${.lr}", "${now:%Y}", "\\", "a\\", "/", "../x", "~", "-", "--x", "=", "a=b", "@", "a@b", "#", "%", "$", "*", ":",
    "é", "日本語", "𝕏", "\u202e", "\u2028", "\x85", "\x1b[31m", "\n", "a\nb", "\r", "\t", "\udcff", "x" * 5000, "[" * 60, "_target_", "os.system",
    "models.mlp.MLP", "models.mlp", "torch.nn.Linear", "torch.optim.Adam", "torch.nn", "datasets.synthetic.blobs", "{_target_: torch.nn.ReLU}",
    "http://[x", "http://", "http://a:b", "://x", "sqlite:///", "sqlite:////tmp", "file:///tmp", "databricks", "127.0.0.1:99999", "ray://a", "runs:/", "s3://a/b",
    "[{_target_: os.system, command: ls}]", "{_target_: 7}", "{_partial_: true}", "{_args_: 3}", "[{match: '('}]", "[{lr: x}]", "[{match: weight}]",
)  # fmt: skip
ODD_KEYS = (
    "", ".", "a", "a.b.c", "model.", ".model", "model..hidden", "hydra.run.dir", "hydra.job.chdir", "hydra.mode", "hydra.searchpath", "hydra",
    "_target_", "model._target_", "optimizer._target_", "dataset._target_", "loss._target_", "lr_scaling._target_", "scheduler._target_",
    "metrics.auc._target_", "metrics", "model._args_", "model._partial_", "model._convert_", "model.target", "model@x", "model@model", "/model", "model/x",
    "experiment", "debug", "defaults", "é.ü", "a b", "[0]", "model[0]", "trainer[epochs]", "seed.x", "x" * 2000, "${a}", "__class__", "model.__class__",
)  # fmt: skip
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=()), max_size=20)


def _of_type(kind: Any) -> st.SearchStrategy[str]:
    """Values of a type, small ones: what is tried is the config, not the memory."""
    if get_origin(kind) in (Union, types.UnionType):
        return st.one_of([_of_type(inner) for inner in get_args(kind)])
    if kind is type(None):
        return st.just("null")
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from([member.name for member in cast(type[Enum], kind)])
    known: dict[Any, st.SearchStrategy[str]] = {
        bool: st.sampled_from(["true", "false"]),
        int: st.one_of(st.integers(-2, 70), st.sampled_from([10**6, 10**9, 10**12, 2**63, 10**30])).map(str),
        float: st.floats(-1, 10).map(str),
        str: st.sampled_from(["a", "val/loss", "weight", "first-try"]),
    }
    return known.get(kind, st.sampled_from(["[]", "[a]", "balanced", "{}"]))


ODD_VALUE = st.one_of(
    st.sampled_from(ODD),
    TEXT,
    st.integers().map(str),
    st.floats().map(str),
    st.recursive(
        st.one_of(st.integers().map(str), st.sampled_from(ODD)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]"),
            st.dictionaries(st.sampled_from(["a", "lr", "match", "_target_"]), inner, max_size=3).map(
                lambda items: "{" + ",".join(f"{key}: {value}" for key, value in items.items()) + "}"
            ),
        ),
        max_leaves=5,
    ),
)
SIGN = st.sampled_from(["", "", "", "", "+", "++", "~"])


@st.composite
def misspelt(draw: st.DrawFn, word: str) -> str:
    """One letter more, less or other."""
    at = draw(st.integers(0, len(word)))
    return word[:at] + draw(st.sampled_from(["", "x", "_", ".", "é"])) + word[at + draw(st.integers(0, 1)) :]


TYPED = st.sampled_from(sorted(KEYS)).flatmap(
    lambda key: _of_type(KEYS[key]).map(lambda value: f"{key}={value}")
)
CHOSEN = st.sampled_from(sorted(GROUPS)).flatmap(
    lambda group: st.sampled_from(GROUPS[group]).map(lambda option: f"{group}={option}")
)
KNOWN_KEY = st.sampled_from([*sorted(KEYS), *ARGUMENTS, *sorted(GROUPS)])
KEY = st.one_of(KNOWN_KEY, KNOWN_KEY, KNOWN_KEY.flatmap(misspelt), st.sampled_from(ODD_KEYS), TEXT)
BROKEN = st.one_of(
    st.tuples(KNOWN_KEY, ODD_VALUE).map("=".join),
    st.tuples(KNOWN_KEY, st.sampled_from(ODD)).map("=".join),
    st.tuples(SIGN, KEY, ODD_VALUE).map(lambda parts: f"{parts[0]}{parts[1]}={parts[2]}"),
    st.one_of(TYPED, CHOSEN).flatmap(misspelt),
    st.tuples(SIGN, KEY).map("".join),
    KEY.map("~{}".format),
)
VALID = st.lists(st.one_of(TYPED, CHOSEN), min_size=1, max_size=3)
# Most have one thing that may be wrong, as people's have.
OVERRIDES = st.one_of(
    VALID,
    st.tuples(VALID, BROKEN).map(lambda parts: [*parts[0], parts[1]]),
    BROKEN.map(lambda override: [override]),
    st.lists(st.one_of(TYPED, CHOSEN, BROKEN), max_size=6),
)

FLAGS = (
    "--help", "-h", "--hydra-help", "--version", "--cfg", "-c", "job", "hydra", "all", "--resolve", "--package", "-p", "model", "--run", "-r",
    "--multirun", "-m", "--shell-completion", "-sc", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd", ".", "nowhere", "--info",
    "-i", "defaults", "searchpath", "--experimental-rerun", "x.pickle", "--", "-", "--nope", "-x", "--config-dir=nowhere", "--cfg=job",
    "resume", "prove", "train", "doctor", "--json", "trian", "run_id=abc", "run_dir=nowhere", "run_dir=.", "equivalence", "evaluation", "determinism",
)  # fmt: skip
COMMAND_LINE = st.one_of(
    st.lists(st.one_of(st.sampled_from(FLAGS), TYPED, BROKEN, TEXT), max_size=5),
    st.tuples(st.sampled_from(["train", "resume", "prove", "doctor"]), OVERRIDES).map(
        lambda parts: [parts[0], *parts[1]]
    ),
    st.tuples(st.just("--multirun"), OVERRIDES).map(lambda parts: [parts[0], *parts[1]]),
)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Another file in place of this one: random bytes, or some of its own cut off, changed, put in or taken out."""
    kind = draw(st.sampled_from(["random", "cut", "flip", "flip", "flip", "insert", "remove", "repeat"]))
    at = draw(st.integers(0, len(whole)))
    some = draw(st.binary(min_size=1, max_size=12))
    if kind == "random":
        return draw(st.binary(max_size=300))
    if kind == "cut":
        return whole[:at]
    if kind == "insert":
        return whole[:at] + some + whole[at:]
    if kind == "remove":
        return whole[:at] + whole[at + draw(st.integers(1, 40)) :]
    if kind == "repeat":
        return whole[:at] + whole[max(0, at - 60) :]
    found = bytearray(whole)
    for position in draw(st.lists(st.integers(0, max(0, len(whole) - 1)), min_size=1, max_size=4)):
        found[position : position + 1] = draw(
            st.sampled_from([b"\x00", b"\xff", b"\x80", b"\x7f", b" ", b"9", b"-", some[:1]])
        )
    return bytes(found)
