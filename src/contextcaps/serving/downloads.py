"""Files for what the page shows: JSON lines, CSV, and XMP sidecars in a zip, written as `contextcaps tag` does."""

import io
import zipfile
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, StrictBool
from starlette.requests import Request
from starlette.responses import Response

from contextcaps.serving.api import REFUSALS
from contextcaps.serving.bodies import parse_json
from contextcaps.serving.service import Service
from contextcaps.tagging.formats import OUTPUTS
from contextcaps.tagging.tags import Tag, Tagging
from contextcaps.tagging.xmp import new_sidecar

__all__ = ["download_routes"]

_DATE = (1980, 1, 1, 0, 0, 0)  # the first that a zip can have: the same tags give the same file

_Name = Annotated[str, Field(max_length=1000)]


class _Tag(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: _Name
    score: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
    given: StrictBool = False


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid")
    image: _Name
    tags: list[_Tag] = Field(max_length=10_000)
    given: dict[_Name, StrictBool] = Field(default_factory=dict)
    error: str | None = Field(None, max_length=2000)

    def tagging(self) -> Tagging:
        tags = tuple(Tag(tag.name, tag.score, 0.0, tag.given) for tag in self.tags)
        return Tagging(self.image, tags, error=self.error, given=self.given)


class _Rows(BaseModel):
    model_config = ConfigDict(extra="forbid")
    rows: list[_Row] = Field(min_length=1, max_length=100_000)


def download_routes(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1/files", responses=REFUSALS, tags=["for the page"])
    body = {"required": True, "content": {"application/json": {"schema": _Rows.model_json_schema(ref_template="#")}}}

    @router.post(
        "/{kind}",
        summary="Write tags into a file, or sidecars into a zip.",
        openapi_extra={"requestBody": body},
        response_class=Response,
    )
    async def write(kind: Literal["jsonl", "csv", "xmp"], request: Request) -> Response:
        """Take rows as `/v1/tag` gives them."""
        async with service.body(request) as content:
            made = await service.aside(lambda: _file(kind, parse_json(_Rows, content)))
        name, media = {
            "jsonl": ("tags.jsonl", "application/x-ndjson"),
            "csv": ("tags.csv", "text/csv; charset=utf-8"),
            "xmp": ("sidecars.zip", "application/zip"),
        }[kind]
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(made, media_type=media, headers=headers)

    return router


def _file(kind: Literal["jsonl", "csv", "xmp"], rows: _Rows) -> bytes:
    taggings = [row.tagging() for row in rows.rows]
    written = io.BytesIO()
    if kind == "xmp":
        _write_sidecars(taggings, written)
    else:
        output = OUTPUTS[kind](written, (), False, any(row.given for row in rows.rows))
        for tagging in taggings:
            output.write(tagging)
        output.finish()
    return written.getvalue()


def _write_sidecars(taggings: Iterable[Tagging], file: io.BytesIO) -> None:
    """Write a sidecar for each photograph that has tags; its name is the photograph's, without folders."""
    taken: set[str] = set()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for tagging in taggings:
            if not tagging.tags:
                continue
            name, number = _plain_name(str(tagging.image)), 1
            while (unique := name if number == 1 else f"{number}-{name}") in taken:
                number += 1
            taken.add(unique)
            text = new_sidecar(tag.name for tag in tagging.tags)
            archive.writestr(zipfile.ZipInfo(f"{unique}.xmp", _DATE), text.encode("utf-8", "replace"))


def _plain_name(name: str) -> str:
    """Return a name that is a file's in any folder, and nothing more.

    >>> _plain_name("../../etc/photo.jpg"), _plain_name("C:\\\\photos\\\\a.jpg"), _plain_name("..")
    ('photo.jpg', 'a.jpg', 'photograph')
    """
    last = PurePosixPath(name.replace("\\", "/")).name
    kept = "".join(each for each in last if each.isprintable() and each not in '<>:"|?*').strip(" .")
    return kept[:200] or "photograph"
