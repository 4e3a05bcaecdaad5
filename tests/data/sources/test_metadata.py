"""Lists of labels beside images: Hugging Face's imagefolder, and Roboflow's multi-label CSV."""

import json
from pathlib import Path

import pytest
from trees_exports import image_folder, roboflow_classes, write
from trees_small import write_images

from contextcaps.data import DataError, Source, open_source, open_splits


def named(source: Source) -> dict[str, list[str]]:
    return {sample.id: [source.classes[label] for label in sample.labels] for sample in source}


def listed(root: Path, *rows: object, name: str = "metadata.jsonl") -> Path:
    """A folder with three images and a list."""
    write_images(root, ["a.jpg", "b.jpg", "c.jpg"])
    write(root / name, "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return root


def test_objects_in_jsonl(tmp_path: Path) -> None:
    root = image_folder(tmp_path)
    source = open_source(f"metadata:{root}")
    assert source.classes == ("cat", "dog")
    assert source.splits == ("train", "test")
    assert named(source) == {
        "train/0001.png": ["cat"],
        "train/0002.png": ["cat", "dog"],
        "test/0001.png": ["cat"],
        "test/0002.png": ["cat", "dog"],
    }
    assert source.notes == ["2 images without a label left out (unlabelled=drop)"]
    assert open_splits(f"metadata:{root}?unlabelled=keep").keys() == {"train", "val", "test"}
    assert len(open_source(f"metadata:{root / 'train' / 'metadata.jsonl'}")) == 2


@pytest.mark.parametrize(
    "rows",
    [
        [{"file_name": "a.jpg", "labels": ["cat"]}, {"file_name": "b.jpg", "labels": ["dog", "cat"]}],
        [{"file_name": "a.jpg", "tags": ["cat"]}, {"file_name": "b.jpg", "tags": ["dog", "cat"]}],
        [
            {"image_file_name": "a.jpg", "objects": [{"category": "cat"}]},
            {"image_file_name": "b.jpg", "objects": [{"category": "cat"}, {"category": "dog"}]},
        ],
    ],
)
def test_labels_in_jsonl(tmp_path: Path, rows: list[object]) -> None:
    source = open_source(f"metadata:{listed(tmp_path, *rows)}")
    assert named(source) == {"a.jpg": ["cat"], "b.jpg": ["cat", "dog"]}
    assert source.assumptions == ["1 image in no line left out, such as c.jpg"]


def test_one_label_each_in_csv(tmp_path: Path) -> None:
    root = listed(tmp_path, "file_name,label", "a.jpg,cat", "b.jpg,dog", "c.jpg,", name="metadata.csv")
    assert named(open_source(f"metadata:{root}")) == {"a.jpg": ["cat"], "b.jpg": ["dog"]}


def test_semicolons_between_columns(tmp_path: Path) -> None:
    root = listed(tmp_path, "file_name;label", "a.jpg;cat", "b.jpg;dog", name="metadata.csv")
    assert named(open_source(f"metadata:{root}")) == {"a.jpg": ["cat"], "b.jpg": ["dog"]}


def test_lists_in_csv(tmp_path: Path) -> None:
    rows = ['a.jpg,"[""cat"", ""dog""]"', "b.jpg,[]"]
    root = listed(tmp_path, "file_name,labels", *rows, name="metadata.csv")
    assert named(open_source(f"metadata:{root}")) == {"a.jpg": ["cat", "dog"]}


def test_several_labels_in_a_text_need_a_separator(tmp_path: Path) -> None:
    root = listed(tmp_path, "file_name,labels", "a.jpg,cat|dog", "b.jpg,cat", name="metadata.csv")
    with pytest.raises(DataError, match=r"metadata.csv, line 2: label 'cat\|dog': one class or several\?"):
        open_source(f"metadata:{root}")
    assert open_source(f"metadata:{root}?separator=|").classes == ("cat", "dog")


def test_indices_need_the_names(tmp_path: Path) -> None:
    root = listed(tmp_path / "set", {"file_name": "a.jpg", "label": 1}, {"file_name": "b.jpg", "label": 0})
    with pytest.raises(DataError, match=r"label 1 is an index, which needs a list of classes \(option classes=FILE\)"):
        open_source(f"metadata:{root}")
    names = write(tmp_path / "names.txt", "cat\ndog\n")
    assert named(open_source(f"metadata:{root}?classes={names}")) == {"a.jpg": ["dog"], "b.jpg": ["cat"]}


def test_one_list_above_the_splits(tmp_path: Path) -> None:
    write_images(tmp_path, ["train/a.jpg", "train/b.jpg", "test/a.jpg"])
    rows = [{"file_name": name, "label": name[-5]} for name in ("train/a.jpg", "train/b.jpg", "test/a.jpg")]
    write(tmp_path / "metadata.jsonl", "\n".join(map(json.dumps, rows)))
    source = open_source(f"metadata:{tmp_path}")
    assert source.splits == ("train", "test")
    assert list(named(open_source(f"metadata:{tmp_path}", split="test"))) == ["test/a.jpg"]


def test_roboflow(tmp_path: Path) -> None:
    root = roboflow_classes(tmp_path)
    source = open_source(f"metadata:{root}")
    assert source.classes == ("apple", "pear", "ripe fruit")
    assert source.splits == ("train", "valid", "test")
    assert named(open_source(f"metadata:{root}", split="val")) == {
        "valid/valid0_jpg.rf.9f0.jpg": ["apple"],
        "valid/valid1_jpg.rf.9f1.jpg": ["pear", "ripe fruit"],
    }
    kept = open_splits(f"metadata:{root}", unlabelled="keep")
    assert {name: len(part) for name, part in kept.items()} == {"train": 3, "val": 3, "test": 3}


def test_roboflow_with_other_columns_in_a_split(tmp_path: Path) -> None:
    root = roboflow_classes(tmp_path)
    path = root / "test" / "_classes.csv"
    write(path, path.read_text().replace("pear", "plum"))
    with pytest.raises(DataError, match=r"the columns of _classes.csv differ from split to split; open one at a time"):
        open_source(f"metadata:{root}")
    assert open_source(f"metadata:{path}").classes == ("apple", "plum", "ripe fruit")


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (["file_name,text", "a.jpg,a cat"], "no column labels, label, tags"),
        (["name,label", "a.jpg,cat"], "expected a column file_name, got name, label"),
        (["file_name,label"], "expected a line for each image, found none"),
        (["file_name,label,label", "a.jpg,cat,dog"], "the column 'label' is there twice"),
        (["file_name,label", "a.jpg,cat,dog"], "expected a line for each image, found none"),
        (["file_name,label", "a.jpg,cat", "gone.jpg,cat"], "line 3: gone.jpg is missing"),
        (["file_name,label", "a.jpg,cat", "a.jpg,dog"], "line 3: a.jpg is there before"),
        (["file_name,label", "a.jpg,cat", "../a.jpg,cat"], "line 3: file name '../a.jpg' leads out of the folder"),
        (["file_name,label", "a.jpg,cat", 'b.jpg,"[cat]"'], "expected a list in JSON, got '[cat]'"),
    ],
)
def test_bad_csv(tmp_path: Path, rows: list[str], told: str) -> None:
    root = listed(tmp_path, *rows, name="metadata.csv")
    with pytest.raises(DataError) as caught:
        open_source(f"metadata:{root}")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("[1]", "line 2: expected an object with file_name, got '[1]"),
        ("{", "line 2: expected JSON in one line"),
        ('{"file_name": "b.jpg"}', "line 2: the labels are missing"),
        ('{"file_name": "b.jpg", "label": {"box": 1}}', "expected objects with categories, got box"),
        ('{"file_name": "b.jpg", "label": true}', "label True"),
        ('{"file_name": null, "label": "cat"}', "line 2: expected a file name"),
    ],
)
def test_bad_jsonl(tmp_path: Path, row: str, told: str) -> None:
    root = listed(tmp_path, {"file_name": "a.jpg", "label": "cat"}, row)
    with pytest.raises(DataError) as caught:
        open_source(f"metadata:{root}")
    assert told in str(caught.value)
