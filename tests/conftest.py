"""What every test shares: one thread per worker, hypothesis settings that give the same examples in every run."""

import gc
import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from contextcaps.models import loading

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # the kernels in Python; read when Triton is imported

pytest.register_assert_rewrite("contract")

gc.disable()  # until all tests are collected

# pytest-xdist already fills the cores; more threads per worker only make them wait for each other.
torch.set_num_threads(1)

settings.register_profile("contextcaps", max_examples=30, derandomize=True, deadline=None)
settings.load_profile("contextcaps")


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in the place of that with the shipped models."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    monkeypatch.setattr(loading, "SHIPPED", folder)
    return folder


def pytest_collection_finish() -> None:
    """Leave the modules that are loaded by now out of all later garbage collections: most of their time goes there."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let Python free them as it ends, or libraries complain of leaks."""
    gc.unfreeze()
