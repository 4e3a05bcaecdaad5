"""Divide a graph of ONNX at known labels, so that telling others need not compute a photograph anew.

Backbone and head see no labels; only the field does, or a head that is told. So of a network that takes `known` two
graphs are made. The first computes all of it, and gives the values that pass from what sees no labels to what does. The
second is the rest: it begins at those values, and is as small as the field.

An ONNX file is a protocol buffer (`contextcaps.models.onnx_file`); nodes are copied byte by byte.
"""

import dataclasses
from collections.abc import Iterable

from contextcaps.models.onnx_file import fields_of, message_of

__all__ = ["Division", "divide"]

# Numbers of fields, by message.
_GRAPH, _METADATA = 7, 14  # of a model
_NODE, _NAME, _INITIALIZER, _INPUT, _OUTPUT = 1, 2, 5, 11, 12  # of a graph
_NODE_INPUT, _NODE_OUTPUT, _ATTRIBUTE = 1, 2, 5  # of a node
_SUBGRAPHS = (6, 11)  # of an attribute
_TENSOR_NAME = 8
_FLOAT = 1  # type of a tensor's elements


@dataclasses.dataclass(frozen=True)
class Division:
    """The two graphs."""

    whole: bytes = dataclasses.field(repr=False)
    """Computes what the undivided one does, and `passed`."""
    rest: bytes = dataclasses.field(repr=False)
    """Takes `passed` and `known`; gives `told`."""
    passed: tuple[str, ...]
    """Names of the values, [B, …] of float32, at which the second begins."""
    added: tuple[str, ...]
    """Those of them that the undivided graph does not give."""
    told: tuple[str, ...]
    """Names of the outputs that depend on known labels."""
    weights: frozenset[str]
    """Names of the weights that the second takes."""


@dataclasses.dataclass(frozen=True)
class _Node:
    content: memoryview
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    has_graph: bool


def divide(content: bytes) -> Division | None:
    """Divide a graph that takes `images` and `known`; None where it cannot be: one with loops, or a damaged one."""
    try:
        return _divided(content)
    except ValueError:  # ONNX Runtime says what is wrong with it
        return None


def _divided(content: bytes) -> Division | None:
    nodes, weights, outputs = _read(_graph_of(content))
    if any(node.has_graph for node in nodes):
        return None
    seen, told = _reached("images", nodes), _reached("known", nodes)
    needed = {name for node in nodes if told & {*node.inputs} for name in node.inputs} - told
    passed = tuple(sorted(needed & seen))
    if not passed or "images" in passed:
        return None
    # What depends on neither, such as a product of two weights, is computed in both.
    kept: list[_Node] = []
    for node in reversed(nodes):
        if told & {*node.inputs} or (needed - seen) & {*node.outputs}:
            kept.append(node)
            needed |= {*node.inputs}
    graph = _field(_NAME, b"rest")
    graph += b"".join(_field(_NODE, bytes(node.content)) for node in reversed(kept))
    graph += b"".join(_field(_INITIALIZER, bytes(tensor)) for name, tensor in weights.items() if name in needed)
    graph += b"".join(_field(_INPUT, _value(name)) for name in (*passed, "known"))
    graph += b"".join(_field(_OUTPUT, bytes(value)) for name, value in outputs.items() if name in told)
    rest = b"".join(
        _field(number, value) for number, value in fields_of(memoryview(content)) if number not in (_GRAPH, _METADATA)
    )
    # A message that is there twice is one: so outputs are added behind all others.
    added = tuple(name for name in passed if name not in outputs)
    more = b"".join(_field(_OUTPUT, _field(1, name.encode())) for name in added)
    return Division(
        content + _field(_GRAPH, more),
        rest + _field(_GRAPH, graph),
        passed,
        added,
        tuple(name for name in outputs if name in told),
        frozenset(weights.keys() & needed),
    )


def _graph_of(content: bytes) -> memoryview:
    graphs = (message_of(value) for number, value in fields_of(memoryview(content)) if number == _GRAPH)
    return next(graphs, memoryview(b""))


def _read(graph: memoryview) -> tuple[list[_Node], dict[str, memoryview], dict[str, memoryview]]:
    """Return a graph's nodes in their order, its weights and its outputs by name."""
    nodes: list[_Node] = []
    weights: dict[str, memoryview] = {}
    outputs: dict[str, memoryview] = {}
    for number, value in fields_of(graph):
        if number == _NODE:
            nodes.append(_node(message_of(value)))
        elif number == _INITIALIZER:
            weights[_text(message_of(value), _TENSOR_NAME)] = message_of(value)
        elif number == _OUTPUT:
            outputs[_text(message_of(value), 1)] = message_of(value)
    return nodes, weights, outputs


def _node(content: memoryview) -> _Node:
    inputs, outputs, has_graph = [], [], False
    for number, value in fields_of(content):
        if number == _NODE_INPUT:
            inputs.append(bytes(message_of(value)).decode())
        elif number == _NODE_OUTPUT:
            outputs.append(bytes(message_of(value)).decode())
        elif number == _ATTRIBUTE:
            has_graph |= any(inner in _SUBGRAPHS for inner, _ in fields_of(message_of(value)))
    return _Node(content, tuple(filter(None, inputs)), tuple(filter(None, outputs)), has_graph)


def _reached(name: str, nodes: Iterable[_Node]) -> set[str]:
    """Return all values that depend on one; nodes are in the order in which they are computed."""
    reached = {name}
    for node in nodes:
        if reached & {*node.inputs}:
            reached |= {*node.outputs}
    return reached


def _text(content: memoryview, field: int) -> str:
    return next((bytes(message_of(value)).decode() for number, value in fields_of(content) if number == field), "")


def _value(name: str) -> bytes:
    """Describe an input of float32, whose shape is not said."""
    return _field(1, name.encode()) + _field(2, _field(1, _field(1, _FLOAT)))


def _field(number: int, value: int | bytes | memoryview) -> bytes:
    """Write a field of a message."""
    if isinstance(value, int):
        return _varint(8 * number) + _varint(value)
    return _varint(8 * number + 2) + _varint(len(value)) + bytes(value)


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*written, value))
