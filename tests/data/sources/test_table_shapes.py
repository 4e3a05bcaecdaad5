"""Tables as people and their tools write them: spreadsheets, pandas, R, Windows, lists of files."""

import re
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from trees_small import write_images

from contextcaps.data import DataError, open_source

PHOTOS = ["a.jpg", "b.jpg", "c.jpg", "d.jpg"]


def write(folder: Path, text: str, encoding: str = "utf-8", name: str = "table.csv") -> str:
    """A table beside four images, byte by byte; its location."""
    write_images(folder, PHOTOS)
    (folder / name).write_bytes(text.encode(encoding))
    return f"table:{folder / name}"


def named(source):
    return [{source.classes[label] for label in source.labels_of(index)} for index in range(len(source))]


CATS = [{"cat", "dog"}, {"dog"}, {"cat"}, {"bus", "dog"}]


def rows(separator: str, *, quote: str = "", between: str = ",") -> str:
    cells = [separator.join(sorted(labels)) for labels in CATS]
    lines = [f"{name}{between}{quote}{cell}{quote}" for name, cell in zip(PHOTOS, cells, strict=True)]
    return "\n".join([f"path{between}labels", *lines]) + "\n"


# What separates labels


@pytest.mark.parametrize(
    ("separator", "said"),
    [(",", "','"), (", ", "','"), ("|", "'|'"), (" | ", "'|'"), ("\n", "line breaks"), ("\t", "tabs")],
)
def test_the_separator_is_found(tmp_path, separator, said):
    source = open_source(write(tmp_path, rows(separator, quote='"')))
    assert named(source) == CATS
    assert source.assumptions == [
        f"labels are separated by {said}, which 2 of 4 cells contain; separator=… says otherwise"
    ]


def test_the_usual_separator_is_not_worth_a_note(tmp_path):
    source = open_source(write(tmp_path, rows(";")))
    assert named(source) == CATS
    assert source.assumptions == []


def test_an_option_overrides_what_is_found(tmp_path):
    source = open_source(write(tmp_path, rows(",", quote='"')), separator=";")
    assert named(source)[0] == {"cat,dog"}
    assert source.assumptions == ["no cell contains the separator ';'"]


def test_words_are_separated_by_spaces_where_they_recur(tmp_path):
    sky, ground = ["clear", "haze", "partly"], ["primary", "primary road", "primary water", "cultivation road"]
    cells = [f"{above} {below}" for above in sky for below in ground] * 3 + ["cloudy"]
    names = [f"{number}.jpg" for number in range(len(cells))]
    write_images(tmp_path, names)
    spec = write(tmp_path, "\n".join(["image_name,tags", *map(",".join, zip(names, cells, strict=True))]))
    source = open_source(spec)
    assert "primary" in source.classes
    assert not any(" " in name for name in source.classes)
    assert "labels are separated by white space" in source.assumptions[0]


@pytest.mark.parametrize("separator", [";", "|"])
def test_names_of_two_words_and_with_commas_stay_whole(tmp_path, separator):
    cells = [["building, edifice", "traffic light"], ["traffic light"], ["rug, carpet", "stop sign"], ["hot dog"]]
    lines = [f'{name},"{separator.join(cell)}"' for name, cell in zip(PHOTOS, cells, strict=True)]
    source = open_source(write(tmp_path, "\n".join(["path,labels", *lines])))
    assert named(source) == [set(cell) for cell in cells]


def test_commas_within_names_that_come_again(tmp_path):
    names = ["building, edifice", "floor, flooring", "road, route", "rug, carpet", "earth, ground", "wall"]
    images = [f"{number}.jpg" for number in range(24)]
    write_images(tmp_path, images)
    lines = [f'{image},"{names[number % 6]}"' for number, image in enumerate(images)]
    source = open_source(write(tmp_path, "\n".join(["path,label", *lines])))
    assert source.classes == tuple(sorted(names))
    assert "commas are taken as part of the names, such as 'building, edifice'" in source.assumptions[0]


def test_a_list_of_classes_tells_the_separator(tmp_path):
    (tmp_path / "classes.txt").write_text("dining table\nhot dog\ncup\n")
    cells = ["dining table cup", "dining table/hot dog", "dining table, hot dog", "hot dog, cup"]
    lines = [f'{name},"{cell}"' for name, cell in zip(PHOTOS[2:], cells[2:], strict=True)]
    source = open_source(write(tmp_path, "\n".join(["path,labels", *lines])), classes=str(tmp_path / "classes.txt"))
    assert named(source) == [{"dining table", "hot dog"}, {"hot dog", "cup"}]


@pytest.mark.parametrize(
    "form",
    [
        lambda labels: str(labels),  # pandas writes a column of lists like this
        lambda labels: str(labels).replace("'", '""'),  # JSON
        lambda labels: f"[{' '.join(map(repr, labels))}]",  # NumPy
        lambda labels: str(tuple(labels)),
        lambda labels: f"[{', '.join(labels)}]",
    ],
)
def test_lists_written_as_text(tmp_path, form):
    lines = [f'{name},"{form(sorted(labels))}"' for name, labels in zip(PHOTOS, CATS, strict=True)]
    source = open_source(write(tmp_path, "\n".join(["path,labels", *lines])))
    assert named(source) == CATS
    assert "labels are read as lists, such as" in source.assumptions[0]


def test_lists_of_something_else_are_refused(tmp_path):
    text = """path,labels\na.jpg,"[{'label': 'cat'}]"\nb.jpg,"[{'label': 'dog'}]"\n"""
    with pytest.raises(DataError, match=r"row 2: expected a list of names such as \['cat', 'dog'\], got"):
        open_source(write(tmp_path, text))


# Names of classes


def test_case_and_white_space_make_no_classes(tmp_path):
    source = open_source(write(tmp_path, "path,labels\na.jpg,Chair\nb.jpg, chair ;cup\nc.jpg,CHAIR\nd.jpg,chair\n"))
    assert source.classes == ("chair", "cup")
    assert source.assumptions == [
        "1 class is written in several ways, taken as one: 'chair' (also 'Chair', 'CHAIR'); unify=false keeps them "
        "apart"
    ]
    apart = open_source(f"table:{tmp_path / 'table.csv'}?unify=false")
    assert apart.classes == ("CHAIR", "Chair", "chair", "cup")


def test_the_same_names_in_every_split(tmp_path):
    text = "path,labels,split\na.jpg,Dining table,train\nb.jpg,dining  table,val\nc.jpg,dining table,val\n"
    spec = write(tmp_path, text)
    assert [open_source(spec, split=split).classes for split in ("train", "val")] == [("dining table",)] * 2


def test_a_given_list_decides_the_spelling(tmp_path):
    (tmp_path / "classes.txt").write_text("Chair\nTurkey\nturkey\n")
    given = str(tmp_path / "classes.txt")
    source = open_source(write(tmp_path, "path,labels\na.jpg,chair\nb.jpg,turkey\nc.jpg,Turkey\n"), classes=given)
    assert source.classes == ("Chair", "Turkey", "turkey")
    assert named(source) == [{"Chair"}, {"turkey"}, {"Turkey"}]
    spec = f"table:{tmp_path / 'table.csv'}"
    with pytest.raises(
        DataError, match=r"row 2: label 'chair' is not among the 3 classes of .*; the nearest is 'Chair'"
    ):
        open_source(spec, classes=given, unify=False)


def test_columns_that_are_one_class(tmp_path):
    spec = write(tmp_path, "path,Chair,cup,chair\na.jpg,1,0,0\nb.jpg,0,1,1\nc.jpg,0,1,0\n")
    source = open_source(spec)
    assert source.classes == ("Chair", "cup")
    assert named(source) == [{"Chair"}, {"Chair", "cup"}, {"cup"}]
    assert "columns 'Chair', 'chair' are one class" in source.assumptions[0]
    assert open_source(spec, unify=False).classes == ("Chair", "cup", "chair")


def test_an_empty_name_is_no_class(tmp_path):
    spec = write(tmp_path, "path,labels\na.jpg,cat;;\nb.jpg, ; dog\n")
    assert open_source(spec).classes == ("cat", "dog")
    with pytest.raises(DataError, match="column 3 has no name; write its class in the first row, or remove the column"):
        open_source(write(tmp_path / "columns", "path,cat,,dog\na.jpg,1,1,0\nb.jpg,0,1,1\n"))


# Columns that are no classes


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
@pytest.mark.parametrize("first", [0, 1])
def test_an_index_is_left_out(tmp_path, name, first):
    lines = [f"{first + row},{photo},{row % 2},1" for row, photo in enumerate(PHOTOS)]
    source = open_source(write(tmp_path, "\n".join([f"{name},path,cat,dog", *lines])))
    assert source.classes == ("cat", "dog")
    assert source.assumptions == [f"column 1 ({name!r}) is a row index ({first}, …), and left out"]


def test_paths_as_an_index(tmp_path):
    source = open_source(write(tmp_path, ",cat,dog\na.jpg,1,0\nb.jpg,0,1\n"))
    assert (source.classes, named(source)) == (("cat", "dog"), [{"cat"}, {"dog"}])


def test_empty_columns_of_a_spreadsheet(tmp_path):
    source = open_source(write(tmp_path, "path,cat,dog,,\na.jpg,1,0,,\nb.jpg,0,1,,\n,,,,\n"))
    assert (source.classes, source.assumptions) == (("cat", "dog"), [])


def test_sizes_and_texts_are_no_classes(tmp_path):
    lines = [f"{photo},640,48{row},{row + 1000.5},ann,{row % 2},1" for row, photo in enumerate(PHOTOS)]
    spec = write(tmp_path, "\n".join(["path,width,height,area,who,cat,dog", *lines]))
    source = open_source(spec)
    assert source.classes == ("cat", "dog")
    (said,) = source.assumptions
    assert "columns without 0 and 1 are no classes, and left out: width ('640'), height ('480'), area" in said


def test_counts_are_refused(tmp_path):
    spec = write(tmp_path, "path,cat,dog\na.jpg,1,0\nb.jpg,0,1\nc.jpg,3,1\n")
    with pytest.raises(DataError, match=r"row 4: column 'cat': expected 0, 1 or \?, got '3'"):
        open_source(spec)


@pytest.mark.parametrize(
    ("yes", "no"), [("1", "0"), ("True", "False"), ("1.0", "0.0"), ("yes", "no"), ("YES", "No"), ("TRUE", "FALSE")]
)
def test_words_for_0_and_1(tmp_path, yes, no):
    source = open_source(write(tmp_path, f"path,cat,dog\na.jpg,{yes},{no}\nb.jpg,{no},{yes}\n"))
    assert named(source) == [{"cat"}, {"dog"}]


# One label in each row


def test_one_label_in_each_row(tmp_path):
    source = open_source(write(tmp_path, "filename,label\na.jpg,cat\nb.jpg,dog\na.jpg,dog\na.jpg,cat\n"))
    assert [sample.id for sample in source] == ["a.jpg", "b.jpg"]
    assert named(source) == [{"cat", "dog"}, {"dog"}]
    assert source.assumptions == ["2 rows of images that were there before: labels of an image's rows are joined"]


def test_an_image_in_two_splits_is_refused(tmp_path):
    spec = write(tmp_path, "path,label,split\na.jpg,cat,train\nb.jpg,dog,val\na.jpg,dog,val\n")
    for split in (None, "val"):
        with pytest.raises(DataError, match=r"row 4: a\.jpg is in val here, and in train in row 2"):
            open_source(spec, split=split)


def test_splits_in_any_case(tmp_path):
    source = open_source(write(tmp_path, "path,label,split\na.jpg,cat,train\nb.jpg,dog,Train\nc.jpg,dog,VAL\n"))
    assert source.splits == ("train", "VAL")
    fastai = write(tmp_path / "fastai", "fname,labels,is_valid\na.jpg,cat,False\nb.jpg,dog,True\n")
    assert open_source(fastai).splits == ("train", "val")


def test_the_same_image_twice_with_a_column_per_class(tmp_path):
    with pytest.raises(DataError, match=r"row 3: \./a\.jpg is there before, in row 2"):
        open_source(write(tmp_path, "path,cat,dog\na.jpg,1,0\n./a.jpg,0,1\n"))


# Paths


def test_bare_names_are_found_below_the_root(tmp_path, monkeypatch):
    write_images(tmp_path / "photos", ["one/x.jpg", "two/deep/y.jpg", "two/z.JPG", "one/same.jpg", "two/same.jpg"])
    (tmp_path / "two.csv").write_text("path,label\nx.jpg,cat\ny.jpg,dog\ndeep/y.jpg,bus\nz,cat\n")
    source = open_source(f"table:{tmp_path / 'two.csv'}?root={tmp_path / 'photos'}")
    assert [sample.image.relative_to(tmp_path).as_posix() for sample in source] == [
        "photos/one/x.jpg",
        "photos/two/deep/y.jpg",
        "photos/two/z.JPG",
    ]
    assert source.assumptions[0].startswith("1 row of images that were there before")
    monkeypatch.chdir(tmp_path)
    there = re.escape(str(tmp_path))
    with pytest.raises(DataError, match=rf"none of 4 images is in {there}, such as x\.jpg; name .* root=FOLDER"):
        open_source("table:two.csv")
    (tmp_path / "same.csv").write_text("path,label\nsame.jpg,cat\none/same.jpg,dog\n")
    with pytest.raises(
        DataError, match=r"row 2: same\.jpg is ambiguous, there are 2 such files: one/same\.jpg, two/same"
    ):
        open_source(f"table:{tmp_path / 'same.csv'}?root={tmp_path / 'photos'}")


def test_paths_that_begin_with_the_root_itself(tmp_path):
    write_images(tmp_path / "images", PHOTOS)
    (tmp_path / "table.csv").write_text("path,label\nimages/a.jpg,cat\n")
    source = open_source(f"table:{tmp_path / 'table.csv'}?root={tmp_path / 'images'}")
    assert source[0].image == tmp_path / "images" / "a.jpg"


def test_names_without_a_suffix(tmp_path):
    source = open_source(write(tmp_path, "image_id,label\na,cat\nb,dog\n"))
    assert source[0].image == tmp_path / "a.jpg"
    (tmp_path / "a.png").write_bytes((tmp_path / "b.jpg").read_bytes())
    with pytest.raises(DataError, match=r"row 2: a is ambiguous, there are 2 such files: a\.jpg, a\.png"):
        open_source(f"table:{tmp_path / 'table.csv'}")


def test_paths_of_windows(tmp_path):
    write_images(tmp_path, ["images/more/x.jpg", "images/y.jpg"])
    source = open_source(write(tmp_path, "path,label\r\nimages\\more\\x.jpg,cat\r\n.\\images\\y.jpg,dog\r\n"))
    assert [sample.image for sample in source] == [tmp_path / "images/more/x.jpg", tmp_path / "images/y.jpg"]
    with pytest.raises(DataError, match="leads out of the folder"):
        open_source(write(tmp_path / "images", "path,label\n..\\images\\y.jpg,cat\n"))


def test_absolute_paths_into_the_root(tmp_path):
    write_images(tmp_path / "photos", PHOTOS)
    write_images(tmp_path / "elsewhere", PHOTOS)
    (tmp_path / "photos" / "linked.jpg").symlink_to(tmp_path / "elsewhere" / "a.jpg")
    table = tmp_path / "table.csv"
    table.write_text(f"path,label\n{tmp_path}/photos/a.jpg,cat\n")
    assert open_source(f"table:{table}?root={tmp_path}/photos")[0].image == tmp_path / "photos" / "a.jpg"
    with pytest.raises(DataError, match=f"is absolute; .* allow the one that it is in: root={tmp_path}/photos"):
        open_source(f"table:{table}")
    for outside, message in (
        ("elsewhere/a.jpg", "is absolute"),
        ("photos/../elsewhere/a.jpg", "leads out of the folder"),
        ("photos/linked.jpg", "is a link out of the folder"),
    ):
        table.write_text(f"path,label\n{tmp_path}/{outside},cat\n")
        with pytest.raises(DataError, match=message):
            open_source(f"table:{table}?root={tmp_path}/photos")


# Files


@pytest.mark.parametrize("between", [";", "\t", "|"])
def test_other_delimiters(tmp_path, between):
    source = open_source(write(tmp_path, rows(",", between=between), name="table.tsv"))
    assert named(source) == CATS


def test_what_excel_says_of_the_delimiter(tmp_path):
    assert named(open_source(write(tmp_path, "sep=;\r\npath;label\r\na.jpg;cat\r\n"))) == [{"cat"}]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_encodings_of_excel(tmp_path, encoding):
    text = ("\ufeff" if encoding == "utf-16-be" else "") + "path\tlabel\r\na.jpg\tcafé\r\n"
    assert open_source(write(tmp_path, text, encoding)).classes == ("café",)


def test_latin_1_is_refused_with_its_line(tmp_path):
    spec = write(tmp_path, "path,label\na.jpg,cat\nb.jpg,café\n", "latin-1")
    with pytest.raises(DataError, match=r"line 3: expected UTF-8 text, got the byte 0xe9 \('é' in Latin-1\).*iconv"):
        open_source(spec)


@pytest.mark.parametrize("text", ["a.jpg,cat;dog\nb.jpg,dog\n", "a.jpg;cat,dog\nb.jpg;dog\n"])
def test_no_row_of_names(tmp_path, text):
    source = open_source(write(tmp_path, text))
    assert named(source) == [{"cat", "dog"}, {"dog"}]
    assert "there is no row with the names of the columns" in source.assumptions[0]
    without = open_source(write(tmp_path / "ids", text.replace(".jpg", "")), header=False)
    assert named(without) == [{"cat", "dog"}, {"dog"}]


def test_no_row_of_names_and_a_column_per_class(tmp_path):
    spec = write(tmp_path, "a.jpg,1,0\nb.jpg,0,1\n")
    with pytest.raises(DataError, match="3 columns and no row with their names; add a first row"):
        open_source(spec)
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    assert named(open_source(spec, classes=str(tmp_path / "classes.txt"))) == [{"cat"}, {"dog"}]


def test_labels_without_quotes_say_what_to_do(tmp_path):
    with pytest.raises(DataError, match="row 2: expected 2 cells, got 3; put a cell that contains ',' in quotes"):
        open_source(write(tmp_path, "path,labels\na.jpg,cat,dog\nb.jpg,cat\n"))


def test_blank_rows_and_line_breaks_in_quotes(tmp_path):
    text = '\r\npath,labels\r\na.jpg,"cat\r\ndog"\r\n\r\nb.jpg,dog\r\n,\r\n  ,  \r\n\r\n'
    assert named(open_source(write(tmp_path, text))) == [{"cat", "dog"}, {"dog"}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("table.xlsx", b"PK\x03\x04\x14\0", "this is an Excel workbook.*save the sheet as CSV UTF-8"),
        ("table.csv.gz", b"\x1f\x8b\x08\0", "this is compressed"),
        ("labels.json", b'{"images": []}', "this is JSON"),
        ("a.jpg", b"\xff\xd8\xff\xe0", "this is an image"),
        ("utf16.csv", "path,label".encode("utf-16") + b"\0", "expected UTF-16 text"),
        ("parquet.csv", b"PAR1\0\0\0\0", "expected a Parquet file, it is cut off"),
        ("zeros.csv", bytes(5000), "no column named|line contains NUL|none of"),
    ],
)
def test_files_that_are_no_tables(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        open_source(f"table:{tmp_path / name}")
    with pytest.raises(DataError, match=r"this is a folder; expected a \.csv or \.parquet table"):
        open_source(f"table:{tmp_path}")


def test_parquet_as_pandas_writes_it(tmp_path):
    write_images(tmp_path, PHOTOS)
    labels = [["cat", " Dog"], None, ["dog", ""], ["dog"]]
    columns = {"path": PHOTOS, "labels": labels, "__index_level_0__": [3, 1, 2, 0]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "table.parquet")
    source = open_source(f"table:{tmp_path / 'table.parquet'}", unlabelled="keep")
    assert source.classes == ("cat", "dog")
    assert named(source) == [{"cat", "dog"}, set(), {"dog"}, {"dog"}]


def test_missing_numbers_are_no_names(tmp_path):
    write_images(tmp_path, PHOTOS)
    columns = {"path": PHOTOS[:2], "label": pyarrow.array([1.0, float("nan")])}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "table.parquet")
    with pytest.raises(DataError, match=r"row 2: b\.jpg has no label"):
        open_source(f"table:{tmp_path / 'table.parquet'}")


# As other data sets and tools have it


def test_minus_one_is_absent_where_nothing_is_0(tmp_path):
    source = open_source(write(tmp_path, "image_id,Bald,Smiling,Young\na.jpg,-1,1,-1\nb.jpg,1,-1,-1\n"))
    assert source.classes == ("Bald", "Smiling", "Young")
    assert named(source) == [{"Smiling"}, {"Bald"}]
    assert source.assumptions == ["-1 means that the class is absent, since no cell is 0"]


def test_labels_that_are_said_to_be_absent(tmp_path):
    spec = write(tmp_path, "ImageID,Source,LabelName,Confidence\na,human,cat,1\na,human,dog,0\n")
    with pytest.raises(DataError, match="column Confidence is 0 in 1 of 2 rows: are these labels absent"):
        open_source(spec)
    assert named(open_source(write(tmp_path, "ImageID,LabelName,Confidence\na,cat,1\na,dog,1\n"))) == [{"cat", "dog"}]


def test_choices_of_label_studio(tmp_path):
    text = """annotator,choice,image\n1,"{""choices"":[""cat"",""dog""]}",a.jpg\n1,dog,b.jpg\n"""
    assert named(open_source(write(tmp_path, text))) == [{"cat", "dog"}, {"dog"}]


def test_words_for_the_same_split(tmp_path):
    text = "path,label,split\na.jpg,cat,train\nb.jpg,cat,training\nc.jpg,cat,valid\nd.jpg,cat,tset\n"
    source = open_source(write(tmp_path, text))
    assert source.splits == ("train", "valid", "tset")
    assert source.assumptions == ["training opens no rows of the splits 'tset'"]
    assert len(open_source(f"table:{tmp_path / 'table.csv'}", split="train")) == 2


def test_a_suffix_in_another_case(tmp_path):
    assert open_source(write(tmp_path, "path,label\na.JPG,cat\n"))[0].image == tmp_path / "a.jpg"


def test_tabs_and_line_breaks_as_an_option(tmp_path):
    assert named(open_source(write(tmp_path, rows("\t", quote='"')) + r"?separator=\t")) == CATS


def test_a_separator_that_is_in_no_cell_is_noted(tmp_path):
    source = open_source(write(tmp_path, rows(";")), separator="#")
    assert source.assumptions == ["no cell contains the separator '#'"]


def test_lines_in_quotes_and_of_old_macs(tmp_path):
    with pytest.raises(DataError, match=r"the columns are path,labels \(one column: they are separated by commas"):
        open_source(write(tmp_path, '"path,labels"\n"a.jpg,cat"\n'))
    assert named(open_source(write(tmp_path, "path,labels\ra.jpg,cat;dog\r"))) == [{"cat", "dog"}]
