"""contextcaps tag: rows, exit codes, what goes to which stream, and being stopped."""

import errno
import functools
import io
import json
import os
import shutil
import signal
import subprocess
import sys

import pyarrow.parquet
import pytest
import torch

from contextcaps.models.shipped import ship
from in_process import run_command

ALL = ("--threshold", "0")  # every class is a tag


_run = functools.partial(run_command, "tag")


def test_good_images_give_json_lines_and_exit_code_0(model, album, capsys) -> None:
    code, out, err = _run([album / "0.png", album / "4.png", "--top-k", 2, *ALL, "--model", model.parent], capsys)
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["image"] for row in rows] == [str(album / "0.png"), str(album / "4.png")]
    assert [len(row["tags"]) for row in rows] == [2, 2]
    assert code == 0
    assert err.splitlines()[-1] == "2 images tagged, 0 could not be read"


def test_without_a_name_the_shipped_model_tags(model, album, shipped, capsys) -> None:
    code, _, err = _run([album / "0.png"], capsys)
    assert (code, "installed without its model coco80" in err) == (2, True)
    ship(model, "coco80", graph=False)
    rows = [_run([album / "0.png", *ALL, "--quiet", *words], capsys) for words in ([], ["--model", "coco80"])]
    assert rows[0] == rows[1]
    code, out, err = rows[0]
    assert (code, err) == (0, "")
    assert json.loads(out)["image"] == str(album / "0.png")


def test_a_model_in_the_place_of_an_image_is_refused_in_one_line(model, album, shipped, capsys, monkeypatch) -> None:
    ship(model, "coco80", graph=False)
    monkeypatch.chdir(model.parent.parent)
    run = model.parent.name
    for name, kind in (
        (run, "a run"),
        (f"{run}/model", "a model"),
        ("coco80", "a shipped model"),
        ("hf:ann/coco", "a model on the Hub"),
    ):
        code, out, err = _run([name, album / "0.png"], capsys)
        assert (code, out) == (2, "")
        assert err == f"contextcaps: {name}: {kind}; tag with it: --model {name}\n"


def test_photographs_beside_the_settings_of_a_model_are_no_run(model, album, capsys) -> None:
    (album / "model").mkdir()
    shutil.copy(model / "config.json", album / "model")
    code, out, _ = _run([album, "--quiet", "--model", model], capsys)
    assert (code, out.count('"tags"')) == (1, 8)
    shutil.copy(model / "model.safetensors", album / "model")
    code, out, err = _run([album, "--quiet", "--model", model], capsys)
    assert (code, out) == (2, "")
    assert f"{album}: a run; tag with it" in err


def test_a_file_that_may_not_be_looked_at_has_its_own_row(model, album, capsys, monkeypatch) -> None:
    stat = os.stat

    def closed(path, **words) -> os.stat_result:
        if not isinstance(path, int) and "secret" in os.fspath(path):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return stat(path, **words)

    names = ["secret/cat.png", "n" * 300 + ".jpg", str(album / "0.png")]
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", closed)
        code, out, err = _run([*names, "--quiet", "--model", model], capsys)
    rows = [json.loads(line) for line in out.splitlines()]
    assert (code, err, [row["image"] for row in rows]) == (1, "", names)
    errors = [row.get("error") for row in rows]
    assert errors == [
        "the file may not be read (permission denied)",
        "the file cannot be read (File name too long)",
        None,
    ]


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_bad_images_have_rows_and_end_in_exit_code_1(form, model, album, capsys) -> None:
    path = album.parent / f"tags.{form}"
    code, out, err = _run(
        [album, "gone.jpg", "--out", path, "--scores", "all", "--batch-size", 3, "--model", model], capsys
    )
    assert (code, out) == (1, "")
    assert err.splitlines()[-2].endswith("; 3 more")
    assert str(album / "1-cut.jpg") in err.splitlines()[-2]
    assert err.splitlines()[-1] == "5 images tagged, 4 could not be read"
    if form == "parquet":
        assert pyarrow.parquet.read_table(path).num_rows == 9
    else:
        assert len(path.read_text().splitlines()) == 9 + (form == "csv")
    assert sorted(os.listdir(album.parent)) == ["album", path.name]


def test_out_of_memory_is_exit_code_4(model, album, capsys) -> None:
    def ask_for_too_much(module: torch.nn.Module, inputs: tuple) -> None:
        if len(inputs[0]) == 3:  # tagging
            torch.empty(1 << 55)  # more than any address space: the allocator's own error

    hook = torch.nn.modules.module.register_module_forward_pre_hook(ask_for_too_much)
    try:
        code, out, err = _run([*(album / f"{i}.png" for i in (0, 1, 4)), "--quiet", "--model", model], capsys)
    finally:
        hook.remove()
    assert (code, out) == (4, "")
    assert err == "contextcaps: batch_size: 3 images at once do not fit into the memory of cpu; try fewer\n"


def test_a_pipe_gets_rows_without_colour(model, album, capsys) -> None:
    for words in ([], ["--format", "csv"]):
        _, out, _ = _run([album / "0.png", "--model", model, *ALL, *words], capsys)
        assert "sea" in out
        assert not {"\x1b", "█"} & set(out)


def test_names_come_from_standard_input(model, album, capsys, monkeypatch) -> None:
    names = f"{album / '1.png'}\n{album / '0.png'}\n".encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(names)))
    code, out, err = _run(["-", "--quiet", "--model", model], capsys)
    assert [json.loads(line)["image"][-5:] for line in out.splitlines()] == ["1.png", "0.png"]
    assert (code, err) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "MODEL"], "no images: expected files, folders"),
        (["a.jpg", "--model", "nowhere"], "nowhere: no such folder"),
        (["a.jpg", "--model", ""], "model: an empty name; expected that of a shipped model"),
        (["a.jpg", "--model", "ALBUM"], "neither a run nor a model"),
        (["a.jpg", "--model", "MODEL", "--format", "parquet"], "--format parquet: needs a file"),
        (["a.jpg", "--model", "MODEL", "--format", "xml"], "xml"),
        (["a.jpg", "--model", "MODEL", "--out", "tags.txt"], "--out tags.txt: its suffix names no format"),
        (["a.jpg", "--model", "MODEL", "--out", "no/tags.csv"], "--out no/tags.csv: its folder is not there"),
        (["a.jpg", "--model", "MODEL", "--out", "ALBUM"], "expected a file"),
        (["a.jpg", "--model", "MODEL", "--out", "/dev/null"], "expected a file"),
        (["a.jpg", "--model", "MODEL", "--threshold", "2"], "threshold: expected a score from 0 to 1"),
        (["a.jpg", "--model", "MODEL", "--precision-at-least", "0.8"], "precision_at_least: this model does not know"),
        (
            ["a.jpg", "--model", "MODEL", "--recall-at-least", "90"],
            "recall_at_least: expected a share above 0",
        ),
        (["a.jpg", "--model", "MODEL", "--top-k", "0"], "top_k: expected at least 1"),
        (["a.jpg", "--model", "MODEL", "--batch-size", "0"], "batch_size: expected at least 1"),
        (["a.jpg", "--model", "MODEL", "--device", "tpu"], "tpu"),
    ],
    ids=lambda value: "-".join(value[-2:]).replace("/", "_") if isinstance(value, list) else "",
)
def test_misuse_is_one_message_and_exit_code_2(arguments, message, model, album, capsys) -> None:
    places = {"MODEL": model, "ALBUM": album}
    code, out, err = _run([places.get(argument, argument) for argument in arguments], capsys)
    assert (code, out) == (2, "")
    assert message in err


def _start(model, *arguments: object, on_ctrl_c=signal.SIG_DFL) -> subprocess.Popen:
    """`on_ctrl_c`: what the process inherits; from a shell, tests in the background would have it ignored."""
    command = [sys.executable, "-m", "contextcaps.cli", "tag", *map(str, arguments), "--model", str(model)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, **pipes, preexec_fn=lambda: signal.signal(signal.SIGINT, on_ctrl_c))


def _interrupted(model, album, on_ctrl_c) -> tuple[int, bytes, bytes]:
    """Exit code and both streams of a process that gets a SIGINT after the first of twenty rows."""
    process = _start(model, "-", "--batch-size", 1, "--workers", 1, on_ctrl_c=on_ctrl_c)
    process.stdin.write(f"{album / '0.png'}\n".encode() * 20)
    process.stdin.flush()
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return process.returncode, first + out, err


@pytest.mark.long
def test_stopped_by_ctrl_c_the_rows_so_far_are_whole(model, album) -> None:
    code, out, err = _interrupted(model, album, signal.SIG_DFL)
    assert code == 130
    assert b"Traceback" not in err
    assert err.splitlines()[-1] == b"contextcaps: stopped"
    assert all(json.loads(line)["tags"] for line in out.splitlines())
    assert out.endswith(b"\n")


@pytest.mark.long
def test_where_ctrl_c_is_ignored_it_stays_ignored(model, album) -> None:
    code, out, err = _interrupted(model, album, signal.SIG_IGN)
    assert code == 0
    assert len(out.splitlines()) == 20
    assert err.splitlines()[-1] == b"20 images tagged, 0 could not be read"


@pytest.mark.long
def test_a_closed_pipe_is_quiet(model, album) -> None:
    process = _start(model, "-", "--quiet", "--batch-size", 1, "--workers", 1)
    process.stdin.write(f"{album / '0.png'}\n".encode() * 20)
    process.stdin.flush()
    process.stdout.readline()
    process.stdout.close()
    process.stdin.write(f"{album / '0.png'}\n".encode() * 20)
    process.stdin.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 141


def test_sidecars_beside_images(model, album, capsys) -> None:
    code, out, err = _run([album / "0.png", album / "gone.jpg", "--xmp", *ALL, "--top-k", 2, "--model", model], capsys)
    (row, _) = [json.loads(line) for line in out.splitlines()]
    text = (album / "0.png.xmp").read_text(encoding="utf-8")
    assert all(f">{tag['name']}</rdf:li>" in text for tag in row["tags"])
    assert not (album / "gone.jpg.xmp").exists()
    assert code == 1
    assert err.splitlines()[-1] == "1 image tagged, 1 could not be read; 1 sidecar beside them"
    (album / "0.png.xmp").write_text("mine")
    code, _, err = _run([album / "0.png", "--xmp", *ALL, "--model", model], capsys)
    assert (code, (album / "0.png.xmp").read_text()) == (2, "mine")
    assert "0.png.xmp: no XMP file that can be read" in err


def test_a_sidecar_that_failed_is_written_when_the_command_goes_on(model, album, capsys) -> None:
    sidecar, out = album / "0.png.xmp", album.parent / "tags.jsonl"
    sidecar.write_text("mine")
    words = ["--model", model, album / "0.png", "--xmp", *ALL, "--out", out]
    assert _run(words, capsys)[0] == 2
    sidecar.unlink()
    code, _, err = _run([*words, "--resume"] if out.with_name("tags.jsonl.part").exists() else words, capsys)
    assert code == 0, err
    assert "</rdf:li>" in sidecar.read_text(encoding="utf-8")
    assert len(out.read_text().splitlines()) == 1


@pytest.mark.long
def test_a_person_at_a_terminal_sees_bars(model, album) -> None:
    ours, theirs = os.openpty()
    colourful = {**{name: value for name, value in os.environ.items() if name != "NO_COLOR"}, "TERM": "xterm-256color"}
    words = [sys.executable, "-m", "contextcaps", "tag", str(album / "0.png"), "--model", str(model), *ALL]
    with subprocess.Popen([*words, "--top-k", "1"], stdout=theirs, stderr=subprocess.PIPE, env=colourful) as process:
        assert process.stderr is not None
        told = process.stderr.read().decode()
    os.close(theirs)
    shown = b""
    with open(ours, "rb", buffering=0) as screen:
        while not shown.count(b"\n") >= 2:
            shown += screen.read(1 << 16)
    assert process.returncode == 0, told
    name, tag = shown.decode().splitlines()[:2]
    assert str(album / "0.png") in name
    assert "{" not in tag
    assert "\x1b[" in tag  # in colour
    assert told.splitlines()[-1] == "1 image tagged, 0 could not be read"
