"""What the tests of training share."""

import pytest

from contextcaps.data.source import Source
from contextcaps.training import recording


@pytest.fixture
def quick_runs(_contents):
    """Runs without what takes as long as their training: curves, and a look at the images of the data each time.

    Both are tested without this: test_training.py looks into a whole run, test_fingerprints.py at contents.
    """
    contents = Source.contents

    def remembered(source: Source) -> str:
        key = source.fingerprint()
        if key not in _contents:
            _contents[key] = contents(source)
        return _contents[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "write_curves", lambda *arguments: None)
        patch.setattr(Source, "contents", remembered)
        yield


@pytest.fixture(scope="session")
def _contents() -> dict[str, str]:
    return {}
