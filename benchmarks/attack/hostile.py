"""Write files that are made to do harm: bombs, names that lead elsewhere, code in pickles. Each has its own dice."""

import contextlib
import io
import json
import random
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import mutations
import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from PIL import Image

__all__ = [
    "write_checkpoint",
    "write_fingerprints",
    "write_image",
    "write_parquet",
    "write_name",
    "write_shard",
    "write_table",
    "write_weights",
    "write_xml",
    "write_yolo_labels",
]

NAMES = (
    "../outside.jpg",
    "/etc/passwd",
    "a\\b.jpg",
    "con.jpg",
    "x" * 300 + ".jpg",
    "a\u202egpj.exe",
    "e\u0301.jpg",
    "\u00e9.jpg",
    " .jpg",
    "-rf.jpg",
    "a\nb.jpg",
    "a\tb.jpg",
    "~/a.jpg",
    "$(touch x).jpg",
    "<script>alert(1)</script>.jpg",
    "%00.jpg",
    "a?split=b.jpg",
    "*.jpg",
    "{000..999}.jpg",
    "\U0001f600.jpg",
    "http://example.com/a.jpg",
    "/proc/self/fd/0",
    "/dev/zero",
)


def _encoded(form: str, side: int = 32, **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)).save(
        file, form, **options
    )
    return file.getvalue()


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def write_image(path: Path, dice: random.Random) -> None:
    """Write an image that says or holds more than it looks."""
    makers = (_png, _png_of_chunks, _jpeg_of_segments, _jpeg_of_scans, _tiff, _bmp, _ppm, _gif, _exif)
    path.write_bytes(dice.choice(makers)(dice))


def _png(dice: random.Random) -> bytes:
    width, height = dice.choice(((2**31 - 1, 1), (9000, 9000), (0, 5), (1, 2**20), (30_000, 2_900), (65_535, 65_535)))
    depth, colour = dice.choice(((1, 0), (8, 2), (16, 6), (8, 3), (16, 0), (32, 9)))
    lines = zlib.compress(bytes(dice.choice((10, 10**6, 10**8))), 9)
    extra = b"".join(_chunk(kind, zlib.compress(bytes(10**7))) for kind in (b"iCCP", b"zTXt", b"eXIf"))
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, dice.randrange(2)))
    return b"\x89PNG\r\n\x1a\n" + head + dice.choice((b"", extra)) + _chunk(b"IDAT", lines) + _chunk(b"IEND", b"")


def _png_of_chunks(dice: random.Random) -> bytes:
    content, kind = _encoded("PNG"), dice.choice((b"IDAT", b"abCd", b"tEXt", b"zTXt", b"eXIf"))
    return content[:33] + _chunk(kind, b"a\0b") * dice.choice((10, 10**4, 10**6)) + content[33:]


def _jpeg_of_segments(dice: random.Random) -> bytes:
    content, count = _encoded("JPEG"), dice.choice((10, 999, 1001, 10**5, 10**6))
    kind = dice.choice((b"\xff", b"\xff\xfe\0\2", b"\xff\xe1\0\x0aExif\0\0ab", b"\xff\xed\0\2", b"\xff\xe2\0\2"))
    return content[:2] + kind * count + content[2:]


def _jpeg_of_scans(dice: random.Random) -> bytes:
    content = _encoded("JPEG", dice.choice((32, 500)), progressive=True)
    last, count = content.rindex(b"\xff\xda"), dice.choice((3, 300, 3_000))
    return content[:-2] + content[last:-2] * count + content[-2:]


def _tiff(dice: random.Random) -> bytes:
    """Return a TIFF whose rows are one strip, which begins with so many empty blocks."""
    width, height = dice.choice((100, 1000, 60_000)), dice.choice((10, 1000, 60_000))
    row, packer = bytes(3 * min(width, 1000)), zlib.compressobj(9, zlib.DEFLATED, -15)
    strip = b"\x78\x9c" + b"\0\0\0\xff\xff" * dice.choice((1, 1000, 200_000)) + packer.compress(row) + packer.flush()
    directory = 8 + 2 + 12 * 9 + 4
    offsets, counts = directory + 6, directory + 6 + 4 * height
    entries = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 3, directory), (259, 3, 1, dice.choice((8, 8, 7, 5)))]
    entries += [(262, 3, 1, 2), (273, 4, height, offsets), (277, 3, 1, 3), (278, 4, 1, 1), (279, 4, height, counts)]
    head = b"II*\0" + struct.pack("<IH", 8, 9) + b"".join(struct.pack("<HHII", *each) for each in entries)
    body = struct.pack("<I3H", dice.choice((0, 8)), 8, 8, 8) + struct.pack("<I", counts + 4 * height) * height
    return head + body + struct.pack("<I", len(strip)) * height + strip


def _bmp(dice: random.Random) -> bytes:
    side, coding = dice.choice((10, 3000, 9000, -9000)), dice.choice((0, 1, 2, 3, 99))
    head = struct.pack("<IiiHHIIiiII", 40, side, side, 1, dice.choice((1, 8, 24, 32)), coding, 0, 0, 0, 256, 0)
    body = dice.choice((b"\0\2\0\0", b"\1\5", b"\xff\5", b"\0\0")) * dice.choice((10, 10**6))
    return b"BM" + struct.pack("<IHHI", 0, 0, 0, 1078) + head + bytes(1024) + body + b"\0\1"


def _ppm(dice: random.Random) -> bytes:
    magic, comment = dice.choice((b"P1", b"P3", b"P6", b"Pf", b"P7")), dice.choice((b"#\n", b" ", b"9"))
    return magic + b"\n" + comment * dice.choice((1, 10**6)) + b" 3000 3000 255\n" + b"1 " * dice.choice((10, 10**6))


def _gif(dice: random.Random) -> bytes:
    content, block = (
        _encoded("GIF"),
        dice.choice((b"!\xfe\1a\0", b"!\xf9\4\0\0\0\0\0", b"!\xfe" + b"\1a" * 10**6 + b"\0")),
    )
    place = 13 + 3 * 2 ** (1 + (content[10] & 7))
    return (
        content[:6]
        + struct.pack("<HH", *dice.choices((32, 9000, 65_535), k=2))
        + content[10:place]
        + block * (dice.choice((1, 10, 10**5)) if len(block) < 100 else 1)
        + content[place:]
    )


def _exif(dice: random.Random) -> bytes:
    """Return a JPEG with a directory of entries that are all the rest of it."""
    count = dice.choice((1, 100, 4000))
    entries = b"".join(struct.pack("<HHII", 1000 + each, 1, 60_000, 8) for each in range(count))
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, count) + entries + struct.pack("<I", dice.choice((0, 8)))
    content = _encoded("JPEG")
    return content[:2] + b"\xff\xe1" + struct.pack(">H", 2 + len(exif[:65_000])) + exif[:65_000] + content[2:]


def write_shard(path: Path, dice: random.Random) -> None:
    """Write a tar whose members are not what a shard has."""
    with tarfile.open(path, "w", format=dice.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))) as archive:
        for index in range(dice.choice((1, 3))):
            info = tarfile.TarInfo(dice.choice((*NAMES, f"{index}.jpg", f"{index}.json", "a/" * 500 + "b.jpg")))
            info.type = dice.choice((b"0", b"0", b"0", b"1", b"2", b"3", b"5", b"6", b"7", b"S", b"L"))
            info.linkname = dice.choice(("", "/etc/passwd", "../a", info.name))
            info.mtime = dice.choice((0, -1, 2**60, 1.5))
            if archive.format == tarfile.PAX_FORMAT and dice.random() < 0.5:
                info.pax_headers = {
                    dice.choice(("path", "size", "comment", "GNU.sparse.realsize", "hdrcharset")): "9" * 30
                }
            content = dice.choice(
                (b"", _encoded("JPEG"), b'{"labels": ["sea"]}', b"[" * 10**5, b"[1e999]", b"\xff\xfe")
            )
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    if dice.random() < 0.3:  # says that it is longer
        content = bytearray(path.read_bytes())
        content[124:136] = dice.choice((b"77777777777\0", b"\x80" + b"\xff" * 11, b"-0000000001\0"))
        content[148:156] = b" " * 8
        content[148:156] = b"%06o\0 " % sum(content[:512])
        path.write_bytes(content)


def write_table(path: Path, dice: random.Random) -> None:
    """Write a table whose cells are no names and labels."""
    ends, sign = dice.choice(("\n", "\r\n", "\r")), dice.choice((",", ",", ";", "\t"))
    cells = (
        *NAMES,
        "a.jpg",
        "b.jpg",
        "sea;sky",
        "",
        '"',
        '""',
        "\0",
        "9" * 5000,
        "x" * 140_000,
        "=1+1",
        ";" * 1000,
        "\ud800",
    )
    width = dice.choice((1, 2, 2, 2, 3, 5000))
    cells = cells if width < 5000 else tuple(cell for cell in cells if len(cell) < 1000)  # or a file takes minutes
    many = dice.choice((1, 20, 500) if width < 5000 else (1, 20))
    rows = [sign.join(dice.choice(cells) for _ in range(dice.choice((width, 2)))) for _ in range(many)]
    head = dice.choice(
        ("file,labels", "file,labels", "file,file", "image;tags", "", ",", "file," + ",".join(map(str, range(5000))))
    )
    text = ends.join((head.replace(",", sign), *rows))
    path.write_bytes(dice.choice((b"", b"\xef\xbb\xbf", b"\xff\xfe")) + text.encode("utf-8", "surrogatepass"))


def write_parquet(path: Path, dice: random.Random) -> None:
    """Write a Parquet table of little on the disk, and much in its rows, or of columns that a table does not have."""
    times = dice.choice((1, 1000, 10**5))  # rows, all of which are read: more take their time
    long = dice.choice((10, 10**6, 10**7))
    texts = pyarrow.array(dice.choices(("x" * long, *NAMES, "a.jpg", "b.jpg", "sea;sky"), k=3))

    def repeated(count: int) -> pyarrow.Array:
        indices = np.full(count, dice.randrange(3), np.int32)
        return pyarrow.DictionaryArray.from_arrays(pyarrow.array(indices), texts)

    def nested(count: int) -> pyarrow.Array:
        return pyarrow.ListArray.from_arrays(pyarrow.array([0, count] + [count] * (times - 1), pyarrow.int32()), each)

    each = repeated(times)
    labels = dice.choice((each, nested(times), pyarrow.array(np.zeros(times)), pyarrow.nulls(times)))
    names = dice.choice((("file", "labels"), ("file", "labels"), ("file", "file"), ("", ""), ("image", "x" * 10**5)))
    columns = [each if dice.random() < 0.5 else pyarrow.array([f"{n}.jpg" for n in range(times)]), labels]
    more = [] if times > 1000 else [pyarrow.nulls(times)] * dice.choice((0, 0, 300))
    table = pyarrow.Table.from_arrays([*columns, *more], [*names, *map(str, range(len(more)))])
    with contextlib.suppress(pyarrow.ArrowInvalid):  # some cannot be written; what is there is cut off
        pyarrow.parquet.write_table(table, path, compression=dice.choice(("zstd", "none")))


def write_fingerprints(path: Path, dice: random.Random) -> None:
    """Write arrays of another kind, of code, or of more numbers than there are in the file."""
    ran = path.with_name("ran")
    what = (np.array([_Runs(ran)], object), np.zeros(3), np.zeros((2, 2), np.uint64), np.zeros(0, "U5"))
    with zipfile.ZipFile(path, "w", dice.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name in ("train.npy", "val.npy", dice.choice(NAMES)):
            file = io.BytesIO()
            np.save(file, dice.choice(what))
            content = file.getvalue()
            if dice.random() < 0.5:
                shape = dice.choice((2**62, 2**40, -1, 10**30))
                content = content.replace(b"(3,)", b"(%d,)" % shape)
            archive.writestr(name, content + bytes(dice.choice((0, 10**7))))


def write_xml(path: Path, dice: random.Random) -> None:
    """Write an annotation with entities, or with more of something than a file of VOC has."""
    bombs = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    head = dice.choice(
        (
            "",
            f'<!DOCTYPE annotation [<!ENTITY a0 "lol">{bombs}]>',
            '<!DOCTYPE annotation [<!ENTITY a9 SYSTEM "file:///etc/passwd">]>',
            '<!DOCTYPE annotation SYSTEM "http://127.0.0.1:1/x.dtd">',
        )
    )
    name = dice.choice(
        ("&a9;" if head else "person", "person", "x" * 10**6, "", "<b>" * 10_000 + "</b>" * 10_000, *NAMES[:4])
    )
    number = dice.choice(("1", "-1", "nan", "inf", "1e400", "9" * 5000, "", "0x10", "\u0661"))
    box = f"<bndbox><xmin>{number}</xmin><ymin>2</ymin><xmax>30</xmax><ymax>40</ymax></bndbox>"
    one = f"<object><name>{name}</name>{box}</object>"
    size = f"<size><width>{number if dice.random() < 0.3 else 48}</width><height>48</height><depth>3</depth></size>"
    many = one * (dice.choice((1, 1, 10_000)) if len(one) < 1000 else 1)
    path.write_text(f"{head}<annotation><filename>a.jpg</filename>{size}{many}</annotation>", encoding="utf-8")


def write_yolo_labels(path: Path, dice: random.Random) -> None:
    """Write lines of labels that are no boxes."""
    words = ("0", "1", "-1", "2", "nan", "inf", "1e999", "9" * 5000, "0.5", "0x1", "\u0661", "", "\0", "1e-320")
    lines = [
        " ".join(dice.choice(words) for _ in range(dice.choice((1, 5, 5, 5, 9, 1000))))
        for _ in range(dice.choice((1, 3, 1000)))
    ]
    path.write_text(dice.choice(("\n", "\r", "\u2028")).join(lines), encoding="utf-8")


def write_name(path: Path, dice: random.Random) -> None:
    """Write classes that have hostile names."""
    names = [
        dice.choice((*NAMES, "sea", "sky", "", " ", "=1", None, 7, "\ud800", "x" * 10**6))
        for _ in range(dice.choice((1, 2, 5000)))
    ]
    path.write_text(json.dumps(dice.choice((names, {"classes": names}, names[0]))), encoding="utf-8")


def write_weights(path: Path, dice: random.Random) -> None:
    """Change a value in the header of safetensors, and its length with it."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = mutations.with_a_changed_value(content[8 : 8 + size], dice)
    said = len(header) if dice.random() < 0.8 else dice.choice((0, 2**20, 2**40, 2**64 - 1))
    path.write_bytes(said.to_bytes(8, "little") + header + content[8 + size :])


class _Runs:
    """Runs a command where somebody unpickles it; it would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (open, (str(self.path), "w"))


def write_checkpoint(path: Path, dice: random.Random) -> None:
    """Write a checkpoint with code in it, of another shape, or as a bomb of zip."""
    ran = path.with_name("ran")
    weights = torch.arange(1000.0)
    what = (
        {"weights": _Runs(ran)},
        {"weights": weights, "progress": _Runs(ran)},
        [weights],
        {"weights": weights.to(torch.complex64)},
        {"weights": torch.zeros(1).expand(10**5, 10**5)},
        {"weights": weights.to_sparse()},
        {},
        None,
    )
    torch.save(dice.choice(what), path)
    if dice.random() < 0.3:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("archive/data.pkl", bytes(dice.choice((10, 10**8))))
            archive.writestr("archive/version", "3")
            archive.writestr(dice.choice(NAMES), b"x")
