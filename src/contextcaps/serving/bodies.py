"""Bodies of requests: read within limits, taken apart in memory; nothing is ever written to a disk.

A body is multipart/form-data with photographs as files and options as fields, or JSON with photographs in base64.
"""

import base64
import binascii
import contextlib
import dataclasses
import json
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from contextcaps.serving.admission import ByteBudget
from contextcaps.serving.refusals import Refused
from contextcaps.tagging.known import parse_classes, parse_known

__all__ = ["Image", "Options", "Uploaded", "body_of", "parse", "parse_json", "upload_of"]

logging.getLogger("python_multipart").setLevel(logging.ERROR)  # what is wrong with a form goes to its sender alone

_NAME_LENGTH = 1000
_FIELDS = 64  # parts of a form that are no files, at most
_HEADERS = 8192  # bytes of a part's headers at most

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Options(BaseModel):
    """What a request may ask for besides its photographs; as `contextcaps tag` has it."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = Field(None, description="One of those that GET /v1/models lists; by default the first.")
    known: dict[str, StrictBool] = Field(
        default_factory=dict, description="Known labels of all these photographs: class → is it present."
    )
    threshold: Share | dict[str, Share] | None = Field(
        None, description="Score from which any class counts as present; or class → such a score."
    )
    precision_at_least: Share | None = Field(None, description="One threshold for all classes, by its precision.")
    recall_at_least: Share | None = Field(None, description="One threshold for all classes, by its recall.")
    top_k: Annotated[StrictInt, Field(ge=1, le=100_000)] | None = Field(
        None, description="At most so many tags for each photograph."
    )
    scores: Literal["tags", "all"] = Field("tags", description="Give the scores of the tags, or of all classes.")
    classes: list[str] = Field(default_factory=list, description="Explain these besides the tags.", max_length=1000)
    parts: Literal["none", "all"] = Field("none", description="Explanations: every part of each logit, too.")


class Image(BaseModel):
    """A photograph in JSON."""

    model_config = ConfigDict(extra="forbid")

    name: str | None = Field(None, max_length=_NAME_LENGTH, description="Named so in the answer; else by its index.")
    data: str = Field(description="The file's bytes in base64.")


@dataclasses.dataclass(eq=False)
class Uploaded:
    """A photograph as a client sent it."""

    name: str | int
    """What it is called in the answer, never a name of a file here."""
    content: bytes

    def take(self) -> bytes:
        """Return the file's bytes and forget them: they are decoded once, and large."""
        content, self.content = self.content, b""
        return content


@contextlib.asynccontextmanager
async def body_of(request: Request, most: int, budget: ByteBudget) -> AsyncIterator[bytes]:
    """Read a body of so many bytes at most, and count it as in memory while a block runs.

    Raises:
        ClientDisconnect: the client has hung up.
        Refused: it is longer (413), or there is no room for it (503).
    """
    length = request.headers.get("content-length", "")
    expected = int(length) if length.isascii() and length.isdigit() else 0
    body, taken = bytearray(), 0
    try:
        if expected > most:
            raise _too_long(most)
        budget.take(expected)
        taken = expected
        async for chunk in request.stream():
            if len(body) + len(chunk) > most:
                raise _too_long(most)
            if len(body) + len(chunk) > taken:
                budget.take(len(body) + len(chunk) - taken)
                taken = len(body) + len(chunk)
            body += chunk
        whole = [bytes(body)]
        body.clear()
        yield whole.pop()  # so that only who uses it keeps it
    finally:
        budget.give_back(taken)


def _too_long(most: int) -> Refused:
    return Refused(413, "too_large", f"the body of this request is larger than {most / 2**20:g} MB")


def upload_of(content_type: str, body: bytes, most: int) -> tuple[list[Uploaded], Options]:
    """Take a body apart: photographs, and what is asked for.

    Args:
        content_type: the header.
        body: all of it.
        most: photographs.

    Raises:
        Refused: it is damaged or of another type, says what is not known, or has too many photographs.
    """
    kind, parameters = parse_options_header(content_type.encode("latin-1", "replace"))
    if kind == b"multipart/form-data":
        uploads, options = _from_form(parameters.get(b"boundary", b""), body, most)
    elif kind == b"application/json":
        uploads, options = _from_json(body)
    else:
        raise Refused(415, "media_type", "expected multipart/form-data with files, or application/json")
    if not uploads:
        raise _unreadable("there is no photograph: expected files, or images in JSON")
    if len(uploads) > most:
        raise _too_many(most)
    return uploads, options


class _Request(Options):
    images: list[Image] = Field(min_length=1)


def _from_json(body: bytes) -> tuple[list[Uploaded], Options]:
    request = parse_json(_Request, body)
    uploads = []
    for index, image in enumerate(request.images):
        try:
            content = base64.b64decode(image.data, validate=True)
        except (binascii.Error, ValueError):
            raise _unreadable(f"images, {index}: its data are no base64") from None
        uploads.append(Uploaded(index if image.name is None else image.name, content))
    return uploads, request


def _from_form(boundary: bytes, body: bytes, most: int) -> tuple[list[Uploaded], Options]:
    uploads: list[Uploaded] = []
    fields: dict[str, bytes] = {}
    for headers, content in _parts(boundary, body, most + _FIELDS):
        _, parameters = parse_options_header(headers.get(b"content-disposition", b""))
        name = parameters.get(b"name", b"").decode("utf-8", "replace")
        if b"filename" in parameters:
            shown = parameters[b"filename"].decode("utf-8", "replace")[:_NAME_LENGTH]
            uploads.append(Uploaded(shown or len(uploads), content))
        elif name in fields:
            raise _unreadable(f"{name}: is there twice")
        else:
            fields[name] = content
    return uploads, parse(Options, {name: _field(name, content) for name, content in fields.items()})


def _field(name: str, content: bytes) -> Any:
    """Return the value of a form's field: JSON where it is that, otherwise text as on the command line."""
    try:
        text = content.decode().strip()
    except UnicodeDecodeError:
        raise _unreadable(f"{name}: expected text in UTF-8") from None
    if name in ("model", "scores", "parts"):
        return text
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    try:
        return parse_known(text) if name == "known" else parse_classes(text, ()) if name == "classes" else text
    except ValueError as error:
        raise _unreadable(str(error)) from None


def _parts(boundary: bytes, body: bytes, most: int) -> list[tuple[dict[bytes, bytes], bytes]]:
    """Return the parts of a form, each with its headers."""
    found: list[tuple[dict[bytes, bytes], list[bytes]]] = []
    header, value = bytearray(), bytearray()
    size, is_whole = 0, False

    def begin() -> None:
        nonlocal size
        if len(found) >= most:
            raise _too_many(most)
        found.append(({}, []))
        size = 0

    def grow(target: bytearray, data: bytes, start: int, end: int) -> None:
        nonlocal size
        size += end - start
        if size > _HEADERS:
            raise _unreadable("the headers of a part are too long")
        target += data[start:end]

    def end_header() -> None:
        found[-1][0][bytes(header).lower()] = bytes(value)
        header.clear()
        value.clear()

    def end() -> None:
        nonlocal is_whole
        is_whole = True

    def content(data: bytes, start: int, end: int) -> None:
        found[-1][1].append(data[start:end])

    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": begin,
                "on_header_field": lambda data, start, end: grow(header, data, start, end),
                "on_header_value": lambda data, start, end: grow(value, data, start, end),
                "on_header_end": end_header,
                "on_part_data": content,
                "on_end": end,
            },
        )
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise _unreadable(f"the form cannot be read: {error}") from None
    if not is_whole:
        raise _unreadable("the form is cut off: its last boundary is missing")
    return [(headers, pieces[0] if len(pieces) == 1 else b"".join(pieces)) for headers, pieces in found]


Model = TypeVar("Model", bound=BaseModel)


def parse_json(kind: type[Model], body: bytes) -> Model:
    """Read JSON into a model; refuse what does not fit."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _invalid(error) from None


def parse(kind: type[Model], fields: Mapping[str, Any]) -> Model:
    """Put fields into a model; refuse what does not fit."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise _invalid(error) from None


def _invalid(error: ValidationError) -> Refused:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ", ".join(str(each)[:80] for each in first["loc"])
    return _unreadable(f"{where}: {first['msg']}" if where else first["msg"])


def _unreadable(message: str) -> Refused:
    return Refused(422, "unreadable", message)


def _too_many(most: int) -> Refused:
    return Refused(413, "too_many", f"more than {most} photographs: send them in several requests")
