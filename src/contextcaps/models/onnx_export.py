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
from contextcaps.models.efficientnet_lite import NORM_EPS
from contextcaps.models.explainable import explains
from contextcaps.models.files import FORMAT, GRAPH_FILE, WEIGHTS_FILE
from contextcaps.models.network import CapsuleNetwork
from contextcaps.models.onnx_file import sealed
from contextcaps.models.onnx_scorer import CONSTANT, METADATA, ONNX_FORMAT, PREFIX
from contextcaps.models.torch_scorer import to_grey
from contextcaps.models.trained import Trained, preprocessing

__all__ = ["OPSET", "Exported", "example_of", "graph_of", "model_of", "write_graph"]

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


def graph_of(network: CapsuleNetwork, explained: bool) -> Any:
    """Return the graph of a network as ONNX's `ModelProto`, with its weights and without metadata.

    Raises:
        ImportError: the extra `onnx` is missing.
        ValueError: PyTorch's exporter cannot express the network; the message says what is in the way.
    """
    import_extra("onnxscript", "onnx", "export --to onnx")
    folded = network.folded(begins_with_zeros=False).eval()
    module = Exported(folded, explained and explains(network.config)).eval()
    images, known = example_of(network)
    batch = torch.export.Dim("batch")
    inputs, axes = {"images": images}, {"images": {0: batch}}
    if known is not None:
        inputs["known"], axes["known"] = known, {0: batch}
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
    except Exception as error:  # the exporter's own classes derive from Exception alone
        why = " ".join(str(error.__cause__ or error).split())[:300]
        sections = [name for name in ("em", "crf", "correlation", "reconstruction") if getattr(network.config, name)]
        in_the_way = f"; sections that may be in the way: {', '.join(sections)}" if sections else ""
        raise ValueError(
            f"export: {network.config.model} on {network.config.backbone} cannot be written as ONNX ({why}){in_the_way}"
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


def model_of(network: CapsuleNetwork, trained: Trained | None, explained: bool) -> Any:
    """Return a `ModelProto` that is a whole tagger: the graph, with names, thresholds and preprocessing as metadata."""
    config, model = network.config, graph_of(network, explained)
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
    model = graph_of(network, explained=True)
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
    return {torch.ops.aten.cumprod.default: _cumulative_product(), torch.ops.aten.einsum.default: _sums_of_products()}


def _sums_of_products() -> Any:
    """Return ONNX's operators for `torch.einsum`: for votes and agreements others than its own Einsum.

    ONNX Runtime's moves the larger operand about before it multiplies: all weights of the votes, all votes.
    """
    op: Any = import_extra("onnxscript", "onnx", "export --to onnx").opset18

    def einsum(equation: str, tensors: Any, path: Any = None) -> Any:
        if equation == "bka,kaji->bkji":
            capsules, weight = tensors  # [B, K, A], [K, A, J, I]
            classes, attributes = weight.shape[2], weight.shape[3]
            flat = op.Reshape(weight, op.Constant(value_ints=[0, 0, -1]))  # [K, A, J·I]
            votes = op.MatMul(op.Transpose(capsules, perm=[1, 0, 2]), flat)  # [K, B, J·I]
            shape = op.Constant(value_ints=[0, 0, int(classes), int(attributes)])
            return op.Reshape(op.Transpose(votes, perm=[1, 0, 2]), shape)  # [B, K, J, I]
        if equation == "bkji,bji->bkj":
            votes, decisions = tensors
            products = op.Mul(votes, op.Unsqueeze(decisions, op.Constant(value_ints=[1])))  # [B, K, J, I]
            return op.ReduceSum(products, op.Constant(value_ints=[3]), keepdims=0)  # [B, K, J]
        return op.Einsum(*tensors, equation=equation)

    return einsum


def _cumulative_product() -> Any:
    """Return ONNX's operators for a cumulative product; the exporter's own multiplies K × K numbers.

    exp(Σ log|x|) · (−1)^(number of factors below 0): exact for the signs that CORR multiplies.
    """
    op: Any = import_extra("onnxscript", "onnx", "export --to onnx").opset18

    def product(values: Any, dim: int, dtype: Any = None) -> Any:
        axis, zero = op.Constant(value_int=dim), op.CastLike(op.Constant(value_float=0.0), values)
        size = op.Exp(op.CumSum(op.Log(op.Abs(values)), axis))
        negative = op.CumSum(op.CastLike(op.Less(values, zero), values), axis)
        odd = op.Mod(negative, op.CastLike(op.Constant(value_float=2.0), values), fmod=1)
        return op.Mul(size, op.Sub(op.CastLike(op.Constant(value_float=1.0), values), op.Add(odd, odd)))

    return product


class _silent:
    """Keeps the exporter's progress and its remarks off the error stream."""

    def __enter__(self) -> None:
        self._level = logging.root.manager.disable
        logging.disable(logging.WARNING)

    def __exit__(self, *_: object) -> None:
        logging.disable(self._level)
