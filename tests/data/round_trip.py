"""The check that a source survives `contextcaps.data.convert.write_shards` and comes back from `shards:`."""

from pathlib import Path

import numpy as np

from contextcaps.data import Source, open_source
from contextcaps.data.convert import write_shards
from contextcaps.data.images import decode


def assert_same_samples(found: Source, expected: Source) -> None:
    """Both have the same classes and samples: ids, labels, unknown labels, pixels, boxes (to 1e-6) and masks."""
    assert found.classes == expected.classes
    assert len(found) == len(expected)
    for index in range(len(expected)):
        one, other = found.sample(index), expected.sample(index)
        assert one.id == other.id
        assert one.labels == other.labels == found.labels_of(index) == expected.labels_of(index)
        assert one.unknown == other.unknown == found.unknown_of(index) == expected.unknown_of(index)
        np.testing.assert_array_equal(decode(one.image), decode(other.image), err_msg=one.id)
        assert (one.boxes is None) == (other.boxes is None), one.id
        if one.boxes is not None and other.boxes is not None:
            np.testing.assert_array_equal(one.boxes.labels, other.boxes.labels, err_msg=one.id)
            np.testing.assert_allclose(one.boxes.corners, other.boxes.corners, rtol=0, atol=1e-6, err_msg=one.id)
        assert (one.mask is None) == (other.mask is None), one.id
        if one.mask is not None and other.mask is not None:
            np.testing.assert_array_equal(one.mask(), other.mask(), err_msg=one.id)


def assert_round_trip(source: Source, tmp_path: Path) -> Source:
    """A source converted to shards (three samples in each) and opened again is the same; twice gives the same bytes.

    Returns:
        The source of the shards.
    """
    first = write_shards(source, tmp_path / "shards", samples_per_shard=3)
    again = write_shards(source, tmp_path / "again", samples_per_shard=3)
    assert len(first) == -(-len(source) // 3)
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    returned = open_source(f"shards:{tmp_path / 'shards'}/*.tar", unlabelled="keep")
    assert_same_samples(returned, source)
    return returned
