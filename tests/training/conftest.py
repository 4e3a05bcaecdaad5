"""What the tests of training share."""

import pytest

from contextcaps.training import recording


@pytest.fixture(scope="module")
def no_curves():
    """Runs that draw no curves: that takes as long as the training. What is drawn is tested in test_training.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "write_curves", lambda *arguments: None)
        yield
