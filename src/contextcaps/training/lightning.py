"""PyTorch Lightning and its Fabric, imported in one place."""

import logging
import warnings
from typing import TYPE_CHECKING

from contextcaps.extras import import_extra

__all__ = ["Fabric", "LightningModule"]

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from pytorch_lightning import LightningModule
else:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of packages that it imports
        LightningModule = import_extra("pytorch_lightning", "train", "training").LightningModule
        Fabric = import_extra("lightning_fabric", "train", "training").Fabric

for _name in ("lightning_fabric", "pytorch_lightning"):
    logging.getLogger(_name).setLevel(logging.WARNING)  # what it would say of processes and devices, we say ourselves
warnings.filterwarnings("ignore", message=r".*`isinstance\(treespec, LeafSpec\)` is deprecated", category=FutureWarning)
