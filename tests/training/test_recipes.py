"""The configurations that shipped models are trained with: each is read, and trains in small."""

import dataclasses
from pathlib import Path

import pytest

import contextcaps
from contextcaps.models.registry import require_buildable
from contextcaps.training.config import TrainConfig
from contextcaps.training.resolved import network_config

RECIPES = sorted((Path(__file__).parents[2] / "docs" / "models").glob("*.yaml"))


def test_there_are_recipes() -> None:
    assert "coco80" in [recipe.stem for recipe in RECIPES]


@pytest.mark.long
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_trains(recipe: Path, tmp_path: Path) -> None:
    config = TrainConfig.from_yaml(recipe)
    if config.freeze:  # the second of two steps: it needs a trained backbone
        config = dataclasses.replace(config, start_from="coco80")
    require_buildable(network_config(config, tuple(f"class {number}" for number in range(80))))
    small = {"data": "scenes?count=40&size=64", "image_size": 64, "batch_size": 8, "epochs": 1, "compile": False}
    places = {"out": str(tmp_path / "run"), "cache": str(tmp_path), "accelerator": "cpu", "precision": "fp32"}
    result = contextcaps.train(dataclasses.replace(config, **small, **places), progress=False)
    assert result.best["val_loss"] > 0
    assert contextcaps.load(result.folder).network.config.backbone == "lite2"
