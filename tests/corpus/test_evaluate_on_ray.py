"""An evaluation on Ray: the scores of one process, to the bit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from in_process import run_command

pytestmark = pytest.mark.long

COMPARE = """
import sys, torch
from contextcaps.corpus.predicting import OnRay
from contextcaps.training.evaluate import evaluate
torch.set_num_threads(1)
model, data, out = sys.argv[1:]
given = dict(data=data, batch_size=16, prepare=False, on_bad="skip", resamples=5, progress=False, accelerator="cpu")
one = evaluate(model, out=out + "/one", **given)
ray = evaluate(model, out=out + "/ray", elsewhere=OnRay(workers=2, cores=2), **given)
assert torch.equal(one.predictions.scores, ray.predictions.scores)
assert torch.equal(one.predictions.targets, ray.predictions.targets)
assert torch.equal(one.predictions.indices, ray.predictions.indices)
print(len(ray.predictions))
"""


def test_scores_and_metrics_of_one_process(corpus: Path, model: Path, tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    names = sorted(path.name for path in (corpus / "plain").iterdir() if path.name != "empty.png")
    rows = [f"{name},{'abcde'[place % 5]}" for place, name in enumerate(names)]
    table.write_text("\n".join(["image,labels", *rows]))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "RAY_A"))}
    words = [sys.executable, "-c", COMPARE, model, f"table:{table}?root={corpus}/plain", tmp_path]
    done = subprocess.run(
        list(map(str, words)),
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split()[-1] == "100"  # of 101, one of which cannot be read
    one, ray = ((tmp_path / name / "evaluation.json").read_text() for name in ("one", "ray"))
    assert one == ray


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--engine", "ray", "--devices", "2"], "--devices: not with --engine ray"),
        (["--engine", "ray", "--known", "0.5"], "--known: not with --engine ray"),
        (["--workers", "2"], "--workers: not with --engine local"),
    ],
)
def test_what_does_not_go_together_is_one_line(model: Path, capsys, words, says) -> None:
    code, _, said = run_command("evaluate", [model, "--data", "scenes", *words], capsys)
    assert code == 2
    assert says in said
