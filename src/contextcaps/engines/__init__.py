"""Other ways to compute the capsule head than with all votes in memory, and the one place that chooses between them.

| engine | what it does |
|---|---|
| plain | all votes [B, K, J, I] in memory, by the functions of `contextcaps.capsules`: no engine at all |
| lean | plain PyTorch, the votes of a few capsules at a time: for CPUs, and for GPUs without Triton |
| triton | Triton kernels; the votes lie in memory once, in compact form |

What a head does with its votes after the CRF is one of two things: dynamic routing with a softmax over classes
(`route`), or one weighted sum over capsules (`weighted_sum`). An engine is a module with these two and with the
correlation module's weights; `Engine` lists their arguments. Letters as in `contextcaps.capsules`.
"""

from contextcaps.engines.choose import (
    EngineName,
    EngineUnavailableError,
    RequestedEngine,
    choose_engine,
    computing_dtype,
    load_engine,
    require_engine,
)
from contextcaps.engines.operands import Engine, VoteOperands

__all__ = [
    "Engine",
    "EngineName",
    "EngineUnavailableError",
    "RequestedEngine",
    "VoteOperands",
    "choose_engine",
    "computing_dtype",
    "load_engine",
    "require_engine",
]
