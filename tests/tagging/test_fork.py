"""A process forked after a model was loaded, as gunicorn's --preload does, tags as its parent does."""

import os
import subprocess
import sys

import pytest

_FORK = """
import os
import numpy as np, torch
from contextcaps.models import create_model
from contextcaps.tagging import Tagger
torch.set_num_threads(2)
tagger = Tagger(create_model("contextcaps", 3, 64, "small"), device="cpu")
images = list(np.random.default_rng(0).integers(0, 256, (8, 300, 300, 3), dtype=np.uint8))
before = tagger.tag(images)  # starts OpenMP's threads
child = os.fork()
found = tagger.tag(images)
close = all(np.allclose(one.scores, other.scores, atol=1e-5) for one, other in zip(found, before))
print("child" if child == 0 else "parent", close, torch.get_num_threads(), flush=True)
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked on this system")
def test_a_forked_process_tags() -> None:
    done = subprocess.run([sys.executable, "-c", _FORK], capture_output=True, text=True, timeout=60, check=True)
    assert sorted(done.stdout.splitlines()) == ["child True 1", "parent True 2"]
