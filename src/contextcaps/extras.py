"""Import optional packages when they are needed; where one is missing, the error names the extra that brings it."""

import functools
import importlib
import importlib.util
import sys
from types import ModuleType

__all__ = ["import_extra"]


@functools.cache
def import_extra(module: str, extra: str, purpose: str) -> ModuleType:
    """Import a module that an extra brings.

    Args:
        module: the module's name, such as "timm".
        extra: the extra of this package that brings it, such as "train".
        purpose: what needs it, for the message.

    Raises:
        ImportError: it is not installed, or cannot be imported; the message names the extra.
    """
    if module.partition(".")[0] in ("timm", "pytorch_lightning", "torchmetrics", "pytorch_grad_cam"):
        _make_torchvision_importable()
    try:
        return importlib.import_module(module)
    except ImportError as error:
        install = f"pip install 'contextcaps[{extra}]'"
        if error.name is not None and error.name.partition(".")[0] == module.partition(".")[0]:
            raise ImportError(f"{purpose}: needs the extra {extra!r}: {install}") from error
        # Such as torch.utils.tensorboard, which exists without the package that it needs.
        raise ImportError(
            f"{purpose}: {module}, of the extra {extra!r}, could not be imported: {error}; try {install}"
        ) from error


@functools.cache
def _make_torchvision_importable() -> None:
    """Let torchvision be imported beside a torch build that its compiled operators do not fit.

    On import it registers fake kernels for its two operators for boxes even where the library that defines them could
    not be loaded (a CPU build of torch). Callers want only its image transforms: declaring the two names is enough.
    """
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        import torch

        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            library.define(operator + signature)
        _make_torchvision_importable.library = library  # type: ignore[attr-defined]  # the names go when it is collected
    except ImportError:
        pass  # whoever needs it will raise
