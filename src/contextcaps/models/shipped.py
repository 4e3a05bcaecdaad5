"""The models that are part of the package: what there is, and the command that puts a trained one there.

python -m contextcaps.models.shipped RUN_OR_MODEL NAME
"""

import argparse
import dataclasses
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from contextcaps.models import loading
from contextcaps.models.config import ModelConfig
from contextcaps.models.files import CARD_FILE, CONFIG_FILE, GRAPH_FILE, WEIGHTS_FILE, ModelFileError, read_config
from contextcaps.models.trained import Trained, without_folders

__all__ = ["FIGURES_FILE", "Measured", "ShippedModel", "list_shipped", "ship"]

FIGURES_FILE = "figures.json"
"""A file of this name in a shipped model's folder says what the model was measured with after it was finished:

    {"held_out": {"data": "5,000 photographs of COCO train2017", "mAP": 0.79, "interval": [0.78, 0.80]},
     "test": {"data": "COCO val2017", "mAP": 0.78, "interval": [0.77, 0.79]}}

Each of the two may be missing; for the first, there is then the figure that training has left.
"""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_LICENCE = re.compile(r"^license: *(\S.*)$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Measured:
    """A mean average precision, and what it was measured on."""

    data: str
    mAP: float
    """It goes from 0 to 1."""
    interval: tuple[float, float] | None = None
    """These are the ends of its 95 % interval; None where nobody has computed them."""


@dataclasses.dataclass(frozen=True)
class ShippedModel:
    """A model that is part of the package."""

    name: str
    folder: Path
    config: ModelConfig
    size: int
    """So many bytes its weights and its graph take on the disk."""
    held_out: Measured | None
    """It was measured on the images that chose its weights and thresholds."""
    test: Measured | None
    """It was measured on images that chose nothing; None where nobody has measured it."""
    licence: str | None
    """Its card names it so; None where it names none."""

    @property
    def measured(self) -> Measured | None:
        """Return the figure to go by: that of the test, where there is one."""
        return self.test if self.test is not None else self.held_out


def list_shipped() -> list[ShippedModel]:
    """Return the models that are part of the package, the default first.

    Raises:
        ModelFileError: a file of one is damaged.
    """
    return [_describe(name, loading.SHIPPED / name) for name in loading.shipped_names()]


def ship(model: str | Path, name: str, folder: Path | None = None, graph: bool = True) -> ShippedModel:
    """Put a trained model among the shipped ones, in half precision and without the folders of this machine.

    Beside its weights it gets its graph for ONNX Runtime, which has the same weights.

    A card that a person wrote goes with it; otherwise one is written.

    Args:
        model: a run's folder, or a model's.
        name: by which it will be loaded: small letters, digits, - and _.
        folder: of the shipped models; by default that of this package.
        graph: write the graph for ONNX Runtime, too; without it PyTorch alone can compute the model.

    Raises:
        ValueError: there is no trained model, the name will not do, or a weight is too large for half precision.
    """
    place = (loading.SHIPPED if folder is None else folder) / name
    if not _NAME.fullmatch(name):
        raise ValueError(f"name: expected small letters, digits, - and _, such as coco80, got {name!r}")
    if place.exists():
        raise ValueError(f"{place}: is there already; remove it first, as its figures are those of other weights")
    from contextcaps.models.network import CapsuleNetwork  # here, as the models are listed without torch
    from contextcaps.models.onnx_export import write_graph

    source = loading.model_folder(model)
    network = CapsuleNetwork.from_pretrained(source)
    trained = Trained.read(source, network.config)
    if trained is None:
        raise ValueError(f"{model}: nothing says that it was trained; only a trained model is shipped")
    network.config = dataclasses.replace(network.config, pretrained_file=None)
    trained = dataclasses.replace(
        trained,
        data=without_folders(trained.data),
        val_data=None if trained.val_data is None else without_folders(trained.val_data),
    )
    try:
        place.mkdir(parents=True)
        if (source / CARD_FILE).is_file():
            shutil.copyfile(source / CARD_FILE, place / CARD_FILE)
        network.save_pretrained(place, half=True)
        trained.write(place, network.config)
        if graph:
            write_graph(place)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    return _describe(name, place)


def _describe(name: str, folder: Path) -> ShippedModel:
    config = read_config(folder / CONFIG_FILE)
    trained = Trained.read(folder, config)
    figures = _figures(folder / FIGURES_FILE)
    held_out = figures.get("held_out") or (None if trained is None else _left_by_training(trained))
    card = folder / CARD_FILE
    found = _LICENCE.search(card.read_text(encoding="utf-8")) if card.is_file() else None
    licence = None if found is None else found[1]
    size = sum((folder / name).stat().st_size for name in (WEIGHTS_FILE, GRAPH_FILE) if (folder / name).is_file())
    return ShippedModel(name, folder, config, size, held_out, figures.get("test"), licence)


def _left_by_training(trained: Trained) -> Measured | None:
    """Return the figure on the validation images, where training has measured one."""
    if "val_mAP" not in trained.metrics:
        return None
    part = f"held-out part of {without_folders(trained.data)}"
    data = part if trained.val_data is None else without_folders(trained.val_data)
    return Measured(data, trained.metrics["val_mAP"])


def _figures(path: Path) -> dict[str, Measured]:
    """Read what was measured after training, by the name of the images' part; nothing where there is no such file."""
    try:
        document: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        unknown = document.keys() - {"held_out", "test"}
        if unknown:
            raise ValueError(f"there is no {min(unknown)!r}")
        return {part: _measured(path, part, figure) for part, figure in document.items()}
    except FileNotFoundError:
        return {}
    except ModelFileError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(
            f'{path}: expected {{"held_out": FIGURE, "test": FIGURE}}, or one of them, with FIGURE as '
            f'{{"data": NAME, "mAP": SHARE, "interval": [LOW, HIGH]}} ({error!r})'
        ) from None


def _measured(path: Path, part: str, figure: dict[str, Any]) -> Measured:
    low, high = (float(value) for value in figure["interval"])
    found = Measured(str(figure["data"]), float(figure["mAP"]), (low, high))
    if not 0 <= low <= found.mAP <= high <= 1:
        raise ModelFileError(
            f"{path}: {part}: expected shares from 0 to 1, the mAP within its interval, got {found.mAP} in "
            f"[{low}, {high}]"
        )
    return found


def _main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m contextcaps.models.shipped", description="Put a trained model among those of the package."
    )
    parser.add_argument("model", metavar="RUN_OR_MODEL", help="a run's folder, or a model's")
    parser.add_argument("name", metavar="NAME", help="by which it will be loaded, such as coco80")
    words = parser.parse_args()
    try:
        shipped = ship(words.model, words.name)
    except (ValueError, OSError) as error:
        print(f"contextcaps: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    print(f"{shipped.name}: {shipped.size / 1e6:.1f} MB in {shipped.folder}; add {FIGURES_FILE} when it is measured")


if __name__ == "__main__":
    _main()
