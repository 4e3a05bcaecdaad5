"""What the demo writes down: the comparison as Markdown and JSON, with how it was made and how to make it again."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import torch

from contextcaps.experiments.comparison import Comparison
from contextcaps.experiments.comparison_table import comparison_markdown
from contextcaps.experiments.demo_settings import DemoSettings
from contextcaps.experiments.gallery import TaggedImage
from contextcaps.training.processes import device_name
from contextcaps.training.runs import now, versions

__all__ = ["demo_json", "demo_markdown", "gallery_caption"]

_TITLE = "capsnet and contextcaps on scenes"


def demo_json(
    comparison: Comparison, tagged: Sequence[TaggedImage], settings: DemoSettings, commands: Sequence[str]
) -> str:
    """Everything as a JSON document."""
    document: dict[str, Any] = {
        "title": _TITLE,
        "facts": _facts(settings),
        "settings": dataclasses.asdict(settings),
        **comparison.to_dict(),
        "tagged": [
            {"image": image.name, "truth": list(image.truth), "tags": [dataclasses.asdict(tag) for tag in image.tags]}
            for image in tagged
        ],
        "commands": list(commands),
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def demo_markdown(comparison: Comparison, settings: DemoSettings, commands: Sequence[str]) -> str:
    """A page that shows the pictures beside it."""
    return "\n".join(
        [
            f"# {_TITLE}\n",
            *(f"- {name}: {text}" for name, text in _facts(settings).items()),
            "",
            comparison_markdown(comparison),
            *(f"- {finding}" for finding in comparison.findings()),
            "",
            "![Validation mAP by epoch](convergence.png)\n",
            f"![Tagged images](tagged.png)\n\n{gallery_caption(settings)}\n",
            "The same again, whole or step by step:\n",
            "```",
            *commands,
            "```",
            "",
        ]
    )


def gallery_caption(settings: DemoSettings) -> str:
    """How the tagged images were chosen, and what the figures beneath them are."""
    return (
        f"{settings.tagged} of {settings.test_images:,} test images, drawn at random with seed {settings.seed}. "
        "Figures: the model's scores; a class counts as present from a threshold of its own, tuned on the validation "
        f"part. The model sees the images at {settings.image_size}×{settings.image_size} px."
    )


def _facts(settings: DemoSettings) -> dict[str, str]:
    return {
        "data": f"scenes, {settings.images:,} training, {settings.validation_images:,} validation and "
        f"{settings.test_images:,} test images of {settings.image_size}×{settings.image_size} px",
        "training": f"{settings.epochs} epochs, batches of {settings.batch_size}, highest learning rate "
        f"{settings.lr:g}, {settings.types} capsule types, backbone small; the same for both, but for "
        "the loss: margin on lengths, cross-entropy on a field's sigmoids",
        "seed": str(settings.seed),
        "hardware": device_name(torch.device("cpu")),
        "date": now()[:10],
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }
