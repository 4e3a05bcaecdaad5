"""Files are written whole or not at all."""

import os

import pytest

from contextcaps.atomic import write_atomically


@pytest.mark.parametrize("content", ["Straße\r\n\n", b"\xff\x00", ""])
def test_the_file_is_what_was_given(content, tmp_path) -> None:
    for _ in range(2):
        write_atomically(tmp_path / "file", content)
        assert (tmp_path / "file").read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert os.listdir(tmp_path) == ["file"]


def test_a_failure_leaves_what_was_there(tmp_path, monkeypatch) -> None:
    write_atomically(tmp_path / "file", "before")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "file", "after")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(tmp_path / "file", "\ud800")
    assert (tmp_path / "file").read_text() == "before"
    assert os.listdir(tmp_path) == ["file"]
