"""The meeting place of a restarted run: one for all its processes, whatever dead ones have left in the store."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from contextcaps.training.elastic import meeting_place


def meet(store: HashStore, world_size: int) -> list[str]:
    """Have as many threads meet; what rank 0 wrote at the place, as each has it."""
    with ThreadPoolExecutor(world_size) as pool:
        places = list(pool.map(lambda rank: meeting_place(store, rank, world_size), range(world_size)))
    assert not places[0].check(["address"])  # nobody has been here
    places[0].set("address", "here")
    return [place.get("address").decode() for place in places]


def test_each_attempt_meets_at_a_place_of_its_own_though_the_last_one_died_on_the_way() -> None:
    store = HashStore()
    store.set_timeout(timedelta(seconds=20))
    assert meet(store, 3) == ["here"] * 3
    assert meet(store, 3) == ["here"] * 3
    with ThreadPoolExecutor(1) as pool:  # rank 2 called, and was killed with the others before anybody answered
        store.set_timeout(timedelta(seconds=0.2))
        with pytest.raises(Exception, match=r"(?i)time"):
            pool.submit(meeting_place, store, 2, 3).result()
    store.set_timeout(timedelta(seconds=20))
    assert meet(store, 3) == ["here"] * 3
    assert meet(store, 2) == ["here"] * 2  # with fewer processes


def test_a_process_that_does_not_come_is_named() -> None:
    store = HashStore()
    store.set_timeout(timedelta(seconds=0.2))
    with pytest.raises(TimeoutError, match="expected 2 processes, but of rank 1 nothing was heard"):
        meeting_place(store, 0, 2)
