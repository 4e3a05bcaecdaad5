"""The prepared copy: the same bytes however it was made, whole or not there; one clear message when it cannot be."""

import errno
import json
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from picture_source import PatternSource, PictureSource

from contextcaps.data import cache, decoding, prepared_writer
from contextcaps.data.images import decode, resize_mask
from contextcaps.data.prepared import Prepared, prepare, prepared_folder
from contextcaps.data.problems import DataError
from contextcaps.data.progress import progress_of

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


@pytest.fixture
def pictures(tmp_path):
    return PictureSource(tmp_path / "pictures")


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def left_in(cache_dir: Path) -> list[str]:
    """Names in the cache that are no lock files."""
    return sorted(path.name for path in cache_dir.iterdir() if path.suffix != ".lock")


def spoil(source: PictureSource, *indices: int) -> None:
    for index in indices:
        path = source.path(index)
        path.write_bytes(path.read_bytes()[:200])


def test_it_holds_the_decoded_pictures_and_all_that_is_known_of_them(tmp_path):
    source = PictureSource(tmp_path / "pictures", boxes=True, masks=True)
    prepared = prepare(source, (24, 20), tmp_path / "cache", progress=False)
    assert len(prepared) == len(source) == 40
    assert prepared.classes == source.classes
    assert prepared.size == (24, 20)
    assert prepared.ids == tuple(f"{index:04d}" for index in range(40))
    assert np.array_equal(prepared.targets, source.targets())
    assert np.array_equal(prepared.indices, np.arange(40))
    assert prepared.images.shape == (40, 3, 24, 20)
    assert prepared.masks is not None
    for index in range(40):
        assert np.array_equal(prepared.images[index].transpose(1, 2, 0), decode(source.path(index), (24, 20)))
        boxes = prepared.box_batch([index])
        assert boxes is not None
        assert np.array_equal(boxes.labels, source.boxes_of(index).labels)
        assert np.array_equal(boxes.corners, source.boxes_of(index).corners)
        expected = resize_mask(source.mask_of(index), (24, 20)) if index % 2 else np.zeros((24, 20))
        assert np.array_equal(prepared.masks[index], expected)


def test_without_boxes_and_masks_there_are_none(pictures, tmp_path):
    prepared = prepare(pictures, 16, tmp_path / "cache", progress=False)
    assert prepared.masks is prepared.mask_batch([0]) is prepared.box_batch([0]) is None
    files = {"images.bin", "targets.bin", "indices.bin", "ids.json", "metadata.json", "checksums.json"}
    assert set(content(prepared.folder)) == files


def test_more_than_255_classes_take_masks_of_sixteen_bits(tmp_path):
    class Many(PictureSource):
        classes = tuple(f"class {index}" for index in range(300))

        def mask_of(self, index):
            return np.full((48, 64), 299, np.int32)

    prepared = prepare(Many(tmp_path / "pictures", 4, masks=True), 8, tmp_path / "cache", progress=False)
    masks = prepared.mask_batch([0, 1])
    assert masks.dtype == torch.int32
    assert masks.amax((1, 2)).tolist() == [0, 299]


def test_a_batch_is_gathered_in_the_order_asked_for(tmp_path):
    source = PictureSource(tmp_path / "pictures", boxes=True, masks=True)
    prepared = prepare(source, 16, tmp_path / "cache", progress=False)
    rows = [7, 0, 39, 7, 5]
    for indices in (rows, np.array(rows), torch.tensor(rows)):
        images, targets = prepared.batch(indices)
        assert images.shape == (5, 3, 16, 16)
        assert images.dtype == targets.dtype == torch.uint8
        assert np.array_equal(images.numpy(), prepared.images[rows])
        assert np.array_equal(targets.numpy(), prepared.targets[rows])
        assert np.array_equal(prepared.mask_batch(indices).numpy(), prepared.masks[rows])
        boxes = prepared.box_batch(indices)
        for place, row in enumerate(rows):
            mine = boxes.images == place
            assert np.array_equal(boxes.labels[mine].numpy(), source.boxes_of(row).labels)
            assert np.array_equal(boxes.corners[mine].numpy(), source.boxes_of(row).corners)
    images[:] = 0  # a copy: the files stay
    assert prepared.images[7].any()
    assert prepared.batch([])[0].shape == (0, 3, 16, 16)


@pytest.mark.parametrize("indices", [[40], [-1], [[1, 2]]])
def test_indices_out_of_range_are_refused(pictures, tmp_path, indices):
    prepared = prepare(pictures, 16, tmp_path / "cache", progress=False)
    with pytest.raises(IndexError, match="from 0 to 39"):
        prepared.batch(indices)


def test_the_second_time_nothing_is_decoded(tmp_path):
    source = PictureSource(tmp_path / "pictures", log=tmp_path / "log")
    first = prepare(source, 16, tmp_path / "cache", progress=False)
    read = (tmp_path / "log").stat().st_size
    assert read >= 40
    second = prepare(source, 16, tmp_path / "cache", progress=False)
    assert (tmp_path / "log").stat().st_size == read
    assert second.folder == first.folder


def test_it_is_pickled_by_its_folder(pictures, tmp_path):
    prepared = prepare(pictures, 16, tmp_path / "cache", progress=False)
    pickled = pickle.dumps(prepared)
    assert len(pickled) < 1000
    assert torch.equal(pickle.loads(pickled).batch([3])[0], prepared.batch([3])[0])
    assert repr(prepared).startswith("Prepared('pictures:pictures', 40 images of 16x16")


def test_another_size_or_other_data_have_a_copy_of_their_own(pictures, tmp_path):
    first = prepare(pictures, 16, tmp_path / "cache", progress=False)
    assert prepare(pictures, (16, 20), tmp_path / "cache", progress=False).folder != first.folder
    shutil.copy(pictures.path(1), pictures.path(0))
    changed = prepare(pictures, 16, tmp_path / "cache", progress=False)
    assert changed.folder != first.folder
    assert np.array_equal(changed.images[0], changed.images[1])


@pytest.mark.parametrize("workers", [2, 5])
def test_the_bytes_do_not_depend_on_the_number_of_workers(tmp_path, workers):
    source = PictureSource(tmp_path / "pictures", 150, boxes=True, masks=True)
    one = prepare(source, 16, tmp_path / "one", workers=1, progress=False)
    several = prepare(source, 16, tmp_path / "several", workers=workers, progress=False)
    assert content(one.folder) == content(several.folder)


@linux
def test_processes_give_the_same_bytes_as_threads(tmp_path, monkeypatch):
    source = PatternSource(tmp_path / "pictures", 100)
    threads = prepare(source, 16, tmp_path / "threads", workers=2, progress=False)
    monkeypatch.setattr(decoding, "_PROCESSES_PAY_FROM", 0.0)
    monkeypatch.setattr(decoding, "ThreadPoolExecutor", None)  # not to be used
    processes = prepare(source, 16, tmp_path / "processes", workers=2, progress=False)
    assert content(threads.folder) == content(processes.folder)


@linux
def test_a_worker_process_that_dies_is_told(tmp_path, monkeypatch):
    class Deadly(PatternSource):
        parent = os.getpid()

        def sample(self, index):
            if os.getpid() != self.parent:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().sample(index)

    monkeypatch.setattr(decoding, "_PROCESSES_PAY_FROM", 0.0)
    with pytest.raises(DataError, match="was killed"):
        prepare(Deadly(tmp_path / "pictures"), 16, tmp_path / "cache", workers=2, progress=False)
    assert left_in(tmp_path / "cache") == []


# Where it is.


def test_the_cache_folder_is_where_one_expects_it(monkeypatch, tmp_path):
    monkeypatch.delenv("CONTEXTCAPS_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / ".cache" / "contextcaps"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.cache_folder() == tmp_path / ".cache" / "contextcaps"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_folder() == tmp_path / "xdg" / "contextcaps"
    monkeypatch.setenv("CONTEXTCAPS_CACHE", "~/own")
    assert cache.cache_folder() == tmp_path / "own"
    assert cache.cache_folder(tmp_path / "said") == tmp_path / "said"


def test_nothing_is_written_outside_the_cache_folder(pictures, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    prepared = prepare(pictures, 16, tmp_path / "cache", progress=False)
    assert prepared.folder == prepared_folder(pictures, 16, tmp_path / "cache")
    outside = [path for path in sorted(tmp_path.rglob("*")) if not path.is_relative_to(tmp_path / "cache")]
    assert outside == before
    assert left_in(tmp_path / "cache") == [prepared.folder.name]


# Bad images.


def test_bad_images_are_all_found_then_refused(pictures, tmp_path):
    spoil(pictures, *range(3, 38, 3))
    with pytest.raises(DataError, match="12 problems found") as error:
        prepare(pictures, 16, tmp_path / "cache", progress=False)
    message = str(error.value)
    assert "0003: damaged or truncated image" in message
    assert "0030" in message
    assert "0033" not in message
    assert "… and 2 more" in message
    assert left_in(tmp_path / "cache") == []


def test_bad_images_are_left_out_if_asked_for(pictures, tmp_path):
    spoil(pictures, 0, 20, 39)
    prepared = prepare(pictures, 16, tmp_path / "cache", on_bad="skip", progress=False)
    good = [index for index in range(40) if index not in (0, 20, 39)]
    assert prepared.indices.tolist() == good
    assert prepared.ids == tuple(f"{index:04d}" for index in good)
    assert np.array_equal(prepared.targets, pictures.targets()[good])
    assert np.array_equal(prepared.images[19].transpose(1, 2, 0), decode(pictures.path(21), 16))
    assert [problem.where for problem in prepared.problems] == ["0000", "0020", "0039"]
    again = prepare(pictures, 16, tmp_path / "cache", on_bad="skip", progress=False)
    assert again.problems == prepared.problems
    with pytest.raises(DataError, match="3 problems found"):  # the copy is there, but now they are to be refused
        prepare(pictures, 16, tmp_path / "cache", on_bad="stop", progress=False)


def test_what_to_do_with_bad_images_is_by_default_what_the_source_was_told(tmp_path):
    source = PictureSource(tmp_path / "pictures", 5, on_bad="skip")
    spoil(source, 2)
    assert len(prepare(source, 16, tmp_path / "cache", progress=False)) == 4


def test_a_source_with_no_good_image_is_refused(tmp_path):
    source = PictureSource(tmp_path / "pictures", 3, on_bad="skip")
    spoil(source, 0, 1, 2)
    with pytest.raises(DataError, match="no image can be read"):
        prepare(source, 16, tmp_path / "cache", progress=False)
    assert left_in(tmp_path / "cache") == []


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        (np.zeros((48, 63), np.int32), "mask is 48 × 63 .*, its image 48 × 64"),
        (np.full((48, 64), 7, np.int32), "mask's values go from 7 to 7; expected 0 to 6"),
        (np.full((48, 64), -1, np.int32), "mask's values go from -1 to -1; expected 0 to 6"),
    ],
)
def test_masks_that_do_not_fit_are_problems(tmp_path, mask, reason):
    class Misfit(PictureSource):
        def mask_of(self, index):
            return mask if index == 3 else super().mask_of(index)

    source = Misfit(tmp_path / "pictures", 6, masks=True)
    with pytest.raises(DataError, match=f"0003: the {reason}"):
        prepare(source, 16, tmp_path / "cache", progress=False)
    prepared = prepare(source, 16, tmp_path / "cache", on_bad="skip", progress=False)
    assert prepared.ids == ("0000", "0001", "0002", "0004", "0005")
    assert prepared.masks[3].max() == 0  # picture 4, which has none


def test_a_size_of_nothing_is_refused(pictures, tmp_path):
    with pytest.raises(DataError, match="at least 1 pixel"):
        prepare(pictures, 0, tmp_path / "cache")


# Copies that were damaged.


def cut_images(folder: Path) -> None:
    with (folder / "images.bin").open("r+b") as file:
        file.truncate(100)


def remove_targets(folder: Path) -> None:
    (folder / "targets.bin").unlink()


def cut_metadata(folder: Path) -> None:
    path = folder / "metadata.json"
    path.write_text(path.read_text()[:50])


def empty_ids(folder: Path) -> None:
    (folder / "ids.json").write_text("")


def nested_checksums(folder: Path) -> None:
    (folder / "checksums.json").write_text(100_000 * "[")


def other_metadata(folder: Path) -> None:
    (folder / "metadata.json").write_text("[]")


def other_format(folder: Path) -> None:
    metadata = json.loads((folder / "metadata.json").read_text())
    (folder / "metadata.json").write_text(json.dumps({**metadata, "format": 0}))


def flip_a_bit(folder: Path, name: str, byte: int) -> None:
    """Change a bit as a disk would: size and time of the file stay."""
    path = folder / name
    state, content = path.stat(), bytearray(path.read_bytes())
    content[byte] ^= 4
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


NAMES = ("images.bin", "targets.bin", "indices.bin", "masks.bin", "box_corners.bin", "ids.json", "metadata.json")


@pytest.mark.parametrize("name", [*NAMES, "checksums.json"])
def test_a_single_bit_in_any_file_is_seen_by_the_next_process(tmp_path, monkeypatch, name):
    source = PictureSource(tmp_path / "pictures", 40, boxes=True, masks=True)
    prepared = prepare(source, 16, tmp_path / "cache", progress=False)
    whole = content(prepared.folder)
    for byte in (0, len(whole[name]) // 2, len(whole[name]) - 1):
        flip_a_bit(prepared.folder, name, byte)
        monkeypatch.setattr(cache, "_whole", set())  # as in another process
        with pytest.raises(DataError, match=r"damaged .*; remove .* is made anew") as caught:
            Prepared(prepared.folder)
        assert str(caught.value).startswith(str(prepared.folder))
        assert content(prepare(source, 16, tmp_path / "cache", progress=False).folder) == whole


def test_inverted_labels_and_other_pixels_are_not_used(pictures, tmp_path):
    folder = prepare(pictures, 16, tmp_path / "cache", progress=False).folder
    whole = content(folder)
    (folder / "targets.bin").write_bytes(bytes(1 - byte for byte in whole["targets.bin"]))
    (folder / "images.bin").write_bytes(bytes(255 - byte for byte in whole["images.bin"]))
    assert content(prepare(pictures, 16, tmp_path / "cache", progress=False).folder) == whole


def test_a_copy_is_compared_once_in_a_process(pictures, tmp_path, monkeypatch):
    read = []
    compare = cache.first_difference
    monkeypatch.setattr(cache, "first_difference", lambda path, *rest: read.append(path.name) or compare(path, *rest))
    prepare(pictures, 16, tmp_path / "cache", progress=False)
    assert read == []  # it was written just now
    monkeypatch.setattr(cache, "_whole", set())  # as in another process
    for _ in range(3):
        prepare(pictures, 16, tmp_path / "cache", progress=False)
    assert sorted(read) == sorted({*read})
    assert {"images.bin", "targets.bin", "metadata.json"} <= {*read}


@pytest.mark.parametrize(
    "damage", [cut_images, remove_targets, cut_metadata, empty_ids, other_metadata, other_format, nested_checksums]
)
def test_a_damaged_copy_is_seen_and_made_anew(pictures, tmp_path, damage):
    prepared = prepare(pictures, 16, tmp_path / "cache", progress=False)
    whole = content(prepared.folder)
    damage(prepared.folder)
    with pytest.raises(DataError, match=r"damaged .*; remove .* is made anew"):
        Prepared(prepared.folder)
    again = prepare(pictures, 16, tmp_path / "cache", progress=False)
    assert content(again.folder) == whole
    assert left_in(tmp_path / "cache") == [again.folder.name]


# Killed.


@pytest.mark.long
@linux
def test_killed_twice_then_run_again_gives_the_same_bytes(tmp_path):
    source = PictureSource(tmp_path / "pictures", 100, boxes=True, slow=0.01)
    clean = content(prepare(source, 16, tmp_path / "clean", progress=False).folder)
    context = multiprocessing.get_context("fork")
    settings = {"workers": 2, "progress": False}
    for delay in (0.02, 0.15):
        before = set((tmp_path / "cache").glob(".*.tmp"))
        child = context.Process(target=prepare, args=(source, 16, tmp_path / "cache"), kwargs=settings)
        child.start()
        waited = time.monotonic() + 30
        while set((tmp_path / "cache").glob(".*.tmp")) <= before and time.monotonic() < waited:
            time.sleep(0.005)
        time.sleep(delay)
        child.kill()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        (left_over,) = left_in(tmp_path / "cache")
        assert left_over.endswith(".tmp")
    prepared = prepare(source, 16, tmp_path / "cache", progress=False)
    assert content(prepared.folder) == clean
    assert left_in(tmp_path / "cache") == [prepared.folder.name]


PROGRAM = """
import sys
from contextcaps.data import open_source
from contextcaps.data.prepared import prepare
source = open_source(sys.argv[1])
print("ready", flush=True)
prepare(source, 32, sys.argv[2])
print("done", flush=True)
"""


@linux
@pytest.mark.slow
@pytest.mark.parametrize("spec", ["scenes?count=1500", "shards:{shared}/cocostuff171/test.tar"])
def test_killed_at_ten_random_moments_then_run_again_gives_the_same_bytes(spec, tmp_path):
    """Scenes are made by processes, shards are read by threads."""
    shared = Path(__file__).parents[2].parent / "shared" / "data"
    if "{shared}" in spec and not shared.is_dir():
        pytest.skip("the shared data are not here")

    def start(cache_dir: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, spec.format(shared=shared), str(cache_dir)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout.readline() == "ready\n"
        return process

    clean = start(tmp_path / "clean")
    began = time.monotonic()
    assert clean.communicate(timeout=300)[0] == "done\n"
    seconds = time.monotonic() - began
    moments = random.Random(0)
    killed = 0
    while killed < 10:
        process = start(tmp_path / "cache")
        time.sleep(moments.uniform(0, seconds))
        process.kill()
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
        for folder in (tmp_path / "cache").glob("[!.]*"):  # it got to the end: whole, and out of the way of the next
            assert content(folder) == content(tmp_path / "clean" / folder.name)
            shutil.rmtree(folder)
    last = start(tmp_path / "cache")
    assert last.communicate(timeout=300)[0] == "done\n"
    (folder,) = [path for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"]
    assert content(folder) == content(tmp_path / "clean" / folder.name)


@pytest.mark.long
@linux
def test_worker_processes_of_a_killed_process_end(tmp_path):
    program = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from picture_source import PatternSource
from contextcaps.data import decoding
from contextcaps.data.prepared import prepare
class Told(PatternSource):
    def sample(self, index):
        Path(sys.argv[2], f"pid-{os.getpid()}").touch()
        return super().sample(index)
decoding._PROCESSES_PAY_FROM = 0.0
prepare(Told(Path(sys.argv[2], "pictures"), 500, slow=0.01), 16, sys.argv[2] + "/cache", workers=2, progress=False)
"""
    process = subprocess.Popen([sys.executable, "-c", program, str(Path(__file__).parent), str(tmp_path)])
    waited = time.monotonic() + 60
    while len(list(tmp_path.glob("pid-*"))) < 3 and time.monotonic() < waited:
        time.sleep(0.02)
    pids = {int(path.name[4:]) for path in tmp_path.glob("pid-*")} - {process.pid}
    assert len(pids) == 2
    process.kill()
    process.wait()
    waited = time.monotonic() + 10
    while any(_is_running(pid) for pid in pids) and time.monotonic() < waited:
        time.sleep(0.05)
    assert not any(_is_running(pid) for pid in pids)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_left_overs_of_dead_processes_are_removed_and_those_of_living_ones_not(pictures, tmp_path):
    cache_dir = tmp_path / "cache"
    cache_dir.mkdir()
    own = cache.temporary_folder(cache_dir, prepared_folder(pictures, 16, cache_dir).name)
    dead = cache.temporary_folder(cache_dir, "other-1")
    alive = cache.temporary_folder(cache_dir, "other-2")
    foreign = cache_dir / ".something.tmp"
    foreign.mkdir()
    with cache.entry_lock(cache_dir, "other-2"):
        prepared = prepare(pictures, 16, cache_dir, progress=False)
    assert left_in(cache_dir) == sorted([prepared.folder.name, alive.name, foreign.name])
    assert not own.exists()
    assert not dead.exists()


# Several at once.


@linux
def test_of_several_processes_one_prepares_and_the_others_wait(tmp_path, capfd):
    source = PictureSource(tmp_path / "pictures", 60, slow=0.005, log=tmp_path / "log")
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=prepare, args=(source, 16, tmp_path / "cache")) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert (tmp_path / "log").stat().st_size < 70  # not 180
    assert capfd.readouterr().err.count("another process is preparing it") == 2
    assert left_in(tmp_path / "cache") == [prepared_folder(source, 16, tmp_path / "cache").name]


@linux
@pytest.mark.parametrize("missing", [errno.ENOLCK, errno.ENOSYS])
def test_where_there_are_no_locks_the_first_to_finish_wins(tmp_path, monkeypatch, missing):
    import fcntl

    def refuse(*arguments: object) -> None:
        raise OSError(missing, os.strerror(missing))

    monkeypatch.setattr(fcntl, "flock", refuse)
    source = PictureSource(tmp_path / "pictures", 60, slow=0.002)
    found, errors = [], []

    def work() -> None:
        try:
            found.append(prepare(source, 16, tmp_path / "cache", workers=1, progress=False))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert {each.folder for each in found} == {prepared_folder(source, 16, tmp_path / "cache")}
    assert left_in(tmp_path / "cache") == [found[0].folder.name]
    old = cache.temporary_folder(tmp_path / "cache", "old-1")
    os.utime(old, (0, 0))
    recent = cache.temporary_folder(tmp_path / "cache", "new-1")
    prepare(source, 8, tmp_path / "cache", progress=False)
    assert not old.exists()
    assert recent.exists()


# A disk that fills up, or refuses.


def test_too_little_space_is_told_before_anything_is_written(pictures, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(DataError, match=r"disk is full; the prepared copy needs \d\d,\d\d\d bytes") as error:
        prepare(pictures, 16, tmp_path / "cache", progress=False)
    assert str(tmp_path / "cache") in str(error.value)
    assert left_in(tmp_path / "cache") == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("file", ["images.bin", "targets.bin"])  # written at once; kept in a buffer until it is closed
def test_a_disk_that_fills_up_is_told_and_nothing_is_left(pictures, tmp_path, monkeypatch, file):
    """/dev/full answers each write as a full disk does."""

    def open_there(path: Path, mode: str) -> object:
        return (Path("/dev/full") if path.name == file else path).open(mode)

    monkeypatch.setattr(prepared_writer, "open", open_there, raising=False)
    with pytest.raises(DataError, match=r"disk is full; the prepared copy needs \d\d,\d\d\d bytes") as error:
        prepare(pictures, 16, tmp_path / "cache", progress=False)
    assert str(tmp_path / "cache") in str(error.value)
    assert left_in(tmp_path / "cache") == []


@linux
def test_a_small_disk_that_really_fills_up(pictures, tmp_path, monkeypatch):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    options = ["-t", "tmpfs", "-o", "size=64k", "none"]
    if mount is None or subprocess.run([mount, *options, str(disk)], capture_output=True).returncode != 0:
        pytest.skip("a file system cannot be mounted here")
    try:
        with pytest.raises(DataError, match="disk is full"):  # seen beforehand
            prepare(pictures, 32, disk / "cache", progress=False)
        usage = shutil.disk_usage(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)  # another program fills it in the meantime
        with pytest.raises(DataError, match="disk is full"):
            prepare(pictures, 32, disk / "cache", progress=False)
        assert left_in(disk / "cache") == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_cache_folder_that_cannot_be_made_is_told(pictures, tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(DataError, match="cache: cannot be written to"):
        prepare(pictures, 16, tmp_path / "cache", progress=False)


# Progress.


def test_progress_is_a_line_now_and_then_where_there_is_no_terminal(capsys, monkeypatch):
    with progress_of("preparing it", 100) as tell:
        tell(50)
    assert capsys.readouterr().err == ""  # soon done: nothing to say
    clock = iter([0.0, 4.0, 10.0, 12.0, 21.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with progress_of("preparing it", 1000) as tell:
        for _ in range(4):
            tell(200)
    assert capsys.readouterr().err.splitlines() == [
        "preparing it: 400 of 1,000 images, 40 images/s",
        "preparing it: 800 of 1,000 images, 38 images/s",
    ]


def test_progress_is_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with progress_of("preparing it", 100) as tell:
        tell(100)
    shown = capsys.readouterr().err
    assert "100/100" in shown
    assert "images/s" in shown
    with progress_of("preparing it", 100, shown=False) as tell:
        tell(100)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("index", [-1, 12, 100])
def test_boxes_of_indices_out_of_range_are_refused(tmp_path, index):
    prepared = prepare(PictureSource(tmp_path / "pictures", 12, boxes=True), 16, tmp_path / "cache", progress=False)
    assert prepared.box_batch(range(12)).images.bincount(minlength=12).tolist() == [each % 3 for each in range(12)]
    with pytest.raises(IndexError, match="expected a list of indices from 0 to 11"):
        prepared.box_batch([index])


def test_a_cache_folder_that_cannot_be_written_to_names_the_ways_out(pictures, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataError, match=r"--cache .*CONTEXTCAPS_CACHE; StreamLoader") as raised:
        prepare(pictures, 16, tmp_path / "file" / "cache", progress=False)
    assert "--no-prepare" not in str(raised.value)
