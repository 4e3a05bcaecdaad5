"""One training step (augmentation, network, loss), and the optimiser and schedule that use it.

`contextcaps.train` runs it in its own loop (`contextcaps.training.loop`), on Lightning's Fabric; as a `LightningModule`
it works in a `pytorch_lightning.Trainer` as well.
"""

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from contextcaps.capsules import unchecked
from contextcaps.data.augmentation import Augmentation
from contextcaps.data.loading import Batch, FeatureBatch
from contextcaps.data.unknown import is_unknown
from contextcaps.evaluation.known.revealing import known_labels, loss_weights, reveal
from contextcaps.evaluation.predictions import forward_batch
from contextcaps.models import CapsuleNetwork
from contextcaps.training.config import TrainConfig
from contextcaps.training.losses import LOSSES, TAKE_LOGITS, resolve_loss
from contextcaps.training.processes import LightningModule

__all__ = ["OpaqueBatch", "TaggingModule", "parameter_groups"]


class OpaqueBatch:
    """A batch that Lightning passes on as it is; it would convert the tensors of a bare one."""

    def __init__(self, batch: Batch | FeatureBatch) -> None:
        self.batch = batch


class TaggingModule(LightningModule):
    """A network with its loss, augmentation, optimiser and schedule.

    Args:
        network: what is trained.
        config: how.
        total_steps: the optimiser's steps in the whole run, for the schedule.
        class_weights: [J], of the loss; None for equal ones.
        rank: of this process; each augments differently.
    """

    def __init__(
        self,
        network: CapsuleNetwork,
        config: TrainConfig,
        total_steps: int,
        class_weights: Tensor | None = None,
        rank: int = 0,
    ) -> None:
        super().__init__()
        self.network, self.config, self.total_steps, self.rank = network, config, total_steps, rank
        self.loss_name = resolve_loss(config.loss, network.config)
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", class_weights, persistent=False)
        # Far apart, so that no other run's seed gives what this run's other processes draw.
        self.augmentation = (
            Augmentation(config.augment, config.seed + 1_000_003 * rank) if config.augmentation else None
        )

    def training_step(self, batch: "Batch | FeatureBatch | OpaqueBatch", batch_idx: int) -> dict[str, Tensor]:
        """Return the loss (a number) and scores [B, J] of a batch, augmented; draws depend on the batch alone."""
        batch = batch.batch if isinstance(batch, OpaqueBatch) else batch
        self._seed(batch)
        if isinstance(batch, Batch):  # features were augmented when they were made
            batch = self._augment(batch)
        targets = batch.targets  # [B, J], 255 where unknown
        given = reveal(targets, self.config.known) if self.config.known > 0 else None  # [B, J]
        output = forward_batch(self.network, batch, None if given is None else known_labels(targets, given))
        with unchecked():  # a NaN is the loop's to find and to explain
            weights = None if given is None else loss_weights(given, is_unknown(targets))  # [B, J]
            loss = self.loss(output.scores, targets, weights, output.logits)
        if self.config.reconstruction > 0 and isinstance(batch, Batch):
            rebuilt = self.network.reconstruct(output.decisions, targets == 1)  # [B, C, H, W]
            pixels = batch.images / 255 if batch.images.dtype == torch.uint8 else batch.images
            errors = (rebuilt.float() - pixels).square().flatten(1).sum(dim=1)  # [B]
            loss = loss + self.config.reconstruction * errors.mean()
        scores = output.scores.detach()  # [B, J]
        if given is not None and output.logits is not None:  # what the network thinks itself, for whoever watches it
            scores = torch.where(given, output.logits.detach().sigmoid().to(scores), scores)
        return {"loss": loss, "scores": scores, "targets": targets}

    def _augment(self, batch: Batch) -> Batch:
        if self.augmentation is None:
            return batch
        changed = self.augmentation(
            batch.images, batch.targets, epoch=batch.epoch, step=batch.step, boxes=batch.boxes, masks=batch.masks
        )
        return dataclasses.replace(batch, images=changed.images, targets=changed.targets, boxes=None, masks=None)

    def loss(
        self, scores: Tensor, targets: Tensor, weights: Tensor | None = None, logits: Tensor | None = None
    ) -> Tensor:
        """Return the run's loss on scores [B, J], with its weights for the classes and others [B, J] for each image.

        Where the scores are sigmoids of logits [B, J], and the loss can take those, it is computed from them.
        """
        if self.class_weights is not None:
            own = self.class_weights.to(scores.device)  # [J]
            weights = own if weights is None else own * weights  # [J] or [B, J]
        options = {} if weights is None else {"class_weights": weights}
        if logits is not None and self.loss_name in TAKE_LOGITS:
            options["logits"] = logits
        return LOSSES[self.loss_name](scores, targets, **options)

    def _seed(self, batch: Batch | FeatureBatch) -> None:
        """Let what the network itself draws (dropout) depend on the batch alone; a resumed run then draws the same."""
        sequence = np.random.SeedSequence([self.config.seed, self.rank, batch.epoch, batch.step])
        torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1)))

    def configure_optimizers(self) -> Any:
        """Return AdamW, and its learning rate by step."""
        config = self.config
        groups = parameter_groups(self.network, config.weight_decay)
        on_gpu = all(parameter.is_cuda for parameter in self.network.parameters())
        # One kernel for all weights. Not with fp16, where it would unscale the gradients after they are clipped.
        fused = True if on_gpu and config.precision != "fp16" and not config.shard else None
        optimizer = torch.optim.AdamW(groups, lr=config.lr, fused=fused)
        scheduler: torch.optim.lr_scheduler.LRScheduler
        if config.schedule == "one-cycle":
            rise = min(max(config.warmup, 1 / self.total_steps), 1 - 1 / (self.total_steps + 1))
            scheduler = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, config.lr, total_steps=max(self.total_steps, 2) + 1, pct_start=rise
            )
        else:
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, self._factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def _factor(self, step: int) -> float:
        """Return the learning rate at a step, as a share of the highest."""
        rising = round(self.config.warmup * self.total_steps)
        if step < rising:
            return (step + 1) / rising
        if self.config.schedule == "constant":
            return 1.0
        done = (step - rising) / max(self.total_steps - rising, 1)
        return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def parameter_groups(network: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Divide parameters into those that decay (matrices, kernels) and those that do not (biases, norms, scalars).

    Frozen ones are in neither.
    """
    decaying: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            continue
        (others if parameter.ndim < 2 or name.endswith("bias") else decaying).append(parameter)
    return [{"params": decaying, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
