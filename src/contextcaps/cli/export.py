"""contextcaps export."""

import dataclasses
import sys
from typing import Annotated, Literal

import tyro

from contextcaps.cli.command import Command, File, Flag, require_location

__all__ = ["ExportModel"]


@dataclasses.dataclass(frozen=True)
class ExportModel(Command):
    """Write a model as one file for ONNX Runtime or torch.export: the whole tagger.

    The file has class names, thresholds and calibration; images go in as bytes.

    It is compared with PyTorch before it is moved to its place.
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME_OR_PATH")]
    """A shipped model, as contextcaps models lists them, a run's folder, a model's folder, or hf:OWNER/NAME."""
    to: Literal["onnx", "torch"] = "onnx"
    """onnx: for contextcaps tag --model FILE without torch, and for other programs; torch: a .pt2 file."""
    out: File = None
    """The file to write; by default the model's name in this folder."""
    explain: Flag = False
    """Add what contextcaps explain needs."""
    data: Annotated[str | None, tyro.conf.arg(metavar="SOURCE")] = None
    """Images to compare on, besides noise; drawn scenes by default."""

    def run(self) -> None:
        require_location(self.data)
        from contextcaps.tagging.export import export

        found = export(**self.keywords())
        print(f"{found.path}: {found.size / 1e6:.1f} MB")
        print(
            f"scores differ by at most {found.difference:.1g} from PyTorch's, on {found.images} images and on noise",
            file=sys.stderr,
        )
