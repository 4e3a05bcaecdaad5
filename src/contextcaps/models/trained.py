"""What training leaves beside a network's weights: thresholds, class frequencies, and where all of it came from."""

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

from contextcaps.models.config import ModelConfig
from contextcaps.models.saving import ModelFileError

__all__ = ["TRAINED_FILE", "Trained", "preprocessing"]

TRAINED_FILE = "trained.json"
"""Its name in a model's folder."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """Everything about a trained network that is not a weight or a setting of the network itself."""

    thresholds: tuple[float, ...]
    """[J], the score from which each class counts as present; tuned on the validation part."""
    frequencies: tuple[float, ...]
    """[J], the share of training images that show each class: what the constant-prior predictor says."""
    seed: int
    """Of the training run."""
    data: str
    """The source that it was trained on."""
    epoch: int
    """Epochs that these weights have seen."""
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    """On the validation part."""
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    """Of the packages that trained it, and the commit of this one where it is known."""

    def write(self, folder: Path, config: ModelConfig) -> None:
        """Write it into a model's folder, whole or not at all."""
        names = config.class_names or tuple(str(index) for index in range(config.num_classes))
        document = {
            **dataclasses.asdict(self),
            "thresholds": dict(zip(names, self.thresholds, strict=True)),
            "frequencies": dict(zip(names, self.frequencies, strict=True)),
            "preprocessing": preprocessing(config),
        }
        temporary = folder / f".{TRAINED_FILE}.{os.getpid()}.tmp"
        try:
            temporary.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            os.replace(temporary, folder / TRAINED_FILE)
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def read(cls, folder: Path, config: ModelConfig) -> "Trained | None":
        """What is in a model's folder; None if it has no such file.

        Raises:
            ModelFileError: the file is damaged, or of other classes.
        """
        path = Path(folder, TRAINED_FILE)
        try:
            document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            del document["preprocessing"]  # for people and other programs; the network's configuration decides
            thresholds, frequencies = document.pop("thresholds"), document.pop("frequencies")
            names = config.class_names or tuple(str(index) for index in range(config.num_classes))
            if list(thresholds) != list(names) or list(frequencies) != list(names):
                raise ModelFileError(f"{path}: its classes are not those of the network beside it")
            values = [float(value) for table in (thresholds, frequencies) for value in table.values()]
            if not all(map(math.isfinite, values)):
                raise ModelFileError(f"{path}: a threshold or a frequency is no number")
            return cls(tuple(thresholds.values()), tuple(frequencies.values()), **document)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, ModelFileError):
                raise
            raise ModelFileError(f"{path}: cut off or not written by contextcaps ({error!r})") from None


def preprocessing(config: ModelConfig) -> dict[str, Any]:
    """What happens to an image before the network, in words and numbers that another program can follow."""
    return {
        "size": list(config.image_size),
        "resize": "squash to height × width with an antialiased triangle filter, aspect ratio not kept",
        "channels": "RGB" if config.in_channels == 3 else "grey" if config.in_channels == 1 else config.in_channels,
        "range": [0, 1],
        "mean": list(config.pixel_mean or ()),
        "std": list(config.pixel_std or ()),
    }
