"""Facts that training leaves beside a network's weights: thresholds, class frequencies, where all of it came from."""

import dataclasses
import json
import math
import re
from pathlib import Path, PurePath
from typing import Any

from contextcaps.atomic import write_atomically
from contextcaps.models.config import ModelConfig
from contextcaps.models.files import ModelFileError, read_in_folder, replace_card
from contextcaps.models.score_bands import ScoreBand, ScoreBands
from contextcaps.models.sections import CalibrationConfig
from contextcaps.plain_files import NotPlain, parse_json

__all__ = ["TRAINED_FILE", "Trained", "preprocessing", "without_folders"]

TRAINED_FILE = "trained.json"
"""A file of this name in a model's folder has these facts."""

_KINDS: dict[str, tuple[Any, str]] = {
    "seed": (int, "a whole number"),
    "data": (str, "a name"),
    "val_data": (str | None, "a name or null"),
    "epoch": (int, "a whole number"),
    "split_seed": (int | None, "a whole number or null"),
    "val_as_test": (bool, "true or false"),
    "kept": (dict, "names and values"),
    "metrics": (dict, "names and values"),
    "versions": (dict, "names and values"),
}

_SHOWN = 12  # class names in the model card

_CARD = """# {model}, trained

{kind} for multi-label image tagging, trained by contextcaps. It gives each class a score from 0 to 1; a
class counts as present from {present}

| | |
|---|---|
{table}

`config.json` has its settings and all class names, `trained.json` the thresholds, the classes' frequencies in the
training images, all validation figures, and the versions that it was trained with.

    import contextcaps

    tagger = contextcaps.load("this folder")
    for tagging in tagger.tag(["beach.jpg", "street.jpg"]):
        print(tagging.image, [tag.name for tag in tagging.tags])

On the command line: `contextcaps tag IMAGES... --model THIS_FOLDER`
"""

_OF_ITS_OWN = """a threshold of its own, tuned on the validation images. The fewer of them show the class,
the closer its threshold is to one for all classes."""

_FOR_ALL = "{threshold:.3f} on, one threshold for all classes, tuned on the validation images."


@dataclasses.dataclass(frozen=True)
class Trained:
    """Everything about a trained network that is not a weight or a setting of the network itself."""

    thresholds: tuple[float, ...]
    """[J], the score from which each class counts as present; tuned on the validation part."""
    frequencies: tuple[float, ...]
    """[J], the share of training images that show each class: the scores of the constant-prior predictor."""
    seed: int
    """Seed of the training run."""
    data: str
    """The source that it was trained on."""
    epoch: int
    """Epochs that these weights have seen."""
    val_data: str | None = None
    """Another source that it was validated on; None: a part of `data`."""
    split_seed: int | None = None
    """Seed of the division of `data`, where one was made; None: `seed`."""
    val_as_test: bool = False
    """True where a validation part without a test part beside it was kept for tests."""
    kept: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Settings by which only some training images or labels were learned from; empty for all of them."""
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    """Figures on the validation part; `val_loss` is of the scores before calibration."""
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    """Versions of the packages that trained it, and the commit of this one where it is known."""
    score_bands: ScoreBands = dataclasses.field(default_factory=ScoreBands)
    """How often a class was there in the validation images, by its score; none where they were too few."""

    def write(self, folder: Path, config: ModelConfig) -> None:
        """Write it into a model's folder, whole or not at all; update the model's README, too."""
        text = json.dumps(self.document(config), indent=2, ensure_ascii=False) + "\n"
        write_atomically(folder / TRAINED_FILE, text)
        replace_card(folder, self.card(config))

    def document(self, config: ModelConfig) -> dict[str, Any]:
        """Return it as JSON's types, with what happens to an image before the network."""
        names = config.all_class_names
        return {
            **dataclasses.asdict(self),
            "thresholds": dict(zip(names, self.thresholds, strict=True)),
            "frequencies": dict(zip(names, self.frequencies, strict=True)),
            "score_bands": [dataclasses.asdict(band) for band in self.score_bands.bands],
            "preprocessing": preprocessing(config),
        }

    @classmethod
    def read(cls, folder: Path, config: ModelConfig) -> "Trained | None":
        """Read what is in a model's folder; None if it has no such file.

        Raises:
            ModelFileError: the file is damaged, or of other classes.
        """
        path = Path(folder, TRAINED_FILE)
        try:
            return cls.from_document(parse_json(read_in_folder(path)), path, config)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from None
        except ModelFileError:
            raise
        except NotPlain as error:
            raise ModelFileError(str(error)) from None
        except ValueError as error:
            raise ModelFileError(f"{path}: cut off or not written by contextcaps ({error!r})") from None

    @classmethod
    def from_document(cls, document: Any, path: Path, config: ModelConfig) -> "Trained":
        """Return the facts of a document of JSON's types, as `document` gives it; errors name its file."""
        try:
            document = {
                name: value for name, value in document.items() if name != "preprocessing"
            }  # the network's decides
            for field in ("thresholds", "frequencies"):
                if list(document[field]) != list(config.all_class_names):
                    raise ModelFileError(f"{path}: its classes are not those of the network beside it")
                document[field] = tuple(_share(path, field, *each) for each in document[field].items())
            document.setdefault("kept", {})  # older files have neither this
            bands = document.get("score_bands", [])  # nor this
            document["score_bands"] = ScoreBands(tuple(ScoreBand(**band) for band in bands))
            for field, (kind, spelled) in _KINDS.items():
                if not isinstance(document[field], kind) or isinstance(document[field], bool) != (kind is bool):
                    raise ModelFileError(f"{path}: {field}: expected {spelled}, got {document[field]!r}")
            return cls(**document)
        except ModelFileError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelFileError(f"{path}: cut off or not written by contextcaps ({error!r})") from None

    def card(self, config: ModelConfig) -> str:
        """Return the model card in Markdown."""
        names = config.all_class_names
        shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
        rows = {
            "classes": f"{len(names)}: {shown}",
            "trained on": ", ".join([without_folders(self.data), *(f"{name} {self.kept[name]}" for name in self.kept)]),
            "validated on": "a part of it" if self.val_data is None else without_folders(self.val_data),
            "images": f"squashed to {config.image_size_text}",
            "seed": self.seed,
            "epochs": self.epoch,
        }
        if "val_mAP" in self.metrics:
            prior = self.metrics.get("prior_mAP", math.nan)
            rows["validation mAP"] = (
                f"{100 * self.metrics['val_mAP']:.1f} %; constant scores, which never look at the image, have "
                f"{100 * prior:.1f} %"
            )
        if config.calibration is not None:
            rows["scores"] = _calibration_row(config.calibration, self.metrics)
        rows["lowest score of a tag"] = f"{min(self.thresholds):.3f}, unless another threshold is asked for"
        table = "\n".join(f"| {name} | {_literal(value)} |" for name, value in rows.items())
        kind = "A capsule network" if config.capsules is not None else "A network"
        is_one = len(set(self.thresholds)) == 1
        present = _FOR_ALL.format(threshold=self.thresholds[0]) if is_one else _OF_ITS_OWN
        return _CARD.format(model=config.model, kind=kind, present=present, table=table)


def preprocessing(config: ModelConfig) -> dict[str, Any]:
    """Describe what happens to an image before the network, so that another program can follow."""
    return {
        "size": list(config.image_size),
        "resize": "squash to height × width with an antialiased triangle filter, aspect ratio not kept",
        "channels": "RGB" if config.in_channels == 3 else "grey" if config.in_channels == 1 else config.in_channels,
        "range": [0, 1],
        "mean": list(config.pixel_mean or ()),
        "std": list(config.pixel_std or ()),
    }


def _calibration_row(calibration: CalibrationConfig, metrics: dict[str, float]) -> str:
    """Return what the card says of a calibration, and of the error before and after it."""
    sign, shift = "−" if calibration.shift < 0 else "+", abs(calibration.shift)
    text = f"sigmoid({calibration.scale:.3g} × logit {sign} {shift:.3g}), fitted on the validation images"
    if "val_ECE" not in metrics:
        return text
    error, before = 100 * metrics["val_ECE"], 100 * metrics.get("val_ECE_before", math.nan)
    return f"{text}; expected calibration error there {error:.2f} %, {before:.2f} % before calibration"


def _share(path: Path, field: str, name: str, value: Any) -> float:
    """Return a threshold or a frequency of a class, if it is one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ModelFileError(f"{path}: {field}: {name}: expected a number from 0 to 1, got {value!r}")
    return float(value)


def without_folders(source: str) -> str:
    """Return a source's name without the folders of this machine: a card is passed on with its model.

    >>> without_folders("table:/home/ann/labels.csv?root=/home/ann/photos"), without_folders("hf:owner/name")
    ('table:labels.csv', 'hf:owner/name')
    """
    kind, _, rest = source.partition(":")
    place = PurePath(rest.partition("?")[0])
    return f"{kind}:{place.name}" if place.is_absolute() else source


def _literal(text: object) -> str:
    """Return text on one line in which nothing is markup."""
    return re.sub(r"([\\`*_<|\[])", r"\\\1", " ".join(str(text).split()))
