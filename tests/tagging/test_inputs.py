"""Names to image files: files, folders, patterns, standard input."""

import io
import os
from pathlib import Path

import pytest

from contextcaps.tagging import NotAnImage, count_images, find_images

TREE = (
    "b.jpg",
    "a.PNG",
    "notes.txt",
    ".hidden.jpg",
    ".cache/x.jpg",
    "deep/er/z.webp",
    "deep/[1].tif",
    "deep/1.tif",
    "c.heic",
)


@pytest.fixture
def tree(tmp_path, monkeypatch) -> Path:
    for name in TREE:
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not opened")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_folder_gives_its_images_sorted_and_no_hidden_ones(tree) -> None:
    expected = ["a.PNG", "b.jpg", "c.heic", "deep/1.tif", "deep/[1].tif", "deep/er/z.webp"]
    assert list(find_images(["photos"])) == [f"photos/{name}" for name in expected]
    assert list(find_images([tree / "photos"])) == [str(tree / "photos" / name) for name in expected]
    assert count_images(["photos"]) == 6


def test_files_are_taken_as_they_are_named(tree) -> None:
    names = ["photos/notes.txt", "photos/.hidden.jpg", "nowhere.jpg", "photos/b.jpg", "photos/b.jpg"]
    assert list(find_images(names)) == names


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("photos/*.jpg", ["b.jpg"]),
        ("photos/**/*.tif", ["deep/1.tif", "deep/[1].tif"]),
        ("photos/*", ["a.PNG", "b.jpg", "c.heic"]),
        ("photos/**", ["a.PNG", "b.jpg", "c.heic", "deep/1.tif", "deep/[1].tif", "deep/er/z.webp"]),
        ("photos/n*", ["notes.txt"]),
        ("photos/[ab].*", ["a.PNG", "b.jpg"]),
        ("photos/deep/[1].tif", ["deep/[1].tif"]),  # there is a file of this very name
        ("photos/deep/[12].tif", ["deep/1.tif"]),
    ],
)
def test_patterns(pattern, expected, tree) -> None:
    assert list(find_images([pattern])) == [f"photos/{name}" for name in expected]


def test_names_that_lead_nowhere_keep_their_place(tree) -> None:
    (tree / "empty").mkdir()
    found = list(find_images(["empty", "photos/b.jpg", "photos/*.gif", "", "photos/a.PNG"]))
    assert found[1::3] == ["photos/b.jpg", "photos/a.PNG"]
    assert found[0] == NotAnImage("empty", "no images in this folder")
    assert found[2] == NotAnImage("photos/*.gif", "no file has this name or matches it as a pattern")
    assert found[3] == NotAnImage("", "an empty name")
    assert count_images(["empty", "photos/*.gif"]) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_reported(tree) -> None:
    (tree / "photos/deep").chmod(0)
    try:
        assert list(find_images(["photos"]))[-1] == NotAnImage(
            "photos/deep", "the folder cannot be listed (Permission denied)"
        )
    finally:
        (tree / "photos/deep").chmod(0o755)


def test_links_to_folders_are_not_followed_round_and_round(tree) -> None:
    (tree / "photos/deep/again").symlink_to(tree / "photos")
    (tree / "photos/linked.jpg").symlink_to(tree / "photos/b.jpg")
    assert list(find_images(["photos/"])) == [
        f"photos/{name}"
        for name in ("a.PNG", "b.jpg", "c.heic", "deep/1.tif", "deep/[1].tif", "deep/er/z.webp", "linked.jpg")
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"one.jpg\ntwo words.png\n", ["one.jpg", "two words.png"]),
        (b"one.jpg\r\n\r\ntwo.png", ["one.jpg", "two.png"]),
        (b"one\nline.jpg\0two.png\0", ["one\nline.jpg", "two.png"]),
        (b"one.jpg\0two.png", ["one.jpg", "two.png"]),
        (b"one.jpg", ["one.jpg"]),
        (b"-\n", ["-"]),
        (b"\xff.jpg\n", [os.fsdecode(b"\xff.jpg")]),
        (b"", []),
    ],
    ids=["lines", "windows", "nul-and-newline", "nul-unended", "unended", "dash", "not-utf8", "nothing"],
)
def test_names_from_standard_input(text, expected, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert list(find_images(["first.jpg", "-", "last.jpg"], io.BytesIO(text))) == ["first.jpg", *expected, "last.jpg"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert list(find_images(["-"])) == expected
    assert count_images(["-"]) is None


def test_names_from_standard_input_come_as_they_arrive_however_they_are_cut() -> None:
    text = "".join(f"photo {index}.jpg\n" for index in range(50)).encode()

    class Slow(io.RawIOBase):
        given = 0

        def read1(self, size: int) -> bytes:
            piece = text[self.given : self.given + 7]
            self.given += len(piece)
            return piece

    slow = Slow()
    names = find_images(["-"], slow)
    assert next(names) == "photo 0.jpg"
    assert slow.given < 30
    assert list(names) == [f"photo {index}.jpg" for index in range(1, 50)]
