"""Results of the paper, shown beside ours; they are from other data and a metric that it does not define.

Ramasinghe, Athuraliya and Khan, "A Context-aware Capsule Network for Multi-label Classification", ECCV workshops 2018.
"""

from typing import Any

from contextcaps.experiments.ablation.grid import Entry

__all__ = ["CAVEAT", "PAPER_EPOCHS", "PAPER_MAP", "PAPER_ROWS", "paper_row"]

PAPER_MAP = {"capsnet": 0.4238, "capsnet-rw-crf": 0.5250, "capsnet-rw-crf-corr": 0.5671}
"""Preset → mAP in the paper's table, from 0 to 1. It has no row for RW alone."""

PAPER_ROWS = {
    "capsnet": "Original CapsNet",
    "capsnet-rw-crf": "RW + CRF",
    "capsnet-rw-crf-corr": "RW + CRF + CORR",
}
"""Preset → what the paper calls it."""

PAPER_EPOCHS = {"capsnet": 15, "capsnet-rw": 9}
"""Preset → the epoch around which the paper sees validation mAP stabilise."""

CAVEAT = (
    "The paper's figures are from another data set (ADE20K, 150 classes) and a metric that it does not define (“mAP "
    "with precision threshold 0.5”), from one training each as far as it says, without intervals. They stand here "
    "to be looked at, not to be compared digit by digit."
)

_IDEAS = {"capsules", "capsules.share_votes", "routing", "routing.iterations", "routing.normalize", "em"}
_IDEAS |= {"initial_routing", "initial_routing.mode", "crf", "crf.mode", "crf.iterations", "correlation", "field"}
_IDEAS |= {"pooling", "csra", "ml_decoder", "query2label", "ml_gcn", "c_tran"}
"""Options that make another model of it, rather than one of another size."""


def paper_row(entry: Entry, shared: dict[str, Any] | None = None) -> str | None:
    """Return the preset whose row in the paper a model stands for; None for what the paper does not have.

    Args:
        entry: the model.
        shared: options that all models of the grid have.
    """
    if _IDEAS & {*entry.options, *(shared or {})}:
        return None
    return entry.preset.removesuffix("-literal")
