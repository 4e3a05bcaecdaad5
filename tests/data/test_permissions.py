"""Folders and files that may not be read: one message that names them, for each kind of source."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_fingerprints import write_mnist, write_shards, write_table
from trees_ade20k import challenge_tree
from trees_coco import coco_tree
from trees_small import encoded
from trees_voc import voc_tree

_CAPABILITIES = ("dac_override", "dac_read_search")
_SCRIPT = """
import json, os, sys
from contextcaps.data import DataError, open_source
for spec, closed, mode in json.loads(sys.argv[1]):
    before = os.stat(closed).st_mode
    os.chmod(closed, mode)
    try:
        open_source(spec)
        answer = "opened"
    except DataError as error:
        answer = str(error)
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    finally:
        os.chmod(closed, before)
    print(json.dumps(answer))
"""


def answers(cases: list[tuple[str, str, int]], cache: Path) -> list[str]:
    """What a process without root's right to read everything is told of each source, a file of it being closed."""
    command = [sys.executable, "-c", _SCRIPT, json.dumps(cases)]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root may read everything, and setpriv, which takes that right away, is not here")
        without = ",".join(f"-{name}" for name in _CAPABILITIES)
        command = ["setpriv", f"--bounding-set={without}", f"--inh-caps={without}", *command]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "CONTEXTCAPS_CACHE": str(cache)}
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def write_parquet(folder: Path) -> str:
    datasets = pytest.importorskip("datasets")
    folder.mkdir()
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat"])})
    rows = {"image": [{"bytes": encoded(0), "path": None}], "label": [0]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / "train.parquet")
    return f"hf:{folder}"


@pytest.mark.long
def test_what_may_not_be_read_is_named(tmp_path):
    cases: list[tuple[str, Path]] = []

    def add(spec: str, *closed: Path) -> None:
        cases.extend((spec, path) for path in closed)

    data = {kind: tmp_path / kind for kind in ("table", "shards", "mnist", "hf", "coco", "voc", "ade20k")}
    for kind in ("coco", "voc", "ade20k"):
        data[kind].mkdir()
    add(write_table(data["table"]), data["table"], data["table"] / "labels.csv")
    add(write_shards(data["shards"]), data["shards"], data["shards"] / "train-0000.tar")
    add(f"shards:{data['shards']}/train-*.tar", data["shards"])
    add(write_mnist(data["mnist"]), data["mnist"], data["mnist"] / "train-labels-idx1-ubyte")
    add(write_parquet(data["hf"]), data["hf"], data["hf"] / "train.parquet")
    coco = coco_tree(data["coco"])
    add(f"coco:{coco}", coco, coco / "annotations", *sorted((coco / "annotations").glob("*train*.json")))
    voc = voc_tree(data["voc"])
    add(f"voc:{voc}", voc, voc / "ImageSets" / "Main", voc / "ImageSets" / "Main" / "train.txt", voc / "Annotations")
    add(f"voc:{voc}", voc / "SegmentationClass", voc / "Annotations" / "000005.xml")
    ade20k = challenge_tree(data["ade20k"])
    add(f"ade20k:{ade20k}", ade20k, ade20k / "images", ade20k / "images" / "training", ade20k / "objectInfo150.txt")

    # 400: a folder that can be listed, but not entered
    tried = [(spec, str(path), mode) for spec, path in cases for mode in (0o000, 0o400) if not mode or path.is_dir()]
    told = answers(tried, tmp_path / "cache")
    assert len(told) == len(tried) > 20
    wrong = [
        f"{case}: {answer}"
        for case, answer in zip(tried, told, strict=True)
        if Path(case[1]).name not in answer or "cannot be read" not in answer
    ]
    assert not wrong, "\n".join(wrong)
