"""HEIC, as telephones write it: read with the extra, and without it refused with a line that names the extra."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

from contextcaps.data import open_source
from contextcaps.data.images import BadImage, decode, image_size
from contextcaps.data.prepared import prepare
from contextcaps.extras import import_extra
from contextcaps.tagging.pixels import pixels_of

pillow_heif = pytest.importorskip("pillow_heif")  # writes; what reads is pi_heif
pytest.importorskip("pi_heif")


def photo(orientation: int = 1, brand: bytes | None = None) -> bytes:
    """A HEIC file of 60 × 40 pixels as stored: red above, blue below on the left, white on the right."""
    pixels = np.full((40, 60, 3), 255, dtype=np.uint8)
    pixels[:20], pixels[20:, :30] = (255, 0, 0), (0, 0, 255)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    file = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(pixels)).save(file, quality=95, exif=exif.tobytes())
    content = file.getvalue()
    return content if brand is None else content.replace(b"ftypheic", b"ftyp" + brand, 1)


def test_a_photo_from_a_file_and_from_bytes(tmp_path: Path) -> None:
    path = tmp_path / "IMG_0001.HEIC"
    path.write_bytes(photo())
    for image in (path, photo(), photo(brand=b"mif1")):
        assert image_size(image) == (40, 60)
        pixels = decode(image)
        np.testing.assert_allclose(pixels[[5, 30, 30], [5, 5, 55]], [(255, 0, 0), (0, 0, 255), (255,) * 3], atol=6)
        assert decode(image, (20, 30)).shape == (20, 30, 3)
    assert pixels_of(path, (8, 9)).shape == (3, 8, 9)


def test_a_photo_taken_upright_stands_upright() -> None:
    pixels = decode(photo(orientation=6))  # turned by 90°: what was above is on the right
    assert image_size(photo(orientation=6)) == pixels.shape[:2] == (60, 40)
    np.testing.assert_allclose(pixels[[5, 5], [35, 5]], [(255, 0, 0), (0, 0, 255)], atol=6)


def test_a_photo_cut_off_is_refused() -> None:
    for part in (40, 300, len(photo()) - 50):
        with pytest.raises(BadImage, match="damaged or truncated image"):
            decode(photo()[:part])


def test_a_source_of_photos_is_prepared(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "IMG_0001.HEIC").write_bytes(photo(orientation=1 if name == "cat" else 3))
    prepared = prepare(open_source(f"folders:{tmp_path / 'photos'}"), 16, tmp_path / "cache")
    assert len(prepared) == 2
    assert prepared.problems == []


def test_pillow_reads_no_more_formats_than_before() -> None:
    decode(photo())
    assert "HEIF" not in Image.OPEN


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import_extra.cache_clear()
    monkeypatch.setitem(sys.modules, "pi_heif", None)
    monkeypatch.setattr("contextcaps.data.images.can_be_elsewhere", lambda: False)  # another process has the extra
    with pytest.raises(BadImage) as caught:
        decode(photo())
    assert str(caught.value) == (
        "HEIC images: needs the extra 'heic': pip install 'contextcaps[heic]'; or convert it to JPEG"
    )
    import_extra.cache_clear()
