"""The training loop: epochs of steps, each epoch validated, everything saved so that a stopped run can go on.

A run that was stopped and resumed ends with the same weights and metrics, bit for bit on a CPU, as one that was not:
the order of images, augmentation and dropout are functions of (seed, epoch, batch), and the rest is in the checkpoint.
"""

import contextlib
import dataclasses
import time
from typing import Any

import torch
from torch import Tensor

from contextcaps.data.loading import Batch, FeatureBatch, Loader
from contextcaps.data.problems import DataError
from contextcaps.models import CapsuleNetwork
from contextcaps.training.divergence import DivergenceGuard
from contextcaps.training.ema import EMA
from contextcaps.training.failures import Interruption, StoppedRun
from contextcaps.training.health import Monitor
from contextcaps.training.processes import Fabric, agree, full_state_dict, load_full_state_dict
from contextcaps.training.recording import SilentRecorder
from contextcaps.training.runs import Run
from contextcaps.training.step import OpaqueBatch, TaggingModule
from contextcaps.training.validation import Validation

__all__ = ["Progress", "TrainingLoop"]

_STEPS_BETWEEN_READS = 10  # of the losses on a GPU, as each read waits for it


@dataclasses.dataclass
class Progress:
    """The progress of a run: epoch, batch, step, and results so far."""

    epoch: int = 0
    """The epoch under way, from 0."""
    batch: int = 0
    """Batches of it that are done."""
    step: int = 0
    """Steps of the optimiser."""
    losses: list[float] = dataclasses.field(default_factory=list)
    """Sum of this epoch's losses, and their number."""
    history: list[dict[str, float]] = dataclasses.field(default_factory=list)
    """One record of metrics per epoch."""
    tuned: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The fields of `Tuned`: calibration, thresholds and score bands of the best epoch."""

    @property
    def best(self) -> dict[str, float] | None:
        """Return the record of the epoch with the highest validation mAP; of several, that with the lowest loss.

        With few validation images many epochs share a mAP, and the first of them has learned least.
        """
        return max(self.history, key=lambda record: (record["val_mAP"], -record["val_loss"]), default=None)

    def should_stop_early(self, patience: int) -> bool:
        """Return whether so many epochs have passed without a better one (early stopping)."""
        return self.best is not None and 0 < patience <= self.history[-1]["epoch"] - self.best["epoch"]


class TrainingLoop:
    """Trains a module.

    Args:
        fabric: launched.
        module: what is trained; the loop sets it up for the fabric.
        loader: this process's share of the training images, or of their features.
        validation: what is done after each epoch.
        run: where everything is kept.
        recorder: writes metrics and shows progress; in rank zero only.
        frequencies: [J], of the classes in the training part.
    """

    def __init__(
        self,
        fabric: Fabric,
        module: TaggingModule,
        loader: Loader,
        validation: Validation,
        run: Run,
        recorder: SilentRecorder,
        frequencies: Tensor,
    ) -> None:
        self.fabric, self.module, self.loader, self.validation = fabric, module, loader, validation
        self.run_folder, self.recorder, self.config = run, recorder, run.config
        self.network: CapsuleNetwork = module.network
        self.progress = Progress()
        self.monitor = Monitor(frequencies, self.config.model, self.network.config.scores_are_sigmoids)
        self.wrapped = fabric.setup_module(module)
        chosen = module.configure_optimizers()  # after the set-up, which may divide the weights among processes
        self.scheduler = chosen["lr_scheduler"]["scheduler"]
        self.optimizer: Any = fabric.setup_optimizers(chosen["optimizer"])
        self.ema = EMA(self.network, self.config.ema) if self.config.ema > 0 else None
        self.guard = DivergenceGuard(fabric, self.network, validation.precision, self.config.lr, run)
        self.batches = len(loader)
        self._saved_at = time.monotonic()

    def run(self) -> Progress:
        """Train from where the progress is to the end."""
        with Interruption() as self.interruption:
            while not self.is_done():
                self.recorder.begin_epoch(self.progress.epoch, self.progress.batch, self.batches)
                self._train_epoch()
                self._end_epoch()
        return self.progress

    def is_done(self) -> bool:
        """Return whether no epoch is left."""
        return self.progress.epoch >= self.config.epochs or self.progress.should_stop_early(self.config.early_stop)

    def _train_epoch(self) -> None:
        """Train on the batches of this epoch that are left."""
        progress, config = self.progress, self.config
        if progress.batch == self.batches:
            return  # stopped between the last step and the end of the validation
        self.wrapped.train()
        self.loader.load_state_dict({**self.loader.state_dict(), "epoch": progress.epoch, "step": progress.batch})
        waiting = False  # gradients that no step has used yet
        with contextlib.closing(iter(self.loader)) as batches:  # type: ignore[type-var]
            for batch in batches:
                number = batch.step + 1  # a batch of which no image can be read is passed over, but counted
                steps_now = number == self.batches or number % config.accumulate == 0
                self._train_batch(batch, steps_now)
                progress.batch, waiting = number, not steps_now
                if steps_now:
                    self._after_step()
        if progress.batch < self.batches:  # no image of the last batches can be read
            if waiting:
                self._step()
            progress.batch = self.batches
            self._after_step()
        if not progress.losses:
            raise DataError(f"{config.data}: no image of the training part can be read")

    def _train_batch(self, batch: Batch | FeatureBatch, steps_now: bool) -> None:
        """Compute the gradients of a batch and, where enough are accumulated, take a step."""
        batch = batch.to(self.fabric.device)
        first = batch.step - batch.step % self.config.accumulate
        together = min(self.config.accumulate, self.batches - first)  # batches of the same step
        with self.fabric.no_backward_sync(self.wrapped, enabled=not steps_now):
            with self.fabric.autocast():  # Fabric does so around forward, and around other methods only with DDP
                output = self.wrapped.training_step(OpaqueBatch(batch), batch.step)  # augmentation, forward, loss
            self.fabric.backward(output["loss"] / together)
        self.guard.add_loss(output["loss"])
        if steps_now:
            self._step()
            if self.monitor.is_time(self.progress.step, self.config.log_steps):
                for finding in self.monitor.look_at_batch(self.progress.step, output["scores"], output["targets"]):
                    self.recorder.warn(finding.message)
        self.recorder.count(len(batch) * self.fabric.world_size)

    def _step(self) -> None:
        """Let the optimiser use the gradients."""
        if self.config.clip > 0:
            norm = self.fabric.clip_gradients(
                self.wrapped, self.optimizer, max_norm=self.config.clip, error_if_nonfinite=False
            )
            if norm is not None:
                self.guard.add_gradient_norm(norm)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.ema is not None:
            self.ema.update(self.network)
        self.progress.step += 1

    def _after_step(self) -> None:
        """Read the losses, save a checkpoint if it is time, and stop if asked to; on a GPU not after every step."""
        step, config = self.progress.step, self.config
        at_the_end = self.progress.batch == self.batches
        on_step = any(every > 0 and step % every == 0 for every in (config.checkpoint_steps, config.log_steps))
        if not (on_step or at_the_end or self.fabric.device.type == "cpu" or step % _STEPS_BETWEEN_READS == 0):
            return
        self._read_losses()
        due = time.monotonic() - self._saved_at >= 60 * config.checkpoint_minutes
        due = due or (config.checkpoint_steps > 0 and step % config.checkpoint_steps == 0)
        due, stop = agree(self.fabric, due, self.interruption.asked)
        # The end of an epoch has a checkpoint of its own, after the validation.
        if stop or (due and not at_the_end):
            self._save()
        if stop:
            self._stop()

    def _read_losses(self) -> None:
        """Add up the losses since the last look."""
        losses = self.guard.read_losses(self.progress.step, self.progress.epoch, self.config.accumulate)
        for loss in losses:
            total, count = self.progress.losses or (0.0, 0)
            self.progress.losses = [total + loss, count + 1]
        if losses:
            self.recorder.show_loss(self.progress.step, losses[-1], self.scheduler.get_last_lr()[0])

    def _end_epoch(self) -> None:
        """Validate, record, save."""
        progress = self.progress
        self.guard.require_finite_weights(progress.step, progress.epoch)
        try:
            with (
                contextlib.nullcontext() if self.ema is None else self.ema.inside(self.network),
                # A compiled backbone would be compiled again for this mode.
                torch.compiler.set_stance("force_eager") if self.config.compile else contextlib.nullcontext(),
            ):
                result = self.validation(self.network, self._stop_at_once)
        except StoppedRun:
            self._save()  # the validation begins anew when the run goes on
            raise
        total, count = progress.losses
        record = {
            "epoch": progress.epoch + 1,
            "step": progress.step,
            "learning_rate": self.scheduler.get_last_lr()[0],
            "train_loss": total / count,
            **result.record,
        }
        progress.history.append(record)
        is_best = progress.best is record
        if is_best:
            progress.tuned = dataclasses.asdict(self.validation.tune(result, self.network.config))
        progress.epoch, progress.batch, progress.losses = progress.epoch + 1, 0, []
        # Recorded before it is saved: who resumes from here records nothing of this epoch again.
        self.recorder.end_epoch(progress.history)
        if result.predictions is not None:
            scores, targets = result.predictions.scores, result.predictions.targets  # [n, J]
            precision, prior = record["val_mAP"], record["prior_mAP"]
            for finding in self.monitor.look_at_validation(progress.epoch, scores, targets, precision, prior):
                self.recorder.warn(finding.message)
        self._save(best=is_best)
        if agree(self.fabric, self.interruption.asked)[0] and not self.is_done():
            self._stop()

    def _stop_at_once(self) -> None:
        """Stop during a validation; several processes go on, as the others would wait for this one for ever."""
        if self.interruption.asked and self.fabric.world_size == 1:
            self._stop()

    def _stop(self) -> None:
        progress = self.progress
        raise StoppedRun(self.run_folder.folder, progress.step, progress.epoch + 1, self.config.epochs)

    def _save(self, best: bool = False) -> None:
        self.guard.require_finite_weights(self.progress.step, self.progress.epoch)
        state = self.state_dict()
        failure: OSError | None = None
        if self.fabric.is_global_zero:
            try:
                self.run_folder.checkpoints.save(state, best)
            except OSError as error:
                failure = error
        if agree(self.fabric, failure is not None)[0]:  # all processes end, not only the one that writes
            raise failure or OSError("rank zero could not save the checkpoint")
        self._saved_at = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the rest of the run depends on; tensors on the CPU."""
        network, optimizer = full_state_dict(self.network, self.optimizer, self.config.shard)
        return {
            "network": network,
            "optimizer": optimizer,
            "scheduler": self.scheduler.state_dict(),
            "precision": self.fabric._precision.state_dict(),  # fp16's loss scale; Fabric has no public way to it
            "ema": None if self.ema is None else self.ema.state_dict(),
            "monitor": self.monitor.state_dict(),
            "progress": dataclasses.asdict(self.progress),
            "seed": self.config.seed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        load_full_state_dict(self.network, self.optimizer, state["network"], state["optimizer"], self.config.shard)
        self.scheduler.load_state_dict(state["scheduler"])
        self.fabric._precision.load_state_dict(state["precision"])
        if self.ema is not None:
            self.ema.load_state_dict(state["ema"])
        self.monitor.load_state_dict(state["monitor"])
        self.progress = Progress(**state["progress"])
