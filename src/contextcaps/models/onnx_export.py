"""Networks as ONNX: one graph from the bytes of images to scores, on request with the parts of the logits.

`graph_of` needs the extra `onnx`, which brings PyTorch's exporter. The graph has PyTorch's own operators only, whatever
the engine; batch normalisations are folded into convolutions.
"""

import copy
import json
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from contextcaps.atomic import write_atomically
from contextcaps.extras import import_extra
from contextcaps.models.decomposition import decompose
from contextcaps.models.efficientnet_lite import NORM_EPS, EfficientNetLite
from contextcaps.models.explainable import explains
from contextcaps.models.files import FORMAT, GRAPH_FILE, WEIGHTS_FILE
from contextcaps.models.network import CapsuleNetwork
from contextcaps.models.onnx_file import sealed
from contextcaps.models.onnx_opening import METADATA, ONNX_FORMAT, PREFIX
from contextcaps.models.onnx_scorer import CONSTANT
from contextcaps.models.torch_scorer import to_grey
from contextcaps.models.trained import Trained, preprocessing

__all__ = ["OPSET", "Exported", "axes_of", "example_of", "graph_of", "model_of", "write_graph"]

OPSET = 18
"""Version of ONNX's operators that graphs are written in."""


class Exported(nn.Module):
    """A network as it is exported: bytes in colour [B, 3, H, W] and known labels [B, J] → scores, and parts of logits.

    Args:
        network: in evaluation mode.
        explained: give the parts of the logits after the scores, in the order of `output_names`.
    """

    def __init__(self, network: CapsuleNetwork, explained: bool) -> None:
        super().__init__()
        self.network, self.explained = network, explained

    def forward(self, images: Tensor, known: Tensor | None = None) -> tuple[Tensor, ...]:
        features = self.network.features(_as_taken(self.network, images))  # [B, C, H, W]
        scores = self.network.from_features(features, known=known).scores.float()  # [B, J]
        return (scores, *self._parts(features, known).values()) if self.explained else (scores,)

    def _parts(self, features: Tensor, known: Tensor | None) -> dict[str, Tensor]:
        (found,) = decompose(self.network, features, known)
        parts = {"logits": found.logits, "evidence": found.evidence}
        parts |= {} if found.branch is None else {"branch": found.branch}
        parts |= {} if found.messages is None else {"messages": found.messages}
        parts |= {f"{CONSTANT}{name}": value for name, value in found.constants.items()}
        if found.lengths is not None:
            length, capsules, bias = found.lengths
            parts |= {"length": length, "length_capsules": capsules, "length_bias": bias}
        return {name: part.clone() for name, part in parts.items()}  # an output of its own each

    def output_names(self) -> list[str]:
        """Return the names of what `forward` gives."""
        if not self.explained:
            return ["scores"]
        images, known = example_of(self.network, 1)
        with torch.no_grad():
            return ["scores", *self._parts(self.network.features(_as_taken(self.network, images)), known)]


def _as_taken(network: CapsuleNetwork, images: Tensor) -> Tensor:
    return to_grey(images) if network.config.in_channels == 1 else images


def example_of(network: CapsuleNetwork, images: int = 2) -> tuple[Tensor, Tensor | None]:
    """Return seeded noise of the shape that a network takes, with nothing known; None where it can be told nothing."""
    shape = (images, 3, *network.config.image_size)
    noise = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    known = torch.full((images, network.config.num_classes), torch.nan) if network.config.takes_known else None
    return noise, known


def axes_of(network: CapsuleNetwork, any_size: bool = True) -> list[dict[str, dict[int, Any]]]:
    """Return which axes of the inputs have any size, best first: the batch, and sides of images.

    Sides do, from the configuration's on, where the network takes any; not every backbone can be written so, and the
    batch alone comes last. EfficientNet-lite's padding depends on the size, which takes the exporter very long. A head
    that is told labels has one size, too: shapes that depend on an image cannot pass to the part that is told
    (`contextcaps.models.onnx_division`).
    """
    batch = torch.export.Dim("batch")
    height, width = network.config.image_size
    sides = {2: torch.export.Dim("height", min=height), 3: torch.export.Dim("width", min=width)}
    known = {"known": {0: batch}} if network.config.takes_known else {}
    is_lite = any(isinstance(module, EfficientNetLite) for module in network.backbone.modules())
    is_told = network.config.c_tran is not None
    has_any = any_size and network.head.takes_any_size and not (is_lite or is_told)
    with_sides = [{"images": {0: batch, **sides}, **known}] if has_any else []
    return [*with_sides, {"images": {0: batch}, **known}]


def graph_of(network: CapsuleNetwork, explained: bool, any_size: bool = True) -> Any:
    """Return the graph of a network as ONNX's `ModelProto`, with its weights and without metadata.

    Args:
        network: its batch normalisations are folded in a copy.
        explained: add the outputs that explaining needs, if the network has them.
        any_size: let images have any size, where the network takes any.

    Raises:
        ImportError: the extra `onnx` is missing.
        ValueError: PyTorch's exporter cannot express the network; the message says what is in the way.
    """
    import_extra("onnxscript", "onnx", "export --to onnx")
    folded = network.folded(begins_with_zeros=False).eval()
    module = Exported(folded, explained and explains(network.config)).eval()
    images, known = example_of(network)
    choices = axes_of(network, any_size)
    inputs = {"images": images} if known is None else {"images": images, "known": known}
    for axes in choices:
        try:
            with warnings.catch_warnings(), _silent(), torch.no_grad():
                warnings.simplefilter("ignore")
                program = torch.onnx.export(
                    module,
                    tuple(inputs.values()),
                    None,
                    dynamo=True,
                    verbose=False,
                    opset_version=OPSET,
                    input_names=list(inputs),
                    output_names=module.output_names(),
                    dynamic_shapes=axes,
                    custom_translation_table=_own_translations(),
                )
            break
        except Exception as error:  # the exporter's own classes derive from Exception alone
            if axes is not choices[-1]:
                continue
            why = " ".join(str(error.__cause__ or error).split())[:300]
            optional = ("em", "crf", "correlation", "reconstruction")
            sections = [name for name in optional if getattr(network.config, name)]
            in_the_way = f"; sections that may be in the way: {', '.join(sections)}" if sections else ""
            raise ValueError(
                f"export: {network.config.model} on {network.config.backbone} cannot be written as ONNX "
                f"({why}){in_the_way}"
            ) from error
    assert program is not None
    graph = copy.deepcopy(program.model_proto)
    for node in graph.graph.node:  # where in the sources each came from, with paths of this machine
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for field in ("metadata_props", "value_info"):
        graph.graph.ClearField(field)
    graph.ClearField("metadata_props")
    graph.producer_name, graph.producer_version = "contextcaps", ""
    return graph


def model_of(network: CapsuleNetwork, trained: Trained | None, explained: bool, any_size: bool = True) -> Any:
    """Return a `ModelProto` that is a whole tagger: the graph, with names, thresholds and preprocessing as metadata."""
    config, model = network.config, graph_of(network, explained, any_size)
    document = {
        "format": ONNX_FORMAT,
        "config": {"format": FORMAT, **config.to_dict()},
        "trained": None if trained is None else trained.document(config),
    }
    _describe(
        model,
        {
            METADATA: document,
            # Again, for other programs.
            "class_names": config.all_class_names,
            "thresholds": None if trained is None else trained.thresholds,
            "preprocessing": {**preprocessing(config), "range": [0, 255], "normalisation": "inside the graph"},
        },
    )
    return model


def write_graph(folder: Path) -> None:
    """Write the graph of the model in a folder beside its weights, which it takes from there.

    It has what explaining needs. Weights that the exporter has combined with others stay inside.
    """
    network = CapsuleNetwork.from_pretrained(folder)
    model = graph_of(network, explained=True, any_size=False)  # tagging has one size
    weights = network.folded(begins_with_zeros=False).state_dict()
    for tensor in model.graph.initializer:
        weight = weights.get(tensor.name.removeprefix(PREFIX))
        if weight is None or tensor.raw_data != weight.numpy().tobytes():
            continue
        tensor.ClearField("raw_data")
        tensor.data_location = 1  # external
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", WEIGHTS_FILE
    _describe(model, {METADATA: {"format": ONNX_FORMAT, "norm_eps": NORM_EPS}})
    write_atomically(folder / GRAPH_FILE, sealed(model.SerializeToString()))


def _describe(model: Any, metadata: dict[str, Any]) -> None:
    for name, value in metadata.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = name, json.dumps(value, ensure_ascii=False)


def _own_translations() -> dict[Any, Any]:
    """Return operators of PyTorch → functions that write them as ONNX's, where the exporter's own take long."""
    return {torch.ops.aten.einsum.default: _sums_of_products()}


def _sums_of_products() -> Any:
    """Return ONNX's operators for `torch.einsum`: for those over votes others than its own Einsum.

    ONNX Runtime's moves the larger operand about before each product: all weights of the votes, all votes. As matrix
    products, votes are transposed once, since equal transpositions are computed once.
    """
    op: Any = import_extra("onnxscript", "onnx", "export --to onnx").opset18

    def axis(number: int) -> Any:
        return op.Constant(value_ints=[number])

    def votes_of(capsules: Any, weight: Any) -> Any:
        """[B, K, A], [K, A, J, I] → [B, K, J, I]."""
        shape = op.Constant(value_ints=[0, 0, int(weight.shape[2]), int(weight.shape[3])])
        flat = op.Reshape(weight, op.Constant(value_ints=[0, 0, -1]))  # [K, A, J·I]
        votes = op.MatMul(op.Transpose(capsules, perm=[1, 0, 2]), flat)  # [K, B, J·I]
        return op.Transpose(op.Reshape(votes, shape), perm=[1, 0, 2, 3])  # [B, K, J, I]

    def sums(weights: Any, votes: Any) -> Any:
        """[B, J, K], [B, K, J, I] → [B, J, I]."""
        by_class = op.Transpose(votes, perm=[0, 2, 1, 3])  # [B, J, K, I]
        return op.Squeeze(op.MatMul(op.Unsqueeze(weights, axis(2)), by_class), axis(2))

    def agreements(votes: Any, decisions: Any) -> Any:
        """[B, K, J, I], [B, J, I] → [B, K, J]."""
        by_class = op.Transpose(votes, perm=[0, 2, 1, 3])  # [B, J, K, I]
        products = op.Squeeze(op.MatMul(by_class, op.Unsqueeze(decisions, axis(3))), axis(3))  # [B, J, K]
        return op.Transpose(products, perm=[0, 2, 1])

    def messages(sent: Any, pairwise: Any) -> Any:
        """[B, K, J', I], [J', J] → [B, K, J, I]."""
        return op.MatMul(op.Transpose(pairwise, perm=[1, 0]), sent)

    translated = {
        "bka,kaji->bkji": votes_of,
        "bjk,bkji->bji": sums,
        "bkj,bkji->bji": lambda weights, votes: sums(op.Transpose(weights, perm=[0, 2, 1]), votes),
        "bkji,bji->bkj": agreements,
        "bkhi,hj->bkji": messages,
    }

    def einsum(equation: str, tensors: Any, path: Any = None) -> Any:
        own = translated.get(equation)
        return op.Einsum(*tensors, equation=equation) if own is None else own(*tensors)

    return einsum


class _silent:
    """Keeps the exporter's progress and its remarks off the error stream."""

    def __enter__(self) -> None:
        self._level = logging.root.manager.disable
        logging.disable(logging.WARNING)

    def __exit__(self, *_: object) -> None:
        logging.disable(self._level)
