"""Sidecars: read back by exiftool and by our own eyes; what others have written in them stays."""

import json
import shutil
import subprocess
import xml.dom.minidom as minidom
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextcaps.tagging import Tag, Tagging
from contextcaps.tagging.xmp import Sidecars, sidecar_of, write_sidecar

DC, RDF = "http://purl.org/dc/elements/1.1/", "http://www.w3.org/1999/02/22-rdf-syntax-ns#"

LIGHTROOM = """<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="Adobe XMP Core 7.0-c000">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <!-- by hand -->
  <rdf:Description rdf:about="" xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmlns:dc="http://purl.org/dc/elements/1.1/"
    xmlns:crs="http://ns.adobe.com/camera-raw-settings/1.0/" xmp:Rating="4" crs:Exposure2012="+0.50">
   <dc:subject>
    <rdf:Bag>
     <rdf:li>Grandma &amp; Tom</rdf:li>
     <rdf:li>dog</rdf:li>
    </rdf:Bag>
   </dc:subject>
   <dc:title><rdf:Alt><rdf:li xml:lang="x-default">On the beach</rdf:li></rdf:Alt></dc:title>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
"""


def subjects(path: Path) -> list[str]:
    """The keywords of a sidecar."""
    document = minidom.parse(str(path))
    (subject,) = document.getElementsByTagNameNS(DC, "subject")
    return [item.firstChild.data for item in subject.getElementsByTagNameNS(RDF, "li")]


def test_a_new_sidecar(tmp_path) -> None:
    photo = tmp_path / "photo.jpg"
    assert write_sidecar(photo, ["dining table", "cup", "cup"]) == tmp_path / "photo.jpg.xmp"
    assert subjects(tmp_path / "photo.jpg.xmp") == ["dining table", "cup"]
    assert not photo.exists()
    assert [each.name for each in tmp_path.iterdir()] == ["photo.jpg.xmp"]


@pytest.mark.parametrize("name", ["photo.xmp", "photo.jpg.xmp"])
def test_what_is_there_stays(name, tmp_path) -> None:
    sidecar = tmp_path / name
    sidecar.write_text(LIGHTROOM)
    assert write_sidecar(tmp_path / "photo.jpg", ["dog", "person"]) == sidecar
    assert subjects(sidecar) == ["Grandma & Tom", "dog", "person"]
    text = sidecar.read_text(encoding="utf-8")
    for kept in ("<!-- by hand -->", 'xmp:Rating="4"', 'crs:Exposure2012="+0.50"', "On the beach", 'x:xmptk="Adobe'):
        assert kept in text
    assert write_sidecar(tmp_path / "photo.jpg", ["person"]) == sidecar
    assert sidecar.read_text(encoding="utf-8") == text  # nothing is added twice


@pytest.mark.parametrize(
    "body",
    [
        '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"/>',
        '<r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><r:Description r:about=""/></r:RDF>',
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
        '<rdf:Description xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:subject/></rdf:Description></rdf:RDF></x:xmpmeta>',
    ],
    ids=["no description", "other prefixes", "an empty subject"],
)
def test_sidecars_without_keywords(body, tmp_path) -> None:
    (tmp_path / "a.png.xmp").write_text(body)
    write_sidecar(tmp_path / "a.png", ["été"])
    document = minidom.parse(str(tmp_path / "a.png.xmp"))
    items = [
        item
        for each in document.getElementsByTagNameNS(DC, "subject")
        for item in each.getElementsByTagNameNS(RDF, "li")
    ]
    assert [item.firstChild.data for item in items] == ["été"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not XML",
        b"<html/>",
        b"<x:xmpmeta xmlns:x='adobe:ns:meta/'><rdf:RDF",
        b'<!DOCTYPE x [<!ENTITY a "aaaa">]><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">&a;</rdf:RDF>',
        b"\xff\xfe\x00",
    ],
    ids=["empty", "text", "other XML", "cut off", "entities", "bytes"],
)
def test_a_sidecar_that_is_none_is_left_alone(content, tmp_path) -> None:
    (tmp_path / "photo.xmp").write_bytes(content)
    with pytest.raises(ValueError, match=r"photo\.xmp: no XMP file that can be read"):
        write_sidecar(tmp_path / "photo.jpg", ["dog"])
    assert (tmp_path / "photo.xmp").read_bytes() == content


@given(names=st.lists(st.text(min_size=1).filter(lambda text: text.strip() == text and "\r" not in text), max_size=4))
def test_any_name_reads_back(names, tmp_path_factory) -> None:
    photo = tmp_path_factory.mktemp("any") / "x.jpg"
    write_sidecar(photo, ["first", *names])
    before = sidecar_of(photo).read_bytes()
    found = subjects(sidecar_of(photo))
    assert all(found)
    kept = [
        name for name in dict.fromkeys(["first", *names]) if all(ord(each) >= 32 or each in "\t\n" for each in name)
    ]
    assert [name for name in kept if name.isprintable()] == [
        name for name in found if name in kept and name.isprintable()
    ]
    write_sidecar(photo, found)
    assert sidecar_of(photo).read_bytes() == before


def test_images_without_tags_get_none(tmp_path) -> None:
    sidecars = Sidecars()
    sidecars.write(Tagging(str(tmp_path / "a.jpg"), (Tag("dog", 0.9, 0.5),)))
    sidecars.write(Tagging(str(tmp_path / "b.jpg"), ()))
    sidecars.write(Tagging(str(tmp_path / "c.jpg"), (), error="damaged"))
    assert sidecars.written == 1
    assert [each.name for each in tmp_path.iterdir()] == ["a.jpg.xmp"]


@pytest.mark.skipif(shutil.which("exiftool") is None, reason="exiftool is not installed")
def test_exiftool_reads_them(tmp_path) -> None:
    write_sidecar(tmp_path / "new.jpg", ["dining table", "été <b>"])
    (tmp_path / "old.xmp").write_text(LIGHTROOM)
    write_sidecar(tmp_path / "old.jpg", ["person"])
    words = ["exiftool", "-j", "-XMP:all", str(tmp_path / "new.jpg.xmp"), str(tmp_path / "old.xmp")]
    new, old = json.loads(subprocess.run(words, capture_output=True, check=True, text=True).stdout)
    assert new["Subject"] == ["dining table", "été <b>"]
    assert old["Subject"] == ["Grandma & Tom", "dog", "person"]
    assert (old["Rating"], old["Title"], old["Exposure2012"]) == (4, "On the beach", "+0.50")
