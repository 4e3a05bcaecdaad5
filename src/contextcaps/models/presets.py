"""The paper's rows as named configurations: what each differs in from the plain CapsNet, and nothing else.

`contextcaps` is the plain CapsNet with what was found to help: docs/decisions/decision-field.md. The paper's modules
are not in it, since none of them gained anything beside that: docs/results/paper.md.
Then controls, and baseline heads: what one would use instead of capsules, on the same backbones.

A preset ending in `-literal` follows the paper to the letter where the text can be followed, also where that cannot
learn; docs/decisions/ tells what each reading does.
"""

from typing import Any

__all__ = ["PRESETS", "Preset"]

Preset = dict[str, Any]

_RW: Preset = {"initial_routing": {"mode": "couplings"}}
_CRF: Preset = {"crf": {"mode": "centred"}}
_CORR: Preset = {"routing": None, "correlation": {}, "initial_routing": {"mode": "gate"}}
_FIELD: Preset = {"field": {"global_branch": True}}

_PLAIN: Preset = {"capsules": {"start_length": None, "decision_bias": False}}
_RW_LITERAL: Preset = {"initial_routing": {"mode": "logits", "start": None}}
_CRF_LITERAL: Preset = {"crf": {"mode": "literal"}}
# C_j = f_ρ of the votes: there is no routing, so RW has no weights to start, and is left out.
_CORR_LITERAL: Preset = {"routing": None, "correlation": {"start": "literal"}}

_NO_CAPSULES: Preset = {"capsules": None, "routing": None}

PRESETS: dict[str, tuple[str, Preset]] = {
    "capsnet": ("Sabour et al. 2017: dynamic routing", {}),
    "capsnet-rw": ("+ trainable initial routing weights", {**_RW}),
    "capsnet-rw-crf": ("+ mean-field CRF over the votes", {**_RW, **_CRF}),
    "capsnet-rw-crf-corr": ("+ correlation module in place of routing", {**_RW, **_CRF, **_CORR}),
    "contextcaps": ("capsnet with a mean field between decisions and a global branch", {**_FIELD}),
    "contextcaps-rw-crf-corr": (
        "control: contextcaps with all of the paper's modules, which gain nothing beside the field",
        {**_RW, **_CRF, **_CORR, **_FIELD},
    ),
    "capsnet-literal": (
        "Sabour et al. 2017 to the letter: plain start, no bias, with reconstruction",
        {**_PLAIN, "reconstruction": True},
    ),
    "capsnet-rw-literal": ("RW to the letter: routing logits, a no-op", {**_PLAIN, **_RW_LITERAL}),
    "capsnet-rw-crf-literal": ("+ Algorithm 1 to the letter", {**_PLAIN, **_RW_LITERAL, **_CRF_LITERAL}),
    "capsnet-rw-crf-corr-literal": (
        "+ correlation module to the letter, the paper's last row: no routing, so nothing for RW to start",
        {**_PLAIN, **_CRF_LITERAL, **_CORR_LITERAL},
    ),
    "capsnet-uniform": ("control: one routing iteration, all votes weigh alike", {"routing": {"iterations": 1}}),
    "capsnet-em": ("control: Hinton et al. 2018, EM routing", {"routing": None, "em": {}}),
    "gap": ("baseline: global average pooling and a linear layer", {**_NO_CAPSULES, "pooling": {"mode": "average"}}),
    "gmp": ("baseline: global max pooling and a linear layer", {**_NO_CAPSULES, "pooling": {"mode": "max"}}),
    "csra": ("baseline: Zhu and Wu 2021, average pooling with attention per class", {**_NO_CAPSULES, "csra": {}}),
    "ml-decoder": ("baseline: Ridnik et al. 2021, fixed queries, cross-attention", {**_NO_CAPSULES, "ml_decoder": {}}),
    "query2label": (
        "baseline: Liu et al. 2021, a transformer decoder over labels",
        {**_NO_CAPSULES, "query2label": {}},
    ),
    "ml-gcn": ("baseline: Chen et al. 2019, a graph of the labels", {**_NO_CAPSULES, "ml_gcn": {}}),
    "c-tran": (
        "baseline: Lanchantin et al. 2021, a transformer encoder that takes known labels",
        {**_NO_CAPSULES, "c_tran": {}},
    ),
}
"""Name → what it is, and its settings."""
