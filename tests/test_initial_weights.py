"""Where a model's first weights come from, and what is said when they do not fit or are damaged."""

import re

import pytest
import torch
from mlflow import MlflowClient
from safetensors.torch import save_file
from torch import nn

from runner import checkpoint, parameters, schema
from runner.errors import ConfigError
from tests.test_parameters import Network, Tied, refused


def saved(path, model=None, **changes):
    """A .safetensors file with a Network's weights; `changes` by name with _ for the dots, None leaves one out."""
    weights = dict((model or Network()).state_dict())
    for name, value in changes.items():
        weights[name.replace("__", ".")] = value
    save_file({name: value.clone() for name, value in weights.items() if value is not None}, path)
    return str(path)


def equal(model, other):
    pairs = zip(model.state_dict().items(), other.state_dict().items(), strict=True)
    return all(name == its and torch.equal(value, theirs) for (name, value), (its, theirs) in pairs)


def test_weights_come_from_a_file_or_a_checkpoint(tmp_path):
    source = Network()
    source.encoder(torch.randn(9, 3))  # buffers count too
    folder = checkpoint.commit(tmp_path, "step-00000001", source.state_dict(), {}, {"step": 1})
    for init_from in (saved(tmp_path / "w.safetensors", source), str(folder)):
        model = Network()
        assert not equal(model, source)
        line = parameters.initialise(model, schema.Model(init_from=init_from))
        assert line == f"10 of 10 weights from {init_from}"
        assert equal(model, source)


def test_without_init_from_nothing_is_done():
    model = Network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert parameters.initialise(model, schema.Model()) == ""
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"head__weight": torch.zeros(5, 4)}, "head.weight is [2, 4] in the model and [5, 4] in the file"),
        ({"head__bias": None}, "head.bias is [2] in the model and missing in the file"),
        ({"extra": torch.zeros(3)}, "extra is missing in the model and [3] in the file"),
    ],
)
def test_the_first_difference_is_refused_or_left_out(tmp_path, changes, difference):
    path = saved(tmp_path / "w.safetensors", **changes)
    model = Network()
    with refused(f"model.init_from={path}: {difference}; type model.init_strict=false to take what fits"):
        parameters.initialise(model, schema.Model(init_from=path))
    taken = 10 if "extra" in changes else 9
    line = parameters.initialise(model, schema.Model(init_from=path, init_strict=False))
    assert line == f"{taken} of 10 weights from {path}"


def test_without_strictness_other_weights_stay_as_they_were(tmp_path):
    source, model = Network(), Network(hidden=5)
    before = model.encoder[0].weight.clone()
    settings = schema.Model(init_from=saved(tmp_path / "w.safetensors", source), init_strict=False)
    assert parameters.initialise(model, settings) == f"3 of 10 weights from {settings.init_from}"
    assert torch.equal(model.tokens.weight, source.tokens.weight)
    assert torch.equal(model.head.bias, source.head.bias)
    assert torch.equal(model.encoder[0].weight, before)


def test_nothing_that_fits_is_refused(tmp_path):
    path = saved(tmp_path / "w.safetensors")
    with refused(
        f"model.init_from={path}: nothing in it fits the model by name and shape: it has "
        "encoder.1.num_batches_tracked, encoder.0.bias, encoder.0.weight, encoder.1.bias, …, the model weight, bias"
    ):
        parameters.initialise(nn.Linear(1, 1), schema.Model(init_from=path, init_strict=False))


def test_a_tied_weight_may_be_in_the_file_once(tmp_path):
    source, model = Tied(), Tied()
    path = saved(tmp_path / "w.safetensors", source, head__weight=None)
    assert parameters.initialise(model, schema.Model(init_from=path)) == f"1 of 2 weights from {path}"
    assert equal(model, source)


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-5], lambda b: b[:20], lambda b: b"weights, I swear\n", lambda b: b""]
)
def test_a_damaged_file_is_one_line(tmp_path, damage):
    path = tmp_path / "w.safetensors"
    saved(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        ConfigError, match=r"^model.init_from=.*: not a whole .safetensors file \([^\n]*\); type [^\n]*$"
    ):
        parameters.initialise(Network(), schema.Model(init_from=str(path)))


def test_a_damaged_checkpoint_a_missing_file_and_another_kind_are_one_line(tmp_path):
    folder = checkpoint.commit(tmp_path, "step-00000001", Network().state_dict(), {}, {})
    weights = folder / checkpoint.WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(
        ConfigError,
        match=r"^model.init_from=.*weights.safetensors: not what was written, its sha256 is another[^\n]*$",
    ):
        parameters.initialise(Network(), schema.Model(init_from=str(folder)))
    missing = tmp_path / "no.safetensors"
    with refused(
        f"model.init_from={missing}: not a whole .safetensors file (No such file or directory: {missing}); "
        "type model.init_from=<another file>"
    ):
        parameters.initialise(Network(), schema.Model(init_from=str(missing)))
    pickled = tmp_path / "w.pt"
    torch.save(Network().state_dict(), pickled)
    with refused(
        f"model.init_from={pickled}: a checkpoint folder, a .safetensors file or runs:/<run_id> is needed"
    ):
        parameters.initialise(Network(), schema.Model(init_from=str(pickled)))


# From the tracking store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """(uri, run id, the network whose weights are its best checkpoint): a real store, which takes seconds."""
    folder = tmp_path_factory.mktemp("store")
    uri, source = f"sqlite:///{folder / 'mlflow.db'}", Network()
    client = MlflowClient(uri)
    experiment = client.create_experiment("runner", artifact_location=(folder / "artifacts").as_uri())
    run = client.create_run(experiment).info.run_id
    for name, network in (("best", source), ("last", Network())):
        path = checkpoint.commit(folder, "step-00000001", network.state_dict(), {}, {"step": 1})
        client.log_artifacts(run, str(path), f"checkpoints/{name}")
    return uri, run, source


def test_a_run_s_best_checkpoint_is_downloaded_and_taken(store, tmp_path):
    uri, run, source = store
    path = parameters.resolve(f"runs:/{run}", uri, tmp_path / "init")
    assert path == str(tmp_path / "init/best")
    model = Network()
    parameters.initialise(model, schema.Model(init_from=path))
    assert equal(model, source)
    for name, same in (("checkpoints/best/weights.safetensors", True), ("checkpoints/last", False)):
        path = parameters.resolve(f"runs:/{run}/{name}", uri, tmp_path / "init")
        parameters.initialise(model, schema.Model(init_from=path))
        assert equal(model, source) is same


def test_a_run_or_checkpoint_that_is_not_there_is_one_line(store, tmp_path):
    uri, run, _ = store
    with refused(
        f"model.init_from=runs:/{run}/checkpoints/bset: the run has no artifact checkpoints/bset, only "
        f"checkpoints/best, checkpoints/last; type model.init_from=runs:/{run}/checkpoints/best"
    ):
        parameters.resolve(f"runs:/{run}/checkpoints/bset", uri, tmp_path)
    with refused(f"model.init_from=runs:/{run}/model: the run has no artifact model, only checkpoints"):
        parameters.resolve(f"runs:/{run}/model", uri, tmp_path)
    with refused(
        f"model.init_from=runs:/0123: the store {uri} does not have it (Run with id=0123 not found)"
    ):
        parameters.resolve("runs:/0123", uri, tmp_path)
    with refused(
        "model.init_from=runs:/0123: without a tracking store there are no runs; type tracking=mlflow"
    ):
        parameters.resolve("runs:/0123", None, tmp_path)


def test_a_local_path_is_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parameters.resolve("w.safetensors", None, tmp_path) == str(tmp_path / "w.safetensors")


def test_weights_that_were_read_elsewhere_are_taken(tmp_path):
    source, model = Network(), Network()
    weights = parameters.read_weights(saved(tmp_path / "w.safetensors", source))
    assert (
        parameters.initialise(model, schema.Model(init_from="elsewhere"), weights)
        == "10 of 10 weights from elsewhere"
    )
    assert equal(model, source)


def test_the_folder_of_a_run_says_which_checkpoint_to_type(tmp_path):
    folder = checkpoint.commit(tmp_path / "checkpoints", "step-00000007", Network().state_dict(), {}, {})
    with pytest.raises(ConfigError, match=rf"manifest[^\n]*; type model.init_from={re.escape(str(folder))}$"):
        parameters.read_weights(str(tmp_path))
