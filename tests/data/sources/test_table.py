"""Tables of images, CSV and Parquet."""

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from round_trip import assert_round_trip, assert_same_samples
from trees_small import write_images

from contextcaps.data import DataError, Subset, open_source

NAMES = ["a.jpg", "more/b.jpg", "more/c, d.jpg", "e.jpg"]
LABELS = [["cat", "dog"], ["dog"], ["café", "cat"], ["bus"]]
SPLITS = ["train", "train", "validation", "test"]


def write_labels(folder: Path) -> Path:
    write_images(folder, NAMES)
    rows = ["path,labels,split"]
    rows += [f'"{name}",{";".join(labels)},{split}' for name, labels, split in zip(NAMES, LABELS, SPLITS, strict=True)]
    path = folder / "table.csv"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8-sig")
    return path


def write_csv(folder: Path, text: str) -> str:
    """A table beside the four images; its location."""
    write_images(folder, NAMES)
    (folder / "table.csv").write_text(text, encoding="utf-8")
    return f"table:{folder / 'table.csv'}"


def named(source):
    return [{source.classes[label] for label in source.labels_of(index)} for index in range(len(source))]


def test_labels_in_a_column(tmp_path):
    source = open_source(f"table:{write_labels(tmp_path)}")
    assert source.classes == ("bus", "café", "cat", "dog")
    assert [sample.id for sample in source] == NAMES
    assert named(source) == [set(labels) for labels in LABELS]
    assert source.splits == ("train", "validation", "test")
    assert source[1].image == tmp_path / "more" / "b.jpg"


def test_twice_the_same_and_through_shards(tmp_path):
    path = write_labels(tmp_path)
    source, again = open_source(f"table:{path}"), open_source(f"table:{path}")
    assert_same_samples(again, source)
    assert again.fingerprint() == source.fingerprint()
    assert_round_trip(source, tmp_path)


def test_fingerprint_follows_images_and_options(tmp_path):
    path = write_labels(tmp_path)
    before = open_source(f"table:{path}").fingerprint()
    assert open_source(f"table:{path}?separator=,").fingerprint() != before
    (tmp_path / "a.jpg").write_bytes((tmp_path / "e.jpg").read_bytes() + b"\0")
    assert open_source(f"table:{path}").fingerprint() != before


@pytest.mark.parametrize("word", ["val", "validation", "valid"])
def test_a_split_has_all_classes(tmp_path, word):
    source = open_source(f"table:{write_labels(tmp_path)}", split=word)
    assert [sample.id for sample in source] == ["more/c, d.jpg"]
    assert source.split == "validation"
    assert source.classes == ("bus", "café", "cat", "dog")
    assert "2 of 4 classes have no positive: bus, dog" in source.notes[0]


def test_rows_of_other_splits_do_not_matter(tmp_path):
    spec = write_csv(tmp_path, "path,cat,set\na.jpg,1,train\nnowhere.jpg,x,test\n")
    assert len(open_source(spec, split="train")) == 1
    with pytest.raises(DataError, match="row 3: column 'cat'"):
        open_source(spec, split="test")


def test_unknown_split(tmp_path):
    with pytest.raises(DataError, match="no split 'minival'; it has train, validation, test"):
        open_source(f"table:{write_labels(tmp_path)}", split="minival")


def test_one_column_per_class(tmp_path):
    spec = write_csv(tmp_path, "Image;dog;cat\na.jpg;0;1\nmore/b.jpg;1;1.0\n")
    source = open_source(spec)
    assert source.classes == ("dog", "cat")
    assert [source.labels_of(index) for index in range(2)] == [(1,), (0, 1)]
    assert_round_trip(source, tmp_path)


def test_listed_classes_choose_the_columns(tmp_path):
    spec = write_csv(tmp_path, "image,width,dog,cat\na.jpg,640,0,1\n")
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    assert named(open_source(spec, classes=str(tmp_path / "classes.txt"))) == [{"cat"}]
    source = open_source(spec)
    assert source.classes == ("dog", "cat")
    assert source.assumptions == ["columns without 0 and 1 are no classes, and left out: width ('640')"]
    (tmp_path / "classes.json").write_text('["cat", "cow"]')
    with pytest.raises(DataError, match="no column for 1 of 2 classes: cow"):
        open_source(spec, classes=str(tmp_path / "classes.json"))


@pytest.mark.parametrize(("separator", "cell"), [(" ", "cat  dog"), ("|", "cat | dog"), (",", '"cat,dog,"')])
def test_separators(tmp_path, separator, cell):
    source = open_source(write_csv(tmp_path, f"path,tags\na.jpg,{cell}\n"), separator=separator)
    assert named(source) == [{"cat", "dog"}]


def test_quoted_cells_with_line_breaks_keep_row_numbers(tmp_path):
    spec = write_csv(tmp_path, 'path,labels\na.jpg,"cat;\ndog"\nmissing.jpg,cat\n')
    with pytest.raises(DataError, match=r"row 3: missing\.jpg is missing"):
        open_source(spec)


def test_root_and_column_options(tmp_path):
    write_images(tmp_path / "photos", NAMES)
    (tmp_path / "table.csv").write_text("where,what\na.jpg,cat\n")
    source = open_source(
        f"table:{tmp_path / 'table.csv'}?image_column=where&label_column=what", root=str(tmp_path / "photos")
    )
    assert source[0].image == tmp_path / "photos" / "a.jpg"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("picture,labels\n7,cat\n", "no column named path, image, file.*the columns are picture, labels"),
        ("path\na.jpg\n", "no labels: expected a column named labels"),
        ("path,labels,path\n", "the column 'path' is there twice"),
        ("", "empty; expected a first row"),
        ("path,labels\n", "no usable image found"),
        ('path,labels\na.jpg,"cat\n', "row 2: unexpected end of data"),
    ],
)
def test_unusable_tables(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        open_source(write_csv(tmp_path, text))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("../a.jpg,cat", "row 3: file name '../a.jpg' leads out of the folder"),
        ("/etc/hostname,cat", "row 3: file name '/etc/hostname' is absolute"),
        ("outside.jpg,cat", "row 3: outside.jpg is a link out of the folder"),
        ("linked/a.jpg,cat", "row 3: linked/a.jpg is a link out of the folder"),
        ("more,cat", "row 3: more is not a file"),
        ("empty.jpg,cat", "row 3: empty.jpg is empty"),
        ("nowhere.jpg,cat", "row 3: nowhere.jpg is missing"),
        (",cat", "row 3: expected a file name, got ''"),
        ("e.jpg,", "row 3: e.jpg has no label"),
        ("e.jpg", "row 3: expected 2 cells, got 1"),
        ("https://example.org/b.jpg,dog", "row 3: 'https://example.org/b.jpg' is an address on the network; download"),
        (r"C:\\photos\\a.jpg,dog", r"row 3: file name 'C:.*' is absolute, and of a Windows machine.*root=FOLDER"),
        ("/photos/a.jpg,dog", "row 3: file name '/photos/a.jpg' is absolute; .* root=/photos"),
    ],
)
def test_bad_rows_are_named_or_left_out(tmp_path, row, message):
    folder = tmp_path / "table"
    write_images(tmp_path / "elsewhere", ["a.jpg"])
    spec = write_csv(folder, f"path,labels\na.jpg,cat\n{row}\n")
    (folder / "empty.jpg").touch()
    (folder / "outside.jpg").symlink_to(tmp_path / "elsewhere" / "a.jpg")
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=message):
        open_source(spec)
    source = open_source(spec, on_bad="skip")
    assert [sample.id for sample in source] == ["a.jpg"]
    assert len(source.problems.found) == 1


def test_label_not_in_the_vocabulary(tmp_path):
    spec = write_csv(tmp_path, "path,labels\na.jpg,cat\ne.jpg,unicorn\n")
    (tmp_path / "classes.json").write_text(json.dumps(["cat", "dog"]))
    with pytest.raises(DataError, match=r"row 3: label 'unicorn' is not among the 2 classes of .*classes\.json"):
        open_source(spec, classes=str(tmp_path / "classes.json"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('["cat", "do', "breaks off or is bad"),
        ('{"cat": 1}', "expected a list of class names"),
        ("[]", "got none"),
        ('["cat", "cat"]', "entry 2: the class 'cat' stands in the list twice"),
        ('["cat", 3]', "entry 2: expected the name of a class, got 3"),
    ],
)
def test_bad_lists_of_classes(tmp_path, content, message):
    (tmp_path / "classes.json").write_text(content)
    with pytest.raises(DataError, match=message):
        open_source(write_csv(tmp_path, "path,labels\na.jpg,cat\n"), classes=str(tmp_path / "classes.json"))


def test_unlabelled_images(tmp_path):
    spec = write_csv(tmp_path, "path,labels\na.jpg,cat\ne.jpg, \n")
    dropped = open_source(spec, unlabelled="drop")
    assert len(dropped) == 1
    assert dropped.notes == ["1 image without a label left out (unlabelled=drop)"]
    kept = open_source(spec, unlabelled="keep")
    assert kept.labels_of(1) == ()
    assert_round_trip(kept, tmp_path)


def test_other_encodings_are_refused(tmp_path):
    write_images(tmp_path, NAMES)
    (tmp_path / "table.csv").write_bytes("path,labels\na.jpg,café\n".encode("latin-1"))
    with pytest.raises(DataError, match="expected UTF-8 text"):
        open_source(f"table:{tmp_path / 'table.csv'}")


def test_missing_files(tmp_path):
    with pytest.raises(DataError, match=r"no such file; expected a \.csv or \.parquet table$"):
        open_source(f"table:{tmp_path / 'no.csv'}")
    with pytest.raises(DataError, match="option root: no such folder"):
        open_source(write_csv(tmp_path, "path,labels\na.jpg,cat\n"), root=str(tmp_path / "no"))
    (tmp_path / "labels.csv").write_text("path,labels\na.jpg,cat\n")
    with pytest.raises(DataError, match=r"no such file; .*; did you mean '.*labels\.csv'\?$"):
        open_source(f"table:{tmp_path / 'lables.csv'}")


def write_parquet(folder: Path, **columns: list) -> str:
    write_images(folder, NAMES)
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "table.parquet")
    return f"table:{folder / 'table.parquet'}"


def test_parquet_with_lists(tmp_path):
    source = open_source(write_parquet(tmp_path, file_name=NAMES, labels=LABELS, split=SPLITS))
    assert named(source) == [set(labels) for labels in LABELS]
    assert source.splits == ("train", "validation", "test")
    assert_round_trip(source, tmp_path)


def test_parquet_with_indices_and_columns(tmp_path):
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    spec = write_parquet(tmp_path / "indices", path=NAMES[:2], labels=[[1], [0, 1]])
    assert named(open_source(spec, classes=str(tmp_path / "classes.txt"))) == [{"dog"}, {"cat", "dog"}]
    with pytest.raises(DataError, match="row 1: label 1 is an index, which needs a list of classes"):
        open_source(spec)
    spec = write_parquet(tmp_path / "columns", path=NAMES[:2], cat=[True, False], dog=[0, 1])
    assert named(open_source(spec)) == [{"cat"}, {"dog"}]
    spec = write_parquet(tmp_path / "missing", path=[NAMES[0], None], cat=[1, None])
    with pytest.raises(DataError, match="row 2: expected a file name, got ''"):
        open_source(spec)


def test_parquet_that_holds_the_images(tmp_path):
    with pytest.raises(DataError, match="row 1: column 'image': expected a path, got bytes"):
        open_source(write_parquet(tmp_path, image=[b"secret"], labels=[["cat"]]))


def test_parquet_cut_off(tmp_path):
    spec = write_parquet(tmp_path, path=NAMES, labels=LABELS)
    path = tmp_path / "table.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="expected a Parquet file, it is cut off"):
        open_source(spec)


def test_parquet_without_the_extra(tmp_path, monkeypatch):
    spec = write_parquet(tmp_path, path=NAMES, labels=LABELS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pip install 'contextcaps\[parquet\]'"):
        open_source(spec)


UNKNOWN_CELLS = """path,cat,dog,bus
a.jpg,1,0,?
more/b.jpg,-1,1,0
"more/c, d.jpg",0,,0.0
e.jpg,nan,-1.0,1
"""


def test_unknown_cells(tmp_path):
    """What spreadsheets, pandas and CheXpert write where nobody knows; zeros beside it are known."""
    source = open_source(write_csv(tmp_path, UNKNOWN_CELLS))
    assert source.classes == ("cat", "dog", "bus")
    assert source.targets().tolist() == [[1, 0, 255], [255, 1, 0], [0, 255, 0], [255, 255, 1]]
    assert [sample.unknown for sample in source] == [(2,), (0,), (1,), (0, 1)]
    assert source.notes == [
        "5 of 12 labels are unknown, in 3 of 3 classes; they count neither in training nor in metrics"
    ]
    known = open_source(write_csv(tmp_path / "known", UNKNOWN_CELLS.replace("?", "0").replace("-1", "0")))
    assert known.fingerprint() != source.fingerprint()
    assert known.contents() != source.contents()


def test_unknown_labels_go_through_shards_and_subsets(tmp_path):
    source = open_source(write_csv(tmp_path, UNKNOWN_CELLS))
    returned = assert_round_trip(source, tmp_path)
    np.testing.assert_array_equal(returned.targets(), source.targets())
    subset = Subset(source, [3, 0], "some")
    assert subset.targets().tolist() == [[255, 255, 1], [1, 0, 255]]
    assert [sample.unknown for sample in subset] == [(0, 1), (2,)]


def test_a_row_of_which_nothing_is_known_has_no_label(tmp_path):
    spec = write_csv(tmp_path, "path,cat,dog\na.jpg,1,0\ne.jpg,?,\n")
    with pytest.raises(DataError, match=r"row 3: e\.jpg has no label; leave such images out with unlabelled=drop"):
        open_source(spec)
    assert len(open_source(spec, unlabelled="drop")) == 1
    assert open_source(spec, unlabelled="keep").targets().tolist() == [[1, 0], [255, 255]]


@pytest.mark.parametrize("name", ["ignore", "Unknown", "uncertain"])
def test_a_column_of_ignored_classes(tmp_path, name):
    spec = write_csv(tmp_path, f"path,labels,{name}\na.jpg,cat;dog,\nmore/b.jpg,,cat; bus\ne.jpg,bus,cat\n")
    source = open_source(spec, **({"ignore_column": name} if name == "uncertain" else {}))
    assert source.classes == ("bus", "cat", "dog")
    assert source.targets().tolist() == [[0, 1, 1], [255, 255, 0], [1, 255, 0]]


def test_ignored_classes_as_lists(tmp_path):
    columns = {"path": NAMES[:2], "labels": [["cat"], ["dog"]], "ignore": [["dog"], None]}
    assert open_source(write_parquet(tmp_path, **columns)).targets().tolist() == [[1, 255], [0, 1]]


def test_what_is_wrong_with_ignored_classes(tmp_path):
    spec = write_csv(tmp_path, "path,labels,ignore\na.jpg,cat;dog,dog\ne.jpg,dog,\n")
    with pytest.raises(DataError, match="row 2: 'dog' both in 'labels' and in 'ignore'; expected each class in one"):
        open_source(spec)
    with pytest.raises(DataError, match="ignore_column: no column 'none'; it has path, labels, ignore"):
        open_source(spec, ignore_column="none")
    with pytest.raises(DataError, match="row 2: 'Dog' both in 'labels' and in 'ignore'"):  # one class, two spellings
        open_source(write_csv(tmp_path, "path,labels,ignore\na.jpg,Dog,dog \ne.jpg,Dog,\n"))
    with pytest.raises(DataError, match="row 2: 'dog' both in 'label' and in 'ignore'"):  # of two rows of an image
        open_source(write_csv(tmp_path, "path,label,ignore\na.jpg,dog,\ne.jpg,cat,\na.jpg,,dog\n"))


def test_a_class_may_be_called_ignore(tmp_path):
    source = open_source(write_csv(tmp_path, "path,cat,ignore\na.jpg,1,0\ne.jpg,?,1\n"))
    assert source.classes == ("cat", "ignore")
    assert source.targets().tolist() == [[1, 0], [255, 1]]


def test_missing_values_of_parquet_are_unknown(tmp_path):
    spec = write_parquet(tmp_path, path=NAMES[:3], cat=[1.0, float("nan"), 0.0], dog=[True, None, True])
    with pytest.raises(DataError, match=r"row 2: more/b\.jpg has no label"):
        open_source(spec)
    assert open_source(spec, unlabelled="drop").targets().tolist() == [[1, 1], [0, 1]]
    assert open_source(spec, unlabelled="keep").targets().tolist() == [[1, 1], [255, 255], [0, 1]]


def test_minus_one_is_unknown_beside_zeros_and_absent_without(tmp_path):
    """CheXpert has 1, 0, -1 and nothing; CelebA has 1 and -1 only, also where its classes are listed."""
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    beside = open_source(write_csv(tmp_path, "path,cat,dog\na.jpg,1.0,-1.0\nmore/b.jpg,,1.0\ne.jpg,1.0,0.0\n"))
    assert beside.targets().tolist() == [[1, 255], [255, 1], [1, 0]]
    spec = write_csv(tmp_path, "path,cat,dog\na.jpg,1,-1\ne.jpg,-1,1\n")
    for source in (open_source(spec), open_source(spec, classes=str(tmp_path / "classes.txt"))):
        assert source.targets().tolist() == [[1, 0], [0, 1]]
        assert "-1 means that the class is absent, since no cell is 0" in source.assumptions


def test_ignored_classes_of_several_rows_are_joined(tmp_path):
    spec = write_csv(tmp_path, "path,label,ignore\na.jpg,cat,bus\na.jpg,dog,\ne.jpg,bus,cat\n")
    source = open_source(spec)
    assert source.classes == ("bus", "cat", "dog")
    assert source.targets().tolist() == [[255, 1, 1], [1, 255, 0]]
