"""What the documents show is true: README's code runs, the picture is what its script draws, links lead somewhere."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(*documents: str) -> list:
    """The Python in some documents."""
    return [
        pytest.param(block, id=f"{name}-{number}")
        for name in documents
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL), 1)
    ]


@pytest.mark.parametrize("block", blocks("README.md", "docs/guides/training.md"))
def test_examples_run(block, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONTEXTCAPS_CACHE", str(tmp_path / "cache"))
    exec(compile(block, "a document", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_the_architecture_picture_is_what_its_script_draws() -> None:
    script = ROOT / "docs/figures/architecture.py"
    spec = importlib.util.spec_from_file_location("architecture", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert script.with_suffix(".svg").read_text(encoding="utf-8") == module.build()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (document.parent / target).exists(), target
