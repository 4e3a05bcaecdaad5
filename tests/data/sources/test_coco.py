"""COCO: the rules for what counts, the places of the images, and bad data of each kind."""

import os
from pathlib import Path

import pytest
from PIL import Image
from round_trip import assert_round_trip
from trees_coco import SIZE, annotation, coco_tree, index, write_index

from contextcaps.data import DataError, Source, open_source


def named(source: Source) -> dict[str, list[str]]:
    return {sample.id: [source.classes[label] for label in sample.labels] for sample in source}


def problem_of(source: Source) -> str:
    assert len(source.problems.found) == 1
    return str(source.problems.found[0])


def train_index(root: Path) -> Path:
    return root / "annotations" / "instances_train2017.json"


@pytest.fixture
def root(tmp_path):
    return coco_tree(tmp_path / "coco")


def test_the_same_samples_in_the_same_order_twice(root):
    first, second = open_source(f"coco:{root}"), open_source(f"coco:{root}")
    assert first.splits == ("train", "val")
    assert first.split is None
    assert first.classes == ("person", "car", "dog")  # by category id
    assert list(named(first).items()) == [
        ("train-9", ["person", "dog"]),
        ("train-2", ["car"]),
        ("train-7", ["person"]),
        ("val-139", ["dog"]),
    ]
    assert [(a.id, a.image, a.labels) for a in first] == [(a.id, a.image, a.labels) for a in second]
    assert first.fingerprint() == second.fingerprint()
    for sample in first:
        assert Image.open(sample.image).size == SIZE


def test_boxes_are_fractions_cut_off_at_the_edges(root):
    boxes = open_source(f"coco:{root}", split="train")[0].boxes
    assert boxes.labels.tolist() == [2, 0, 2]
    assert boxes.corners.tolist() == [[0.25, 0.25, 0.75, 0.75], pytest.approx([0, 0, 0.1, 0.1]), [0, 0, 0.25, 0.25]]


def test_crowds_count_only_if_asked(root):
    source = open_source(f"coco:{root}?crowd=true", split="train")
    assert named(source)["train-7"] == ["person", "car"]
    assert named(source)["train-4"] == ["car"]
    assert source.fingerprint() != open_source(f"coco:{root}", split="train").fingerprint()


def test_annotations_below_the_least_area_do_not_count(root):
    # The person of image 9 covers 8 of 800 pixels.
    assert named(open_source(f"coco:{root}?min_area=0.011"))["train-9"] == ["dog"]
    assert named(open_source(f"coco:{root}?min_area=0.01"))["train-9"] == ["person", "dog"]
    assert len(open_source(f"coco:{root}?min_area=0.011", split="train")[0].boxes.labels) == 2


@pytest.mark.parametrize(("unlabelled", "count"), [("drop", 3), ("keep", 5)])
def test_images_without_a_label(root, unlabelled, count):
    source = open_source(f"coco:{root}?unlabelled={unlabelled}", split="train")
    assert len(source) == count
    assert ("2 images without a label left out (unlabelled=drop)" in source.notes) == (unlabelled == "drop")
    with pytest.raises(DataError, match="2 problems found\n  train-4: has no label"):
        open_source(f"coco:{root}?unlabelled=refuse", split="train")


@pytest.mark.parametrize(("split", "plain"), [("train", "train"), ("training", "train"), ("validation", "val")])
def test_splits(root, split, plain):
    source = open_source(f"coco:{root}", split=split)
    assert source.split == plain
    assert {sample.id.partition("-")[0] for sample in source} == {plain}
    with pytest.raises(DataError, match=r"no split 'test'; it has train, val"):
        open_source(f"coco:{root}", split="test")


def test_images_under_another_folder(tmp_path):
    assert len(open_source(f"coco:{coco_tree(tmp_path, images='images')}")) == 4


def test_one_file_and_its_images(tmp_path):
    root = coco_tree(tmp_path / "coco")
    assert len(open_source(f"coco:{train_index(root)}")) == 3
    alone = tmp_path / "mine" / "labels.json"
    write_index(alone, index("train"))
    source = open_source(f"coco:{alone}", images=str(root / "train2017"))
    assert source.splits == ()
    assert [sample.id for sample in source] == ["9", "2", "7"]
    with pytest.raises(DataError, match="images: expected a folder, found none at"):
        open_source(f"coco:{alone}", images=str(root / "nowhere"))


def test_years(tmp_path):
    root = coco_tree(coco_tree(tmp_path), year="2014")
    with pytest.raises(DataError, match="files of the years 2014, 2017; choose one with year=2017"):
        open_source(f"coco:{root}")
    source = open_source(f"coco:{root}?year=2014")
    assert {sample.image.parent.name for sample in source} == {"train2014", "val2014"}
    with pytest.raises(DataError, match="choose one with year="):
        open_source(f"coco:{root}?year=2015")


def test_boxes_without_extent_do_not_count(root):
    content = index()
    content["annotations"] += [annotation(8, 2, 1, [3, 3, 0, 5]), annotation(9, 2, 1, [41, 3, 5, 5])]
    write_index(train_index(root), content)
    source = open_source(f"coco:{root}")
    assert named(source)["train-2"] == ["car"]
    assert "2 objects whose box has no extent in the image not counted" in source.notes


# Bad data


def spoil_annotation(**change):
    def spoil(content):
        content["annotations"][3] |= change

    return spoil


def spoil_image(**change):
    def spoil(content):
        content["images"][1] |= change

    return spoil


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (spoil_annotation(category_id=99), "train-2: annotation 4: category_id 99 is not among the categories"),
        (spoil_annotation(category_id=[1]), "category_id [1] is not among the categories"),
        (spoil_annotation(bbox=[1, 2, 3]), "train-2: annotation 4: expected bbox [x, y, width, height], got [1, 2, 3]"),
        (spoil_annotation(bbox=[1, 2, None, 4]), "annotation 4: expected a number as bbox, got None"),
        (spoil_annotation(bbox=[1, 2, float("nan"), 4]), "expected a number as bbox, got nan"),
        (spoil_annotation(bbox=[1, 2, 10**400, 4]), "expected a number as bbox, got 1000"),
        (spoil_image(width="wide"), "train-2: image: expected a number as width, got 'wide'"),
        (spoil_image(height=0), "expected more than 0"),
        (spoil_image(file_name="gone.jpg"), "train-2: train2017/gone.jpg is missing"),
        (spoil_image(file_name=None), "train-2: expected a file name, got None"),
        (spoil_image(file_name="../outside.jpg"), "train-2: file name '../outside.jpg' leads out of the folder"),
        (spoil_image(file_name="a/../../outside.jpg"), "leads out of the folder"),
        (spoil_image(file_name="..\\outside.jpg"), "leads out of the folder"),
        (spoil_image(file_name="/etc/hostname"), "train-2: file name '/etc/hostname' is absolute"),
        (spoil_image(file_name="C:\\outside.jpg"), "is absolute"),
    ],
)
def test_bad_entries(root, spoil, told):
    Image.new("RGB", SIZE).save(root.parent / "outside.jpg")
    content = index()
    spoil(content)
    write_index(train_index(root), content)
    with pytest.raises(DataError, match="1 problem found"):
        open_source(f"coco:{root}")
    source = open_source(f"coco:{root}", on_bad="skip")
    assert [sample.id for sample in source] == ["train-9", "train-7", "val-139"]
    assert told in problem_of(source)


def test_duplicated_ids(root):
    content = index()
    content["images"].append(content["images"][0] | {"file_name": "another.jpg"})
    write_index(train_index(root), content)
    source = open_source(f"coco:{root}", on_bad="skip")
    assert problem_of(source) == "instances_train2017.json, image 6: id 9 was there before; this image is left out"
    assert source[0].image.name == "000000000009.jpg"


def test_annotations_of_no_image(root):
    content = index()
    content["annotations"].append(annotation(8, 1234, 1, [0, 0, 5, 5]))
    write_index(train_index(root), content)
    assert "annotation 8: no image has its image_id 1234" in problem_of(open_source(f"coco:{root}", on_bad="skip"))


def test_least_area_needs_areas(root):
    content = index()
    del content["annotations"][3]["area"]
    write_index(train_index(root), content)
    assert len(open_source(f"coco:{root}")) == 4
    source = open_source(f"coco:{root}?min_area=0.01", on_bad="skip")
    assert "annotation 4: expected a number as area, got None" in problem_of(source)


def test_an_empty_photo(root):
    (root / "train2017" / "000000000002.jpg").write_bytes(b"")
    assert "000000000002.jpg is empty (0 bytes)" in problem_of(open_source(f"coco:{root}", on_bad="skip"))


def test_links_out_of_the_folder_are_not_followed(root):
    photo = root / "train2017" / "000000000002.jpg"
    photo.rename(root.parent / "outside.jpg")
    photo.symlink_to(root.parent / "outside.jpg")
    assert "is a link out of the folder" in problem_of(open_source(f"coco:{root}", on_bad="skip"))


def test_a_folder_of_images_that_is_a_link(root):
    elsewhere = root.parent / "elsewhere"
    (root / "train2017").rename(elsewhere)
    (root / "train2017").symlink_to(elsewhere)
    with pytest.raises(DataError, match="train2017 is a link out of the folder; if that is meant, name it as images="):
        open_source(f"coco:{root}", split="train")
    assert len(open_source(f"coco:{root}", split="train", images=str(root / "train2017"))) == 3


def change_categories(categories):
    return lambda path: write_index(path, index() | {"categories": categories})


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda path: path.write_text(path.read_text()[:500]), "not JSON, or cut off"),
        (lambda path: path.write_bytes(b""), "is empty (0 bytes)"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "not JSON, or cut off"),
        (lambda path: path.write_text("[" * 100_000), "not JSON, or cut off"),
        (lambda path: path.write_text("[]"), "expected a list of images"),
        (lambda path: path.write_text('{"images": []}'), "expected a list of annotations"),
        (change_categories([{"id": 1}]), "expected categories with id and name"),
        (change_categories([{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]), "whose ids and names differ"),
        (change_categories([{"id": 1, "name": "a"}, {"id": 2, "name": "a"}]), "whose ids and names differ"),
        (lambda path: write_index(path, index() | {"images": [], "annotations": []}), "no usable image found"),
    ],
)
def test_bad_annotation_files(root, spoil, told):
    spoil(train_index(root))
    with pytest.raises(DataError) as caught:
        open_source(f"coco:{root}", split="train", on_bad="skip")
    assert told in str(caught.value)


def test_splits_with_different_categories(root):
    write_index(root / "annotations/instances_val2017.json", index("val") | {"categories": [{"id": 18, "name": "cat"}]})
    with pytest.raises(DataError, match="its categories differ from those of the other splits"):
        open_source(f"coco:{root}")
    assert open_source(f"coco:{root}", split="val").classes == ("cat",)


def test_wrong_locations(tmp_path):
    with pytest.raises(DataError, match="found neither"):
        open_source(f"coco:{tmp_path / 'nowhere'}")
    with pytest.raises(DataError, match=r"expected annotations/instances_train2017\.json or the like, found none in"):
        open_source(f"coco:{tmp_path}")
    with pytest.raises(DataError, match="min_area: expected a fraction"):
        open_source(f"coco:{tmp_path}?min_area=-1")


def test_unreadable_folders(root, monkeypatch):
    listing = os.scandir

    def refuse(path):  # as the system does for a folder of mode 000, but also where the tests run as root
        if Path(path) == root / "annotations":
            raise PermissionError(13, "Permission denied", str(path))
        return listing(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"annotations cannot be read \(Permission denied\)"):
        open_source(f"coco:{root}")


def test_through_shards_and_back(root, tmp_path):
    source = open_source(f"coco:{root}?unlabelled=keep")
    assert len(assert_round_trip(source, tmp_path)) == len(source)
