"""C-Tran: against plain loops, what it is told, and what it learns from that."""

import math

import pytest
import torch
from test_baselines import CLASSES, features, small_head, some_known
from torch import Tensor, nn

import reference
from contextcaps.models import CapsuleNetwork, create_model
from contextcaps.models.baselines.c_tran import CTranHead, CTranLayer
from contextcaps.training.losses import LOSSES

IMAGES = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
NOTHING = math.nan
KNOWN = torch.tensor([[1.0, NOTHING, 0.0, NOTHING], [NOTHING] * 4, [0.0, 1.0, NOTHING, NOTHING]])
SMALL = {"c_tran.width": 16, "c_tran.attention_heads": 2}


def made(**options) -> CapsuleNetwork:
    torch.manual_seed(0)
    return create_model("c-tran", 4, 32, "small", **{**SMALL, **options}).eval()


def affine(layer: nn.Linear | nn.LayerNorm) -> reference.Affine:
    return reference.Affine(layer.weight.detach().numpy(), layer.bias.detach().numpy())


def encoder_layer(layer: CTranLayer) -> reference.EncoderLayer:
    attention, body = layer.among.attention, layer.feed_forward.body
    weights, biases = attention.in_proj_weight.detach().chunk(3), attention.in_proj_bias.detach().chunk(3)
    projections = [reference.Affine(w.numpy(), b.numpy()) for w, b in zip(weights, biases, strict=True)]
    parts = (attention.out_proj, layer.among.norm, body[0], body[3], layer.feed_forward.norm)
    return reference.EncoderLayer(*projections, *map(affine, parts))


@pytest.mark.parametrize("known", [some_known(2), torch.full((2, CLASSES), NOTHING)], ids=["some", "nothing"])
def test_by_loops(known) -> None:
    head, batch = small_head("c-tran"), features()
    assert isinstance(head, CTranHead)
    assert len(head.layers) == 3
    states = head.states.detach().numpy()
    expected = reference.c_tran(
        batch.numpy(),
        known.numpy(),
        affine(head.embed),
        head.labels.detach().numpy(),
        states[0],
        states[1],
        affine(head.norm),
        [encoder_layer(layer) for layer in head.layers],
        2,
        affine(head.readout),
    )
    torch.testing.assert_close(head.logits(batch, known), torch.from_numpy(expected), rtol=1e-6, atol=1e-6)


def test_defaults_are_the_authors_but_the_width() -> None:
    own = create_model("c-tran", 4, 32, "small").config.c_tran
    assert (own.width, own.layers, own.attention_heads, own.dropout) == (256, 3, 4, 0.1)


@pytest.mark.parametrize("form", [{}, {"field": "default"}, {"calibration": {"scale": 1.3, "shift": 0.2}}], ids=str)
def test_what_is_known_is_its_own_score_and_changes_the_others(form) -> None:
    """Alone, with a field after it, and calibrated."""
    network = made(**form)
    nothing, told = network(IMAGES), network(IMAGES, known=KNOWN)
    given = ~KNOWN.isnan()
    assert torch.equal(told.scores[given], KNOWN[given])
    torch.testing.assert_close(told.scores[1], nothing.scores[1])  # each image is told its own
    others = ~given[[0, 2]]
    assert not torch.isclose(told.logits[[0, 2]][others], nothing.logits[[0, 2]][others], rtol=1e-4).any()
    torch.testing.assert_close(told.scores[~given], told.logits[~given].sigmoid())
    assert told.logits.isfinite().all()


def test_told_nothing_is_told_none() -> None:
    network = made()
    nothing, none = network(IMAGES, known=torch.full((3, 4), NOTHING)), network(IMAGES)
    assert torch.equal(nothing.logits, none.logits)
    assert torch.equal(nothing.scores, none.scores)


def test_a_probability_mixes_both_states() -> None:
    head = small_head("c-tran").requires_grad_(False)
    absent, half, present = (
        head.label_tokens(features(1), torch.full((1, CLASSES), value).double()) for value in (0.0, 0.5, 1.0)
    )
    torch.testing.assert_close(half, (absent + present) / 2)
    assert head(features(1), known=torch.full((1, CLASSES), 0.25).double()).scores.eq(0.25).all()


def test_known_labels_need_their_shape() -> None:
    with pytest.raises(ValueError, match=r"known: expected shape \[B=3, J=4\], got \[2, 4\]"):
        made()(IMAGES, known=KNOWN[:2])
    with pytest.raises(ValueError, match="known: expected values from 0 to 1"):
        made()(IMAGES, known=KNOWN + 1)


def test_every_weight_has_a_gradient_where_nothing_is_known() -> None:
    """Training in several processes waits for one."""
    network = made().train()
    network(IMAGES).logits.sum().backward()
    assert [name for name, weight in network.named_parameters() if weight.grad is None] == []
    assert not network.head.states.grad.any()


def test_it_learns_what_goes_together() -> None:
    """Where the image shows nothing and two classes are always together, what is told of one decides the other."""
    head = small_head("c-tran", 2, **{"c_tran.dropout": 0.0}).float().train()
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0)

    def noise(count: int) -> Tensor:
        return torch.randn(count, 6, 2, 3, generator=generator)

    for _ in range(60):
        both = torch.randint(0, 2, (32, 1), generator=generator).float().expand(-1, 2)  # [B, J]
        given = torch.eye(2, dtype=torch.bool)[torch.randint(0, 2, (32,), generator=generator)]  # [B, J]
        output = head(noise(32), known=torch.where(given, both, NOTHING))
        loss = LOSSES["bce"](output.scores, both, class_weights=(~given).float(), logits=output.logits)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    head.eval()
    told = torch.tensor([[1.0, NOTHING], [NOTHING, 1.0], [0.0, NOTHING], [NOTHING, 0.0]])
    scores = head(noise(4), known=told).scores[told.isnan()]
    assert (scores[:2] > 0.8).all()
    assert (scores[2:] < 0.2).all()


def test_saved_and_loaded_it_says_the_same(tmp_path) -> None:
    network = made()
    network.save_pretrained(tmp_path)
    loaded = CapsuleNetwork.from_pretrained(tmp_path)
    assert loaded.config == network.config
    assert torch.equal(loaded(IMAGES, known=KNOWN).scores, network(IMAGES, known=KNOWN).scores)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_finite(dtype) -> None:
    network = made()
    with torch.autocast("cpu", dtype):
        scores = network(IMAGES, known=KNOWN).scores
    assert scores.dtype == torch.float32
    scores.sum().backward()
    assert all(weight.grad.isfinite().all() for weight in network.parameters())
    torch.testing.assert_close(scores, network(IMAGES, known=KNOWN).scores, rtol=0.1, atol=0.03)
    if dtype == torch.bfloat16:
        whole = network.to(dtype)(IMAGES, known=KNOWN).scores
        assert torch.equal(whole[~KNOWN.isnan()].float(), KNOWN[~KNOWN.isnan()])
        assert whole.isfinite().all()


@pytest.mark.long
def test_exports_as_one_graph_with_known_labels() -> None:
    network = made()
    exported = torch.export.export(network, (IMAGES,), {"known": KNOWN}, strict=False)
    found = exported.module()(IMAGES, known=KNOWN)
    torch.testing.assert_close(found.scores, network(IMAGES, known=KNOWN).scores)
