"""Loaders: both kinds give the same batches; orders, shares of several processes and positions are exact."""

import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from picture_source import PatternSource, PictureSource

from contextcaps.data import decoding
from contextcaps.data.loading import Batch, Loader, PreparedLoader, StreamLoader
from contextcaps.data.prepared import prepare
from contextcaps.data.problems import DataError


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return PictureSource(tmp_path_factory.mktemp("loading") / "pictures", 45, boxes=True, masks=True)


@pytest.fixture(scope="module")
def prepared(pictures, tmp_path_factory):
    return prepare(pictures, 16, tmp_path_factory.mktemp("cache"), progress=False)


@pytest.fixture(params=["prepared", "stream"])
def make(request, pictures, prepared):
    """Makes a loader of either kind."""
    if request.param == "prepared":
        return lambda *arguments, **settings: PreparedLoader(prepared, *arguments, **settings)
    return lambda *arguments, **settings: StreamLoader(pictures, 16, *arguments, workers=2, **settings)


def assert_same(one: Batch, other: Batch) -> None:
    assert one.ids == other.ids
    assert (one.epoch, one.step) == (other.epoch, other.step)
    assert np.array_equal(one.indices, other.indices)
    for name in ("images", "targets", "masks"):
        mine, others = getattr(one, name), getattr(other, name)
        assert mine.dtype == others.dtype
        assert torch.equal(mine, others), name
    for name in ("images", "labels", "corners"):
        assert torch.equal(getattr(one.boxes, name), getattr(other.boxes, name))


def ids_of(loader: Loader) -> list[str]:
    return [name for batch in loader for name in batch.ids]


def test_a_batch_holds_what_the_source_says(make, pictures):
    batches = list(make(10))
    assert [len(batch) for batch in batches] == [10, 10, 10, 10, 5]
    assert [batch.step for batch in batches] == [0, 1, 2, 3, 4]
    batch = batches[1]
    assert batch.images.shape == (10, 3, 16, 16)
    assert batch.images.dtype == batch.targets.dtype == batch.masks.dtype == torch.uint8
    assert batch.images.is_contiguous()
    assert batch.ids == tuple(f"{index:04d}" for index in range(10, 20))
    assert np.array_equal(batch.targets.numpy(), pictures.targets()[10:20])
    assert batch.masks.shape == (10, 16, 16)
    assert batch.masks[1].max() == 11 % 6 + 1
    assert batch.boxes.images.tolist() == [0, 1, 1, 3, 4, 4, 6, 7, 7, 9]
    moved = batch.to("cpu")
    assert_same(moved, batch)


@pytest.mark.parametrize("batch_size", [7, 45, 100])
def test_both_kinds_give_the_same_batches(pictures, prepared, batch_size):
    settings = {"shuffle": True, "seed": 5}
    streamed = StreamLoader(pictures, 16, batch_size, workers=3, **settings)
    gathered = PreparedLoader(prepared, batch_size, **settings)
    at_once = PreparedLoader(prepared, batch_size, prefetch=0, **settings)
    for _ in range(2):
        for one, other, third in zip(streamed, gathered, at_once, strict=True):
            assert_same(one, other)
            assert_same(one, third)


def test_epochs_have_orders_of_their_own_and_the_same_seed_the_same(make):
    loader, again, another = make(8, shuffle=True, seed=1), make(8, shuffle=True, seed=1), make(8, shuffle=True, seed=2)
    first, second = ids_of(loader), ids_of(loader)
    assert first != second
    assert sorted(first) == sorted(second) == [f"{index:04d}" for index in range(45)]
    assert [ids_of(again), ids_of(again)] == [first, second]
    assert ids_of(another) != first
    assert loader.epoch == 2
    again.epoch = 0
    assert ids_of(again) == first


def test_what_does_not_fill_a_batch_is_dropped_if_asked_for(make):
    loader = make(10, drop_last=True)
    assert len(loader) == 4
    assert [len(batch) for batch in loader] == [10, 10, 10, 10]


@pytest.mark.parametrize("taken", [0, 1, 3, 6])
def test_a_loader_goes_on_where_another_was(make, taken):
    settings = {"shuffle": True, "seed": 3}
    whole = make(8, **settings)
    ids_of(whole)  # epoch 0
    expected = [*whole, *whole]  # epochs 1 and 2
    stopped = make(8, **settings)
    ids_of(stopped)
    iterator = iter(stopped)
    for _ in range(taken):
        next(iterator)
    state = stopped.state_dict()
    iterator.close()
    resumed = make(8, **settings)
    resumed.load_state_dict(state)
    rest = [*resumed, *resumed]
    assert len(rest) == len(expected) - taken
    for one, other in zip(rest, expected[taken:], strict=True):
        assert_same(one, other)


def test_a_new_pass_begins_the_epoch_anew_where_the_last_was_left(make):
    loader = make(8, shuffle=True)
    first = next(iter(loader))
    assert_same(next(iter(loader)), first)


def test_a_position_of_another_loader_is_refused(make):
    state = make(8, shuffle=True, seed=3).state_dict()
    with pytest.raises(ValueError, match="seed: the saved position is of a loader with 3, this one has 4"):
        make(8, shuffle=True, seed=4).load_state_dict(state)
    with pytest.raises(ValueError, match="batch_size"):
        make(9, shuffle=True, seed=3).load_state_dict(state)


class Numbers(Loader):
    """Batches without images."""

    def _batches(self, indices, epoch, first):
        for step, each in enumerate(indices, first):
            yield Batch(torch.zeros(len(each)), torch.zeros(0), each, tuple(map(str, each)), epoch, step)


@given(
    count=st.integers(1, 60),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 5),
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_processes_share_an_epoch_without_gap_or_overlap(count, batch_size, world_size, shuffle, epoch):
    shares, dropped = [], []
    for rank in range(world_size):
        for drop_last, into in ((False, shares), (True, dropped)):
            loader = Numbers(count, batch_size, shuffle=shuffle, drop_last=drop_last, rank=rank, world_size=world_size)
            loader.epoch = epoch
            expected = len(loader)
            batches = list(loader)
            assert len(batches) == expected
            into.append([index for batch in batches for index in batch.indices])
    everything = [index for share in shares for index in share]
    assert sorted(everything) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert len({len(share) for share in dropped}) == 1  # all processes take the same number of steps
    assert len({index for share in dropped for index in share}) == sum(map(len, dropped))


@pytest.mark.parametrize("settings", [{"rank": 2, "world_size": 2}, {"rank": -1}, {"batch_size": 0}])
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ValueError, match=r"rank|batch_size"):
        Numbers(10, **{"batch_size": 2, **settings})


# Streaming.


def test_bad_images_stop_the_stream_or_are_left_out(tmp_path):
    source = PictureSource(tmp_path / "pictures", 20)
    for index in (3, 4, 5, 11):
        source.path(index).write_bytes(b"not a picture at all, but a line of text")
    with pytest.raises(DataError, match="0003: not an image but text"):
        list(StreamLoader(source, 16, 4))
    loader = StreamLoader(source, 16, 3, on_bad="skip")
    for _ in range(2):
        batches = list(loader)
        assert [batch.step for batch in batches] == [0, 2, 3, 4, 5, 6]  # the second is empty, and left out
        assert [len(batch) for batch in batches] == [3, 3, 2, 3, 3, 2]
    good = [f"{index:04d}" for index in range(20) if index not in (3, 4, 5, 11)]
    assert ids_of(loader) == good
    assert [problem.where for problem in loader.problems.found] == ["0003", "0004", "0005", "0011"]


def test_the_stream_reads_only_a_little_ahead(tmp_path):
    log = tmp_path / "log"
    source = PictureSource(tmp_path / "pictures", 300, log=log)
    iterator = iter(StreamLoader(source, 8, 4, workers=2))
    next(iterator)
    iterator.close()
    assert log.stat().st_size <= 1 + 4 * 6  # a look at the first, and the batches on the way


def test_leaving_a_pass_early_leaves_no_threads(make):
    before = threading.active_count()
    for batch in make(4):
        assert len(batch) == 4
        break
    del batch
    assert threading.active_count() == before


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_sources_that_make_pixels_are_streamed_by_processes_with_the_same_result(tmp_path, monkeypatch):
    source = PatternSource(tmp_path / "pictures", 70)
    threads = list(StreamLoader(source, 16, 50, workers=2, shuffle=True))
    monkeypatch.setattr(decoding, "_PROCESSES_PAY_FROM", 0.0)
    processes = list(StreamLoader(source, 16, 50, workers=2, shuffle=True))
    for one, other in zip(threads, processes, strict=True):
        assert one.ids == other.ids
        assert torch.equal(one.images, other.images)
        assert one.boxes is one.masks is None


def test_pieces_of_a_batch_with_and_without_masks_are_joined(tmp_path):
    class Late(PictureSource):
        def sample(self, index):
            self.masks = index >= 40
            return super().sample(index)

    (batch,) = StreamLoader(Late(tmp_path / "pictures", 45), 16, 45, workers=1)
    assert batch.masks.amax((1, 2)).tolist() == [0] * 41 + [41 % 6 + 1, 0, 43 % 6 + 1, 0]


@pytest.mark.parametrize("size", [0, -1, (16, 0), (16,), (16, 16, 3), 16.0, "16", True])
def test_a_stream_of_no_size_is_refused(pictures, size):
    with pytest.raises(ValueError, match="size: expected \\(height, width\\) of at least 1 pixel"):
        StreamLoader(pictures, size, 4)


def test_workers_and_prefetch_below_their_least_are_refused(pictures, prepared):
    with pytest.raises(ValueError, match="workers: expected at least 1"):
        StreamLoader(pictures, 16, 4, workers=0)
    with pytest.raises(ValueError, match="prefetch: expected 0 or more batches, got -1"):
        PreparedLoader(prepared, 4, prefetch=-1)


def test_a_position_that_lacks_something_is_refused(make):
    loader = make(batch_size=4)
    with pytest.raises(ValueError, match="lacks epoch, step, count, batch_size"):
        loader.load_state_dict({})
    state = loader.state_dict()
    del state["seed"]
    with pytest.raises(ValueError, match=r"lacks seed$"):
        loader.load_state_dict(state)


def test_a_fault_of_the_program_is_not_taken_for_bad_data(tmp_path):
    class Faulty(PictureSource):
        def sample(self, index):
            raise ValueError("a fault in the source's code")

    with pytest.raises(ValueError, match="a fault in the source's code") as raised:
        list(StreamLoader(Faulty(tmp_path / "pictures", 4), 16, 4, on_bad="skip"))
    assert not isinstance(raised.value, DataError)
