"""What training needs: losses."""

from contextcaps.training.losses import LOSSES, asymmetric_loss, length_cross_entropy, margin_loss, spread_loss

__all__ = ["LOSSES", "asymmetric_loss", "length_cross_entropy", "margin_loss", "spread_loss"]
