"""Checkpoints: what comes back, and every way in which a damaged one is refused."""

import hashlib
import json
import pickle

import pytest
import torch
from safetensors.torch import load_file

from runner import checkpoint
from runner.checkpoint import MANIFEST, STATE, WEIGHTS, CheckpointError

FILES = (STATE, WEIGHTS, MANIFEST)


def weights(fill):
    return {"layer.weight": torch.full((3, 2), float(fill)), "layer.steps": torch.tensor(int(fill))}


def commit(root, epoch):
    state = {"optimizer": {"lr": 0.1, "momentum": [torch.ones(2)]}, "schedule": {"step": epoch}}
    facts = {"epoch": epoch, "metrics": {"val/loss": 0.5}}
    return checkpoint.commit(root, f"step-{epoch:08d}", weights(epoch), state, facts)


def sealed(manifest):
    """The text of a manifest.json, as its format is documented: it holds the sha256 of itself without that key."""
    digest = hashlib.sha256(json.dumps(manifest, indent=2).encode()).hexdigest()
    return json.dumps({**manifest, "sha256": digest}, indent=2)


@pytest.fixture
def saved(tmp_path):
    return commit(tmp_path / "checkpoints", 7)


def refusal(path):
    with pytest.raises(CheckpointError) as refused:
        checkpoint.load(path)
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_what_was_committed_comes_back(saved):
    manifest, state = checkpoint.load(saved)
    assert saved.name == "step-00000007"
    assert sorted(path.name for path in saved.iterdir()) == sorted(FILES)
    assert (manifest["epoch"], manifest["metrics"]) == (7, {"val/loss": 0.5})
    assert manifest["schema_version"] == checkpoint.SCHEMA_VERSION
    assert sorted(state) == ["optimizer", "schedule", "weights"]
    assert all(torch.equal(state["weights"][name], tensor) for name, tensor in weights(7).items())
    assert state["optimizer"]["lr"] == 0.1
    assert torch.equal(state["optimizer"]["momentum"][0], torch.ones(2))
    assert all(torch.equal(load_file(saved / WEIGHTS)[name], tensor) for name, tensor in weights(7).items())


def test_the_manifest_holds_size_and_sha256_of_each_file(saved):
    files = json.loads((saved / MANIFEST).read_text())["files"]
    assert files == {
        name: {
            "bytes": (saved / name).stat().st_size,
            "sha256": hashlib.sha256((saved / name).read_bytes()).hexdigest(),
        }
        for name in (STATE, WEIGHTS)
    }


def test_tied_and_transposed_weights_can_be_saved(tmp_path):
    tied = torch.arange(6.0).reshape(2, 3)
    found = checkpoint.commit(tmp_path, "step-00000001", {"a": tied, "b": tied, "c": tied.T}, {}, {})
    _, state = checkpoint.load(found)
    assert torch.equal(state["weights"]["b"], tied)
    assert torch.equal(state["weights"]["c"], tied.T)


def test_the_same_epoch_again_replaces_the_first(tmp_path):
    commit(tmp_path, 3)
    again = checkpoint.commit(tmp_path, "step-00000003", weights(30), {}, {"epoch": 3})
    assert torch.equal(checkpoint.load(again)[1]["weights"]["layer.weight"], torch.full((3, 2), 30.0))
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]


def test_leftovers_of_a_killed_writer_are_removed(tmp_path):
    (tmp_path / "tmp-step-00000002").mkdir()
    (tmp_path / "tmp-step-00000002" / STATE).write_text("half")
    commit(tmp_path, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def flip_unreadable(path):
    path.write_bytes(b"\xff" + path.read_bytes()[1:])


DAMAGE = {
    "truncated": truncate,
    "flipped": flip,
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("not a checkpoint"),
    "missing": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", [STATE, WEIGHTS])
def test_a_damaged_file_is_named(saved, name, damage):
    DAMAGE[damage](saved / name)
    assert refusal(saved).startswith(f"{saved / name}: ")


@pytest.mark.parametrize(
    "damage", [truncate, flip_unreadable, *(DAMAGE[d] for d in ("empty", "text", "missing"))]
)
def test_a_damaged_manifest_is_named(saved, damage):
    damage(saved / MANIFEST)
    assert refusal(saved).startswith(f"{saved / MANIFEST}: not a readable manifest (")


@pytest.mark.parametrize("content", ["[]", "7", "null", "{}", '{"files": {}}', '{"schema_version": 1}'])
def test_json_that_is_no_manifest_is_named(saved, content):
    (saved / MANIFEST).write_text(content)
    assert refusal(saved).startswith(f"{saved / MANIFEST}: not a readable manifest (")


def rewrite(saved, **changes):
    manifest = json.loads((saved / MANIFEST).read_text())
    del manifest["sha256"]
    (saved / MANIFEST).write_text(sealed({**manifest, **changes}))


def test_a_newer_schema_is_refused(saved):
    rewrite(saved, schema_version=checkpoint.SCHEMA_VERSION + 1)
    assert (
        refusal(saved)
        == f"{saved / MANIFEST}: another version of runner wrote it (schema 4, this one reads 3)"
    )


def test_a_manifest_that_does_not_vouch_for_every_file_is_refused(saved):
    rewrite(saved, files={})
    assert refusal(saved).startswith(f"{saved / MANIFEST}: ")


def test_a_missing_folder_is_refused(tmp_path):
    assert refusal(tmp_path / "step-00000001").startswith(str(tmp_path / "step-00000001"))


class Planted:
    def __init__(self, canary):
        self._canary = canary

    def __reduce__(self):
        return (open, (str(self._canary), "w"))


def plant(saved, name, content):
    """Another file in a checkpoint, with a manifest that vouches for it."""
    (saved / name).write_bytes(content)
    described = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    files = json.loads((saved / MANIFEST).read_text())["files"]
    rewrite(saved, files={**files, name: described})


@pytest.fixture
def planted(saved, tmp_path):
    """A checkpoint whose state runs code when it is unpickled."""
    plant(saved, STATE, pickle.dumps({"weights": Planted(tmp_path / "canary")}, protocol=2))
    return saved


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", pickle.dumps([1], protocol=2), bytes(100)])
@pytest.mark.parametrize("name", [STATE, WEIGHTS])
def test_a_file_of_another_kind_is_named_though_the_manifest_vouches_for_it(saved, name, content):
    plant(saved, name, content)
    checkpoint.verify(saved)
    assert refusal(saved).startswith(f"{saved / name}: ")


@pytest.mark.parametrize("name", ["../other/state.pt", "/dev/zero", "a/b"])
def test_a_manifest_cannot_name_files_of_other_folders(saved, name):
    files = json.loads((saved / MANIFEST).read_text())["files"]
    rewrite(saved, files={**files, name: {"bytes": 0, "sha256": ""}})
    assert refusal(saved) == f"{saved / MANIFEST}: lists {name}, which is not in this folder"


def test_loaded_weights_can_be_trained(saved):
    weight = checkpoint.load(saved)[1]["weights"]["layer.weight"]
    weight.add_(1)
    assert torch.equal(weight, torch.full((3, 2), 8.0))
    assert torch.equal(checkpoint.load(saved)[1]["weights"]["layer.weight"], torch.full((3, 2), 7.0))


def test_code_in_a_pickle_is_not_run(planted, tmp_path):
    checkpoint.verify(planted)
    with pytest.raises((CheckpointError, pickle.UnpicklingError)):
        checkpoint.load(planted)
    assert not (tmp_path / "canary").exists()


def test_a_pickle_with_code_in_it_is_refused_in_one_line(planted):
    assert refusal(planted).startswith(f"{planted / STATE}: ")


def test_latest_is_the_newest_that_verifies(tmp_path):
    assert checkpoint.latest(tmp_path) is None
    paths = [commit(tmp_path, epoch) for epoch in (1, 2, 3)]
    (tmp_path / "tmp-step-00000004").mkdir()
    assert checkpoint.latest(tmp_path) == paths[2]
    flip(paths[2] / STATE)
    assert checkpoint.latest(tmp_path) == paths[1]
    (paths[1] / MANIFEST).unlink()
    assert checkpoint.latest(tmp_path) == paths[0]
    truncate(paths[0] / WEIGHTS)
    assert checkpoint.latest(tmp_path) is None


def test_epochs_are_ordered_by_number(tmp_path):
    paths = [commit(tmp_path, epoch) for epoch in (9999, 10_000, 2)]
    assert checkpoint.committed(tmp_path) == [paths[2], paths[0], paths[1]]


def test_the_weights_hash_sees_names_types_shapes_and_every_bit():
    ones = torch.ones(2, 3)
    base = checkpoint.weights_sha256({"a": ones, "b": torch.zeros(1)})
    assert checkpoint.weights_sha256({"b": torch.zeros(1), "a": ones.T.contiguous().T}) == base
    others = [
        {"a": ones},
        {"A": ones, "b": torch.zeros(1)},
        {"a": ones.double(), "b": torch.zeros(1)},
        {"a": ones.reshape(3, 2), "b": torch.zeros(1)},
        {"a": ones * (1 + 2**-23), "b": torch.zeros(1)},
        {"a": ones, "b": -torch.zeros(1)},
    ]
    hashes = [checkpoint.weights_sha256(weights) for weights in others]
    assert len({base, *hashes}) == 7


def test_the_weights_hash_is_the_sha256_of_a_documented_text():
    expected = hashlib.sha256(b"w|torch.float32|(2,)|" + b"\x00\x00\x80\x3f" * 2).hexdigest()
    assert checkpoint.weights_sha256({"w": torch.ones(2)}) == expected


@pytest.mark.parametrize("tensor", [torch.tensor(3), torch.zeros(0, 4), torch.ones(2, dtype=torch.bfloat16)])
def test_the_weights_hash_takes_any_tensor(tensor):
    assert len(checkpoint.weights_sha256({"a": tensor})) == 64
