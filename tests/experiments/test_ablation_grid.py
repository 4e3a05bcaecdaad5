"""Models with settings, plans, and hyper-parameters to try."""

import dataclasses
import json
from pathlib import Path

import pytest

from contextcaps.experiments.ablation.choosing import choose, points, try_folder
from contextcaps.experiments.ablation.grid import Plan, check_run, parse_models
from contextcaps.experiments.ablation.worker import has_diverged
from contextcaps.training.config import TrainConfig
from contextcaps.training.runs import RunError


def plan_of(models: str = "capsnet,contextcaps", seeds: int = 2, **changes) -> Plan:
    entries = parse_models(models)
    settings = {"base": TrainConfig(), "baseline": entries[0].label, **changes}
    return Plan(entries=entries, seeds=tuple(range(seeds)), **settings)


def test_models_with_settings() -> None:
    text = "capsnet,contextcaps:crf.rank=8,field=none,narrow=capsnet:capsules.types=4,lr=0.01,plain=contextcaps,gap"
    plain, shared, narrow, named, baseline = parse_models(text)
    assert (plain.label, plain.preset, plain.options, plain.training) == ("capsnet", "capsnet", {}, {})
    assert (shared.label, shared.options) == ("contextcaps-crf.rank=8-field=none", {"crf.rank": 8, "field": "none"})
    assert (narrow.label, narrow.preset, narrow.options) == ("narrow", "capsnet", {"capsules.types": 4})
    assert narrow.training == {"lr": 0.01}
    assert narrow.settings == "capsules.types=4, lr=0.01"
    assert (named.label, named.preset, named.settings) == ("plain", "contextcaps", "")
    assert baseline.training == {}
    assert parse_models("gap:loss=asl")[0].training == {"loss": "asl"}
    assert parse_models(["capsnet", "capsnet-rw,contextcaps"]) == parse_models("capsnet,capsnet-rw,contextcaps")


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ("capsnet,,contextcaps", "expected names with commas"),
        ((), "expected names with commas between, got none"),
        ("capsnt", "did you mean 'capsnet'"),
        ("a=capsnt:capsules.types=2", "did you mean 'capsnet'"),
        ("capsnet:capsules.types", "expected NAME=VALUE, got 'capsules.types'"),
        ("capsnet:type=2", "capsnet-type=2: type: no such field.*did you mean 'capsules.types'"),
        ("capsnet:capsules.types=0", r"capsules\.types: expected a whole number of at least 1"),
        ("capsnet:crf.rank=2", r"crf\.rank: capsnet has no CRF; add it with crf=default"),
        ("capsnet:epochs=3", "epochs is the same for all models"),
        ("capsnet:loss=wrong", "loss: expected one of"),
        ("capsnet:known=0.5", r"capsnet-known=0.5: known: this network \(capsnet\) cannot be told labels"),
        ("a b=capsnet", "expected letters, digits"),
        ("capsnet,capsnet", "more than once"),
    ],
)
def test_wrong_models(models: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_of(models)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"baseline": "gap"}, "baseline: expected one of capsnet, contextcaps, got 'gap'"),
        ({"seeds": 0}, "seeds"),
        ({"tries": 0}, "tries: expected a whole number of at least 1"),
        ({"try_lr": (0.0,)}, "try_lr: expected factors above 0"),
        ({"try_losses": ("hinge",)}, "try_losses: expected some of margin"),
        ({"base": TrainConfig(devices=2)}, "devices, nodes: expected 1 each"),
        ({"base": TrainConfig(val_data="scenes?split=test")}, "--test-data"),
        (
            {"base": TrainConfig(val_data="scenes?split=val"), "test_data": "scenes"},
            "test_data: expected another source",
        ),
    ],
)
def test_wrong_plans(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_of(**changes)


def test_what_runs_share_and_what_not(tmp_path) -> None:
    plan = plan_of(
        "capsnet,narrow=contextcaps:capsules.types=8,ema=0.9",
        base=TrainConfig(seed=5, options={"capsules.attributes": 4}),
    )
    first, other = (plan.config(entry, seed, tmp_path) for entry, seed in zip(plan.entries, (5, 6), strict=True))
    assert first.split_seed == other.split_seed == 5
    assert first.val_as_test
    assert other.options == {"capsules.attributes": 4, "capsules.types": 8}
    assert (other.model, other.ema, other.seed) == ("contextcaps", 0.9, 6)
    changed = {"model", "options", "seed", "ema"}
    for field in dataclasses.fields(TrainConfig):
        if field.name not in changed:
            assert getattr(first, field.name) == getattr(other, field.name), field.name


def test_shared_options_concern_the_models_that_have_the_module() -> None:
    base = TrainConfig(options={"capsules.types": 4, "crf.iterations": 1})
    plan = plan_of("capsnet,capsnet-rw-crf,bare=capsnet-rw-crf:crf=none,gap", base=base)
    options = {entry.label: plan.config(entry, 0, None).options for entry in plan.entries}
    assert options == {
        "capsnet": {"capsules.types": 4},
        "capsnet-rw-crf": {"capsules.types": 4, "crf.iterations": 1},
        "bare": {"capsules.types": 4, "crf": "none"},
        "gap": {},
    }
    with pytest.raises(ValueError, match=r"set: crf\.iterations: none of the models has crf"):
        plan_of("capsnet,gap", base=base)
    assert plan_of("gap,gmp", base=TrainConfig(options={"capsules.types": 4}))
    added = plan_of("capsnet", base=TrainConfig(options={"crf.rank": 2, "crf": "default"}))
    assert added.config(added.entries[0], 0, None).options == {"crf.rank": 2, "crf": "default"}


def test_a_plan_is_read_as_it_was_written(tmp_path) -> None:
    plan = plan_of("capsnet,narrow=contextcaps:capsules.types=8,lr=0.01", tries=3)
    plan.write(tmp_path, command="x")
    assert Plan.read(tmp_path) == (plan, json.loads((tmp_path / "grid.json").read_text()))
    (tmp_path / "grid.json").write_text("{")
    with pytest.raises(RunError, match=r"grid.json: damaged"):
        Plan.read(tmp_path)
    with pytest.raises(RunError, match="no ablation"):
        Plan.read(tmp_path / "nowhere")


def test_plans_can_grow_but_not_change() -> None:
    plan = plan_of()
    assert plan_of("capsnet,contextcaps,capsnet-rw", seeds=5).differences(plan) == []
    assert plan_of(base=TrainConfig(cache="elsewhere", workers=1)).differences(plan) == []
    assert plan_of(base=TrainConfig(epochs=3)).differences(plan) == ["epochs: 20, now 3"]
    assert plan_of(tries=2).differences(plan) == ["tries: 1, now 2"]
    changed = plan_of("capsnet,contextcaps=contextcaps:capsules.types=8").differences(plan)
    assert changed == ["contextcaps: contextcaps, now contextcaps:capsules.types=8"]


def test_a_run_with_other_settings_is_refused() -> None:
    wanted = TrainConfig(out="run", lr=0.01)
    check_run(wanted, dataclasses.replace(wanted, precision="fp32", backbone="small", cache="x"))
    with pytest.raises(RunError, match=r"run: holds a run with other settings \(lr: 0.1, not 0.01\)"):
        check_run(wanted, dataclasses.replace(wanted, lr=0.1))


def test_the_same_tries_for_all() -> None:
    plan = plan_of("capsnet,capsnet-rw,other=capsnet:loss=asl,lr=0.01,contextcaps", tries=9)
    plain, context, other, sigmoids = (points(plan, entry) for entry in plan.entries)
    assert plain == context
    assert sigmoids[0] == {"lr": 1e-3, "loss": "bce"}
    assert plain[0] == {"lr": 1e-3, "loss": "margin"}
    assert other[0] == {"lr": 1e-2, "loss": "asl"}
    for tried in (plain, other):
        assert len({tuple(sorted(point.items())) for point in tried}) == 9
    assert [round(point["lr"] * 10, 5) for point in plain] == [round(point["lr"], 5) for point in other]
    assert points(dataclasses.replace(plan, tries=2), plan.entries[0]) == plain[:2]
    both = plan_of("capsnet,gap", tries=2, try_lr=(1.0,), try_losses=("asl",))
    assert [[point["loss"] for point in points(both, entry)] for entry in both.entries] == [
        ["margin", "asl"],
        ["bce", "asl"],
    ]
    third = plan_of("capsnet,gap,capsnet-asl=capsnet:loss=asl", tries=2, try_lr=(1.0,), try_losses=("asl",))
    assert [points(third, entry) for entry in third.entries[:2]] == [points(both, entry) for entry in both.entries]
    assert [point["loss"] for point in points(third, third.entries[2])] == ["asl", "margin"]
    alone = plan_of("capsnet,gap", tries=3, try_losses=())
    assert [point["loss"] for point in points(alone, alone.entries[1])] == ["bce"] * 3
    twice = plan_of("capsnet", tries=2, try_lr=(3.0, 3.0, 1.0), try_losses=())
    assert [point["lr"] for point in points(twice, twice.entries[0])] == [1e-3, 3e-3]
    with pytest.raises(ValueError, match="tries: expected at most 9"):
        points(dataclasses.replace(plan, tries=10), plan.entries[0])


def test_the_best_try_on_validation_is_chosen(tmp_path: Path) -> None:
    plan = plan_of("capsnet", tries=3)
    (entry,) = plan.entries
    with pytest.raises(RunError, match="tries 1, 2, 3 have not come to an end"):
        choose(plan, entry, tmp_path)
    for number, values in ((1, (0.3, 0.2)), (3, (0.1, 0.4))):
        folder = try_folder(tmp_path, entry, number)
        folder.mkdir(parents=True)
        lines = [f"{epoch},{value}" for epoch, value in enumerate(values, 1)]
        (folder / "metrics.csv").write_text("\n".join(["epoch,val_mAP", *lines]) + "\n")
        (folder / "run.json").write_text(json.dumps({"state": "finished"}))
    with pytest.raises(RunError, match="try 2 has not come to an end, so that nothing is chosen"):
        choose(plan, entry, tmp_path)  # the others are, but all models have the same number of tries
    diverged = try_folder(tmp_path, entry, 2)
    diverged.mkdir()
    (diverged / "metrics.csv").write_text("epoch,val_mAP\n1,0.9\n")
    (diverged / "run.json").write_text(
        json.dumps({"state": "failed", "failure": {"kind": "diverged", "message": "nan"}})
    )
    assert has_diverged(diverged)
    assert not has_diverged(folder)
    choice = choose(plan, entry, tmp_path)
    assert choice.settings == points(plan, entry)[2]
    assert [each.mAP for each in choice.tries] == pytest.approx([0.3, float("nan"), 0.4], nan_ok=True)
    assert choose(dataclasses.replace(plan, tries=1), entry, tmp_path).settings == {}
    for damaged in ("", "epoch,val_mAP\n", "epoch\n1\n", "epoch,val_mAP\n1,x\n"):
        (try_folder(tmp_path, entry, 1) / "metrics.csv").write_text(damaged)
        with pytest.raises(RunError, match=r"metrics\.csv: damaged; remove .*try-1 and run again"):
            choose(plan, entry, tmp_path)
