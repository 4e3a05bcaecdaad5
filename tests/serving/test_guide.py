"""The guide's commands and its client do what it says, against a server."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest_of_serving import CLASSES

GUIDE = Path(__file__).parents[2] / "docs/guides/serving.md"


@pytest.fixture
def guide(client, photographs, tmp_path, monkeypatch) -> str:
    """Its text for this server, whose model knows other classes; a reader's photographs are in this folder."""
    monkeypatch.chdir(tmp_path)
    for name, content in zip(("beach.jpg", "street.jpg"), photographs, strict=False):
        Path(name).write_bytes(content)
    text = GUIDE.read_text(encoding="utf-8")
    return text.replace("http://localhost:8000", client.address).replace("person=", "car=").replace('"person"', '"car"')


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl(guide) -> None:
    (block,) = re.findall(r"```shell\n(.*?)```", guide, re.DOTALL)
    answers = [
        json.loads(subprocess.run(line.split(), capture_output=True, check=True).stdout) for line in block.splitlines()
    ]
    assert [row["image"] for row in answers[0]["results"]] == ["beach.jpg", "street.jpg"]
    assert answers[1]["results"][0]["given"] == {"car": True}
    assert set(answers[1]["results"][0]["scores"]) == set(CLASSES)
    assert answers[2]["results"][0]["classes"][0]["why"]
    assert answers[3]["models"][0]["name"] == "kitchens"


def test_the_client(guide, capsys) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert sum(map(bool, block.splitlines())) <= 10
    exec(compile(block, "the guide", "exec"), {})
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == ["beach.jpg", "street.jpg"]
    assert all("'car'" in line for line in shown)


def test_the_limits_are_those_of_the_program() -> None:
    from contextcaps.serving.config import ServeConfig

    text, config = GUIDE.read_text(encoding="utf-8"), ServeConfig(model=("coco80",))
    rows = re.findall(r"\| `--([\w-]+)` \| (\d+)", text)
    assert len(rows) == 7
    for flag, value in rows:
        assert getattr(config, flag.replace("-", "_")) == int(value), flag
