"""Listing: every image of every kind of input once, with its bytes; what is damaged is a row that says why."""

import functools
import http.server
import io
import os
import resource
import tarfile
import threading
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from conftest import picture, write_shard
from contextcaps.corpus.listing import LISTING, Container, find_inputs, list_container, row_of
from contextcaps.corpus.reading import decoded_rows
from contextcaps.data import DataError, open_source
from contextcaps.tagging.inputs import NotAnImage
from contextcaps.tagging.pixels import pixels_of


def listed(names: list[str], column: str | None = None) -> pyarrow.Table:
    tables = []
    for found in find_inputs(names):
        if isinstance(found, Container):
            tables.append(list_container(found.path, column))
        else:
            row = dict(zip(LISTING.names, row_of(found), strict=True))
            tables.append(pyarrow.Table.from_pylist([row], LISTING))
    return pyarrow.concat_tables(tables)


def decoded(table: pyarrow.Table) -> tuple[list[str], np.ndarray, list[str]]:
    return decoded_rows(table, (40, 40))


def test_files_shards_and_tables_give_the_same_pixels_as_plain_files(corpus: Path) -> None:
    names, pixels, errors = decoded(listed([str(corpus / "files"), str(corpus / "*.tar"), str(corpus / "b.parquet")]))
    good = [place for place, error in enumerate(errors) if not error]
    assert len(names) == 102
    assert len(set(names)) == 102
    assert len(good) == 100
    for number, place in enumerate(good):
        np.testing.assert_array_equal(pixels[place], pixels_of(picture(number), (40, 40)).transpose(1, 2, 0))
    assert [Path(names[place]).name for place, error in enumerate(errors) if error] == ["bad.jpg", "empty.png"]
    assert names[62] == f"{corpus}/a.tar/060.png"
    assert names[-1] == f"{corpus}/b.parquet#19"


@pytest.mark.parametrize("cut", [700, 2500, 9000])
def test_a_shard_that_was_cut_off_keeps_its_whole_members_and_says_so(tmp_path: Path, cut: int) -> None:
    write_shard(tmp_path / "x.tar", {f"{n}.png": picture(n) for n in range(4)})
    whole = (tmp_path / "x.tar").read_bytes()
    (tmp_path / "x.tar").write_bytes(whole[:cut])
    table = listed([str(tmp_path / "x.tar")])
    assert "cut off" in table["error"].to_pylist()[-1]
    _, _, errors = decoded(table)
    assert sum(not error for error in errors) == {700: 0, 2500: 0, 9000: 1}[cut]


def test_a_broken_header_in_the_middle_is_told(tmp_path: Path) -> None:
    write_shard(tmp_path / "x.tar", {f"{n}.png": picture(n) for n in range(4)})
    content = bytearray((tmp_path / "x.tar").read_bytes())
    place = content.index(b"2.png\0")
    content[place : place + 512] = b"\xaa" * 512
    (tmp_path / "x.tar").write_bytes(content)
    kinds = listed([f"shards:{tmp_path / 'x.tar'}"]).to_pylist()
    assert [row["kind"] for row in kinds] == ["member", "member", "error"]
    assert "after 2 images; fetch it again" in kinds[-1]["error"]


def test_a_table_of_paths_is_relative_to_its_folder(tmp_path: Path) -> None:
    (tmp_path / "one.png").write_bytes(picture(1))
    table = pyarrow.table({"path": ["one.png", None, "gone.png"]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    names, pixels, errors = decoded(listed([str(tmp_path / "t.parquet")]))
    assert names == [str(tmp_path / "one.png"), f"{tmp_path}/t.parquet#1", str(tmp_path / "gone.png")]
    assert errors[1:] != ["", ""]
    assert errors[0] == ""
    np.testing.assert_array_equal(pixels[0], pixels_of(picture(1), (40, 40)).transpose(1, 2, 0))


def test_a_table_without_images_names_the_flag(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), tmp_path / "t.parquet")
    assert "--image-column" in listed([str(tmp_path / "t.parquet")])["error"][0].as_py()
    (tmp_path / "u.parquet").write_bytes(b"no table")
    assert "cannot be read" in listed([str(tmp_path / "u.parquet")])["error"][0].as_py()


def test_a_table_with_a_column_twice(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    twice = pyarrow.Table.from_arrays([pyarrow.array(["a.jpg"])] * 2, ["file", "file"])
    pyarrow.parquet.write_table(twice, path)
    (row,) = list_container(str(path)).to_pylist()
    assert row["error"] == "cannot be read (the column 'file' is there twice: rename one of them)"


def test_what_leads_nowhere_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    found = list(find_inputs([str(tmp_path / "empty"), str(tmp_path / "*.tar"), f"shards:{tmp_path}/*.tar"]))
    assert [type(each) for each in found] == [NotAnImage] * 3
    _, _, errors = decoded(listed([str(tmp_path / "gone.jpg"), str(tmp_path / "gone.tar")]))
    assert all(errors)


def test_files_at_an_address(corpus: Path) -> None:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(corpus))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        root = f"http://127.0.0.1:{server.server_port}"
        names, pixels, errors = decoded(listed([f"{root}/files/003.png", f"{root}/files/gone.png"]))
        server.shutdown()
    np.testing.assert_array_equal(pixels[0], pixels_of(picture(3), (40, 40)).transpose(1, 2, 0))
    assert errors[0] == ""
    assert "cannot be read" in errors[1]
    local, _, _ = decoded(listed([f"file://{corpus}/files/00*.png", f"file://{corpus}/files"]))
    assert len(local) == 10 + 62
    assert local[0] == f"file://{corpus}/files/000.png"
    assert names[0] == f"{root}/files/003.png"


@pytest.mark.parametrize("name", ["a.tar", "a.parquet"])
def test_a_pipe_and_a_file_of_the_kernel_are_rows(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    os.mkfifo(path)  # to open it would wait for ever
    (row,) = list_container(str(path)).to_pylist()
    assert row["kind"] == "error"
    assert "a pipe; expected a plain file" in row["error"]
    path.unlink()
    path.symlink_to("/proc/kmsg")
    (row,) = list_container(str(path)).to_pylist()
    assert "a file of the kernel" in row["error"]


def repeated(value: object, times: int) -> pyarrow.Array:
    return pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(times, np.int32)), pyarrow.array([value]))


def test_a_cell_that_a_hundred_thousand_rows_share_is_in_memory_once(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    image = picture(0) + bytes(10**6)
    pyarrow.parquet.write_table(pyarrow.table({"image": repeated(image, 100_000)}), path, compression="zstd")
    assert path.stat().st_size < 10_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    listed = list_container(str(path))
    assert len(listed) == 100_000
    _, pixels, errors = decoded_rows(listed.take([0, 1, 70_000, 99_999]), (8, 8))
    assert errors == [""] * 4
    assert (pixels == pixels[0]).all()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB


def test_a_table_of_more_paths_than_a_list_holds(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"path": repeated("a.jpg", 30_000_000)}), path)
    (row,) = list_container(str(path)).to_pylist()
    assert "30,000,000 rows; at most 10,000,000 are read" in row["error"]
    pyarrow.parquet.write_table(pyarrow.table({"path": repeated("a" * 10**6, 1000)}), path)
    rows = list_container(str(path)).to_pylist()
    assert {row["error"] for row in rows} == {"column path has a path of 1,000,000 letters"}


def test_a_member_longer_than_any_file(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("a.jpg")
        info.pax_headers = {"size": "9" * 30}
        tar.addfile(info, io.BytesIO())
    rows = list_container(str(path)).to_pylist()
    assert {row["kind"] for row in rows} == {"error"}
    assert f"cut off: {'9' * 30} bytes announced" in rows[0]["error"]
    with pytest.raises(DataError, match=r"cut off: 9{30} bytes announced"):
        open_source(f"shards:{path}")


def test_a_member_of_a_gigabyte_of_holes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo("a.jpg")
        info.size = 2**33
        tar.fileobj.write(info.tobuf())
    os.truncate(path, 2**34)
    _, _, errors = decoded_rows(list_container(str(path)).slice(0, 1), (8, 8))
    assert errors == ["8,589,934,592 bytes: files of more than 1,073,741,824 are not decoded"]


def test_an_address_that_nobody_speaks_is_refused() -> None:
    with pytest.raises(ValueError, match="Protocol not known"):
        list(find_inputs(["nobody://bucket/photos/*.jpg"]))
