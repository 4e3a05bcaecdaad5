"""Export a trained model for other runtimes: one file is the whole tagger, compared with PyTorch before it is written.

`onnx` files are computed by ONNX Runtime, here and elsewhere; `torch` files (`.pt2`) by any program with PyTorch.
"""

import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from contextcaps.atomic import require_place
from contextcaps.data.decoding import decode_samples
from contextcaps.data.problems import DataError
from contextcaps.data.source_registry import open_source
from contextcaps.extras import import_extra
from contextcaps.models.explainable import require_explainable
from contextcaps.models.loading import load_model
from contextcaps.models.onnx_opening import METADATA, ONNX_FORMAT, open_onnx_file

if TYPE_CHECKING:
    from contextcaps.models.network import CapsuleNetwork
    from contextcaps.models.torch_scorer import TorchScorer
    from contextcaps.models.trained import Trained

__all__ = ["Exported", "Target", "export"]

Target = Literal["onnx", "torch"]

TOLERANCE = 1e-4
"""Scores may differ so much from PyTorch's."""
_PARTS_TOLERANCE = 1e-3
"""Logits and their parts may; they go beyond 1."""
_CHECKED = 8
"""Images of the data that are compared, besides noise."""
_SUFFIXES: dict[str, str] = {"onnx": ".onnx", "torch": ".pt2"}


@dataclasses.dataclass(frozen=True)
class Exported:
    """A file that was written."""

    path: Path
    size: int
    """Bytes."""
    difference: float
    """Largest difference of a score from PyTorch's, on noise and on images."""
    images: int
    """Images that were compared."""


def export(
    model: str | Path,
    to: Target = "onnx",
    out: Path | None = None,
    *,
    explain: bool = False,
    data: str | None = None,
) -> Exported:
    """Write a model as a file for another runtime.

    Args:
        model: as for `contextcaps.load`, but no ONNX file.
        to: "onnx", or "torch" for `torch.export`.
        out: the file; by default the model's name in this folder.
        explain: add the outputs that `Tagger.explain` needs.
        data: a source of images to compare on, besides noise; drawn scenes by default.

    Raises:
        ImportError: the extra `train` or `onnx` is missing.
        ModelFileError: there is no model.
        ValueError: it cannot be exported, or the file does not compute what PyTorch does; no file is written.
    """
    if to not in _SUFFIXES:
        raise ValueError(f"to: expected 'onnx' or 'torch', got {to!r}")
    path = Path(f"{Path(model).name.replace(':', '-')}{_SUFFIXES[to]}") if out is None else out
    if path.suffix != _SUFFIXES[to]:
        raise ValueError(f"--out {path}: expected a name that ends in {_SUFFIXES[to]}")
    require_place(path, "--out")
    import_extra("torch", "train,onnx" if to == "onnx" else "train", f"export --to {to}")
    if to == "onnx":
        import_extra("onnxscript", "onnx", "export --to onnx")
    network, trained = load_model(model)
    if explain:
        require_explainable(network.config)
    from contextcaps.models.torch_scorer import TorchScorer

    scorer = TorchScorer(network, "cpu")
    images = _images(data, network.config.image_size)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".exporting-") as made:
        file = Path(made) / path.name
        if to == "onnx":
            difference = _write_onnx(network, trained, file, explain, scorer, images)
        else:
            _write_torch(network, trained, file, explain)
            difference = _compared_torch(file, scorer, images)
        size = file.stat().st_size
        os.replace(file, path)
    return Exported(path, size, difference, len(images))


def _images(data: str | None, size: tuple[int, int]) -> np.ndarray:
    """Return images [n, 3, H, W], as bytes, spread over a source."""
    source = open_source("scenes", count=_CHECKED, size=min(size), seed=0) if data is None else open_source(data)
    indices = np.unique(np.linspace(0, len(source) - 1, _CHECKED).astype(int)) if len(source) else np.arange(0)
    images = decode_samples(source, indices, size).images
    if not len(images):
        raise DataError(f"{source.name}: none of its images can be read")
    return images


def _write_onnx(
    network: "CapsuleNetwork",
    trained: "Trained | None",
    path: Path,
    explain: bool,
    scorer: "TorchScorer",
    images: np.ndarray,
) -> float:
    """Write a file and compare it with PyTorch; return the largest difference of a score.

    What the exporter writes for images of any size is not always right (torch 2.13: `csra` on some backbones). Then the
    file takes images of the network's own size alone.
    """
    from contextcaps.models.onnx_export import axes_of, model_of
    from contextcaps.models.onnx_file import sealed

    def written(any_size: bool) -> float:
        path.write_bytes(sealed(model_of(network, trained, explain, any_size).SerializeToString()))
        return _compared(path, scorer, images, explain)

    try:
        return written(any_size=True)
    except ValueError:
        if len(axes_of(network)) == 1:  # it had one size
            raise
        return written(any_size=False)


def _write_torch(network: "CapsuleNetwork", trained: "Trained | None", path: Path, explain: bool) -> None:
    import torch

    from contextcaps.models import onnx_export
    from contextcaps.models.files import FORMAT

    module = onnx_export.Exported(network.folded(begins_with_zeros=False), explain).eval()
    inputs = tuple(each for each in onnx_export.example_of(network) if each is not None)
    choices = onnx_export.axes_of(network)
    for axes in choices:
        try:
            with torch.no_grad():
                program = torch.export.export(module, inputs, dynamic_shapes=tuple(axes.values()))
            break
        except Exception as error:  # the exporter's own classes derive from Exception alone
            if axes is not choices[-1]:
                continue
            why = " ".join(str(error).split())[:300]
            raise ValueError(f"export: {network.config.model} cannot be written by torch.export ({why})") from error
    document = {
        "format": ONNX_FORMAT,
        "config": {"format": FORMAT, **network.config.to_dict()},
        "trained": None if trained is None else trained.document(network.config),
        "outputs": module.output_names(),
    }
    torch.export.save(program, path, extra_files={METADATA: json.dumps(document, ensure_ascii=False)})


def _compared(path: Path, expected: "TorchScorer", images: np.ndarray, explain: bool) -> float:
    """Compare a file with PyTorch, as tagging will open it; return the largest difference of a score."""
    scorer, _ = open_onnx_file(path)
    most = 0.0
    for batch, known in _cases(expected, images, scorer.takes_any_size):
        found, wanted = scorer.scores(batch, known), expected.scores(batch, known)
        most = max(most, float(np.abs(found - wanted).max()))
        if not np.isfinite(found).all() or most > TOLERANCE:
            raise ValueError(f"export: the file's scores differ from PyTorch's by {most:.2g}, more than {TOLERANCE:g}")
    if explain:
        for one, other in zip(scorer.parts(images[0]), expected.parts(images[0]), strict=True):
            for name in ("logits", "evidence", "branch", "messages", "length_capsules"):
                found_part, wanted_part = getattr(one, name), getattr(other, name)
                apart = 0.0 if wanted_part is None else float(np.abs(found_part - wanted_part).max())
                if not apart <= _PARTS_TOLERANCE:
                    raise ValueError(
                        f"export: {name} differ from PyTorch's by {apart:.2g}, more than {_PARTS_TOLERANCE:g}"
                    )
    return most


def _compared_torch(path: Path, expected: "TorchScorer", images: np.ndarray) -> float:
    import torch

    module, most = torch.export.load(path).module(), 0.0
    for batch, known in _cases(expected, images):
        inputs = [torch.from_numpy(batch)]
        if expected.config.takes_known:
            row = np.full(expected.config.num_classes, np.nan, np.float32) if known is None else known
            inputs.append(torch.from_numpy(row).expand(len(batch), -1).contiguous())
        with torch.no_grad():
            found = module(*inputs)[0].numpy()
        most = max(most, float(np.abs(found - expected.scores(batch, known)).max()))
    if not most <= TOLERANCE:
        raise ValueError(f"export: the file's scores differ from PyTorch's by {most:.2g}, more than {TOLERANCE:g}")
    return most


def _cases(
    expected: "TorchScorer", images: np.ndarray, any_size: bool = False
) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """Return batches of one image, of some, and of an odd number of noise; the last with a known label, if it can.

    With `any_size` one of noise that is larger comes first.
    """
    random = np.random.default_rng(0)
    height, width = images.shape[2:]
    noise: Any = random.integers(0, 256, (3, 3, height, width), dtype=np.uint8)
    larger: Any = random.integers(0, 256, (1, 3, height + 32, width + 65), dtype=np.uint8)
    known = None
    if expected.config.takes_known:
        known = np.full(expected.config.num_classes, np.nan, np.float32)
        known[0] = 1
    return [*([(larger, None)] if any_size else []), (images[:1], None), (images, None), (noise, known)]
