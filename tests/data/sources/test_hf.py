"""Hugging Face data sets, from folders: no network is needed."""

import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image
from round_trip import assert_round_trip, assert_same_samples
from trees_small import encoded, pixels

from contextcaps.data import DataError, open_source
from contextcaps.data.images import decode

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Keeps what `datasets` writes within the test's folder."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("CONTEXTCAPS_CACHE", str(tmp_path / "own"))
    datasets.disable_progress_bars()


CLASS_LABEL = datasets.ClassLabel(names=["cat", "dog", "bus"])


def rows(labels: list, feature: object, images: list | None = None, column: str = "labels") -> "datasets.Dataset":
    """A data set of small JPEG files."""
    images = images or [{"bytes": encoded(seed), "path": None} for seed in range(len(labels))]
    features = datasets.Features({"image": datasets.Image(), "number": datasets.Value("int64"), column: feature})
    return datasets.Dataset.from_dict(
        {"image": images, "number": list(range(len(labels))), column: labels}, features=features
    )


def save(folder: Path, **parts: "datasets.Dataset") -> Path:
    datasets.DatasetDict(parts).save_to_disk(folder / "saved")
    return folder / "saved"


def save_two(folder: Path) -> Path:
    feature = datasets.Sequence(CLASS_LABEL)
    return save(folder, train=rows([[1, 0], [2]], feature), validation=rows([[1], [0, 2], [1]], feature))


def test_lists_of_class_labels(tmp_path):
    source = open_source(f"hf:{save_two(tmp_path)}")
    assert source.classes == ("cat", "dog", "bus")
    assert source.splits == ("train", "validation")
    assert [sample.labels for sample in source] == [(0, 1), (2,), (1,), (0, 2), (1,)]
    assert [source[0].id, source[2].id] == ["train-00000000", "validation-00000000"]
    assert source[1].image == encoded(1)


def test_twice_the_same_and_through_shards(tmp_path):
    folder = save_two(tmp_path)
    source, again = open_source(f"hf:{folder}"), open_source(f"hf:{folder}")
    assert_same_samples(again, source)
    assert again.fingerprint() == source.fingerprint()
    assert_round_trip(source, tmp_path)


def test_one_split(tmp_path):
    source = open_source(f"hf:{save_two(tmp_path)}?split=val")
    assert (len(source), source.split) == (3, "validation")
    with pytest.raises(DataError, match="no split 'test'; it has train, validation"):
        open_source(f"hf:{tmp_path / 'saved'}?split=test")


def test_names_are_those_of_all_splits(tmp_path):
    feature = datasets.Sequence(datasets.Value("string"))
    folder = save(tmp_path, train=rows([["zebra"]], feature), test=rows([["ant", "zebra"]], feature))
    source = open_source(f"hf:{folder}?split=train")
    assert (source.classes, source.labels_of(0)) == (("ant", "zebra"), (1,))


def test_case_and_white_space_make_no_classes_of_text(tmp_path):
    labels = [["Cat"], [" cat"], ["cat", "dog"]]
    folder = save(tmp_path, train=rows(labels, datasets.Sequence(datasets.Value("string"))))
    source = open_source(f"hf:{folder}")
    assert (source.classes, [sample.labels for sample in source]) == (("cat", "dog"), [(0,), (0,), (0, 1)])
    assert len(source.assumptions) == 1
    assert open_source(f"hf:{folder}?unify=false").classes == (" cat", "Cat", "cat", "dog")


@pytest.mark.parametrize(
    ("labels", "feature", "expected"),
    [([2, 0], CLASS_LABEL, [(2,), (0,)]), (["b", "a"], datasets.Value("string"), [(1,), (0,)])],
)
def test_one_label_each(tmp_path, labels, feature, expected):
    rows(labels, feature, column="kind").save_to_disk(tmp_path / "saved")
    source = open_source(f"hf:{tmp_path / 'saved'}?label_column=kind")
    assert [sample.labels for sample in source] == expected
    assert source.splits == ()


def test_a_folder_of_parquet(tmp_path):
    folder = tmp_path / "parquet"
    folder.mkdir()
    feature = datasets.Sequence(CLASS_LABEL)
    rows([[1, 0], [2]], feature).to_parquet(folder / "train-00000-of-00002.parquet")
    rows([[0]], feature).to_parquet(folder / "train-00001-of-00002.parquet")
    rows([[1]], feature).to_parquet(folder / "test.parquet")
    source = open_source(f"hf:{folder}")
    assert set(source.splits) == {"train", "test"}
    train = open_source(f"hf:{folder}?split=train")
    assert [sample.labels for sample in train] == [(0, 1), (2,), (0,)]
    assert_round_trip(train, tmp_path)
    assert (tmp_path / "own" / "datasets").is_dir()  # the Arrow copy
    assert not (tmp_path / "cache").exists()
    (folder / "test.parquet").write_bytes((folder / "test.parquet").read_bytes()[:-30])
    with pytest.raises(DataError, match="cannot be read, cut off or damaged"):
        open_source(f"hf:{folder}")


def test_pixels_of_saved_images_come_back(tmp_path):
    rows([[0]], datasets.Sequence(CLASS_LABEL), [Image.fromarray(pixels(3))]).save_to_disk(tmp_path / "saved")
    assert (decode(open_source(f"hf:{tmp_path / 'saved'}")[0].image) == pixels(3)).all()


def test_files_beside_the_data_set(tmp_path):
    folder = tmp_path / "parquet"
    (folder / "photos").mkdir(parents=True)
    (folder / "photos" / "a.jpg").write_bytes(encoded(1))
    (tmp_path / "secret.jpg").write_bytes(encoded(2))
    (folder / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    paths = ["photos/a.jpg", "../secret.jpg", str(tmp_path / "secret.jpg"), "link.jpg", "photos/b.jpg"]
    images = [{"bytes": None, "path": path} for path in paths]  # also without the features that `datasets` notes
    pyarrow.parquet.write_table(pyarrow.table({"image": images, "tags": [["cat"]] * 5}), folder / "all.parquet")
    with pytest.raises(DataError, match=r"train-00000001: the file '\.\./secret\.jpg' is outside of the data set"):
        open_source(f"hf:{folder}")
    source = open_source(f"hf:{folder}", on_bad="skip")
    assert [sample.image for sample in source] == [(folder / "photos" / "a.jpg").resolve()]
    assert [problem.what.rpartition(" is ")[2] for problem in source.problems.found] == [
        "outside of the data set",
        "outside of the data set",
        "outside of the data set",
        "missing",
    ]


def test_bad_rows(tmp_path):
    images = [
        {"bytes": encoded(1), "path": None},
        {"bytes": b"", "path": None},
        None,
        {"bytes": encoded(1), "path": None},
    ]
    rows([[0], [0], [0], []], datasets.Sequence(CLASS_LABEL), images).save_to_disk(tmp_path / "saved")
    with pytest.raises(DataError, match="all-00000001: the image is missing or empty") as raised:
        open_source(f"hf:{tmp_path / 'saved'}")
    assert "all-00000002: the image is missing or empty" in str(raised.value)
    assert "all-00000003: has no label" in str(raised.value)
    assert len(open_source(f"hf:{tmp_path / 'saved'}", on_bad="skip")) == 1
    dropped = open_source(f"hf:{tmp_path / 'saved'}", on_bad="skip", unlabelled="drop")
    assert dropped.notes[0] == "1 image without a label left out (unlabelled=drop)"
    assert len(open_source(f"hf:{tmp_path / 'saved'}", on_bad="skip", unlabelled="keep")) == 2


def test_secret_labels_are_none(tmp_path):
    rows([1, -1], CLASS_LABEL).save_to_disk(tmp_path / "saved")
    with pytest.raises(DataError, match="all-00000001: has no label"):
        open_source(f"hf:{tmp_path / 'saved'}")


def test_missing_columns(tmp_path):
    folder = save_two(tmp_path)
    with pytest.raises(DataError, match="image_column: no column 'photo'; it has image, number, labels"):
        open_source(f"hf:{folder}?image_column=photo")
    with pytest.raises(DataError, match="label_column: expected ClassLabel or text"):
        open_source(f"hf:{folder}?label_column=number")
    datasets.Dataset.from_dict({"number": [1]}).save_to_disk(tmp_path / "numbers")
    with pytest.raises(DataError, match="no column of images; the columns are number"):
        open_source(f"hf:{tmp_path / 'numbers'}")
    rows([1], datasets.Value("int64")).remove_columns("labels").save_to_disk(tmp_path / "images")
    with pytest.raises(DataError, match="no column of labels, looked for labels, label, tags"):
        open_source(f"hf:{tmp_path / 'images'}")


def test_folders_that_are_none(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        open_source(f"hf:{tmp_path / 'no'}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="expected a folder written by save_to_disk"):
        open_source(f"hf:{tmp_path / 'empty'}")
    (save_two(tmp_path) / "train" / "state.json").write_text('{"_data_fi')
    with pytest.raises(DataError, match="cannot be read, cut off or damaged"):
        open_source(f"hf:{tmp_path / 'saved'}")


def test_a_name_that_cannot_be_reached(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="hf:nobody/nothing: the data set cannot be had") as raised:
        open_source("hf:nobody/nothing")
    assert "\n" not in str(raised.value)


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'contextcaps\[hf\]'"):
        open_source("hf:nobody/nothing")
