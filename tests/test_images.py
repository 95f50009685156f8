"""Image folders and saved arrays: exact pixels, classes, splits, and what is said of bad files."""

import pickle

import numpy as np
import pytest
from PIL import Image

from datasets import images, npy


def paint(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(path)


@pytest.fixture
def folder(tmp_path):
    """Two classes of ten 2×3 images each; image i of class c is of colour (i, 100 + i, 200 × c) everywhere."""
    for label, name in enumerate(("cat", "dog")):
        for i in range(10):
            paint(tmp_path / "pets" / name / f"{i}.png", np.full((2, 3, 3), (i, 100 + i, 200 * label)))
    return tmp_path / "pets"


def test_pixels_are_in_the_unit_interval_channel_first_with_their_class(folder):
    found = images.read(str(folder), size=[2, 3], normalise=False)
    assert {name: found[name][0].shape for name in ("train", "val")} == {
        "train": (16, 3, 2, 3),
        "val": (4, 3, 2, 3),
    }
    assert found["preprocessing"] == {"size": [2, 3], "channels": 3}
    assert (found["out_features"], found["class_names"]) == (2, ["cat", "dog"])
    seen = set()
    for name in ("train", "val"):
        inputs, labels = found[name]
        assert inputs.dtype == np.float32
        for image, label in zip(np.rint(inputs * 255).astype(int), labels, strict=True):
            red = image[0, 0, 0]
            assert (image == np.array([red, 100 + red, 200 * label])[:, None, None]).all()
            seen.add((int(red), int(label)))
    assert len(seen) == 20


def test_normalised_by_the_training_pixels_of_each_channel(folder):
    plain = images.read(str(folder), size=[2, 3], normalise=False)
    found = images.read(str(folder), size=[2, 3])
    train = plain["train"][0].astype(np.float64)
    mean, deviation = train.mean(axis=(0, 2, 3)), train.std(axis=(0, 2, 3))
    np.testing.assert_allclose(found["preprocessing"]["mean"], mean, rtol=1e-6)
    np.testing.assert_allclose(found["preprocessing"]["std"], deviation, rtol=1e-6)
    by_hand = (plain["val"][0] - mean[:, None, None]) / deviation[:, None, None]
    np.testing.assert_allclose(found["val"][0], by_hand, rtol=1e-5, atol=1e-6)


def test_streamed_images_are_those_in_memory_in_any_range(folder):
    whole = images.read(str(folder), size=2, seed=5)
    streamed = pickle.loads(pickle.dumps(images.read(str(folder), size=2, seed=5, stream=True)))
    assert streamed["preprocessing"] == whole["preprocessing"]
    for name in ("train", "val"):
        parts = [streamed[name].read(start, start + 3) for start in range(0, len(whole[name][0]), 3)]
        np.testing.assert_array_equal(np.concatenate([part[0] for part in parts]), whole[name][0])
        np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), whole[name][1])


def test_the_order_mixes_classes(folder):
    labels = images.read(str(folder), size=2)["train"][1]
    assert 1 < np.count_nonzero(np.diff(labels)) < 15


def test_folders_train_and_val_are_the_split(tmp_path):
    for name in ("cat", "dog"):
        paint(tmp_path / "own" / "train" / name / "a.png", np.full((1, 1, 3), 255))
    paint(tmp_path / "own" / "val" / "dog" / "b.png", np.zeros((1, 1, 3)))
    found = images.read(str(tmp_path / "own"), size=1, normalise=False)
    assert found["val"][0].ravel().tolist() == [0, 0, 0]
    assert found["val"][1].tolist() == [1]
    assert sorted(found["train"][1].tolist()) == [0, 1]


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images_of_any_mode_get_the_channels_and_the_size_asked_for(folder, channels):
    grey = np.arange(48).reshape(6, 8)
    paint(folder / "cat" / "grey.png", grey)
    Image.fromarray(grey.astype(np.uint8)).convert("P").save(folder / "cat" / "palette.gif")
    found = images.read(str(folder), size=[4, 5], channels=channels, normalise=False)
    assert found["train"][0].shape[1:] == (channels, 4, 5)


@pytest.mark.parametrize("stream", [False, True])
def test_an_image_that_cannot_be_read_is_named(folder, stream):
    (folder / "cat" / "broken.png").write_bytes((folder / "cat" / "1.png").read_bytes()[:40])
    with pytest.raises(ValueError, match=f"^{folder}/cat/broken.png: cannot be read: "):
        images.read(str(folder), size=2, stream=stream, val_fraction=0.01)


def test_images_of_more_than_8_bits_are_refused(folder):
    Image.fromarray(np.full((2, 2), 60_000, np.uint16)).save(folder / "cat" / "deep.png")
    message = "deep.png: cannot be read: pixels are I;16, and 8 bits a channel can be read"
    with pytest.raises(ValueError, match=message):
        images.read(str(folder), size=2, val_fraction=0.01)


def test_folders_without_classes_are_refused(folder, tmp_path):
    paint(tmp_path / "flat" / "a.png", np.zeros((1, 1, 3)))
    with pytest.raises(
        ValueError, match=r"flat/a\.png: all images lie in one folder; a folder a class is needed"
    ):
        images.read(str(tmp_path / "flat"))
    paint(folder / "stray.png", np.zeros((1, 1, 3)))
    with pytest.raises(ValueError, match=r"stray\.png: lies in no class folder"):
        images.read(str(folder))


def test_a_class_of_val_that_train_has_not_is_named_with_the_nearest(tmp_path):
    for name in ("train/cat", "train/dog", "val/dogs"):
        paint(tmp_path / name / "a.png", np.zeros((1, 1, 3)))
    with pytest.raises(
        ValueError, match=r"val/dogs/a\.png: no training image is of class 'dogs'; did you mean dog\?"
    ):
        images.read(str(tmp_path))


def test_channels_that_no_image_has_are_refused(folder):
    with pytest.raises(ValueError, match="channels=2: must be one of 1, 3, 4"):
        images.read(str(folder), channels=2)


def save(tmp_path, rows=20):
    inputs, targets = np.arange(rows * 2.0).reshape(rows, 2), np.arange(rows) % 3
    np.save(tmp_path / "x.npy", inputs)
    np.save(tmp_path / "y.npy", targets)
    np.savez(tmp_path / "both.npz", inputs=inputs, targets=targets)
    return inputs.astype(np.float32), targets


@pytest.mark.parametrize("files", [("x.npy", "y.npy"), ("both.npz", None)])
@pytest.mark.parametrize("stream", [False, True])
def test_saved_arrays_are_split_mapped_and_read_in_ranges(tmp_path, files, stream):
    inputs, targets = save(tmp_path)
    path, other = (name and str(tmp_path / name) for name in files)
    found = npy.read(path, other, val_fraction=0.25, target_kind="classification", stream=stream)
    held_out = np.sort(np.random.default_rng(0).permutation(20)[:5])
    val = (
        pickle.loads(pickle.dumps(found["val"])).read(1, 4)
        if stream
        else [part[1:4] for part in found["val"]]
    )
    np.testing.assert_array_equal(val[0], inputs[held_out[1:4]])
    np.testing.assert_array_equal(val[1], targets[held_out[1:4]])
    assert (val[0].dtype, val[1].dtype, found["out_features"]) == (np.float32, np.int64, 3)


def test_saved_validation_arrays_are_the_split(tmp_path):
    inputs, targets = save(tmp_path)
    x, y = str(tmp_path / "x.npy"), str(tmp_path / "y.npy")
    found = npy.read(x, y, val_inputs=x, val_targets=y)
    np.testing.assert_array_equal(found["val"][0], inputs)
    np.testing.assert_array_equal(found["train"][1], targets)


def test_saved_arrays_that_do_not_fit_are_refused_by_file(tmp_path):
    save(tmp_path)
    np.save(tmp_path / "short.npy", np.zeros(3))
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    x = str(tmp_path / "x.npy")
    for arguments, message in (
        ((x,), r"x\.npy: targets=null: a second \.npy is needed, or one \.npz with both"),
        (
            (x, str(tmp_path / "short.npy")),
            r"x\.npy: inputs and targets need as many rows; they are \(20, 2\) and \(3,\)",
        ),
        ((str(tmp_path / "other.npz"),), r"other\.npz: needed are arrays inputs and targets; it has x"),
        ((str(tmp_path / "objects.npy"), x), r"objects\.npy: cannot be read: "),
        ((x, str(tmp_path / "yy.npy")), r"yy\.npy: no such file; did you mean y\.npy\?"),
    ):
        with pytest.raises(ValueError, match=message):
            npy.read(*arguments)
