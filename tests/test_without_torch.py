"""An installation without torch tags, explains and lists models; what needs torch says so in one line."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from contextcaps.models.loading import shipped_names

_WITHOUT = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "huggingface_hub", "onnx", "onnxscript", "pytorch_lightning"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
"""


def run(code: str, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", _WITHOUT + code, *words], capture_output=True, text=True, timeout=120)


def command(*words: str) -> subprocess.CompletedProcess:
    return run("from contextcaps.cli import main\nmain(sys.argv[1:])", *words)


def test_importing_loads_no_numpy_and_no_runtime() -> None:
    """The packages that the first tag waits for are not what `import contextcaps` and --help wait for."""
    code = "import contextcaps\nprint([name for name in ('numpy', 'onnxruntime', 'tyro') if name in sys.modules])"
    done = run(code)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_models_are_listed() -> None:
    done = command("models")
    assert done.returncode == 0, done.stderr
    assert "Presets" in done.stdout


@pytest.mark.long
@pytest.mark.skipif("coco80" not in shipped_names(), reason="installed without its model")
def test_the_shipped_model_tags_and_explains(tmp_path) -> None:
    image = tmp_path / "a.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 200, 3), dtype=np.uint8)).save(image)
    code = """
import json, contextcaps
tagger = contextcaps.load()
(tagging,) = tagger.tag(sys.argv[1], threshold=0)
explained = tagger.explain(sys.argv[1], ["cat"], known={"dog": True})
cat = next(each for each in explained.classes if each.name == "cat")
print(json.dumps([len(tagging.tags), cat.logit - cat.total(), repr(tagger)]))
"""
    done = run(code, str(image))
    assert done.returncode == 0, done.stderr
    count, rest, shown = json.loads(done.stdout)
    assert (count, shown) == (80, "Tagger(" + shown[7:])
    assert abs(rest) < 1e-3
    assert shown.endswith("on cpu)")
    done = command("tag", str(image), "--out", str(tmp_path / "rows.jsonl"), "--html", str(tmp_path / "page.html"))
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "rows.jsonl").read_text())["image"] == str(image)


@pytest.mark.parametrize(
    "words", [["train", "--data", "scenes"], ["evaluate", "coco80"], ["models", "gap"], ["export", "coco80"]]
)
def test_what_needs_torch_says_so_in_one_line(words) -> None:
    done = command(*words)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "pip install 'contextcaps[" in line


@pytest.mark.skipif("coco80" not in shipped_names(), reason="installed without its model")
def test_the_server_needs_no_torch() -> None:
    pytest.importorskip("fastapi")
    code = """
from contextcaps.serving.app import create_app
from contextcaps.serving.config import ServeConfig
from contextcaps.serving.opening import open_engine
engine = open_engine("coco80", "coco80", "cpu")
create_app(ServeConfig(), {"coco80": engine})
print(type(engine).__name__, engine.asks, "torch" in sys.modules)
"""
    done = run(code)
    assert (done.stdout.strip(), done.returncode) == ("OnnxEngine True False", 0), done.stderr
