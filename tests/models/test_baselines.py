"""The baseline heads: each against a transcription in plain loops, and as a part of whole networks."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from contextcaps.models import CapsuleNetwork, create_model, model_config
from contextcaps.models.baselines import BaselineHead, MLDecoderHead, MLGCNHead, build_baseline
from contextcaps.models.baselines.attention import Attention, FeedForward
from contextcaps.models.baselines.ml_gcn import label_graph
from contextcaps.models.baselines.positions import sine_positions

BASELINES = ["gap", "gmp", "csra", "ml-decoder", "query2label", "ml-gcn", "c-tran"]
CLASSES, CHANNELS, HEIGHT, WIDTH = 5, 6, 2, 3


def narrow(name: str, width: int) -> dict[str, int]:
    """Options for a head of a small width, with few attention heads, where it has such."""
    section = name.replace("-", "_")
    options = dict.fromkeys(("ml-decoder", "query2label", "c-tran"), ("width", "attention_heads"))
    sizes = {"width": width, "attention_heads": 2}
    return {f"{section}.{each}": sizes[each] for each in {**options, "ml-gcn": ("width",)}.get(name, ())}


def small_head(name: str, num_classes: int = CLASSES, **settings: object) -> BaselineHead:
    torch.manual_seed(0)
    config = model_config(name, num_classes, **{**narrow(name, 8), **settings})
    head = build_baseline(config, CHANNELS, (HEIGHT, WIDTH)).double().eval()
    with torch.no_grad():
        for parameter in head.parameters():  # biases and norms away from where they start
            parameter += 0.1 * torch.randn_like(parameter)
    return head


def features(batch: int = 2, height: int = HEIGHT, width: int = WIDTH) -> Tensor:
    return torch.randn(batch, CHANNELS, height, width, generator=torch.Generator().manual_seed(1)).double()


def some_known(batch: int) -> Tensor:
    """Known labels [B, J]: a third present, a third absent, a third not known."""
    return torch.tensor([1.0, math.nan, 0.0]).repeat(batch * CLASSES)[: batch * CLASSES].view(batch, CLASSES)


@pytest.mark.parametrize("max_head", [True, False])
def test_residual_attention_by_loops(max_head) -> None:
    settings = {"csra.temperatures": (0.5, 3.0), "csra.max_head": max_head, "csra.attention_weight": 0.3}
    head, batch = small_head("csra", **settings), features()
    expected = torch.zeros(len(batch), CLASSES, dtype=torch.float64)
    for number, weight in enumerate(head.classifiers.weight.split(CLASSES)):
        for b in range(len(batch)):
            for j in range(CLASSES):
                row = weight[j].tolist()
                length = math.sqrt(sum(w * w for w in row))
                scores = []
                for y in range(HEIGHT):
                    for x in range(WIDTH):
                        cell = batch[b, :, y, x].tolist()
                        scores.append(sum(w * v for w, v in zip(row, cell, strict=True)) / length)
                if number == 2:
                    attended = max(scores)
                else:
                    powers = [math.exp((0.5, 3.0)[number] * score) for score in scores]
                    attended = sum(power * score for power, score in zip(powers, scores, strict=True)) / sum(powers)
                expected[b, j] += sum(scores) / len(scores) + 0.3 * attended
    torch.testing.assert_close(head.logits(batch), expected)


# Plain Python, one number at a time.


def linear(layer: nn.Linear, values: list[float]) -> list[float]:
    return affine(layer.weight.tolist(), layer.bias.tolist(), values)


def affine(weight: list[list[float]], bias: list[float], values: list[float]) -> list[float]:
    return [sum(w * v for w, v in zip(row, values, strict=True)) + b for row, b in zip(weight, bias, strict=True)]


def normalise(norm: nn.LayerNorm, values: list[float]) -> list[float]:
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values) + norm.eps)
    scaled = zip(values, norm.weight.tolist(), norm.bias.tolist(), strict=True)
    return [(v - mean) / deviation * w + b for v, w, b in scaled]


def attend(part: Attention, queries: list, keys: list, values: list) -> list[list[float]]:
    """Every head and every query by itself, added to the query and normalised."""
    attention = part.attention
    width, heads = attention.embed_dim, attention.num_heads
    weight, bias = attention.in_proj_weight.tolist(), attention.in_proj_bias.tolist()
    projected = []
    for which, rows in enumerate((queries, keys, values)):
        here = slice(which * width, (which + 1) * width)
        projected.append([affine(weight[here], bias[here], row) for row in rows])
    size, results = width // heads, []
    for query, row in zip(queries, projected[0], strict=True):
        found = [0.0] * width
        for head in range(heads):
            span = range(head * size, (head + 1) * size)
            alike = [math.exp(sum(row[i] * key[i] for i in span) / math.sqrt(size)) for key in projected[1]]
            for i in span:
                found[i] = sum(a * value[i] for a, value in zip(alike, projected[2], strict=True)) / sum(alike)
        mixed = linear(attention.out_proj, found)
        results.append(normalise(part.norm, [q + m for q, m in zip(query, mixed, strict=True)]))
    return results


def feed(part: FeedForward, rows: list) -> list[list[float]]:
    first, last = part.body[0], part.body[3]
    results = []
    for row in rows:
        inner = linear(last, [max(0.0, value) for value in linear(first, row)])
        results.append(normalise(part.norm, [r + i for r, i in zip(row, inner, strict=True)]))
    return results


def cells_of(image: Tensor) -> list[list[float]]:
    return [image[:, y, x].tolist() for y in range(image.shape[1]) for x in range(image.shape[2])]


@pytest.mark.parametrize(("name", "pool"), [("gap", lambda row: sum(row) / len(row)), ("gmp", max)])
def test_pooling_by_loops(name, pool) -> None:
    head, batch = small_head(name), features()
    expected = [linear(head.linear, [pool(channel.flatten().tolist()) for channel in image]) for image in batch]
    torch.testing.assert_close(head(batch).logits, torch.tensor(expected).double())


@pytest.mark.parametrize(
    "settings", [{}, {"ml_decoder.query_groups": 2}, {"ml_decoder.layers": 2, "ml_decoder.query_groups": 3}], ids=str
)
def test_ml_decoder_by_loops(settings) -> None:
    head, batch = small_head("ml-decoder", **settings), features()
    groups = settings.get("ml_decoder.query_groups", CLASSES)
    share = math.ceil(CLASSES / groups)
    expected = []
    for image in batch:
        cells = [[max(0.0, value) for value in linear(head.embed[0], cell)] for cell in cells_of(image)]
        queries = head.queries.tolist()
        for layer in head.layers:
            queries = feed(layer.feed_forward, attend(layer.cross, queries, cells, cells))
        weight, bias = head.readout.weight.tolist(), head.readout.bias.tolist()
        answers = [queries[index // share] for index in range(CLASSES)]
        expected.append([affine([weight[j]], [bias[j]], answers[j])[0] for j in range(CLASSES)])
    torch.testing.assert_close(head(batch).logits, torch.tensor(expected).double())


def test_query2label_by_loops() -> None:
    head, batch = small_head("query2label"), features()
    assert len(head.layers) == 2
    expected = []
    for image in batch:
        cells = [linear(head.embed, cell) for cell in cells_of(image)]
        placed = []
        for index, cell in enumerate(cells):
            row, column = divmod(index, WIDTH)
            place = []
            for position, count in ((row, HEIGHT), (column, WIDTH)):
                angle = 2 * math.pi * (position + 1) / count
                angles = [angle / 10_000 ** (2 * i / 4) for i in range(2)]
                place += [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
            placed.append([c + p for c, p in zip(cell, place, strict=True)])
        queries = head.labels.tolist()
        for layer in head.layers:
            queries = attend(layer.among, queries, queries, queries)
            queries = feed(layer.feed_forward, attend(layer.cross, queries, placed, cells))
        weight, bias = head.readout.weight.tolist(), head.readout.bias.tolist()
        expected.append([affine([weight[j]], [bias[j]], queries[j])[0] for j in range(CLASSES)])
    torch.testing.assert_close(head(batch).logits, torch.tensor(expected).double(), rtol=1e-6, atol=1e-6)


def test_ml_gcn_by_loops() -> None:
    head, batch = small_head("ml-gcn"), features()
    head.learn_labels(torch.tensor([[1, 1, 0, 0, 0], [1, 1, 0, 1, 0], [0, 1, 1, 0, 0], [0, 0, 1, 0, 0]]))
    graph = head.adjacency.tolist()
    rows = head.labels.tolist()
    scales = (8**-0.5, (4 * 8 * CHANNELS) ** -0.5)
    for weight, scale, bend in ((head.first, scales[0], 0.2), (head.second, scales[1], 1.0)):
        columns = (scale * weight).T.tolist()
        moved = [affine(columns, [0.0] * len(columns), row) for row in rows]
        mixed = [
            [sum(graph[j][other] * moved[other][c] for other in range(CLASSES)) for c in range(len(columns))]
            for j in range(CLASSES)
        ]
        rows = [[value if value > 0 else bend * value for value in row] for row in mixed]
    expected = []
    for image in batch:
        pooled = [max(channel.flatten().tolist()) for channel in image]
        expected.append([sum(r * p for r, p in zip(row, pooled, strict=True)) for row in rows])
    torch.testing.assert_close(head(batch).logits, torch.tensor(expected).double())


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=12))
def test_label_graph_by_loops(images) -> None:
    classes, tau, p = 4, 0.4, 0.2
    near = [[0.0] * classes for _ in range(classes)]
    for i in range(classes):
        for j in range(classes):
            shown = [image for image in images if image[i]]
            if i != j and shown and sum(image[j] for image in shown) / len(shown) >= tau:
                near[i][j] = 1.0
    weighted = [[0.0] * classes for _ in range(classes)]
    for i in range(classes):
        for j in range(classes):
            if i == j:
                weighted[i][j] = 1 - p
            elif near[i][j]:
                weighted[i][j] = p / sum(near[i])
    degrees = [sum(row) for row in weighted]
    expected = [[weighted[i][j] / math.sqrt(degrees[i] * degrees[j]) for j in range(classes)] for i in range(classes)]
    found = label_graph(torch.tensor(images))
    torch.testing.assert_close(found, torch.tensor(expected))


def test_a_label_of_its_own_company_is_left_alone() -> None:
    """A class that is never with others, and one that never appears."""
    graph = label_graph(torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0]]))
    assert graph[2].tolist() == [0, 0, 1, 0]
    assert graph[3].tolist() == [0, 0, 0, 1]
    assert graph[0, 1] > 0


def test_the_wrong_number_of_classes_is_refused() -> None:
    for name in BASELINES:
        with pytest.raises(ValueError, match=r"targets: expected shape \[n, J=5\], got \[3, 4\]"):
            small_head(name).learn_labels(torch.ones(3, 4))


@given(st.integers(1, 40), st.integers(1, 45))
def test_groups_share_all_classes(classes, groups) -> None:
    """No more queries than asked for, none without a class, and each class read by its own row."""
    head = small_head("ml-decoder", classes, **{"ml_decoder.query_groups": groups})
    assert isinstance(head, MLDecoderHead)
    assert 1 <= head.groups <= min(groups, classes)
    assert (head.groups - 1) * head.group_size < classes <= head.groups * head.group_size
    queries = torch.randn(2, head.groups, 8).double()
    expected = [
        queries[:, j // head.group_size] @ head.readout.weight[j] + head.readout.bias[j] for j in range(classes)
    ]
    torch.testing.assert_close(head.read_out(queries), torch.stack(expected, dim=1))


def test_positions_differ() -> None:
    places = sine_positions(4, 5, 16, torch.zeros(()))
    assert places.shape == (20, 16)
    assert float(torch.cdist(places, places)[~torch.eye(20, dtype=torch.bool)].min()) > 0.1


@pytest.mark.parametrize("name", BASELINES)
def test_gradients_reach_every_weight(name) -> None:
    head = small_head(name).train()
    told = {"known": some_known(4)} if head.config.head_takes_known else {}
    head(features(4), **told).logits.square().sum().backward()
    assert [each for each, weight in head.named_parameters() if not bool((weight.grad != 0).any())] == []


@pytest.mark.parametrize("name", BASELINES)
def test_scores_are_in_single_precision_under_autocast(name) -> None:
    model = create_model(name, CLASSES, 32, "small", **narrow(name, 16)).eval()
    images = torch.rand(2, 3, 32, 32)
    with torch.autocast("cpu", torch.bfloat16):
        output = model(images)
    assert output.scores.dtype == output.logits.dtype == torch.float32
    torch.testing.assert_close(output.scores, model(images).scores, rtol=0.1, atol=0.03)


@pytest.mark.parametrize("name", BASELINES)
def test_any_image_size(name) -> None:
    model = create_model(name, CLASSES, 32, "small", **narrow(name, 16)).eval()
    for height, width in ((32, 32), (64, 64), (40, 72)):
        assert model(torch.rand(1, 3, height, width)).scores.shape == (1, CLASSES)
    assert model.grid == (4, 4)


# CSRA's classifiers have length one, however they start.
@pytest.mark.parametrize("name", [name for name in BASELINES if name != "csra"])
@pytest.mark.parametrize(("num_classes", "backbone", "image_size"), [(2, "paper", 28), (80, "small", 64)])
def test_starts_undecided(name, num_classes, backbone, image_size) -> None:
    torch.manual_seed(0)
    model = create_model(name, num_classes, image_size, backbone).eval()
    scores = model(torch.rand(2, 3, image_size, image_size)).scores
    assert float(scores.detach().min()) > 0.02
    assert float(scores.detach().max()) < 0.98


def test_the_paper_s_backbone_has_both_convolutions() -> None:
    """The second is the primary capsules' own, which a baseline head has not."""
    assert create_model("gap", 3, 28, "paper").feature_shape == (256, 6, 6)
    assert create_model("capsnet", 3, 28, "paper").feature_shape == (256, 20, 20)


@pytest.mark.long
@pytest.mark.parametrize("name", BASELINES)
def test_exports_as_one_graph(name) -> None:
    model = create_model(name, CLASSES, 32, "small", **narrow(name, 16)).eval()
    images = torch.rand(2, 3, 32, 32)
    exported = torch.export.export(model, (images,)).module()
    torch.testing.assert_close(exported(images).scores, model(images).scores)


def test_what_a_rival_has_not() -> None:
    model = create_model("gap", CLASSES, 32, "small")
    images = torch.rand(1, 3, 32, 32)
    with pytest.raises(ValueError, match="head pooling has no capsules to show"):
        model(images, return_intermediates=True)
    with pytest.raises(ValueError, match="head pooling has no decision capsules"):
        model.reconstruct(model(images).decisions, torch.ones(1, CLASSES))


def test_a_field_between_decisions_goes_with_any_head() -> None:
    model = create_model("gap", CLASSES, 32, "small", field={}).eval()
    images, told = torch.rand(2, 3, 32, 32), torch.full((2, CLASSES), float("nan"))
    torch.testing.assert_close(model(images).scores, model(images).logits.sigmoid())
    told[:, 1] = 1.0
    output = model(images, known=told)
    assert output.scores[:, 1].tolist() == [1, 1]
    assert output.decisions is None
    assert sum(step.weights for step in model.steps()) == sum(each.numel() for each in model.parameters())


def test_what_was_drawn_and_learnt_is_saved(tmp_path) -> None:
    """ML-Decoder's fixed queries and ML-GCN's graph are no parameters, but belong to the network."""
    images = torch.rand(2, 3, 32, 32)
    for name in ("ml-decoder", "ml-gcn"):
        model = create_model(name, 3, 32, "small", **narrow(name, 16)).eval()
        before = model(images).scores
        model.head.learn_labels(torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1]]))
        assert torch.equal(model(images).scores, before) == (name == "ml-decoder")
        model.save_pretrained(tmp_path / name)
        loaded = CapsuleNetwork.from_pretrained(tmp_path / name)
        torch.testing.assert_close(loaded(images).scores, model(images).scores, rtol=0, atol=0)
        if isinstance(loaded.head, MLGCNHead):
            assert torch.equal(loaded.head.adjacency, model.head.adjacency)
            assert not torch.equal(loaded.head.adjacency, torch.eye(3))
