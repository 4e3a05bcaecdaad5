"""A golden loss curve: 30 steps of `contextcaps` on seeded data. A change of numerics shows here first.

`python tests/models/test_golden.py` writes the curve anew; do so only with a reason, and say it in the commit.
"""

import json
from pathlib import Path

import pytest
import torch

from contextcaps.models import create_model
from contextcaps.training.losses import margin_loss

GOLDEN = Path(__file__).with_name("golden_loss_curve.json")


def loss_curve(steps: int = 30) -> list[float]:
    """Losses of a small network that learns to tell which of five bright patches an image has."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = create_model("capsnet-rw-crf-corr", 5, image_size=32, backbone="small", capsules={"types": 4})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        present = torch.rand(16, 5, generator=generator) < 0.4
        images = 0.3 * torch.rand(16, 3, 32, 32, generator=generator)
        for index in range(5):
            images[:, :, 6 * index : 6 * index + 6, 6 * index : 6 * index + 6] += (
                0.6 * present[:, index, None, None, None]
            )
        loss = margin_loss(model(images).scores, present)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_golden_loss_curve() -> None:
    expected, measured = json.loads(GOLDEN.read_text()), loss_curve()
    assert expected[-1] < 0.5 * expected[0]
    assert measured == pytest.approx(expected, rel=0.02, abs=0.005)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps([round(value, 5) for value in loss_curve()], indent=1) + "\n")
