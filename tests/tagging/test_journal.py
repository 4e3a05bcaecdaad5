"""`tag --out` that is stopped keeps its rows; --resume goes on with them, --only-new with those of the file."""

import csv
import dataclasses
import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet
import pytest
from PIL import Image

from contextcaps.cli import main
from contextcaps.models.loading import load_model
from contextcaps.models.sections import CalibrationConfig
from contextcaps.tagging.journal import model_fingerprint
from contextcaps.tagging.tagger import Tagger


def _tag(capsys, *words: object) -> tuple[int, str]:
    """Exit code and standard error of a command."""
    code = 0
    try:
        main(["tag", *map(str, words)])
    except SystemExit as stop:
        code = stop.code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Traceback" not in printed.err
    return code, printed.err


def _content(path: Path) -> object:
    return pyarrow.parquet.read_table(path).to_pylist() if path.suffix == ".parquet" else path.read_bytes()


def _rows(path: Path) -> list[tuple[str, list[str], bool]]:
    """Image, names of the tags, and whether there is an error, of each row."""
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            found = list(csv.DictReader(file))
        return [
            (Path(row["image"]).name, [*filter(None, row["tags"].split("; "))], row["error"] != "") for row in found
        ]
    rows = _content(path)
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [
        (Path(row["image"]).name, [tag["name"] for tag in row["tags"]], row.get("error") is not None) for row in rows
    ]


def _images(path: Path) -> list[str]:
    return [image for image, *_ in _rows(path)]


@pytest.fixture
def many(tmp_path, pictures) -> list[Path]:
    """Thirty pictures, the seventh of which cannot be read."""
    (tmp_path / "many").mkdir()
    paths = [tmp_path / "many" / f"{index:02}.png" for index in range(30)]
    for index, path in enumerate(paths):
        Image.fromarray(pictures[index % 7]).save(path)
    paths[6].write_text("no picture")
    return paths


def _stopped(number: int, words: list[object], part: Path, names: bytes) -> tuple[int, str]:
    """Exit code and standard error of a process that gets a signal once it has kept ten rows."""
    command = [sys.executable, "-m", "contextcaps.cli", "tag", *map(str, words)]
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(
        command, **pipes, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
    )
    process.stdin.write(names)
    process.stdin.flush()  # and left open: the command waits for more names
    while not part.exists() or part.read_bytes().count(b"\n") <= 10:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    process.send_signal(number)
    _, err = process.communicate()
    return process.returncode, err.decode()


@pytest.mark.long
@pytest.mark.parametrize(
    ("suffix", "number"), [("jsonl", signal.SIGKILL), ("csv", signal.SIGTERM), ("parquet", signal.SIGINT)]
)
def test_a_stopped_command_goes_on(suffix, number, model, many, tmp_path, capsys, monkeypatch) -> None:
    settings = ["--batch-size", 2, "--workers", 1, "--scores", "all", "--threshold", 0.1]
    names = [f"{path}\n".encode() for path in many]

    def listed() -> None:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"".join(names))))

    whole, out, part = (tmp_path / name for name in (f"whole.{suffix}", f"tags.{suffix}", f"tags.{suffix}.part"))
    listed()
    assert _tag(capsys, "--model", model, "-", "--out", whole, *settings)[0] == 1  # one cannot be read

    command = ["--model", model, "-", "--out", out, *settings]
    code, err = _stopped(number, command, part, b"".join(names[:20]))
    assert code == (130 if number == signal.SIGINT else -number)
    assert not out.exists()
    if number == signal.SIGINT:
        assert f"kept in {part}; the same command with --resume goes on" in err
    with part.open("ab") as file:
        file.write(b'{"image": "cut o')  # as a kill in the middle of a row leaves it

    kept = part.read_bytes()
    code, err = _tag(capsys, *command)
    assert (code, part.read_bytes()) == (2, kept)
    assert f"{part}: has the rows of a command that was stopped; add --resume" in err
    code, err = _tag(capsys, *command[:-1], 0.2, "--resume")
    assert (code, part.read_bytes().count(b"\n")) == (2, kept.count(b"\n"))
    assert "was begun with other settings (threshold)" in err

    listed()
    code, err = _tag(capsys, *command, "--resume")
    assert code == 1
    done = kept.count(b"\n") - 2  # without the settings, and the picture that is tried again
    assert f"{29 - done} images tagged, 1 could not be read, {done} had a row" in err
    assert not part.exists()
    assert sorted(_rows(out)) == _rows(whole)  # but for rounding, which depends on the batches


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_only_new_images_are_tagged(suffix, model, many, tmp_path, capsys) -> None:
    out = tmp_path / f"tags.{suffix}"
    assert _tag(capsys, "--model", model, *many[:10], "--out", out, "--only-new")[0] == 1  # no file yet: all are new
    first = _content(out)
    Image.new("RGB", (32, 32)).save(many[6])  # mended
    code, err = _tag(capsys, "--model", model, tmp_path / "many", "--out", out, "--only-new")
    assert (code, "21 images tagged, 0 could not be read, 9 had a row" in err) == (0, True)
    assert _images(out) == [path.name for path in many if path != many[6] and path in many[:10]] + [
        path.name for path in many if path == many[6] or path not in many[:10]
    ]
    if suffix == "jsonl":
        assert _content(out).splitlines()[:6] == first.splitlines()[:6]
    before = _content(out)
    assert "0 images tagged" in _tag(capsys, "--model", model, tmp_path / "many", "--out", out, "--only-new")[1]
    assert _content(out) == before
    if suffix != "jsonl":
        code, err = _tag(capsys, "--model", model, tmp_path / "many", "--out", out, "--only-new", "--scores", "all")
        assert (code, "its columns are not those that this command writes" in err) == (2, True)
        assert _content(out) == before
    out.write_text("something else\n")
    assert _tag(capsys, "--model", model, tmp_path / "many", "--out", out, "--only-new")[0] == 2
    assert out.read_text() == "something else\n"


@pytest.mark.parametrize("flag", ["--resume", "--only-new"])
def test_what_needs_a_file_says_so(flag, model, many, tmp_path, capsys) -> None:
    code, err = _tag(capsys, "--model", model, *many[:2], flag)
    assert (code, f"{flag}: needs the file with the rows: --out FILE" in err) == (2, True)
    code, err = _tag(capsys, "--model", model, *many[:2], "--out", tmp_path / "new.csv", flag)  # does no harm
    assert (code, len(_images(tmp_path / "new.csv"))) == (0, 2)
    assert ("nothing to resume" in err) == (flag == "--resume")


def test_what_is_refused_leaves_no_rows(model, many, tmp_path, capsys) -> None:
    assert _tag(capsys, "--model", model, *many[:2], "--out", tmp_path / "tags.csv", "--known", "sky=yes")[0] == 2
    assert {path.name for path in tmp_path.iterdir()} == {"many"}
    (tmp_path / "tags.csv.part").write_text("my own notes\n")
    code, err = _tag(capsys, "--model", model, *many[:2], "--out", tmp_path / "tags.csv", "--resume")
    assert (code, "tags.csv.part: not written by contextcaps tag; move it away" in err) == (2, True)
    assert (tmp_path / "tags.csv.part").read_text() == "my own notes\n"


def test_another_calibration_is_another_model(model) -> None:
    found = set()
    for calibration in (None, CalibrationConfig(1.5, -0.5), CalibrationConfig(1.5, -0.25)):
        network, trained = load_model(model)
        network.config = dataclasses.replace(network.config, calibration=calibration)
        tagger = Tagger(network, trained, "cpu")
        found.add(model_fingerprint(tagger))
    assert len(found) == 3
