"""Processes and devices by Lightning's Fabric: one process or several, on one machine or more; FSDP; precision.

PyTorch Lightning and its Fabric are imported here and nowhere else.
"""

import atexit
import dataclasses
import logging
import os
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor

from contextcaps.documents import counted
from contextcaps.evaluation.predictions import Precision
from contextcaps.extras import import_extra
from contextcaps.training.config import TrainConfig
from contextcaps.training.elastic import join_processes

__all__ = [
    "Fabric",
    "LightningModule",
    "agree",
    "device_name",
    "full_state_dict",
    "keep_global_batch",
    "load_full_state_dict",
    "local_shard",
    "make_fabric",
    "resolve_processes",
    "resolved_precision",
]

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from pytorch_lightning import LightningModule
else:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of packages that it imports
        LightningModule = import_extra("pytorch_lightning", "train", "training").LightningModule
        Fabric = import_extra("lightning_fabric", "train", "training").Fabric

for _name in ("lightning_fabric", "pytorch_lightning"):
    logging.getLogger(_name).setLevel(logging.WARNING)  # it would repeat what is printed of processes and devices
warnings.filterwarnings("ignore", message=r".*`isinstance\(treespec, LeafSpec\)` is deprecated", category=FutureWarning)

_PLUGINS: dict[Precision, str] = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
_FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


def resolve_processes(config: TrainConfig) -> TrainConfig:
    """Return the configuration with its precision chosen, and the number of processes that torchrun started.

    Raises:
        ValueError: this machine cannot do what the configuration asks for.
    """
    gpu = _uses_gpu(config)
    if config.accelerator == "gpu" and not gpu:
        raise ValueError("accelerator: expected cpu or auto, as torch sees no GPU here, got gpu")
    if "TORCHELASTIC_RUN_ID" in os.environ:
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
        asked = (config.devices, config.nodes)
        if asked not in ((1, 1), (devices, nodes)):
            raise ValueError(f"devices, nodes: expected {devices}, {nodes}, as torchrun was told, got {asked}")
        config = dataclasses.replace(config, devices=devices, nodes=nodes)
    if gpu and config.devices > torch.cuda.device_count():
        raise ValueError(f"devices: expected at most {torch.cuda.device_count()}, the GPUs here, got {config.devices}")
    if config.compile and not gpu:
        _require_compiler()
    return dataclasses.replace(config, precision=_precision(config, gpu))


def keep_global_batch(config: TrainConfig) -> TrainConfig:
    """Return a begun run's configuration for as many processes as torchrun started now, with the same batches in all.

    A step then sees the same images whatever the number of processes, and its number means the same place in an epoch.

    Raises:
        ValueError: the batch cannot be divided among them.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return config
    devices, world = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    before = config.devices * config.nodes
    whole = config.batch_size * before
    if whole % world:
        raise ValueError(
            f"this run has batches of {whole} images, which {world} processes cannot divide evenly; it began with "
            f"{before} processes"
        )
    shard = config.shard and world > 1
    return dataclasses.replace(config, devices=devices, nodes=world // devices, batch_size=whole // world, shard=shard)


def make_fabric(config: TrainConfig) -> Fabric:
    """Launch the fabric that a resolved configuration asks for: from here on, all processes run."""
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS is refused
        torch.use_deterministic_algorithms(True)
    fabric = Fabric(
        accelerator="cuda" if _uses_gpu(config) else "cpu",
        devices=config.devices,
        num_nodes=config.nodes,
        strategy=_strategy(config),
        precision=_PLUGINS[resolved_precision(config)],  # type: ignore[arg-type]
    )
    join_processes(_uses_gpu(config))
    fabric.launch()
    if torch.distributed.is_initialized():
        atexit.register(_leave_processes)
    return fabric


def _leave_processes() -> None:
    """Leave the process group while the interpreter still stands.

    A thread of Gloo may still hold a finished message when Python begins to end; dropping it then aborts the process.
    Fabric itself leaves only NCCL's groups.
    """
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def agree(fabric: Fabric, *flags: bool) -> tuple[bool, ...]:
    """Return each flag as true if it is true in any process."""
    if fabric.world_size == 1:
        return flags
    votes = torch.tensor([float(flag) for flag in flags], device=fabric.device)
    return tuple(bool(vote > 0) for vote in fabric.all_reduce(votes, reduce_op="sum"))


def resolved_precision(config: TrainConfig) -> Precision:
    """Return the precision of a resolved configuration."""
    if config.precision == "auto":
        raise ValueError("precision: expected a resolved configuration, got auto")
    return config.precision


def _uses_gpu(config: TrainConfig) -> bool:
    return torch.cuda.is_available() and config.accelerator != "cpu"


def _require_compiler() -> None:
    """Refuse to compile for a CPU where torch finds no C++ compiler; it would say so in the first step only."""
    from torch._inductor import config, cpp_builder, exc  # here, as they take long to import

    try:
        cpp_builder.get_cpp_compiler()
    except (exc.InvalidCxxCompiler, OSError):
        cxx = config.cpp.cxx  # one, or several to try
        tried = ", ".join(str(each) for each in (cxx if isinstance(cxx, list | tuple) else [cxx]) if each is not None)
        raise ValueError(
            f"compile: needs a C++ compiler (tried {tried}); install one, or train without --compile"
        ) from None


def _precision(config: TrainConfig, gpu: bool) -> Precision:
    if config.precision == "auto":
        return "bf16" if gpu and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    if config.precision == "fp16" and not gpu:
        raise ValueError("precision: expected fp32 or bf16 on a CPU, got fp16")
    return config.precision


def _strategy(config: TrainConfig) -> Any:
    processes = config.devices * config.nodes
    if config.shard:
        from lightning_fabric.strategies import ModelParallelStrategy  # type: ignore[attr-defined]

        return ModelParallelStrategy(parallelize_fn=_shard, data_parallel_size=processes, tensor_parallel_size=1)
    return "ddp" if processes > 1 else "auto"


def device_name(device: torch.device) -> str:
    """Return a description of a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {os.cpu_count()} cores, {counted(torch.get_num_threads(), 'thread')}"


def _shard(module: Any, mesh: Any) -> Any:
    """Shard a module's weights over the processes of a mesh (FSDP): its vote weights on their own, then the rest.

    Each part is gathered just before it is used and freed right after, so that the largest one, the vote weights, is
    never whole on a process longer than needed.
    """
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = mesh["data_parallel"]
    head = module.network.head
    correlation = getattr(head, "correlation", None)  # a baseline head has neither, and nothing as large
    for part in (getattr(head, "votes", None), correlation):
        if part is not None:
            fully_shard(part, mesh=mesh, reshard_after_forward=True)
    if correlation is not None:
        register_fsdp_forward_method(correlation, "weights")  # which is what the head calls
    fully_shard(module.network, mesh=mesh, reshard_after_forward=True)
    return module


def full_state_dict(network: nn.Module, optimizer: Any, sharded: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the whole state of a network and its optimiser, on the CPU; if sharded, all processes have to call it."""
    if not sharded:
        return _on_cpu(network.state_dict()), _on_cpu(optimizer.state_dict())
    return get_state_dict(network, optimizer, options=_FULL)


def load_full_state_dict(
    network: nn.Module, optimizer: Any, weights: dict[str, Any], state: dict[str, Any], sharded: bool
) -> None:
    """Load the state that `full_state_dict` returned, sharded or not, into a network and its optimiser."""
    by_name = any(isinstance(name, str) for group in state["param_groups"] for name in group["params"])
    if sharded and not by_name:
        state = _by_name(network, optimizer, state)
    if not sharded and not by_name:
        network.load_state_dict(weights)
        optimizer.load_state_dict(state)
    else:
        set_state_dict(network, optimizer, model_state_dict=weights, optim_state_dict=state, options=_FULL)


def _by_name(network: nn.Module, optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Return an optimiser's state with parameters by their names, as sharded ones have it, instead of their places."""
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    of_groups = [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]
    flat = [name for group in of_groups for name in group]
    groups = zip(state["param_groups"], of_groups, strict=True)
    return {
        "state": {flat[place]: value for place, value in state["state"].items()},
        "param_groups": [{**group, "params": of_group} for group, of_group in groups],
    }


def _on_cpu(state: Any) -> Any:
    """Copy the tensors in a nested state to the CPU; keep plain values as they are."""
    if isinstance(state, torch.Tensor):
        return state.detach().cpu().clone()
    if isinstance(state, dict):
        return {name: _on_cpu(value) for name, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_on_cpu(value) for value in state)
    return state


def local_shard(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's shard of a tensor; all of it where it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
