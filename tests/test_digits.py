"""How errors on digits are counted: the n highest scores have to be the n labels'."""

import importlib.util
from pathlib import Path

import torch


def test_as_many_scores_as_an_image_has_digits() -> None:
    path = Path(__file__).parents[1] / "benchmarks" / "digits.py"
    spec = importlib.util.spec_from_file_location("digits", path)
    digits = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(digits)
    scores = torch.tensor([[0.9, 0.1, 0.5], [0.9, 0.1, 0.5], [0.9, 0.1, 0.5], [0.2, 0.3, 0.4]])
    targets = torch.tensor([[1, 0, 0], [1, 0, 1], [1, 1, 0], [0, 1, 0]], dtype=torch.uint8)
    assert digits.wrong_images(scores, targets).tolist() == [False, False, True, True]
