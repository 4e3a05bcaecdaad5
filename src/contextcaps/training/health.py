"""Signs that a network does not learn: dead capsules, constant or saturated outputs, results no better than the prior.

    monitor = Monitor(frequencies, "contextcaps")
    if monitor.is_time(step, every=50):
        for finding in monitor.look_at_batch(step, scores, targets):
            print(finding.message)

What counts as what is in the constants below. A loss that is no number is another matter:
`contextcaps.training.divergence`.
"""

import collections
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from contextcaps.data.unknown import is_unknown
from contextcaps.links import docs_page

__all__ = ["Finding", "Kind", "Monitor", "Statistics", "judge_result", "judge_scores"]

Kind = Literal["dead", "constant", "saturated", "prior"]

DEAD_LENGTH = 0.01
"""A class is dead if no image gets a score of this much, nor of its frequency: a rare class may rightly score less."""
DEAD_SHARE = 0.2
"""Dead classes, as a share of those that were present in some image, from which it is told."""
CONSTANT_VARIATION = 0.002
"""A class is constant if its standard deviation over images is below this share of its mean.

Capsnets that learn have 0.02 and more from the first step on; 0.000001 was measured with `capsnet-rw-crf-literal`, and
with no other preset."""
SATURATED_SCORE = 0.95
"""A class is saturated if its mean score is above this though most images do not show it."""
MOST = 0.9
"""Constant or saturated classes, as a share of all that could be, from which it is told."""
PRIOR_GAIN = 0.1
"""Validation mAP should be above the constant prior's by this share of it."""
PRIOR_EPOCHS = 2
"""Epochs before results are judged."""
WINDOW = 10
"""Batches that are judged together; more where they are so small that `FEWEST_IMAGES` are not in them."""
FEWEST_BATCHES, FEWEST_IMAGES = 3, 48
"""Before so many have been looked at, nothing is judged."""
EARLY_STEPS, EARLY_EVERY = 100, 5
"""Up to this step every so many are looked at: what starts dead is told within the first 15 to 30 steps."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """A sign that the network does not learn."""

    kind: Kind
    message: str
    """What was seen, in numbers, and what to try."""


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Sums over the scores of some images; float64, on the CPU."""

    images: int
    freedom: int
    """Images less the number of batches that they came in: the variance is that within batches."""
    positives: Tensor
    """[J], images that show the class."""
    maxima: Tensor
    """[J], of the scores."""
    sums: Tensor
    """[J], of the scores."""
    squares: Tensor
    """[J], sums of squared distances from the batch's mean."""

    @classmethod
    def of(cls, scores: Tensor, targets: Tensor) -> "Statistics":
        """Sum up scores [n, J] from one state of the network, and targets [n, J]."""
        wide = scores.detach().cpu().double()  # [n, J]
        squares = (wide - wide.mean(dim=0)).square().sum(dim=0)  # [J]
        positives = (targets.detach().cpu() == 1).double().sum(dim=0)  # [J]
        return cls(len(wide), len(wide) - 1, positives, wide.amax(dim=0), wide.sum(dim=0), squares)

    @classmethod
    def together(cls, parts: Sequence["Statistics"]) -> "Statistics":
        """Join those of several batches.

        The network moves from one to the next, which must not pass for a reaction to the image: squared distances stay
        those from each batch's own mean.
        """
        return cls(
            sum(part.images for part in parts),
            sum(part.freedom for part in parts),
            torch.stack([part.positives for part in parts]).sum(dim=0),
            torch.stack([part.maxima for part in parts]).amax(dim=0),
            torch.stack([part.sums for part in parts]).sum(dim=0),
            torch.stack([part.squares for part in parts]).sum(dim=0),
        )


def judge_scores(
    seen: Statistics, frequencies: Tensor, model_name: str, where: str, sigmoids: bool = False
) -> list[Finding]:
    """Find dead, constant and saturated classes.

    Args:
        seen: of the scores.
        frequencies: [J], the share of training images that show each class; classes of frequency 0 are not judged.
        model_name: for the advice.
        where: what was looked at, as the message begins.
        sigmoids: the scores are sigmoids, not lengths of capsules.
    """
    found: dict[Kind, tuple[str, str]] = {}
    has_positives = frequencies > 0  # [J]
    lifeless = seen.maxima < frequencies.clamp_max(DEAD_LENGTH)  # [J]
    present = has_positives & (seen.positives > 0)  # [J]
    dead, judged = int((lifeless & present).sum()), int(present.sum())
    if judged and dead >= DEAD_SHARE * judged:
        found["dead"] = (
            f"{dead} of {judged} classes that were present ({dead / judged:.0%}) "
            f"{'are dead' if sigmoids else 'have dead capsules'}: no score above "
            f"{float(seen.maxima[lifeless & present].amax()):.2g} in {seen.images} images, so their loss hardly moves.",
            "Try a lower `--lr`, or `--loss bce`, which moves them from anywhere."
            if sigmoids
            else "Try `--set capsules.start_length=0.1` (more if it is that already), or a lower `--lr`.",
        )
    alive = has_positives & ~lifeless  # [J]
    means = seen.sums / seen.images  # [J]
    rare = alive & (frequencies < 0.5)  # [J]
    saturated = means[rare] > SATURATED_SCORE  # [rare]
    if rare.any() and int(saturated.sum()) >= MOST * len(saturated):
        found["saturated"] = (
            f"{int(saturated.sum())} of {len(saturated)} classes score near 1 for every image (mean "
            f"{float(means[rare][saturated].mean()):.3f}), though most images do not show them.",
            "Try a lower `--lr`, a smaller `--clip`, or `--loss margin`.",
        )
    elif alive.any() and seen.freedom >= FEWEST_IMAGES // 2:
        variations = (seen.squares / seen.freedom).sqrt()[alive] / means[alive]  # [alive]
        constant = int((variations < CONSTANT_VARIATION).sum())
        if constant >= MOST * len(variations):
            found["constant"] = (
                f"{constant} of {len(variations)} classes score the same for every image (they vary by "
                f"{float(variations.median()):.1g} of their mean, which is {float(means[alive].mean()):.2g}).",
                "Try a lower `--lr`, or another `--loss` (margin, bce), and check with `contextcaps data inspect` that "
                "the images differ.",
            )
    return [
        Finding(kind, f"{where}: {observed} {_advice(model_name, advice)}")
        for kind, (observed, advice) in found.items()
    ]


def judge_result(
    epoch: int, targets: Tensor, mean_average_precision: float, prior: float, model_name: str
) -> list[Finding]:
    """Judge by a validation mAP if the network looks at the image.

    Args:
        epoch: epochs done.
        targets: [n, J], of the validation images.
        mean_average_precision: the network's macro mAP, 0 to 1.
        prior: the constant prior's.
        model_name: for the advice.
    """
    if epoch < PRIOR_EPOCHS or not (math.isfinite(mean_average_precision) and math.isfinite(prior)):
        return []
    chance = max(prior, _chance(targets))
    # Near 1 there is no tenth to gain.
    if mean_average_precision > chance + PRIOR_GAIN * min(chance, 1 - chance):
        return []
    better = "hardly" if mean_average_precision > chance else "no"
    other = "" if chance < 1.01 * prior else f" (random scores: {100 * chance:.1f} %, on so few images)"
    advice = _advice(
        model_name,
        "Try more `--epochs`, a higher or lower `--lr`, or `--loss margin`, and check the labels with "
        "`contextcaps data inspect`.",
    )
    return [
        Finding(
            "prior",
            f"validation, epoch {epoch}: mAP {100 * mean_average_precision:.1f} % is {better} better than guessing: "
            f"the constant prior, which never looks at the image, has {100 * prior:.1f} %{other}. {advice}",
        )
    ]


class Monitor:
    """Watches a training run, and reports each kind of finding once, until it has gone away and come back.

    Args:
        frequencies: [J], the share of training images that show each class.
        model_name: the preset's, for the advice.
        sigmoids: its scores are sigmoids, not lengths of capsules.
    """

    def __init__(self, frequencies: Sequence[float] | Tensor, model_name: str, sigmoids: bool = False) -> None:
        self.frequencies = torch.as_tensor(frequencies, dtype=torch.float64).cpu()  # [J]
        self.model_name, self.sigmoids = model_name, sigmoids
        self._window: collections.deque[Statistics] = collections.deque()
        # Place → kind that was seen there → after how many more looks without it, it has gone away.
        self._alarms: dict[str, dict[str, int]] = {}

    @staticmethod
    def is_time(step: int, every: int) -> bool:
        """Return whether to look at the batch of this step, from 1: often at first, then every so many steps."""
        return step % (min(EARLY_EVERY, every) if step <= EARLY_STEPS else every) == 0

    def look_at_batch(self, step: int, scores: Tensor, targets: Tensor) -> list[Finding]:
        """Return what is wrong with the last training batches, and has not been told.

        Args:
            step: the training step, for the message.
            scores: [B, J]; if they are not finite, nothing is judged.
            targets: [B, J].
        """
        if not self._usable(scores):
            return []
        self._window.append(Statistics.of(scores, targets))
        images = sum(part.images for part in self._window)
        while len(self._window) > WINDOW and images - self._window[0].images >= FEWEST_IMAGES:
            images -= self._window.popleft().images
        seen = Statistics.together(self._window)
        if len(self._window) < FEWEST_BATCHES or seen.images < FEWEST_IMAGES:
            return []
        findings = judge_scores(seen, self.frequencies, self.model_name, f"step {step}", self.sigmoids)
        # A kind at the edge comes and goes from look to look: it is gone when a whole window was without it.
        return self._new("training", findings, patience=WINDOW)

    def look_at_validation(
        self, epoch: int, scores: Tensor, targets: Tensor, mean_average_precision: float, prior: float
    ) -> list[Finding]:
        """Return what is wrong with the scores of the whole validation part, and has not been told.

        Args:
            epoch: epochs done, 1 after the first.
            scores, targets: [n, J].
            mean_average_precision: macro mAP, 0 to 1.
            prior: the constant prior's macro mAP, 0 to 1.
        """
        if not self._usable(scores):
            return []
        findings = judge_scores(
            Statistics.of(scores, targets),
            self.frequencies,
            self.model_name,
            f"validation, epoch {epoch}",
            self.sigmoids,
        )
        findings += judge_result(epoch, targets, mean_average_precision, prior, self.model_name)
        return self._new("validation", findings, patience=1)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that later findings depend on, as plain values."""
        window = [
            [value.tolist() if isinstance(value, Tensor) else value for value in vars(part).values()]
            for part in self._window
        ]
        return {"window": window, "alarms": {place: dict(kinds) for place, kinds in self._alarms.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self._window = collections.deque(
            Statistics(images, freedom, *(torch.tensor(sums, dtype=torch.float64) for sums in tensors))
            for images, freedom, *tensors in state["window"]
        )
        self._alarms = {place: dict(kinds) for place, kinds in state["alarms"].items()}

    def _usable(self, scores: Tensor) -> bool:
        if scores.ndim != 2 or scores.shape[1] != len(self.frequencies):
            raise ValueError(f"scores: expected shape [B, J={len(self.frequencies)}], got {list(scores.shape)}")
        return len(scores) > 0 and bool(scores.detach().isfinite().all())

    def _new(self, place: str, findings: list[Finding], patience: int) -> list[Finding]:
        """Return the findings of a kind that was not reported before in any place, and is not over there."""
        reported = {kind for kinds in self._alarms.values() for kind in kinds}
        kept = {kind: looks - 1 for kind, looks in self._alarms.get(place, {}).items() if looks > 1}
        self._alarms[place] = {**kept, **{finding.kind: patience for finding in findings}}
        return [finding for finding in findings if finding.kind not in reported]


def _advice(model_name: str, otherwise: str) -> str:
    """Return what to try; for a preset to the letter of the paper, nothing but another one helps."""
    if model_name in ("capsnet-rw-crf-literal", "capsnet-rw-crf-corr-literal"):
        return (
            f"{model_name} follows the paper to the letter: its scores stay near 0, or the same for every image, so "
            f"the loss hardly moves and thresholds are of no use ({docs_page('decisions/mean-field-crf')}). Use "
            f"`--model {model_name.removesuffix('-literal')}`."
        )
    return otherwise


def _chance(targets: Tensor) -> float:
    """Return the mean over classes of the average precision that random scores have on average.

    For m positives among the n images in which a class is known, E[AP] = H_n / n + (m − 1) / (n − 1) · (1 − H_n / n),
    with H_n the harmonic number (Bestgen, "Exact Expected Average Precision of the Random Baseline for System
    Evaluation", 2015): well above m / n where images are few.
    """
    positives = (targets == 1).double().sum(dim=0)  # [J]
    shown = positives > 0  # [J]
    if not shown.any():
        return 0.0
    positives, images = positives[shown], (~is_unknown(targets)).sum(dim=0)[shown]  # [J]
    harmonic = (1 / torch.arange(1, len(targets) + 1, dtype=torch.float64)).cumsum(dim=0)  # [n]
    first = harmonic[images.cpu() - 1].to(positives) / images  # [J]
    rest = (positives - 1) / (images - 1).clamp_min(1) * (1 - first)  # [J]
    return float((first + rest).mean())
