"""Fingerprints tell data sets apart that have the same file names, sizes and times, as from reproducible archives."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from trees_ade20k import challenge_tree
from trees_coco import coco_tree
from trees_small import idx_bytes, shard_members, write_images, write_tar
from trees_voc import voc_tree

from contextcaps.data import Subset, open_source
from contextcaps.data.source import have_same_data


def forget_times(folder: Path) -> None:
    """Every file as old as 1970, as in archives that are made the same twice."""
    for path in folder.rglob("*"):
        os.utime(path, ns=(0, 0))


def write_table(folder: Path, label: str = "cat") -> str:
    write_images(folder, ["a.jpg", "b.jpg"])
    (folder / "labels.csv").write_text(f"path,labels\na.jpg,{label}\nb.jpg,cat;dog\n")
    return f"table:{folder}/labels.csv"


def write_shards(folder: Path, label: str = "cat") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "classes.json").write_text(json.dumps(["cat", "dog"]))
    write_tar(folder / "train-0000.tar", shard_members([0, 1], [label]))
    return f"shards:{folder}"


def write_mnist(folder: Path, seed: int = 0) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng(seed).integers(0, 256, (20, 28, 28))
    (folder / "train-images-idx3-ubyte").write_bytes(idx_bytes(images))
    (folder / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.arange(20) % 10))
    return f"mnist:{folder}"


@pytest.mark.parametrize(("write", "other"), [(write_table, "dog"), (write_shards, "dog"), (write_mnist, 1)])
def test_other_content_of_the_same_names_sizes_and_times(tmp_path, write, other):
    spec = write(tmp_path / "data")
    forget_times(tmp_path)
    first, again = open_source(spec), open_source(spec)
    facts = {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file()}
    before = first.fingerprint()
    assert again.fingerprint() == before
    write(tmp_path / "data", other)
    forget_times(tmp_path)
    assert facts == {p: (p.stat().st_size, p.stat().st_mtime_ns) for p in tmp_path.rglob("*") if p.is_file()}
    after = open_source(spec)
    assert after.fingerprint() != before
    assert Subset(after, [0, 1], "train").fingerprint() != Subset(first, [0, 1], "train").fingerprint()


@pytest.mark.parametrize(
    "write",
    [
        write_table,
        write_shards,
        write_mnist,
        lambda folder: f"multi{write_mnist(folder)}",
        lambda folder: f"coco:{coco_tree(folder)}",
        lambda folder: f"voc:{voc_tree(folder)}",
        lambda folder: f"ade20k:{challenge_tree(folder)}",
    ],
    ids=["table", "shards", "mnist", "multimnist", "coco", "voc", "ade20k"],
)
def test_the_same_files_in_another_folder(tmp_path, write):
    (tmp_path / "one").mkdir()
    spec = write(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    (tmp_path / "link").symlink_to(tmp_path / "one")
    forget_times(tmp_path)
    one = open_source(spec).fingerprint()
    assert open_source(spec.replace("/one", "/two")).fingerprint() != one
    assert open_source(spec.replace("/one", "/link")).fingerprint() == one


@pytest.mark.parametrize(("write", "other"), [(write_table, "dog"), (write_shards, "dog"), (write_mnist, 1)])
def test_contents_are_the_same_wherever_the_data_lie(tmp_path, write, other):
    here, there = open_source(write(tmp_path / "here")), open_source(write(tmp_path / "there"))
    assert here.fingerprint() != there.fingerprint()
    assert here.contents() == there.contents()
    assert Subset(here, [1], "train").contents() == Subset(there, [1], "train").contents() != here.contents()
    assert open_source(write(tmp_path / "other", other)).contents() != here.contents()


def test_contents_tell_other_pixels_under_the_same_labels(tmp_path):
    source = open_source(write_mnist(tmp_path / "here"))
    other = open_source(write_mnist(tmp_path / "there", seed=1))
    assert np.array_equal(source.targets(), other.targets())
    assert source.contents() != other.contents()
    assert have_same_data(source, open_source(write_mnist(tmp_path / "copy")))
    assert not have_same_data(source, other)


def test_contents_of_images_that_cannot_be_read(tmp_path):
    spec = write_table(tmp_path)
    source = open_source(spec)
    before = source.contents()
    (tmp_path / "a.jpg").unlink()
    assert source.contents() != before
