"""ADE20K: the official samples against their masks, generated trees of the three layouts, and bad data of each kind."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from round_trip import assert_round_trip
from trees_ade20k import (
    CHALLENGE_VALUES,
    OBJECT_INFO,
    SCENES,
    SIZE,
    challenge_tree,
    full2016_tree,
    full2021_tree,
    paint,
    scene_object,
    write_json,
    write_photo,
)

from contextcaps.data import DataError, Source, open_source
from contextcaps.data.sources.ade20k.classes import BENCHMARK_CLASSES, RELEASE_INDICES, NameMap

SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "ade20k"
TREES = {"challenge": challenge_tree, "full2016": full2016_tree, "full2021": full2021_tree}

needs_samples = pytest.mark.skipif(not SHARED.is_dir(), reason="the official samples are not here")


def named(source: Source) -> dict[str, list[str]]:
    return {sample.id: [source.classes[label] for label in sample.labels] for sample in source}


def problem_of(source: Source) -> str:
    assert len(source.problems.found) == 1
    return str(source.problems.found[0])


# The official samples


@needs_samples
@pytest.mark.parametrize("location", [SHARED, SHARED / "ADEChallengeData2016"])
def test_official_samples_have_the_classes_of_their_masks(location):
    rows = (SHARED / "ADEChallengeData2016" / "objectInfo150.txt").read_text().splitlines()[1:]
    first_names = {int(row.split("\t")[0]): row.split("\t")[4].split(",")[0].strip() for row in rows}
    source = open_source(f"ade20k:{location}")
    assert source.layout == "challenge"
    assert source.classes == tuple(first_names[index] for index in range(1, 151))
    assert [len(sample.labels) for sample in source] == [7, 6, 12]
    for sample in source:
        path = SHARED / "ADEChallengeData2016" / "annotations" / "validation" / f"{sample.id}.png"
        mask = np.array(Image.open(path))
        present = {first_names[value] for value in np.unique(mask).tolist() if value}
        assert {source.classes[label] for label in sample.labels} == present
        assert np.array_equal(sample.mask(), mask)
        assert sample.mask().dtype == np.int32


@needs_samples
def test_official_samples_by_area():
    source = open_source(f"ade20k:{SHARED}", split="validation", min_area=0.05)
    assert source.split == "val"
    for sample in source:
        mask = sample.mask()
        expected = [value - 1 for value in range(1, 151) if (mask == value).mean() >= 0.05]
        assert list(sample.labels) == expected
        assert 0 < len(expected) < 6


@needs_samples
def test_embedded_classes_are_those_of_object_info():
    rows = (SHARED / "ADEChallengeData2016" / "objectInfo150.txt").read_text().splitlines()[1:]
    listed = tuple(tuple(name.strip() for name in row.split("\t")[4].split(",")) for row in rows)
    assert listed == BENCHMARK_CLASSES


# Names


def test_the_benchmark_has_150_classes_with_names_that_differ():
    assert len(BENCHMARK_CLASSES) == 150 == len({names[0] for names in BENCHMARK_CLASSES})
    assert set(RELEASE_INDICES.values()) == set(range(150))
    assert len(RELEASE_INDICES) == 153  # door, wardrobe and booth stand for two classes of the releases each


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("wall", "wall"),
        ("Car, auto, automobile, machine, motorcar", "car"),
        (
            "television receiver, television, television set, tv, tv set, idiot box, boob tube, telly, goggle box",
            "television",
        ),
        ("double door", "door"),
        ("door;double door", "door"),
        ("closet", "wardrobe"),
        ("screen, CRT screen", "crt screen"),
        ("screen, silver screen, projection screen", "screen"),
        ("stool", "stool"),
        ("machine", None),
        ("pot", None),
        ("umbrella", None),
    ],
)
def test_a_release_name_is_its_whole_list_of_synonyms(name, expected):
    found = NameMap(BENCHMARK_CLASSES).get(name)
    assert (None if found is None else BENCHMARK_CLASSES[found][0]) == expected


# Generated trees


@pytest.mark.parametrize("layout", TREES)
def test_the_same_samples_in_the_same_order_twice(tmp_path, layout):
    root = TREES[layout](tmp_path)
    first, second, above = (
        open_source(f"ade20k:{root}"),
        open_source(f"ade20k:{root}"),
        open_source(f"ade20k:{tmp_path}"),
    )
    assert first.layout == layout
    assert first.splits == ("train", "val")
    assert [sample.id for sample in first] == ["ADE_train_00000001", "ADE_train_00000002", "ADE_val_00000001"]
    for other in (second, above):
        assert [(a.id, a.image, a.labels) for a in other] == [(a.id, a.image, a.labels) for a in first]
        assert other.fingerprint() == first.fingerprint()
    for sample in first:
        assert Image.open(sample.image).size == SIZE


@pytest.mark.parametrize("layout", TREES)
def test_the_150_classes_are_the_same_in_all_layouts(tmp_path, layout):
    source = open_source(f"ade20k:{TREES[layout](tmp_path)}?layout={layout}")
    assert named(source) == {
        "ADE_train_00000001": ["wall", "door"],
        "ADE_train_00000002": ["sky", "road", "car"],
        "ADE_val_00000001": ["wall", "door"],
    }
    for sample in source:
        word = "training" if "train" in sample.id else "validation"
        assert np.array_equal(sample.mask(), paint(SCENES[word][sample.id], CHALLENGE_VALUES))
        assert sample.mask().dtype == np.int32


@pytest.mark.parametrize("layout", TREES)
def test_min_area_counts_pixels(tmp_path, layout):
    root = TREES[layout](tmp_path)
    source = open_source(f"ade20k:{root}?min_area=0.1")
    assert named(source) == {
        "ADE_train_00000001": ["wall", "door"],
        "ADE_train_00000002": ["road", "car"],  # the sky is one pixel of 200; the car exactly a tenth
        "ADE_val_00000001": ["wall", "door"],
    }
    assert source.fingerprint() != open_source(f"ade20k:{root}").fingerprint()
    boxes = source[1].boxes
    assert boxes is None or sorted(boxes.labels) == list(source[1].labels)


@pytest.mark.parametrize("layout", TREES)
@pytest.mark.parametrize(("split", "plain"), [("train", "train"), ("training", "train"), ("validation", "val")])
def test_splits(tmp_path, layout, split, plain):
    source = open_source(f"ade20k:{TREES[layout](tmp_path)}", split=split)
    assert source.split == plain
    assert [sample.id for sample in source] == list(SCENES["training" if plain == "train" else "validation"])
    with pytest.raises(DataError, match=r"no split 'test'; it has train, val"):
        open_source(f"ade20k:{tmp_path}", split="test")


@pytest.mark.parametrize("layout", ["full2016", "full2021"])
def test_all_names_of_a_release(tmp_path, layout):
    root = TREES[layout](tmp_path)
    source = open_source(f"ade20k:{root}?classes=all")
    car = "car, auto, automobile, machine, motorcar"
    assert source.classes == (car, "door", "double door", "machine", "road, route", "sky", "wall")
    assert named(source)["ADE_val_00000001"] == ["double door", "machine", "wall"]
    frequent = open_source(f"ade20k:{root}?classes=all&min_count=2&unlabelled=drop")
    assert frequent.classes == ("wall",)
    assert named(frequent) == {"ADE_train_00000001": ["wall"], "ADE_val_00000001": ["wall"]}
    assert frequent.notes == [
        "6 names in fewer than 2 images left out (min_count)",
        "1 image without a label left out (unlabelled=drop)",
    ]
    with pytest.raises(DataError, match="min_count: none of 7 names is in 4 images or more"):
        open_source(f"ade20k:{root}?classes=all&min_count=4")
    one_split = open_source(f"ade20k:{root}?classes=all", split="val")
    assert one_split.classes == source.classes
    assert len(one_split) == 1


def test_masks_of_all_names(tmp_path):
    by_name = open_source(f"ade20k:{full2021_tree(tmp_path)}?classes=all&min_area=0.01")
    mask = by_name[2].mask()
    counts = {name: int((mask == index + 1).sum()) for index, name in enumerate(by_name.classes)}
    assert {name: count for name, count in counts.items() if count} == SCENES["validation"]["ADE_val_00000001"]
    root = full2016_tree(tmp_path)
    assert open_source(f"ade20k:{root}?classes=all")[0].mask is None
    with pytest.raises(DataError, match="min_area: the 2016 release"):
        open_source(f"ade20k:{root}?classes=all&min_area=0.01")


def test_boxes_of_the_2021_release(tmp_path):
    boxes = open_source(f"ade20k:{full2021_tree(tmp_path)}")[0].boxes
    assert boxes.labels.tolist() == [0, 14]
    assert boxes.corners.tolist() == [[0, 0, 0.5, 1]] * 2  # the polygon's lower end lies below the image


def test_challenge_without_its_list_of_classes(tmp_path):
    source = open_source(f"ade20k:{challenge_tree(tmp_path, object_info=False)}")
    assert source.classes == tuple(names[0] for names in BENCHMARK_CLASSES)
    assert named(source)["ADE_train_00000002"] == ["sky", "road", "car"]


def test_challenge_takes_its_own_list_of_classes(tmp_path):
    source = open_source(f"ade20k:{challenge_tree(tmp_path)}")
    assert source.classes == tuple(names.split(",")[0].strip() for names in OBJECT_INFO)


@pytest.mark.parametrize("layout", ["full2016", "full2021"])
def test_the_pickle_index_is_never_opened(tmp_path, layout):
    root, sprung = TREES[layout](tmp_path), tmp_path / "sprung"

    class Trap:
        def __reduce__(self):
            return (Path.touch, (sprung,))

    (root / "index_ade20k.pkl").write_bytes(pickle.dumps(Trap()))
    source = open_source(f"ade20k:{root}?classes=all")
    assert len(source) == 3
    assert not sprung.exists()
    pickle.loads((root / "index_ade20k.pkl").read_bytes())
    assert sprung.exists()  # the trap does work


def test_2021_json_in_latin_1_and_lists_of_one(tmp_path):
    root = full2021_tree(tmp_path)
    path = root / "images/ADE/training/urban/street/ADE_train_00000001.json"
    item = scene_object(0, "wall")
    item["parts"]["part_level"] = "0"
    write_json(path, item, encoding="latin-1")
    assert b"M\xe1laga" in path.read_bytes()
    assert named(open_source(f"ade20k:{root}"))["ADE_train_00000001"] == ["wall"]


def test_2021_objects_without_extent_or_name_do_not_count(tmp_path):
    root = full2021_tree(tmp_path)
    line, nameless = scene_object(1, "sky"), scene_object(2, "-")
    line["polygon"] = {"x": 3, "y": 4}
    write_json(
        root / "images/ADE/training/urban/street/ADE_train_00000001.json", [scene_object(0, "wall"), line, nameless]
    )
    source = open_source(f"ade20k:{root}")
    assert named(source)["ADE_train_00000001"] == ["wall"]
    assert "1 objects whose box has no extent in the image not counted" in source.notes
    assert "-" not in open_source(f"ade20k:{root}?classes=all").classes


# Bad data


def challenge_mask(root: Path) -> Path:
    return root / "annotations/training/ADE_train_00000001.png"


def out_of_range(path: Path) -> None:
    Image.new("L", SIZE, 200).save(path)


def another_size(path: Path) -> None:
    Image.new("L", (5, 5), 1).save(path)


def colours(path: Path) -> None:
    Image.new("RGB", SIZE).save(path)


def truncated(path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 20, (SIZE[1], SIZE[0]), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:80])


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (Path.unlink, "annotations/training/ADE_train_00000001.png is missing"),
        (lambda path: path.write_bytes(b""), "is empty (0 bytes)"),
        (truncated, "cannot be read"),
        (another_size, "is 5×5 px, its image 20×10 px"),
        (colours, "expected an image of mode L or P, got RGB"),
        (out_of_range, "expected values 0 to 21, got 200"),
    ],
)
def test_bad_challenge_masks(tmp_path, spoil, told):
    root = challenge_tree(tmp_path)
    spoil(challenge_mask(root))
    with pytest.raises(DataError, match=r"1 problem found\n  training/ADE_train_00000001: ") as caught:
        open_source(f"ade20k:{root}")
    assert told in str(caught.value)
    source = open_source(f"ade20k:{root}", on_bad="skip")
    assert [sample.id for sample in source] == ["ADE_train_00000002", "ADE_val_00000001"]
    assert told in problem_of(source)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (Path.unlink, "is missing"),
        (lambda path: path.write_bytes(b""), "is empty (0 bytes)"),
        (lambda path: path.write_text("not a photograph"), "cannot be read as an image"),
    ],
)
@pytest.mark.parametrize("layout", TREES)
def test_bad_photos(tmp_path, layout, spoil, told):
    root = TREES[layout](tmp_path)
    (photo,) = (path for path in root.rglob("ADE_train_00000001.jpg") if path.is_file())
    spoil(photo)
    source = open_source(f"ade20k:{root}", on_bad="skip")
    assert [sample.id for sample in source] == ["ADE_train_00000002", "ADE_val_00000001"]
    assert told in problem_of(source)
    assert "ADE_train_00000001" in problem_of(source)


@pytest.mark.parametrize("layout", ["full2016", "full2021"])
@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (Path.unlink, "_seg.png is missing"),
        (lambda path: path.write_bytes(b""), "_seg.png is empty (0 bytes)"),
        (another_size, "is 5×5 px, its image 20×10 px"),
    ],
)
def test_bad_masks_of_the_releases(tmp_path, layout, spoil, told):
    root = TREES[layout](tmp_path)
    spoil(next(root.rglob("ADE_train_00000001_seg.png")))
    assert told in problem_of(open_source(f"ade20k:{root}", on_bad="skip"))


@pytest.mark.parametrize("layout", ["full2016", "full2021"])
def test_a_truncated_mask_of_a_release_is_told_when_it_is_read(tmp_path, layout):
    root = TREES[layout](tmp_path)
    path = next(root.rglob("ADE_train_00000001_seg.png"))
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DataError, match=r"ADE_train_00000001_seg.png: the mask cannot be read"):
        open_source(f"ade20k:{root}")[0].mask()
    assert "cannot be read" in problem_of(open_source(f"ade20k:{root}?min_area=0.01", on_bad="skip"))


def change_json(old: str, new: str):
    return lambda path: path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda path: path.write_text(path.read_text()[:300]), "not JSON, or cut off"),
        (lambda path: path.write_text("[]"), "not as in the 2021 release"),
        (change_json('"name":', '"nom":'), "not as in the 2021 release (KeyError: 'name')"),
        (change_json('"name_ndx": 2978', '"name_ndx": 70000'), "name_ndx 70000 out of range"),
        (change_json("[10, 20, 3]", "[11, 20, 3]"), "imsize says 20×11 px, the image is 20×10 px"),
        (Path.unlink, "ADE_train_00000001.json is missing"),
    ],
)
def test_bad_json_of_the_2021_release(tmp_path, spoil, told):
    root = full2021_tree(tmp_path)
    spoil(next(root.rglob("ADE_train_00000001.json")))
    source = open_source(f"ade20k:{root}", on_bad="skip")
    assert len(source) == 2
    assert told in problem_of(source)


def test_bad_attributes_of_the_2016_release(tmp_path):
    root = full2016_tree(tmp_path)
    next(root.rglob("ADE_train_00000001_atr.txt")).write_text("001 # 0 # 0 # wall # wall # \n001 # zero # ca")
    assert "ADE_train_00000001_atr.txt, line 2: expected" in problem_of(open_source(f"ade20k:{root}", on_bad="skip"))


@pytest.mark.parametrize("layout", ["full2016", "full2021"])
def test_duplicated_ids(tmp_path, layout):
    root = TREES[layout](tmp_path)
    folder = next(root.rglob("ADE_train_00000001.jpg")).parent
    copy = folder.parent / "another"
    copy.mkdir()
    for path in folder.glob("ADE_train_00000001*.*"):
        (copy / path.name).write_bytes(path.read_bytes())
    source = open_source(f"ade20k:{root}", on_bad="skip")
    assert len(source) == 3
    assert "ADE_train_00000001: this id was there before" in problem_of(source)


def test_an_image_in_both_challenge_splits_is_a_duplicate(tmp_path):
    root = challenge_tree(tmp_path)
    for kind, suffix in (("images", "jpg"), ("annotations", "png")):
        content = (root / kind / "training" / f"ADE_train_00000001.{suffix}").read_bytes()
        (root / kind / "validation" / f"ADE_train_00000001.{suffix}").write_bytes(content)
    source = open_source(f"ade20k:{root}", on_bad="skip")
    assert "images/validation/ADE_train_00000001.jpg is left out" in problem_of(source)


@pytest.mark.parametrize(("unlabelled", "count"), [("drop", 2), ("keep", 3)])
def test_images_without_a_label(tmp_path, unlabelled, count):
    root = challenge_tree(tmp_path)
    Image.new("L", SIZE, 0).save(challenge_mask(root))
    with pytest.raises(DataError, match="ADE_train_00000001: has no label"):
        open_source(f"ade20k:{root}")
    source = open_source(f"ade20k:{root}?unlabelled={unlabelled}")
    assert len(source) == count
    assert ("1 image without a label left out (unlabelled=drop)" in source.notes) == (unlabelled == "drop")


def test_links_out_of_the_folder_are_not_followed(tmp_path):
    root = challenge_tree(tmp_path / "data")
    photo = root / "images/training/ADE_train_00000001.jpg"
    outside, inside = tmp_path / "outside.jpg", root / "images/kept.jpg"
    write_photo(outside)
    photo.unlink()
    photo.symlink_to(outside)
    assert "is a link out of the folder" in problem_of(open_source(f"ade20k:{root}", on_bad="skip"))
    write_photo(inside)
    photo.unlink()
    photo.symlink_to(inside)
    assert len(open_source(f"ade20k:{root}")) == 3
    (tmp_path / "name").symlink_to(root)  # the user's own link is followed
    assert len(open_source(f"ade20k:{tmp_path / 'name'}")) == 3


@pytest.mark.parametrize("layout", TREES)
def test_linked_folders(tmp_path, layout):
    root = TREES[layout](tmp_path / "data")
    base = next(path for path in root.rglob("validation") if "images" in path.parts)
    base.rename(tmp_path / "elsewhere")
    base.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="validation is a link out of the folder"):
        open_source(f"ade20k:{root}")


def test_a_folder_linked_to_itself(tmp_path):
    root = full2016_tree(tmp_path)
    (root / "images/training/loop").symlink_to(root / "images/training")
    source = open_source(f"ade20k:{root}", on_bad="skip")
    assert len(source) == 3
    assert "images/training/loop: is a link to a folder" in problem_of(source)


@pytest.mark.parametrize("layout", TREES)
def test_unreadable_folders(tmp_path, layout, monkeypatch):
    root = TREES[layout](tmp_path)
    folder = next(root.rglob("ADE_train_00000001.jpg")).parent
    listing = os.scandir

    def refuse(path):  # as the system does for a folder of mode 000, but also where the tests run as root
        if Path(path) == folder:
            raise PermissionError(13, "Permission denied", str(path))
        return listing(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=rf"{folder.name} cannot be read \(Permission denied\)") as caught:
        open_source(f"ade20k:{root}")
    assert not isinstance(caught.value.__cause__, OSError)


def test_a_folder_of_mode_000(tmp_path):
    root = challenge_tree(tmp_path)
    folder = root / "images" / "training"
    folder.chmod(0)
    try:
        if os.access(folder, os.R_OK):
            pytest.skip("root reads everything")
        with pytest.raises(DataError, match="cannot be read"):
            open_source(f"ade20k:{root}")
    finally:
        folder.chmod(0o755)


def test_wrong_locations(tmp_path):
    with pytest.raises(DataError, match="found no such folder"):
        open_source(f"ade20k:{tmp_path / 'nowhere'}")
    with pytest.raises(DataError, match="found no such folder"):
        open_source("ade20k:")
    with pytest.raises(DataError, match="found none of them"):
        open_source(f"ade20k:{tmp_path}")
    challenge_tree(tmp_path)
    with pytest.raises(DataError, match="layout=full2021 is not here, but challenge"):
        open_source(f"ade20k:{tmp_path}?layout=full2021")
    full2021_tree(tmp_path)
    with pytest.raises(DataError, match="several releases are here"):
        open_source(f"ade20k:{tmp_path}")
    assert open_source(f"ade20k:{tmp_path}?layout=full2021").layout == "full2021"


@pytest.mark.parametrize("layout", TREES)
def test_an_empty_source(tmp_path, layout):
    root = TREES[layout](tmp_path)
    for path in root.rglob("*.*"):
        if path.is_file():
            path.unlink()
    with pytest.raises(DataError, match="no usable image found"):
        open_source(f"ade20k:{root}")


@pytest.mark.parametrize(
    "content", ["", "Idx\tName\n", "Idx\tName\n2\twall\n", "Idx\tName\n1\twall\n2\twall\n", "a,b\n1,wall\n"]
)
def test_a_bad_list_of_classes(tmp_path, content):
    root = challenge_tree(tmp_path)
    (root / "objectInfo150.txt").write_text(content)
    with pytest.raises(DataError, match=r"objectInfo150\.txt"):
        open_source(f"ade20k:{root}")


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("layout=old", "layout: expected one of auto, challenge, full2016, full2021, got 'old'"),
        ("classes=15", "classes: expected one of 150, all, got '15'"),
        ("classes=all", "this layout has only the 150 classes"),
        ("min_area=2", "min_area: expected a fraction of the image from 0 to 1, got 2.0"),
        ("min_count=0", "min_count: expected at least 1 image"),
        ("min_count=2", "min_count is for classes=all"),
        ("unlabelled=ask", "unlabelled: expected one of refuse, drop, keep"),
    ],
)
def test_misuse(tmp_path, option, told):
    root = challenge_tree(tmp_path)
    with pytest.raises(DataError) as caught:
        open_source(f"ade20k:{root}?{option}")
    assert told in str(caught.value)


def test_the_fingerprint_follows_the_files(tmp_path):
    root = challenge_tree(tmp_path)
    before = open_source(f"ade20k:{root}").fingerprint()
    os.utime(challenge_mask(root), ns=(1, 1))
    assert open_source(f"ade20k:{root}").fingerprint() != before


@pytest.mark.parametrize("layout", TREES)
def test_samples_travel_to_worker_processes(tmp_path, layout):
    sample = open_source(f"ade20k:{TREES[layout](tmp_path)}")[0]
    assert np.array_equal(pickle.loads(pickle.dumps(sample)).mask(), sample.mask())


@pytest.mark.parametrize("layout", TREES)
def test_through_shards_and_back(tmp_path, layout):
    source = open_source(f"ade20k:{TREES[layout](tmp_path)}")
    assert len(assert_round_trip(source, tmp_path)) == 3
