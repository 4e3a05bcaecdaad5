"""Files of data from a stranger: what is no plain file, or leads elsewhere, is refused in one sentence, unopened."""

import json
import os
from pathlib import Path

import pytest
from trees_coco import coco_tree
from trees_small import shard_members, write_images, write_tar
from trees_voc import voc_tree

from contextcaps.data import DataError, open_source
from contextcaps.data.images import BadImage, decode
from contextcaps.data.sources.coco_files import looks_like_coco
from contextcaps.data.vocabulary import read_classes

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in this system's folders")


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "shards"
    folder.mkdir()
    write_tar(folder / "train-00.tar", shard_members([0, 1]))
    (folder / "classes.json").write_text('["cat", "dog", "bus"]')
    return folder


def refusal(name: str) -> str:
    with pytest.raises(DataError) as caught:
        open_source(name)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


def put(path: Path, kind: str) -> None:
    """Put something in the place of a file."""
    path.unlink(missing_ok=True)
    if kind == "a pipe":
        os.mkfifo(path)  # to open it would wait for ever
    elif kind == "a device":
        path.symlink_to("/dev/zero")  # to read it would never end
    else:
        outside = path.parent.parent / f"outside-{path.name}"
        outside.write_bytes(b"[]")
        path.symlink_to(outside)


@pytest.mark.parametrize("kind", ["a pipe", "a device", "a link out of"])
@pytest.mark.parametrize("name", ["train-00.tar", "classes.json"])
def test_shards_and_their_classes(shards: Path, name: str, kind: str) -> None:
    put(shards / name, kind)
    for location in (shards, shards / "train-*.tar", shards / "train-{00..00}.tar"):
        assert f"{shards / name}: {kind}" in refusal(f"shards:{location}")


def test_a_shard_that_is_named_itself_may_be_a_link(shards: Path, tmp_path: Path) -> None:
    (shards / "train-00.tar").rename(tmp_path / "kept.tar")
    (shards / "train-00.tar").symlink_to(tmp_path / "kept.tar")
    assert len(open_source(f"shards:{shards / 'train-00.tar'}")) == 2


def test_a_list_of_classes_that_is_named(tmp_path: Path) -> None:
    for kind in ("a pipe", "a device"):
        put(tmp_path / "classes.txt", kind)
        with pytest.raises(DataError, match=rf"classes\.txt: {kind}; expected a plain file"):
            read_classes(tmp_path / "classes.txt")
    for text, expected in ((100_000 * "[", "nested too deeply"), ("[1" + 5000 * "0" + "]", "a whole number of 5001")):
        (tmp_path / "classes.json").write_text(text)
        with pytest.raises(DataError, match=expected):
            read_classes(tmp_path / "classes.json")


def test_an_annotation_of_a_shard_with_traps(shards: Path) -> None:
    image = shard_members([0])[0]
    number, lists = '{"labels": ["cat"], "id": 1' + 5000 * "0" + "}", 100_000 * "["
    for text, expected in ((number, "a whole number of 5001"), (lists, "nested too deeply")):
        write_tar(shards / "train-00.tar", [image, (image[0].replace(".jpg", ".json"), text.encode())])
        with pytest.raises(DataError, match=rf"the \.json is cut off or bad: {expected}"):
            open_source(f"shards:{shards}")


def test_coco(tmp_path: Path) -> None:
    path = tmp_path / "annotations" / "instances_train2017.json"
    path.parent.mkdir()
    (tmp_path / "train2017").mkdir()
    put(path, "a pipe")
    assert "annotations/instances_train2017.json is not a file" in refusal(f"coco:{tmp_path}")
    put(tmp_path / "labels.json", "a pipe")
    assert "found neither" in refusal(f"coco:{tmp_path / 'labels.json'}")
    path.unlink()
    number = "1" + 5000 * "0"
    path.write_text(f'{{"images": [{{"id": {number}}}], "annotations": [], "categories": []}}')
    assert f"{path}: not JSON, or cut off" in said(f"coco:{path}")


def test_yolo(tmp_path: Path) -> None:
    path = tmp_path / "data.yaml"
    path.write_text("a: &a [x, x]\nb: &b [*a, *a]\nnames: *b\n")
    assert "aliases are not read" in refusal(f"yolo:{path}")
    path.write_text("names: " + 50_000 * "[")
    assert "nested too deeply" in refusal(f"yolo:{path}")
    path.write_text(json.dumps({"names": ["cat"]}))
    with path.open("ab") as file:
        file.truncate(2**40)
    assert "expected a text file of at most" in refusal(f"yolo:{path}")


HOLES = 2**40  # bytes: they take no room on the disk


def with_holes(path: Path) -> None:
    os.truncate(path, HOLES)


def said(name: str) -> str:
    """Return what is said of a source with bad samples, in one sentence or a short list."""
    with pytest.raises(DataError) as caught:
        open_source(name)
    assert len(str(caught.value)) < 1000
    return str(caught.value)


@pytest.mark.parametrize("name", ["Annotations/000005.xml", "ImageSets/Main/train.txt"])
def test_voc_files_without_end(tmp_path: Path, name: str) -> None:
    with_holes(voc_tree(tmp_path) / name)
    assert "1,099,511,627,776 bytes; expected a text file of at most" in said(f"voc:{tmp_path}")


@pytest.mark.parametrize("kind", ["holes", "a pipe"])
@pytest.mark.parametrize("name", ["data.yaml", "labels/train/a.txt"])
def test_yolo_files_without_end(tmp_path: Path, name: str, kind: str) -> None:
    write_images(tmp_path / "images" / "train", ["a.png"])
    (tmp_path / "labels" / "train").mkdir(parents=True)
    (tmp_path / "labels" / "train" / "a.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    (tmp_path / "data.yaml").write_text("train: images/train\nnames: [sea]\n")
    if kind == "holes":
        with_holes(tmp_path / name)
    else:
        put(tmp_path / name, kind)
    said(f"yolo:{tmp_path}")


def test_a_coco_file_without_end(tmp_path: Path) -> None:
    path = next((coco_tree(tmp_path) / "annotations").glob("*train*.json"))
    with_holes(path)
    assert "bytes; expected a text file of at most" in said(f"coco:{path}")


@pytest.mark.parametrize("name", ["metadata.jsonl", "metadata.csv"])
def test_a_list_with_a_line_without_end(tmp_path: Path, name: str) -> None:
    write_images(tmp_path, ["a.png"])
    (tmp_path / name).write_text("file_name,label\n" if name.endswith("csv") else '{"file_name": "a.png"')
    with_holes(tmp_path / name)
    assert "a line of more than" in said(f"metadata:{tmp_path}")


def test_an_image_without_end(tmp_path: Path) -> None:
    write_images(tmp_path, ["a.png"])
    with_holes(tmp_path / "a.png")
    with pytest.raises(BadImage, match=r"^1,099,511,627,776 bytes: files of more than 1,073,741,824 are not decoded$"):
        decode(tmp_path / "a.png", 8)


@pytest.mark.skipif(not os.path.exists("/proc/kmsg"), reason="needs Linux")
def test_a_link_to_a_file_of_the_kernel_is_not_read(tmp_path: Path) -> None:
    path = next((coco_tree(tmp_path) / "annotations").glob("*train*.json"))
    path.unlink()
    path.symlink_to("/proc/kmsg")  # to read it would wait for the next message
    assert not looks_like_coco(path)
    assert "cannot be read" in said(f"coco:{path}") or "a file of the kernel" in said(f"coco:{path}")


@pytest.mark.skipif(not os.path.exists("/proc/kmsg"), reason="needs Linux")
@pytest.mark.parametrize("is_pipe", [True, False])
def test_a_table_that_is_a_pipe_or_a_file_of_the_kernel(tmp_path, is_pipe) -> None:
    path = tmp_path / "labels.csv"
    if is_pipe:
        os.mkfifo(path)
    else:
        path.symlink_to("/proc/kmsg")
    with pytest.raises(DataError, match=r"labels.csv: (no such file|a file of the kernel)"):
        open_source(f"table:{path}")
