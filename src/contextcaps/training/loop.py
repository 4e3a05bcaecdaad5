"""The training loop: epochs of steps, each epoch validated, everything saved so that a stopped run can go on.

A run that was stopped and resumed ends with the same weights and metrics, bit for bit on a CPU, as one that was not:
the order of images, augmentation and dropout are functions of (seed, epoch, batch), and the rest is in the checkpoint.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from contextcaps.data.loading import Batch, Loader
from contextcaps.data.problems import DataError
from contextcaps.models import CapsuleNetwork
from contextcaps.training.averaging import WeightAverage
from contextcaps.training.diagnosis import diagnose_non_finite
from contextcaps.training.health import Monitor
from contextcaps.training.interruption import Interruption
from contextcaps.training.lightning import Fabric
from contextcaps.training.module import Sealed, TaggingModule
from contextcaps.training.processes import agree
from contextcaps.training.recording import SilentRecorder
from contextcaps.training.runs import Run
from contextcaps.training.sharding import full_state, load_full_state, local_part
from contextcaps.training.validation import Validation

__all__ = ["NonFiniteLoss", "Progress", "StoppedRun", "TrainingLoop"]

_STEPS_UNWATCHED = 10  # on a GPU, between two looks at the losses; each look waits for the GPU


class NonFiniteLoss(OSError):
    """The loss became infinite or no number; the message says where, why, and what is left."""


class StoppedRun(KeyboardInterrupt):
    """Somebody stopped the run; it was saved, and the message says how to go on."""


@dataclasses.dataclass
class Progress:
    """How far a run is."""

    epoch: int = 0
    """The epoch under way, from 0."""
    batch: int = 0
    """Batches of it that are done."""
    step: int = 0
    """Steps of the optimiser."""
    losses: list[float] = dataclasses.field(default_factory=list)
    """Sum of this epoch's losses, and their number."""
    history: list[dict[str, float]] = dataclasses.field(default_factory=list)
    """What was measured after each epoch."""
    thresholds: list[float] = dataclasses.field(default_factory=list)
    """[J], tuned at the best epoch."""

    @property
    def best(self) -> dict[str, float] | None:
        """The epoch with the highest validation mAP, the first of several."""
        return max(self.history, key=lambda record: record["val_mAP"], default=None)

    def patience_is_over(self, patience: int) -> bool:
        """Whether so many epochs have passed without a better one."""
        return self.best is not None and 0 < patience <= self.history[-1]["epoch"] - self.best["epoch"]


class TrainingLoop:
    """Trains a module.

    Args:
        fabric: launched.
        module: what is trained; the loop sets it up for the fabric.
        loader: this process's share of the training images.
        validation: what is done after each epoch.
        run: where everything is kept.
        recorder: writes metrics and shows progress; in one process only.
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
        self.average = WeightAverage(self.network, self.config.ema) if self.config.ema > 0 else None
        self.batches = len(loader)
        self._unread: list[Tensor] = []  # losses that have not been looked at
        self._gradient_norms: list[Tensor] = []
        self._saved_at = time.monotonic()

    def run(self) -> Progress:
        """Train from where the progress is to the end."""
        progress = self.progress
        with Interruption() as interruption:
            self.interruption = interruption
            while not self.is_done():
                self.recorder.begin_epoch(progress.epoch, progress.batch, self.batches)
                self._train_epoch()
                self._end_epoch()
        return progress

    def _train_epoch(self) -> None:
        """The batches of this epoch that are left."""
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
                    self._attend()
        if progress.batch < self.batches:  # no image of the last batches can be read
            if waiting:
                self._step()
            progress.batch = self.batches
            self._attend()
        if not progress.losses:
            raise DataError(f"{config.data}: no image of the training part can be read")

    def _train_batch(self, batch: Batch, steps_now: bool) -> None:
        batch = batch.to(self.fabric.device)
        with self.fabric.no_backward_sync(self.wrapped, enabled=not steps_now):
            output = self.wrapped.training_step(Sealed(batch), batch.step)
            self.fabric.backward(output["loss"] / self._window(batch.step))
        self._unread.append(output["loss"].detach())
        if steps_now:
            self._step()
            if self.monitor.is_time(self.progress.step, self.config.log_steps):
                for finding in self.monitor.look_at_batch(self.progress.step, output["scores"], output["targets"]):
                    self.recorder.warn(finding.message)
        self.recorder.count(len(batch) * self.fabric.world_size)

    def _window(self, batch: int) -> int:
        """How many batches are accumulated together with this one."""
        first = batch - batch % self.config.accumulate
        return min(self.config.accumulate, self.batches - first)

    def _step(self) -> None:
        """Let the optimiser use the gradients."""
        if self.config.clip > 0:
            norm = self.fabric.clip_gradients(
                self.wrapped, self.optimizer, max_norm=self.config.clip, error_if_nonfinite=False
            )
            if norm is not None:
                self._gradient_norms = [*self._gradient_norms[-19:], norm.detach()]
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.network)
        self.progress.step += 1

    def _attend(self) -> None:
        """Between two steps, now and then: look at the losses, save if it is time, stop if somebody asked for it."""
        step, at_the_end = self.progress.step, self.progress.batch == self.batches
        on_step = any(
            every > 0 and step % every == 0 for every in (self.config.checkpoint_steps, self.config.log_steps)
        )
        if not (on_step or at_the_end or self.fabric.device.type == "cpu" or step % _STEPS_UNWATCHED == 0):
            return
        self._read_losses()
        every = self.config.checkpoint_steps
        due = time.monotonic() - self._saved_at >= 60 * self.config.checkpoint_minutes
        due, stop = agree(self.fabric, due or (every > 0 and step % every == 0), self.interruption.asked)
        # The end of an epoch has a checkpoint of its own, after the validation.
        if stop or (due and not at_the_end):
            self._save()
        if stop:
            self._stop()

    def _read_losses(self) -> None:
        """Add up the losses since the last look, the mean over processes; refuse those that are no numbers."""
        if not self._unread:
            return
        losses = torch.stack(self._unread).float()
        if self.fabric.world_size > 1:
            losses = self.fabric.all_reduce(losses, reduce_op="mean")  # type: ignore[assignment]
        late = len(self._unread)
        self._unread = []
        for offset, loss in enumerate(losses.tolist()):
            if not math.isfinite(loss):
                self._refuse(f"the loss is {loss}", loss, (late - 1 - offset) // self.config.accumulate)
            total, count = self.progress.losses or (0.0, 0)
            self.progress.losses = [total + loss, count + 1]
        self.recorder.show_loss(self.progress.step, loss, self.scheduler.get_last_lr()[0])

    def _require_numbers(self) -> None:
        """Refuse weights that are no numbers: they are neither validated nor saved."""
        weights = (parameter.detach() for parameter in self.network.parameters())
        broken = not all(bool(local_part(weight).isfinite().all()) for weight in weights)
        if agree(self.fabric, broken)[0]:
            self._refuse("the weights are no numbers any more", math.nan, 0)

    def _refuse(self, what: str, loss: float, steps_ago: int) -> None:
        step = self.progress.step - steps_ago
        cause = diagnose_non_finite(
            step=step,
            loss=loss,
            network=self.network,
            precision=self.validation.precision,
            learning_rate=self.config.lr,
            gradient_norms=[float(norm) for norm in self._gradient_norms],
        )
        last = self.run_folder.checkpoints.last
        kept = f"the last good checkpoint is {last}" if last.exists() else "no checkpoint had been saved yet"
        raise NonFiniteLoss(f"{what} at step {step} (epoch {self.progress.epoch + 1}); {kept}. {cause}")

    def _end_epoch(self) -> None:
        """Validate, record, save."""
        progress = self.progress
        self._require_numbers()
        try:
            with self._averaged():
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
            progress.thresholds = result.thresholds
        progress.epoch, progress.batch, progress.losses = progress.epoch + 1, 0, []
        # Recorded before it is saved: who resumes from here records nothing of this epoch again.
        self.recorder.end_epoch(progress.history)
        for finding in self.monitor.look_at_validation(progress.epoch, **result.seen) if result.seen else []:
            self.recorder.warn(finding.message)
        self._save(best=is_best)
        if agree(self.fabric, self.interruption.asked)[0] and not self.is_done():
            self._stop()

    def is_done(self) -> bool:
        """Whether no epoch is left."""
        return self.progress.epoch >= self.config.epochs or self.progress.patience_is_over(self.config.early_stop)

    @contextlib.contextmanager
    def _averaged(self) -> Iterator[None]:
        with contextlib.nullcontext() if self.average is None else self.average.inside(self.network):
            yield

    def _stop_at_once(self) -> None:
        """During a validation; with several processes it goes on, as the others would wait for this one for ever."""
        if self.interruption.asked and self.fabric.world_size == 1:
            self._stop()

    def _stop(self) -> None:
        folder = self.run_folder.folder
        raise StoppedRun(
            f"stopped after step {self.progress.step} (epoch {self.progress.epoch + 1} of {self.config.epochs}) and "
            f"saved; go on with: contextcaps train --resume {folder}"
        )

    def _save(self, best: bool = False) -> None:
        self._require_numbers()
        state = self.state_dict()
        failure: OSError | None = None
        if self.fabric.is_global_zero:
            try:
                self.run_folder.checkpoints.save(state, best)
            except OSError as error:
                failure = error
        if agree(self.fabric, failure is not None)[0]:  # all processes end, not only the one that writes
            raise failure or OSError("the first process could not save the checkpoint")
        self._saved_at = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on; tensors on the CPU."""
        network, optimizer = full_state(self.network, self.optimizer, self.config.shard)
        return {
            "network": network,
            "optimizer": optimizer,
            "scheduler": self.scheduler.state_dict(),
            "precision": self.fabric._precision.state_dict(),  # fp16's loss scale; Fabric has no public way to it
            "average": None if self.average is None else self.average.state_dict(),
            "monitor": self.monitor.state_dict(),
            "progress": dataclasses.asdict(self.progress),
            "seed": self.config.seed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state was saved."""
        load_full_state(self.network, self.optimizer, state["network"], state["optimizer"], self.config.shard)
        self.scheduler.load_state_dict(state["scheduler"])
        self.fabric._precision.load_state_dict(state["precision"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.monitor.load_state_dict(state["monitor"])
        self.progress = Progress(**state["progress"])
