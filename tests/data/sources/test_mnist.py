"""MNIST's idx files, and MultiMNIST made from them."""

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest
from round_trip import assert_round_trip, assert_same_samples
from trees_small import idx_bytes

from contextcaps.data import DataError, open_source

PACK = Path(__file__).parents[3].parent / "shared" / "data" / "mnist"
needs_pack = pytest.mark.skipif(not PACK.is_dir(), reason="the data pack is not there")


def digits(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Blots [n, 28, 28] with an empty margin of 4 px, and labels that go round."""
    images = np.zeros((count, 28, 28), np.uint8)
    images[:, 4:24, 4:24] = np.random.default_rng(seed).integers(1, 256, (count, 20, 20))
    return images, np.arange(count, dtype=np.uint8) % 10


def write_mnist(folder: Path, compressed: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, count, seed in (("train", 23, 0), ("t10k", 11, 1)):
        images, labels = digits(count, seed)
        for name, array in ((f"{prefix}-images-idx3-ubyte", images), (f"{prefix}-labels-idx1-ubyte", labels)):
            if compressed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(array)))
            else:
                (folder / name).write_bytes(idx_bytes(array))
    return folder


@pytest.mark.parametrize("compressed", [True, False])
def test_both_splits(tmp_path, compressed):
    source = open_source(f"mnist:{write_mnist(tmp_path, compressed)}")
    assert (len(source), source.splits, source.split) == (34, ("train", "test"), None)
    assert source.classes == tuple("0123456789")
    assert (source[0].id, source[12].labels, source[23].id) == ("train-00000", (2,), "test-00000")
    image = source[24].image
    assert (image.shape, image.dtype) == ((28, 28, 3), np.uint8)
    np.testing.assert_array_equal(image, np.stack([digits(11, 1)[0][1]] * 3, axis=2))


@pytest.mark.parametrize("kind", ["mnist", "multimnist"])
def test_twice_the_same_and_through_shards(tmp_path, kind):
    folder = write_mnist(tmp_path / "idx")
    source, again = (open_source(f"{kind}:{folder}?split=test") for _ in range(2))
    assert_same_samples(again, source)
    assert again.fingerprint() == source.fingerprint()
    assert source.fingerprint() != open_source(f"{kind}:{folder}?split=train").fingerprint()
    returned = assert_round_trip(source, tmp_path)
    assert returned.splits == ("test",)


def test_one_split_only(tmp_path):
    write_mnist(tmp_path)
    for path in tmp_path.glob("train*"):
        path.unlink()
    assert open_source(f"mnist:{tmp_path}").splits == ("test",)
    assert open_source(f"mnist:{tmp_path}?split=t10k").split == "test"
    with pytest.raises(DataError, match="no split 'train'; it has test"):
        open_source(f"mnist:{tmp_path}?split=train")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(idx_bytes(digits(23, 0)[0]))[:-500], "cut off or damaged"),
        (b"not compressed", "cut off or damaged"),
        (gzip.compress(b"\0\0"), "cut off: 2 bytes"),
        (gzip.compress(idx_bytes(digits(23, 0)[0])[:-5]), r"got 18027: it is cut off"),
        (gzip.compress(idx_bytes(digits(23, 0)[0]) + b"\0"), "got more"),
        (
            gzip.compress(idx_bytes(digits(23, 0)[1]) + bytes(8)),
            "expected an idx file with magic number 2051, got 2049",
        ),
        (gzip.compress(idx_bytes(np.zeros((0, 28, 28)))), "at least one"),
        (gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12), "expected less than 2 GiB"),
        (gzip.compress(idx_bytes(digits(22, 0)[0])), "has 22 images.*has 23 labels"),
        (b"", "cut off"),
    ],
    ids=range(10),  # gzip writes the time into its files, so that names made of them would differ between processes
)
def test_bad_files(tmp_path, content, message):
    write_mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(DataError, match=message):
        open_source(f"mnist:{tmp_path}")


def test_missing_files(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        open_source(f"mnist:{tmp_path / 'no'}")
    with pytest.raises(DataError, match="found neither train-images-idx3-ubyte nor"):
        open_source(f"mnist:{tmp_path}")
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte .* is missing"):
        open_source(f"mnist:{tmp_path}")


def test_label_out_of_range(tmp_path):
    write_mnist(tmp_path)
    labels = digits(23, 0)[1]
    labels[4] = 10
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(labels)))
    with pytest.raises(DataError, match="train-00004: expected a label from 0 to 9, got 10"):
        open_source(f"mnist:{tmp_path}")
    assert len(open_source(f"mnist:{tmp_path}", on_bad="skip")) == 33
    with pytest.raises(DataError, match="expected labels from 0 to 9 of at least two classes"):
        open_source(f"multimnist:{tmp_path}")


def test_pairs_are_two_shifted_digits(tmp_path):
    images, labels = digits(23, 0)
    source = open_source(f"multimnist:{write_mnist(tmp_path)}?split=train&count=200")
    assert len(source) == 200
    offsets = set()
    for index in range(200):
        sample = source[index]
        assert sample.image.shape == (36, 36, 3)
        first, second = sample.boxes.labels
        assert first == labels[index % 23] != second
        assert sample.labels == tuple(sorted((first, second)))
        corners = np.round(sample.boxes.corners * 36).astype(int)  # of the ink, which begins 4 px inside the digit
        shifts = corners[:, :2] - 4
        assert shifts.min() >= 0
        assert shifts.max() <= 8
        np.testing.assert_array_equal(corners[:, 2:] - corners[:, :2], 20)
        offsets |= set(shifts.ravel().tolist())
        frames = np.zeros((2, 36, 36), int)
        frames[0, shifts[0, 1] : shifts[0, 1] + 28, shifts[0, 0] : shifts[0, 0] + 28] = images[index % 23]
        candidates = []
        for partner in np.flatnonzero(labels == second):
            frames[1] = 0
            frames[1, shifts[1, 1] : shifts[1, 1] + 28, shifts[1, 0] : shifts[1, 0] + 28] = images[partner]
            candidates.append(np.array_equal(np.minimum(frames.sum(axis=0), 255), sample.image[:, :, 0]))
        assert any(candidates)
    assert offsets == set(range(9))


def test_a_pair_depends_only_on_seed_split_and_index(tmp_path):
    folder = write_mnist(tmp_path)
    few, many, both = (
        open_source(f"multimnist:{folder}?{options}")
        for options in ("split=test&count=3", "split=test&count=30", "count=3")
    )
    for index in range(3):
        np.testing.assert_array_equal(few[index].image, many[index].image)
        np.testing.assert_array_equal(few[index].image, both[3 + index].image)
    other = open_source(f"multimnist:{folder}?split=test&count=3&seed=1")
    assert any((few[index].image != other[index].image).any() for index in range(3))
    assert few.fingerprint() != other.fingerprint()
    with pytest.raises(DataError, match="option count: expected at least 1, got 0"):
        open_source(f"multimnist:{folder}?count=0")


def test_pairs_never_change(tmp_path):
    """The number was taken from the first version: whoever trained on a seed must get the same pairs again."""
    source = open_source(f"multimnist:{write_mnist(tmp_path)}?split=train&count=50&seed=7")
    drawn = [(sample.labels, np.round(sample.boxes.corners * 36).astype(int).tolist()) for sample in source]
    assert hashlib.sha256(repr(drawn).encode()).hexdigest()[:16] == "cc154bdac365ca8b"


@needs_pack
def test_the_real_files():
    source = open_source(f"mnist:{PACK}")
    assert len(source) == 70_000
    assert [source.labels_of(index)[0] for index in range(10)] == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert source.targets()[60_000:].sum(axis=0).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    pairs = open_source(f"multimnist:{PACK}?split=test&count=1000")
    assert (pairs.targets().sum(axis=1) == 2).all()
