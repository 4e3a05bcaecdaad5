"""One training step (augmentation, network, loss), and the optimiser and schedule that use it.

`contextcaps.train` runs it in its own loop (`contextcaps.training.loop`), on Lightning's Fabric. As a `LightningModule`
it works in a `pytorch_lightning.Trainer` as well, on an ordinary `DataLoader` of images and targets.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from contextcaps.capsules import unchecked
from contextcaps.data.augmentation import Augmentation
from contextcaps.data.loading import Batch, FeatureBatch
from contextcaps.data.unknown import UNKNOWN, is_unknown
from contextcaps.evaluation.known.revealing import known_labels, loss_weights, reveal
from contextcaps.evaluation.metrics.ranking import average_precision
from contextcaps.evaluation.predictions import forward_batch
from contextcaps.models import CapsuleNetwork
from contextcaps.training.config import TrainConfig
from contextcaps.training.losses import LOSSES, TAKE_LOGITS, resolve_loss
from contextcaps.training.processes import LightningModule

__all__ = ["OpaqueBatch", "TaggingModule", "parameter_groups"]

_SABOURS_RECONSTRUCTION = 0.0005


class OpaqueBatch:
    """A batch that Lightning passes on as it is; it would convert the tensors of a bare one."""

    def __init__(self, batch: Batch | FeatureBatch) -> None:
        self.batch = batch


AnyBatch: TypeAlias = Batch | FeatureBatch | OpaqueBatch | Sequence[Tensor]
"""A batch of this library's loaders, or images and targets of an ordinary one."""


class TaggingModule(LightningModule):
    """A network with its loss, augmentation, optimiser and schedule.

        module = TaggingModule(network, TrainConfig(lr=1e-3, augmentation=False))
        pytorch_lightning.Trainer(max_epochs=5).fit(module, train_loader, validation_loader)

    A batch is one of this library's loaders, or a pair of images [B, C, H, W] (uint8, or floats from 0 to 1, not
    normalised) and multi-hot targets [B, J] (any type, 0 or 1).

    Args:
        network: what is trained; without calibration, which a finished model has.
        config: loss, learning rate, schedule, augmentation and the like; what it says of data, epochs, batches and
            devices is the `Trainer`'s and the `DataLoader`'s. `TrainConfig()` by default.
        total_steps: the optimiser's steps in the whole run, for the schedule; by default as many as the `Trainer` does.
        class_weights: [J], of the loss; None for equal ones.
        rank: of this process; each augments differently.
    """

    def __init__(
        self,
        network: CapsuleNetwork,
        config: TrainConfig | None = None,
        total_steps: int | None = None,
        class_weights: Tensor | None = None,
        rank: int = 0,
    ) -> None:
        super().__init__()
        config = TrainConfig() if config is None else config
        if network.config.calibration is not None:
            raise ValueError(
                "network: expected one without calibration, which no longer holds once weights change, got one; take "
                "it off: network.config = dataclasses.replace(network.config, calibration=None)"
            )
        self.network, self.config, self.total_steps, self.rank = network, config, total_steps, rank
        self._validated: list[tuple[Tensor, Tensor]] = []
        self.loss_name = resolve_loss(config.loss, network.config)
        default = 0.0 if network.decoder is None else _SABOURS_RECONSTRUCTION
        self.reconstruction = default if config.reconstruction is None else config.reconstruction
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", class_weights, persistent=False)
        # Far apart, so that no other run's seed gives what this run's other processes draw.
        self.augmentation = (
            Augmentation(config.augment, config.seed + 1_000_003 * rank) if config.augmentation else None
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return scores [B, J] of images [B, C, H, W], uint8 or floats from 0 to 1."""
        return self.network(images).scores

    def training_step(self, batch: AnyBatch, batch_idx: int) -> dict[str, Tensor]:
        """Return the loss (a number) and scores [B, J] of a batch, augmented; draws depend on the batch alone."""
        is_pair = isinstance(batch, Sequence)
        batch = self._library_batch(batch, batch_idx)
        result = self._train_on(batch)
        if is_pair:  # our own loop has its own records
            self.log("train_loss", result["loss"].detach(), batch_size=len(batch), prog_bar=True)
        return result

    def validation_step(self, batch: AnyBatch, batch_idx: int) -> Tensor:
        """Return the loss of a batch as it is, and log it as `val_loss`; `val_mAP` follows at the epoch's end."""
        batch = self._library_batch(batch, batch_idx)
        output = forward_batch(self.network, batch)
        loss = self.loss(output.scores, batch.targets, logits=output.logits)
        self.log("val_loss", loss, batch_size=len(batch), prog_bar=True, sync_dist=True)
        self._validated.append((output.scores.float().cpu(), batch.targets.cpu()))
        return loss

    def on_validation_epoch_start(self) -> None:
        self._validated = []

    def on_validation_epoch_end(self) -> None:
        """Log macro mAP, from 0 to 1, as `val_mAP`; with several processes it is the mean of theirs."""
        scores, targets = (torch.cat(parts) for parts in zip(*self._validated, strict=True))  # [n, J]
        self.log("val_mAP", float(average_precision(scores, targets)), prog_bar=True, sync_dist=True)
        self._validated = []

    def _library_batch(self, batch: AnyBatch, batch_idx: int) -> Batch | FeatureBatch:
        """Return a batch as this library's loaders give it; check a pair of images and targets."""
        if isinstance(batch, OpaqueBatch):
            return batch.batch
        if not isinstance(batch, Sequence):
            return batch
        if len(batch) != 2 or not all(isinstance(part, Tensor) for part in batch):
            got = ", ".join(type(part).__name__ for part in batch)
            raise TypeError(f"batch: expected a pair of tensors, images and targets, got {len(batch)}: {got}")
        images, targets = batch
        self._require_images(images)
        self._require_targets(targets, len(images))
        places = np.arange(len(images))
        ids = tuple(map(str, places))
        return Batch(images, targets.to(torch.uint8), places, ids, epoch=self.current_epoch, step=batch_idx)

    def _require_images(self, images: Tensor) -> None:
        channels = self.network.config.in_channels
        if images.ndim != 4 or images.shape[1] != channels:
            raise ValueError(f"images: expected [B, {channels}, H, W], got {list(images.shape)}")
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise TypeError(f"images: expected uint8, or floats from 0 to 1, got {images.dtype}")
        if images.is_floating_point():
            least, most = (float(value) for value in images.detach().aminmax())
            if not 0 <= least <= most <= 1:  # false for NaN, too
                raise ValueError(
                    "images: expected values from 0 to 1, not normalised (the network does that), "
                    f"got {least:g} to {most:g}"
                )

    def _require_targets(self, targets: Tensor, count: int) -> None:
        expected, got = [count, self.network.config.num_classes], list(targets.shape)
        if got != expected:
            hint = "; torch.nn.functional.one_hot makes rows of class numbers" if len(got) == 1 else ""
            raise ValueError(f"targets: expected multi-hot rows {expected}, got {got}{hint}")
        if not bool(((targets == 0) | (targets == 1) | is_unknown(targets)).all()):
            raise ValueError(f"targets: expected 0, 1, or {UNKNOWN} (unknown) for each class, got other values")

    def _train_on(self, batch: Batch | FeatureBatch) -> dict[str, Tensor]:
        self._seed(batch)
        if isinstance(batch, Batch):  # features were augmented when they were made
            batch = self._augment(batch)
        targets = batch.targets  # [B, J], 255 where unknown
        given = reveal(targets, self.config.known) if self.config.known > 0 else None  # [B, J]
        with unchecked():  # a NaN is the loop's to find and to explain; to look for it here would wait for a GPU
            output = forward_batch(self.network, batch, None if given is None else known_labels(targets, given))
            weights = None if given is None else loss_weights(given, is_unknown(targets))  # [B, J]
            loss = self.loss(output.scores, targets, weights, output.logits)
        if self.reconstruction > 0 and isinstance(batch, Batch):
            rebuilt = self.network.reconstruct(output.decisions, targets == 1)  # [B, C, H, W]
            pixels = batch.images / 255 if batch.images.dtype == torch.uint8 else batch.images
            errors = (rebuilt.float() - pixels).square().flatten(1).sum(dim=1)  # [B]
            loss = loss + self.reconstruction * errors.mean()
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
        steps = int(self.trainer.estimated_stepping_batches) if self.total_steps is None else self.total_steps
        groups = parameter_groups(self.network, config.weight_decay)
        on_gpu = all(parameter.is_cuda for parameter in self.network.parameters())
        # One kernel for all weights. Not with fp16, where it would unscale the gradients after they are clipped.
        fused = True if on_gpu and config.precision != "fp16" and not config.shard else None
        optimizer = torch.optim.AdamW(groups, lr=config.lr, fused=fused)
        scheduler: torch.optim.lr_scheduler.LRScheduler
        if config.schedule == "one-cycle":
            rise = min(max(config.warmup, 1 / steps), 1 - 1 / (steps + 1))
            scheduler = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, config.lr, total_steps=max(steps, 2) + 1, pct_start=rise
            )
        else:
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, functools.partial(self._factor, steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def _factor(self, steps: int, step: int) -> float:
        """Return the learning rate at a step of so many, as a share of the highest."""
        rising = round(self.config.warmup * steps)
        if step < rising:
            return (step + 1) / rising
        if self.config.schedule == "constant":
            return 1.0
        done = (step - rising) / max(steps - rising, 1)
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
