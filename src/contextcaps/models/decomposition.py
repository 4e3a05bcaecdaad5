"""Reasons for scores: logits of a network as a sum of parts, capsule by capsule, position by position, class by class.

Nothing is approximated. Without a field, logit_j = head_j; with one, of sharpness t,

    logit_j = t_j · head_j + b_j + Σ_p w_j · features_p / P + Σ_j' sent_j' · W[j', j] + groups_j

over the positions p of the features, where the messages are those of the field's last iteration. Calibration multiplies
all of it and adds a shift. Heads without capsules are linear in the features, or in features weighted by themselves.

**Capsules.** The decision before the squash is s_j = bias_j + Σ_k weights_kj · vote_kj. With its direction
u_j = s_j / |s_j|, its length is |s_j| = bias_j · u_j + Σ_k weights_kj · (vote_kj · u_j): one term for each capsule. The
head's logit h(|s_j|) is not linear in the length, so how it is divided is a convention. Each term counts with the slope
h'(|s_j|). What is left, h(|s_j|) − h'(|s_j|) · |s_j|, is a part of its own, the `capsule level`. So a capsule's part is
what the logit loses without its vote, to first order and with the weights as they are; and parts are in proportion to
shares of the length. Between its cut-offs h(|s|) = 2 ln |s|: with a field, all capsules and the bias have 2 t_j.
"""

import copy
import dataclasses
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from contextcaps.capsules import DecisionField, length_logits, lengths, score_logits, unchecked
from contextcaps.capsules.decision_field import messages_by_sender
from contextcaps.capsules.group_potentials import group_messages
from contextcaps.models.baselines import BaselineHead
from contextcaps.models.calibration import calibrate
from contextcaps.models.config import ModelConfig
from contextcaps.models.explainable import explains, require_explainable
from contextcaps.models.head import CapsuleHead
from contextcaps.models.head_base import ModelOutput
from contextcaps.models.network import CapsuleNetwork

__all__ = ["Decomposition", "LengthParts", "decompose", "divide_length", "explains", "require_explainable"]


class LengthParts(NamedTuple):
    """Lengths of decisions before the squash, and the parts that they are the sum of."""

    length: Tensor
    """[B, J]."""
    capsules: Tensor
    """[B, J, D, H, W], each capsule's weighted vote along the decision, by type and grid position."""
    bias: Tensor
    """[B, J], the bias along the decision."""


@dataclasses.dataclass(frozen=True)
class Decomposition:
    """Scores and logits of images, and the parts that the logits are the sum of."""

    scores: Tensor
    """[B, J], as the network gives them: 0 or 1 where a label was given."""
    logits: Tensor
    """[B, J]. Those of lengths, if the network has neither a field nor a calibration (`length_logits`)."""
    evidence: Tensor
    """[B, J, D, H, W], the parts of the capsules by type and grid position; D = 1 for a head without capsules."""
    branch: Tensor | None
    """[B, J, H', W'], the parts of the global branch by position of the features; None without one."""
    messages: Tensor | None
    """[B, J', J], the part that class j' has in the logit of class j; None without a field."""
    constants: dict[str, Tensor]
    """Name → [B, J], all other parts: `capsule level`, see above; `decision bias`, `head bias` and `field bias`;
    `groups`, potentials of higher order; `calibration`, its shift."""
    lengths: LengthParts | None
    """None for a head without capsules."""

    def total(self) -> Tensor:
        """Return the sum of all parts, [B, J], which are the logits but for rounding."""
        parts = [self.evidence.sum(dim=(2, 3, 4)), *self.constants.values()]
        parts += [] if self.branch is None else [self.branch.sum(dim=(2, 3))]
        parts += [] if self.messages is None else [self.messages.sum(dim=1)]
        return torch.stack(parts).sum(dim=0)  # [B, J]


@torch.no_grad()
def decompose(network: CapsuleNetwork, features: Tensor, *known: Tensor | None) -> list[Decomposition]:
    """Divide the logits of images into their parts.

    The head and the field are computed in float32 at least, also under autocast and in half precision, so that the
    parts sum to the logits; features are taken as they are.

    Args:
        network: its head has to have exact parts, `explains`.
        features: [B, C, H, W], that `network.features` gave.
        known: for each result one, [B, J]: 1 for present, 0 for absent, NaN for what is not known; None for nothing
            known. The field alone depends on it, so that another one costs next to nothing.

    Raises:
        ValueError: the network has no exact parts, or can be told nothing.
    """
    require_explainable(network.config)
    if any(each is not None for each in known):
        network.config.require_takes_known()
    with torch.autocast(features.device.type, enabled=False), unchecked():
        head, field = _in_single(network.head), None if network.field is None else _in_single(network.field)
        features = features.to(next(head.parameters()).dtype)
        output, evidence, constants, parts = _head_parts(head, features, has_field=field is not None)
        return [
            _through_field(network.config, field, features, output, evidence, constants, parts, each) for each in known
        ]


def divide_length(head: CapsuleHead, features: Tensor) -> LengthParts:
    """Divide the length of each decision before the squash among the capsules and the bias."""
    steps = head(features, return_intermediates=True).intermediates
    assert steps is not None
    votes = steps.votes if steps.corrected_votes is None else steps.corrected_votes  # [B, K, J, I]
    length = lengths(steps.sums)  # [B, J]
    # A decision of length 0 has no direction, and all its parts are 0.
    directions = steps.sums / length.clamp_min(torch.finfo(length.dtype).tiny).unsqueeze(2)  # [B, J, I]
    along = head.vote_weights(steps) * torch.einsum("bkji,bji->bkj", votes, directions)  # [B, K, J]
    grid = head.primary.grid_of(features)
    by_type = along.transpose(1, 2).unflatten(2, (head.primary.types, *grid))  # [B, J, D, H, W]
    bias = head.decision_bias
    bias_along = torch.zeros_like(length) if bias is None else (bias * directions).sum(dim=2)  # [B, J]
    return LengthParts(length, by_type, bias_along)


def _head_parts(
    head: nn.Module, features: Tensor, has_field: bool
) -> tuple[ModelOutput, Tensor, dict[str, Tensor], LengthParts | None]:
    """Return a head's scores and logits, its evidence [B, J, D, H, W], its constants [B, J], and parts of lengths."""
    if isinstance(head, CapsuleHead):
        parts = divide_length(head, features)
        scores = parts.length.square() / (1 + parts.length.square())  # [B, J], lengths after the squash
        logits = score_logits(scores) if has_field else length_logits(scores)  # [B, J]
        slope = _slope(parts.length, scores, logits, has_field)  # [B, J]
        evidence = slope[:, :, None, None, None] * parts.capsules  # [B, J, D, H, W]
        constants = {"capsule level": logits - slope * parts.length, "decision bias": slope * parts.bias}
        if head.decision_bias is None:
            del constants["decision bias"]
        return ModelOutput(scores, None, logits=logits), evidence, constants, parts
    assert isinstance(head, BaselineHead)
    cells, bias = head.parts(features)  # [B, J, H, W], [J]
    constants = {} if bias is None else {"head bias": bias.detach().expand(cells.shape[:2])}
    return head(features), cells.unsqueeze(2), constants, None


def _slope(length: Tensor, scores: Tensor, logits: Tensor, has_field: bool, eps: float = 1e-4) -> Tensor:
    """Return the derivative [B, J] of a head's logits by the lengths before the squash; all arguments are [B, J].

    Logits are those of `score_logits` before a field, where scores beyond `eps` and 1 − `eps` are cut off and the slope
    is 0, and of `length_logits` otherwise.
    """
    kept = torch.sigmoid(logits)  # [B, J], scores kept away from 0 and 1
    inner = ((scores > eps) & (scores < 1 - eps)).to(scores) if has_field else 1 - 2 * eps
    return inner * 2 * length / (1 + length.square()).square() / (kept * (1 - kept))  # [B, J]


def _through_field(
    config: ModelConfig,
    field: DecisionField | None,
    features: Tensor,
    output: ModelOutput,
    evidence: Tensor,
    constants: dict[str, Tensor],
    parts: LengthParts | None,
    known: Tensor | None,
) -> Decomposition:
    """Follow a head's parts through the field and the calibration, where there are any."""
    branch = messages = None
    if field is not None:
        assert output.logits is not None
        pooled = None if field.global_branch is None else features.mean(dim=(2, 3))  # [B, C]
        found = field(output.logits, known, pooled)
        assert found.sent is not None
        sharpness = field.sharpness  # [J]
        evidence = sharpness[:, None, None, None] * evidence  # [B, J, D, H, W]
        messages = messages_by_sender(found.sent, field.pairwise)  # [B, J', J]
        constants = {name: sharpness * value for name, value in constants.items()}
        constants["field bias"] = field.bias.detach().expand_as(output.logits)
        if field.global_branch is not None:
            cells = features.shape[2] * features.shape[3]
            branch = torch.einsum("bchw,jc->bjhw", features, field.global_branch) / cells  # [B, J, H', W']
        if field.group_potentials is not None:
            given = None if known is None else ~known.isnan()  # [B, J]
            constants["groups"] = group_messages(found.sent, given, field.group_potentials)
        output = output._replace(scores=found.scores, logits=found.logits)
    if config.calibration is not None:
        output = calibrate(output, config.calibration, known)
        scale, shift = config.calibration.scale, config.calibration.shift
        evidence = scale * evidence
        branch = None if branch is None else scale * branch
        messages = None if messages is None else scale * messages
        constants = {name: scale * value for name, value in constants.items()}
        constants["calibration"] = torch.full_like(output.scores, shift)
    assert output.logits is not None
    return Decomposition(output.scores, output.logits, evidence, branch, messages, constants, parts)


Room = TypeVar("Room", bound=nn.Module)


def _in_single(module: Room) -> Room:
    """Return a module, or of one in half precision a copy in float32."""
    is_half = any(weight.dtype in (torch.float16, torch.bfloat16) for weight in module.parameters())
    return copy.deepcopy(module).float() if is_half else module
