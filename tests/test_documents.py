"""What the documents show is true: their code runs, commands parse, pictures are current, links and paths exist."""

import importlib.util
import re
from pathlib import Path

import pytest
from PIL import Image

from contextcaps.extras import import_extra
from contextcaps.models import list_models
from contextcaps.models.registry import model_config

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *PAGES]
REPOSITORY = "https://github.com/contextcaps/contextcaps"
SITE = "https://contextcaps.readthedocs.io/en/latest/"
# The album and the run of the one are made up, tests/tagging has what it shows; tests/serving runs the other.
NOT_RUN = {"docs/guides/tagging.md", "docs/guides/serving.md"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def python_blocks() -> list:
    """The Python of all documents, but for those that need files of the reader's own."""
    return [
        pytest.param(block, id=f"{name_of(path)}-{number}")
        for path in DOCUMENTS
        if name_of(path) not in NOT_RUN
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", text_of(path), re.DOTALL), 1)
    ]


def commands() -> list[tuple[str, str]]:
    """Every `contextcaps` command in a fenced block, lines that go on joined: document and command."""
    found = []
    for path in DOCUMENTS:
        for block in re.findall(r"```(?:shell)?\n(.*?)```", text_of(path), re.DOTALL):
            joined = re.sub(r"\\\n\s*", "", block)
            found += [(name_of(path), line) for line in joined.splitlines() if line.startswith("contextcaps ")]
    return found


@pytest.mark.long
@pytest.mark.parametrize("block", python_blocks())
def test_examples_run(block, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    import_extra("pytorch_lightning", "train", "the examples")  # also beside a torchvision that does not fit torch
    for name in re.findall(r"[\w-]+\.jpg", block):  # a reader has photographs of these names
        Image.new("RGB", (64, 48), (120, 90, 60)).save(tmp_path / name)
    monkeypatch.setenv("CONTEXTCAPS_CACHE", str(tmp_path / "cache"))
    exec(compile(block, "a document", "exec"), {})
    shown = capsys.readouterr().out
    assert shown.strip()
    assert "error=" not in shown.replace("error=None", "")


def test_options_in_commands_exist() -> None:
    """`--set` and `--models` in commands name options that a network of that model has."""
    seen = 0
    for document, command in commands():
        words = re.sub(r"\s#.*", "", command).replace("'", "").split()
        model = words[words.index("--model") + 1] if "--model" in words else "contextcaps"
        options = []
        if "--set" in words:
            for word in words[words.index("--set") + 1 :]:
                if word.startswith("--"):
                    break
                options.append(word)
        base = "capsnet" if "--models" in words or model not in list_models() else model
        if options:
            seen += 1
            check(document, base, options)
        if "--models" in words:
            for variant in variants(words[words.index("--models") + 1 :]):
                seen += 1
                check(document, *variant)
    assert seen > 40


def variants(words: list[str]) -> list[tuple[str, list[str]]]:
    """What `--models` compares: preset and options of each, as "LABEL=PRESET:option=value,option=value" has them."""
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            break
        for part in word.split(","):
            name = re.fullmatch(r"(?:[\w-]+=)?([\w-]+)(?::(.+))?", part)
            if name and name[1] in list_models():
                found.append((name[1], [name[2]] if name[2] else []))
            else:
                found[-1][1].append(part)
    return found


def check(document: str, model: str, options: list[str]) -> None:
    of_training = {"loss", "lr", "weight_decay", "class_weights", "clip", "ema", "known"}
    pairs = dict(option.split("=", 1) for option in options)
    settings = {name: parsed(value) for name, value in pairs.items() if name not in of_training}
    try:
        model_config(model, 5, **settings)
    except ValueError as error:
        pytest.fail(f"{document}: {model} with {options}: {error}")


def parsed(value: str) -> object:
    if value in ("true", "false"):
        return value == "true"
    return int(value) if value.isdigit() else value


def test_the_architecture_picture_is_what_its_script_draws() -> None:
    script = ROOT / "docs/figures/architecture.py"
    spec = importlib.util.spec_from_file_location("architecture", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert script.with_suffix(".svg").read_text(encoding="utf-8") == module.build()


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(document) -> None:
    text = text_of(document)
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)|<img src=\"([^\"]+)\"", text):
        path = target[0] or target[1]
        if path.startswith(REPOSITORY + "/"):  # the same tree, as the site has to name it
            inside = re.sub(r"^(?:blob|tree)/main/", "", path.removeprefix(REPOSITORY + "/"))
            assert inside.startswith("issues") or (ROOT / inside).exists(), path
        elif not path.startswith(("http://", "https://")):
            assert (document.parent / path).exists(), path


def test_every_page_is_in_the_navigation() -> None:
    """A page that no menu leads to is not found; mkdocs itself says so only when it builds."""
    listed = set(re.findall(r"[\w/-]+\.md", text_of(ROOT / "mkdocs.yml")))
    assert listed == {str(path.relative_to(ROOT / "docs")) for path in PAGES}


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "docs/decisions/architecture.md"])
def test_files_that_contributors_are_sent_to_exist(document) -> None:
    """Paths in backticks that end in .py or a slash, but for those of the examples that are to be written."""
    to_be_written = re.compile(r"birds|lse|attention_routing|NAME")
    rooms = ("", "capsules", "data/sources", "evaluation", "evaluation/metrics", "models")
    homes = [ROOT, *(ROOT / "src/contextcaps" / room for room in rooms)]
    for path in re.findall(r"`([\w./-]+(?:\.py|/))`", text_of(ROOT / document)):
        if not to_be_written.search(path) and path not in ("utils.py", "site/"):
            assert any((home / path).exists() for home in homes), path


def test_addresses_agree() -> None:
    """The site's address is one, in the package's metadata, in mkdocs.yml and in what messages point at."""
    package = text_of(ROOT / "pyproject.toml")
    assert f'Documentation = "{SITE}"\n' in package
    assert f'Repository = "{REPOSITORY}"\n' in package
    assert f"site_url: {SITE}\n" in text_of(ROOT / "mkdocs.yml")


def test_pages_that_messages_point_at_exist() -> None:
    for path in sorted((ROOT / "src").rglob("*.py")):
        for page in re.findall(r"docs_page\([\"']([\w/-]+)[\"']\)", text_of(path)):
            assert (ROOT / f"docs/{page}.md").exists(), f"{name_of(path)}: {page}"


def test_the_readme_is_short() -> None:
    lines = text_of(ROOT / "README.md").splitlines()
    assert len(lines) < 120
    assert {"make demo", "make test"} <= {" ".join(line.split()[:2]) for line in lines}
