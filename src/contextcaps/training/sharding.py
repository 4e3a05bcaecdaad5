"""Weights shared among processes (FSDP): how a network is divided, and its state put together for a checkpoint."""

from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor

__all__ = ["full_state", "load_full_state", "local_part", "shard_network"]


def shard_network(module: Any, mesh: Any) -> Any:
    """Divide a module's weights among the processes of a mesh: its vote weights on their own, then the rest.

    Each part is put together just before it is used and let go right after, so that the largest one, the vote weights,
    is never on a process longer than it needs it.
    """
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = mesh["data_parallel"]
    head = module.network.head
    correlation = getattr(head, "correlation", None)  # a rival head has neither, and nothing as large
    for part in (getattr(head, "votes", None), correlation):
        if part is not None:
            fully_shard(part, mesh=mesh, reshard_after_forward=True)
    if correlation is not None:
        register_fsdp_forward_method(correlation, "weights")  # which is what the head calls
    fully_shard(module.network, mesh=mesh, reshard_after_forward=True)
    return module


def full_state(network: nn.Module, optimizer: Any, sharded: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The whole state of a network and its optimiser, on the CPU; with shards, all processes have to call it."""
    if not sharded:
        return _on_cpu(network.state_dict()), _on_cpu(optimizer.state_dict())
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_state_dict(network, optimizer, options=options)


def load_full_state(
    network: nn.Module, optimizer: Any, weights: dict[str, Any], state: dict[str, Any], sharded: bool
) -> None:
    """Give a network and its optimiser the state that `full_state` made."""
    if not sharded:
        network.load_state_dict(weights)
        optimizer.load_state_dict(state)
        return
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    set_state_dict(network, optimizer, model_state_dict=weights, optim_state_dict=state, options=options)


def _on_cpu(state: Any) -> Any:
    """Its tensors copied to the CPU; plain values as they are."""
    if isinstance(state, torch.Tensor):
        return state.detach().cpu().clone()
    if isinstance(state, dict):
        return {name: _on_cpu(value) for name, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_on_cpu(value) for value in state)
    return state


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of a tensor; all of it where nothing is shared."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
