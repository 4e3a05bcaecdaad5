"""Write tags into XMP sidecar files, where photo software looks for keywords; the photographs are never touched.

A sidecar is `photo.jpg.xmp`, as digiKam and darktable have it, or `photo.xmp` where there is one already. Tags are
added to its `dc:subject` (XMP Specification Part 1, Dublin Core); everything else in it stays, keywords of others too.
"""

import xml.dom.minidom as minidom
from collections.abc import Iterable
from pathlib import Path
from xml.dom.minidom import Document, Element
from xml.parsers.expat import ExpatError

from contextcaps.atomic import write_atomically
from contextcaps.plain_files import require_plain
from contextcaps.tagging.tags import Tagging

__all__ = ["Sidecars", "new_sidecar", "sidecar_of", "write_sidecar"]

_META, _RDF = "adobe:ns:meta/", "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_DC = "http://purl.org/dc/elements/1.1/"
_XMLNS = "http://www.w3.org/2000/xmlns/"

_EMPTY = f"""<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="{_META}" x:xmptk="contextcaps">
 <rdf:RDF xmlns:rdf="{_RDF}">
  <rdf:Description rdf:about="" xmlns:dc="{_DC}"/>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>"""

_MOST_BYTES = 16 * 2**20
"""Larger files are no sidecars."""


class Sidecars:
    """Takes taggings and writes a sidecar beside each image that was tagged."""

    def __init__(self) -> None:
        self.written = 0
        """Sidecars that were written or had all tags already."""

    def write(self, tagging: Tagging) -> None:
        """Add the tags of an image to its sidecar; nothing for one that could not be read, or without tags.

        Raises:
            ValueError: there is a sidecar that cannot be read; it is left as it is.
        """
        if tagging.error is None and tagging.tags:
            write_sidecar(Path(str(tagging.image)), [tag.name for tag in tagging.tags])
            self.written += 1


def sidecar_of(image: Path) -> Path:
    """Return the sidecar of an image: the one that is there, or `photo.jpg.xmp`."""
    beside, short = image.with_name(image.name + ".xmp"), image.with_suffix(".xmp")
    return short if short.exists() and not beside.exists() else beside


def write_sidecar(image: Path, keywords: Iterable[str]) -> Path:
    """Add keywords to an image's sidecar, each once, and return where it is; written whole or not at all.

    Raises:
        ValueError: there is a sidecar that is no XMP; it is left as it is.
    """
    path = sidecar_of(image)
    document = _read(path) if path.exists() else _empty()
    if _add(document, keywords):
        write_atomically(path, _text_of(document))
    return path


def new_sidecar(keywords: Iterable[str]) -> str:
    """Return the text of a sidecar with these keywords and nothing else."""
    document = _empty()
    _add(document, keywords)
    return _text_of(document)


def _empty() -> Document:
    return minidom.parseString(_EMPTY.encode())  # noqa: S318


def _add(document: Document, keywords: Iterable[str]) -> bool:
    """Add keywords that are not there yet; return whether there were any."""
    bag = _subjects(document)
    there = {_text(item) for item in bag.getElementsByTagNameNS(_RDF, "li")}
    missing = [keyword for keyword in dict.fromkeys(map(_allowed, keywords)) if keyword and keyword not in there]
    for keyword in missing:
        item = _element(document, _RDF, "rdf:li")
        item.appendChild(document.createTextNode(keyword))
        bag.appendChild(item)
    return bool(missing)


def _text_of(document: Document) -> str:
    """Return a document without the XML declaration, as XMP wants it."""
    return "\n".join(node.toxml() for node in document.childNodes) + "\n"


def _read(path: Path) -> Document:
    content = path.read_bytes() if require_plain(path) <= _MOST_BYTES else b""
    try:
        if not content or b"<!DOCTYPE" in content or b"<!ENTITY" in content:  # XMP has neither; they can grow for ever
            raise ValueError
        document = minidom.parseString(content)  # noqa: S318  # without entities
        if not document.getElementsByTagNameNS(_RDF, "RDF"):
            raise ValueError
    except (ExpatError, ValueError, LookupError):
        raise ValueError(
            f"{path}: no XMP file that can be read, so its tags were not added; remove or mend it"
        ) from None
    return document


def _subjects(document: Document) -> Element:
    """Return the list of `dc:subject`, and make it where there is none."""
    for subject in document.getElementsByTagNameNS(_DC, "subject"):
        for kind in ("Bag", "Seq", "Alt"):
            for items in subject.getElementsByTagNameNS(_RDF, kind):
                return items
    (root, *_) = document.getElementsByTagNameNS(_RDF, "RDF")
    described = root.getElementsByTagNameNS(_RDF, "Description")
    if described:
        description = described[0]
    else:
        description = root.appendChild(_element(document, _RDF, "rdf:Description"))
        description.setAttributeNS(_RDF, "rdf:about", "")
    subject = description.appendChild(_element(document, _DC, "dc:subject"))
    return subject.appendChild(_element(document, _RDF, "rdf:Bag"))


def _element(document: Document, namespace: str, name: str) -> Element:
    """Create an element that says itself what its prefix means, whatever prefixes the file has."""
    element = document.createElementNS(namespace, name)
    element.setAttributeNS(_XMLNS, f"xmlns:{name.partition(':')[0]}", namespace)
    return element


def _text(element: Element) -> str:
    return "".join(node.data for node in element.childNodes if node.nodeType == node.TEXT_NODE).strip()


def _allowed(text: str) -> str:
    """Return text without the control characters and lone surrogates that XML cannot hold, nor space around it."""
    kept = "".join(
        each
        for each in text
        if each in "\t\n\r" or "\x20" <= each <= "\ud7ff" or "\ue000" <= each <= "\ufffd" or each > "\uffff"
    )
    return kept.strip()
