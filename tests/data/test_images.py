"""Decoding: every kind of image file comes out upright, in RGB, at the size asked for, or is refused with a reason."""

import io
import struct
import tarfile
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageFile

from contextcaps.data.images import (
    MAX_PIXELS,
    MAX_TOLERANCE,
    MEAN_TOLERANCE,
    BadImage,
    decode,
    decode_opened,
    image_size,
    resize_mask,
)
from contextcaps.data.problems import DataError

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


def scenery(height: int = 60, width: int = 90, seed: int = 0) -> np.ndarray:
    """Smooth colours with edges in them, [height, width, 3], with no symmetry."""
    generator = np.random.default_rng(seed)
    coarse = Image.fromarray(generator.integers(0, 256, (6, 9, 3), dtype=np.uint8))
    pixels = np.array(coarse.resize((width, height), Image.Resampling.BICUBIC))
    pixels[height // 5 : height // 2, width // 6 : width // 3] = (250, 20, 30)
    return pixels


def encoded(image: Image.Image | np.ndarray, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, kind, **options)
    return file.getvalue()


def difference(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    assert one.shape == other.shape
    assert one.dtype == other.dtype == np.uint8
    return np.abs(one.astype(int) - other.astype(int))


@pytest.mark.parametrize("kind", ["PNG", "BMP", "PPM", "TIFF", "WEBP"])
@pytest.mark.parametrize("fast", [True, False])
def test_lossless_formats_come_out_as_they_went_in(kind, fast, tmp_path):
    pixels = scenery()
    data = encoded(pixels, kind, **({"lossless": True} if kind == "WEBP" else {}))
    path = tmp_path / "picture"
    path.write_bytes(data)
    for image in (data, path, pixels):
        assert np.array_equal(decode(image, fast=fast), pixels)
        assert image_size(image) == (60, 90)


@pytest.mark.parametrize("size", [(20, 31), 16, (120, 100), (60, 90), 1])
def test_the_image_is_squashed_to_the_size_asked_for(size):
    pixels = scenery()
    height_width = (size, size) if isinstance(size, int) else size
    for image in (pixels, encoded(pixels, "PNG"), encoded(pixels, "JPEG", quality=95)):
        fast, plain = decode(image, size), decode(image, size, fast=False)
        assert fast.shape == plain.shape == (*height_width, 3)
        assert fast.flags.c_contiguous
        assert fast.flags.writeable
    # Without JPEG's scaling the two ways are the same filter.
    assert difference(decode(pixels, size), decode(pixels, size, fast=False)).max() <= 1


def test_pixels_that_may_not_be_written_to_are_resized_and_left_alone():
    pixels = scenery()
    pixels.flags.writeable = False
    assert decode(pixels, 16).shape == decode(pixels[:, ::-1], 16).shape == (16, 16, 3)


@pytest.mark.parametrize("size", [0, (10, 0), (-1, 5)])
def test_a_size_below_one_is_refused(size):
    with pytest.raises(ValueError, match="at least 1 pixel"):
        decode(scenery(), size)


def photographs() -> list[bytes]:
    """Photographs as files: ADE20K's of about 512 × 683 or more, and COCO's enlarged to 512 × 683."""
    photos = [path.read_bytes() for path in sorted(SHARED.glob("ade20k/*/images/validation/*.jpg"))]
    with tarfile.open(SHARED / "coco128" / "val.tar") as tar:
        for _ in range(48):
            member = tar.next()
            if member is not None and member.name.endswith(".jpg"):
                small = Image.open(tar.extractfile(member)).convert("RGB")
                photos.append(encoded(small.resize((683, 512), Image.Resampling.BICUBIC), "JPEG", quality=90))
    return photos


@pytest.mark.skipif(not (SHARED / "coco128").is_dir(), reason="the shared data are not here")
def test_fast_and_plain_pixels_of_photographs_agree_within_the_stated_tolerance():
    photos = photographs()
    assert len(photos) > 20
    for size in (64, 128, 224):
        for photo in photos:
            apart = difference(decode(photo, size), decode(photo, size, fast=False))
            assert apart.mean() <= MEAN_TOLERANCE
            assert apart.max() <= MAX_TOLERANCE
            if min(image_size(photo)) < 4 * size:  # a half would be less than twice the target: no scaling
                assert apart.max() <= 1


def test_the_fast_way_really_decodes_less(monkeypatch):
    sizes = []
    load = ImageFile.ImageFile.load
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: (sizes.append(self.size), load(self))[1])
    photo = encoded(scenery(512, 680), "JPEG")
    decode(photo, 64)
    assert sizes[0] == (170, 128)
    sizes.clear()
    decode(photo, 64, fast=False)
    assert sizes[0] == (680, 512)


# Each kind of unusual image.


def test_an_alpha_channel_is_laid_on_white():
    pixels = np.dstack([scenery(), np.full((60, 90), 255, np.uint8)])
    pixels[:30, :, 3] = 0
    pixels[30:40, :, 3] = 128
    for data in (encoded(pixels, "PNG"), encoded(pixels, "WEBP", lossless=True)):
        decoded = decode(data)
        assert (decoded[:30] == 255).all()
        assert np.array_equal(decoded[40:], scenery()[40:])
        half = (scenery()[30:40].astype(int) * 128 + 255 * 127) / 255
        assert np.abs(decoded[30:40] - half).max() <= 1


def test_grey_with_alpha_is_laid_on_white():
    grey = np.dstack([np.full((8, 8), 100, np.uint8), np.full((8, 8), 255, np.uint8)])
    grey[:4, :, 1] = 0
    decoded = decode(encoded(Image.fromarray(grey, "LA"), "PNG"))
    assert (decoded[:4] == 255).all()
    assert (decoded[4:] == 100).all()


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_a_palette_becomes_its_colours(kind):
    image = Image.new("P", (8, 6))
    image.putpalette([10, 20, 30, 200, 100, 50, 1, 2, 3])
    image.paste(1, (4, 0, 8, 6))
    decoded = decode(encoded(image, kind))
    assert (decoded[:, :4] == (10, 20, 30)).all()
    assert (decoded[:, 4:] == (200, 100, 50)).all()
    see_through = decode(encoded(image, kind, transparency=0))
    assert (see_through[:, :4] == 255).all()
    assert (see_through[:, 4:] == (200, 100, 50)).all()


def test_a_transparent_colour_of_an_rgb_image_is_laid_on_white():
    image = Image.new("RGB", (8, 6), (10, 20, 30))
    image.paste((1, 2, 3), (4, 0, 8, 6))
    decoded = decode(encoded(image, "PNG", transparency=(10, 20, 30)))
    assert (decoded[:, :4] == 255).all()
    assert (decoded[:, 4:] == (1, 2, 3)).all()


@pytest.mark.parametrize("fast", [True, False])
def test_sixteen_bits_are_scaled_not_clipped(fast):
    levels = np.array([[0, 128, 257, 300, 32896, 65535]], dtype=np.uint16)
    decoded = decode(encoded(Image.fromarray(levels), "PNG"), fast=fast)
    assert decoded[0, :, 0].tolist() == [0, 0, 1, 1, 128, 255]
    assert (decoded[..., 0] == decoded[..., 2]).all()


def test_sixteen_bits_per_colour_are_scaled_not_clipped():
    rows = b"".join(b"\0" + struct.pack(">6H", 0, 32768, 65535, 256, 512, 1024) for _ in range(2))

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", 2, 2, 16, 2, 0, 0, 0)  # 16 bits, RGB
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    assert decode(data)[0].tolist() == [[0, 128, 255], [1, 2, 4]]


def test_thirty_two_bits_are_refused_because_their_range_is_not_known():
    with pytest.raises(BadImage, match="32 bits"):
        decode(encoded(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"))


@pytest.mark.parametrize("fast", [True, False])
def test_one_bit_becomes_black_and_white(fast):
    bits = Image.new("1", (16, 8), 0)
    bits.paste(1, (8, 0, 16, 8))
    decoded = decode(encoded(bits, "PNG"), (4, 8), fast=fast)
    assert (decoded[:, :3] == 0).all()
    assert (decoded[:, 5:] == 255).all()


@pytest.mark.parametrize("size", [None, 16])
@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk_is_converted_with_the_right_polarity(kind, size):
    """Pillow writes CMYK JPEGs inverted with Adobe's marker, as Photoshop does, and TIFFs straight."""
    image = Image.new("RGB", (96, 64), (220, 40, 60))
    image.paste((20, 200, 90), (48, 0, 96, 64))
    data = encoded(image.convert("CMYK"), kind)
    assert (b"Adobe" in data) == (kind == "JPEG")
    decoded = decode(data, size)
    width = decoded.shape[1]
    assert np.abs(decoded[:, : width // 3].astype(int) - (220, 40, 60)).max() <= 6
    assert np.abs(decoded[:, -width // 3 :].astype(int) - (20, 200, 90)).max() <= 6


def test_a_grey_jpeg_becomes_rgb():
    decoded = decode(encoded(Image.new("L", (300, 200), 77), "JPEG"), 20)
    assert (decoded == 77).all()


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_an_animation_gives_its_first_frame(kind):
    frames = [Image.new("RGB", (20, 10), colour) for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert Image.open(io.BytesIO(data)).n_frames == 3
    assert (decode(data) == (255, 0, 0)).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation_is_applied(kind, orientation):
    upright = scenery(60, 90)
    undo = {  # what a camera that marks the file with this orientation has stored
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    stored = Image.fromarray(upright) if undo is None else Image.fromarray(upright).transpose(undo)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    options = {"JPEG": {"quality": 98, "subsampling": 0}, "WEBP": {"lossless": True}}.get(kind, {})
    data = encoded(stored, kind, exif=exif, **options)
    assert image_size(data) == (60, 90)
    close = 12 if kind == "JPEG" else 0
    assert difference(decode(data), upright).max() <= close
    for fast in (True, False):
        assert difference(decode(data, (20, 30), fast), decode(upright, (20, 30), fast)).max() <= close + 1
    assert difference(decode(data, (12, 16)), decode(upright, (12, 16))).mean() <= 4  # JPEG scaled to a half


@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P"])
def test_a_file_its_pixels_and_a_pillow_image_are_resized_alike(mode, orientation):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    file = encoded(Image.fromarray(scenery()).convert(mode), "PNG", exif=exif)
    resized = decode(file, (40, 64))
    np.testing.assert_array_equal(decode_opened(Image.open(io.BytesIO(file)), (40, 64)), resized)
    if orientation == 1:
        np.testing.assert_array_equal(decode(decode(file), (40, 64)), resized)


def test_damaged_exif_is_no_reason_to_refuse_the_pixels():
    data = encoded(scenery(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff broken")
    assert decode(data).shape == (60, 90, 3)
    assert image_size(data) == (60, 90)


# What is refused, and how it is told.


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF"])
@pytest.mark.parametrize("part", [0.15, 0.5, 0.95])
@pytest.mark.parametrize("fast", [True, False])
def test_a_truncated_file_is_refused(kind, part, fast, tmp_path):
    data = encoded(np.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype=np.uint8), kind)
    path = tmp_path / "cut.jpg"
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(BadImage, match="truncated"):
        decode(path, 16, fast=fast)
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (b"This is not a picture, it is a letter.\n", "text"),
        (b"<html><head>404</head></html>", "text"),
        (bytes(range(200)), "not an image of a format that is read"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100), "damaged or truncated"),
        (b"\xff\xd8\xff", "begins as JPEG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "text"),
    ],
)
def test_what_is_no_image_is_refused_with_a_reason(content, reason, tmp_path):
    path = tmp_path / "photo.jpg"
    path.write_bytes(content)
    for read in (decode, image_size):
        for image in (path, content):
            with pytest.raises(BadImage, match=reason):
                read(image)


def test_missing_files_and_folders_are_refused(tmp_path):
    with pytest.raises(BadImage, match="no such file"):
        decode(tmp_path / "nothing.jpg")
    with pytest.raises(BadImage, match="not a file"):
        decode(tmp_path)


def test_a_file_without_permission_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "locked.jpg"
    path.write_bytes(encoded(scenery(), "JPEG"))
    path.chmod(0)
    try:
        path.read_bytes()
    except PermissionError:
        pass
    else:  # root may read everything: let opening fail as it does for others

        def refuse(*arguments: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(BadImage, match="permission denied"):
        decode(path)


@pytest.mark.parametrize("side", [9500, 40000])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_decompression_bomb_is_refused_by_its_header(side, tmp_path):
    """A small PNG of one colour that would fill gigabytes: its pixels are never read."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    squeezer = zlib.compressobj(9)
    body = b"".join(squeezer.compress(bytes(1 << 20)) for _ in range(20)) + squeezer.flush()
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    path = tmp_path / "bomb.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b""))
    assert path.stat().st_size < 100_000
    for read in (decode, image_size):
        with pytest.raises(BadImage, match=f"{MAX_PIXELS:,} pixels"):
            read(path)


def test_a_bomb_is_refused_where_pillow_s_own_limit_was_taken_away(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    header = struct.pack(">IIBBBBB", 10000, 10000, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + header
    data += struct.pack(">I", zlib.crc32(b"IHDR" + header)) + struct.pack(">I", 10) + b"IDAT" + bytes(14)
    with pytest.raises(BadImage, match="10000 × 10000 pixels"):
        image_size(data)


@pytest.mark.parametrize(
    "pixels", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.float32), np.zeros((0, 4, 3), np.uint8)]
)
def test_arrays_of_another_kind_are_refused(pixels):
    with pytest.raises(BadImage, match=r"expected pixels \[H, W, 3\] of uint8"):
        decode(pixels)


def test_a_bad_image_is_bad_data():
    assert issubclass(BadImage, DataError)
    assert issubclass(BadImage, ValueError)


def test_several_threads_decode_the_same_pixels():
    photos = [encoded(scenery(200, 300, seed), "JPEG") for seed in range(8)]
    expected = [decode(photo, 24) for photo in photos]
    wrong: list[int] = []

    def work() -> None:
        for _ in range(10):
            wrong.extend(
                index for index, photo in enumerate(photos) if not np.array_equal(decode(photo, 24), expected[index])
            )

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_mask_is_resized_without_mixing_its_values():
    mask = np.zeros((6, 9), np.int32)
    mask[3:, 6:] = 150
    assert resize_mask(mask, (2, 3)).tolist() == [[0, 0, 0], [0, 0, 150]]
    larger = resize_mask(mask, (12, 27))
    assert np.array_equal(larger, mask.repeat(2, axis=0).repeat(3, axis=1))
    assert set(np.unique(resize_mask(np.arange(20).reshape(4, 5), (3, 7)))) <= set(range(20))
