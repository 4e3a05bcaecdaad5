"""The API for programs: photographs in, tags or explanations out."""

import functools
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse

from contextcaps.serving.bodies import Image, Options, upload_of
from contextcaps.serving.engine import Engine
from contextcaps.serving.refusals import Refused
from contextcaps.serving.service import Answered, Service, unless_gone
from contextcaps.tagging.explanation import ClassExplanation, Explanation
from contextcaps.tagging.formats import row_object
from contextcaps.tagging.reasons import describe_reasons
from contextcaps.tagging.tags import Tagging

__all__ = ["REFUSALS", "api_routes", "checked", "explanation_row"]

_DIGITS = 4

REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": text,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {"error": {"type": "string"}, "code": {"type": "string"}},
                    "required": ["error", "code"],
                }
            }
        },
    }
    for status, text in (
        (401, "The token is missing or wrong."),
        (403, "A page of another site asks."),
        (413, "The body or the number of photographs is too large."),
        (415, "The body is neither multipart/form-data nor JSON."),
        (421, "The name of the server is not its own."),
        (422, "What is asked for cannot be understood, or no photograph can be read."),
        (429, "Too many photographs are waiting; Retry-After says when to come again."),
        (503, "The server stops, has too little memory, or was too slow; Retry-After says when to come again."),
    )
}
"""Answers of OpenAPI for what is refused."""


def _body(kind: type[Options]) -> dict[str, Any]:
    """Describe a request's body for OpenAPI."""
    options = kind.model_json_schema()["properties"]
    image = Image.model_json_schema()
    images = {"type": "array", "items": image, "minItems": 1}
    files = {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1}
    return {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {"images": images, **options},
                    "required": ["images"],
                    "additionalProperties": False,
                }
            },
            "multipart/form-data": {
                "schema": {"type": "object", "properties": {"files": files, **options}, "required": ["files"]}
            },
        },
    }


_RESULTS = {
    "description": "A result for each photograph, in their order.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {
                    "model": {"type": "string"},
                    "results": {"type": "array", "items": {"type": "object", "required": ["image"]}},
                },
                "required": ["model", "results"],
            }
        }
    },
}


def api_routes(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1", responses=REFUSALS, tags=["for programs"])

    async def computed(
        request: Request,
        answer: Callable[[Engine, Options, tuple[float, ...], Answered], Any],
        explains: bool = False,
    ) -> JSONResponse:
        async with service.body(request) as body:
            content_type = request.headers.get("content-type", "")
            take_apart = functools.partial(upload_of, content_type, body, service.config.max_files)
            uploads, options = await service.aside(take_apart)
            del body, take_apart  # photographs are kept until they are decoded, not the whole
            engine, thresholds = checked(service, options, explains)
            work = service.compute(engine, uploads, options.known)
            answered = await unless_gone(request, work)
        results = [await answer(engine, options, thresholds, each) for each in answered]
        document = {"model": engine.name, "results": results}
        if all(each.found is None for each in answered):
            first = answered[0].error
            raise Refused(422, "bad_image", f"no photograph can be read: {first}", more=document)
        return JSONResponse(document)

    @router.post(
        "/tag",
        summary="Tag photographs.",
        openapi_extra={"requestBody": _body(Options)},
        responses={200: _RESULTS},
    )
    async def tag(request: Request) -> JSONResponse:
        """Give each photograph its tags, as `contextcaps tag` does; one that cannot be read has an `error` instead."""
        return await computed(request, tagged)

    @router.post(
        "/explain",
        summary="Say why photographs have their tags.",
        openapi_extra={"requestBody": _body(Options)},
        responses={200: _RESULTS},
    )
    async def explain(request: Request) -> JSONResponse:
        """Divide the logit of each tag into what the image and the other classes say, as `contextcaps explain` does."""

        async def explained(
            engine: Engine, options: Options, thresholds: tuple[float, ...], answered: Answered
        ) -> dict[str, Any]:
            if answered.found is None:
                return {"image": answered.name, "error": answered.error}
            features = answered.found.features
            found = await service.in_head(
                lambda: engine.explain(answered.name, features, options.classes, options.known)
            )
            return explanation_row(found, options.parts == "all")

        return await computed(request, explained, explains=True)

    @router.get("/models", summary="List the models that can be asked for; the first is the default.")
    async def models() -> JSONResponse:
        """Each with its classes, their thresholds, whether it takes known labels, and whether it explains."""
        config = service.config
        return JSONResponse(
            {
                "models": [engine.describe() for engine in service.engines.values()],
                "limits": {
                    "bytes": config.max_bytes,
                    "files": config.max_files,
                    "pixels": config.max_pixels,
                    "seconds": config.time_limit,
                },
            }
        )

    return router


def checked(service: Service, options: Options, explains: bool = False) -> tuple[Engine, tuple[float, ...]]:
    """Return the model that is asked for and its thresholds [J]; refuse what it cannot do, before the work."""
    engine = service.engine(options.model)
    if explains and not engine.explains:
        raise Refused(422, "no_reasons", f"model: the scores of {engine.name} are no exact sum over the image")
    try:
        thresholds = engine.check(
            options.known, options.classes, options.threshold, options.precision_at_least, options.recall_at_least
        )
    except ValueError as error:
        raise Refused(422, "unreadable", str(error)) from None
    return engine, thresholds


async def tagged(engine: Engine, options: Options, thresholds: tuple[float, ...], answered: Answered) -> dict[str, Any]:
    """Return a photograph's row, as `contextcaps tag` writes it."""
    if answered.found is None:
        return row_object(Tagging(answered.name, (), error=answered.error), engine.classes)
    tagging = engine.tagging(answered.name, answered.found.scores, thresholds, options.top_k, options.known)
    return row_object(tagging, engine.classes, options.scores == "all")


def explanation_row(explanation: Explanation, all_parts: bool) -> dict[str, Any]:
    """Return an explanation as `contextcaps explain` prints it, each class with its sentence and its heat map.

    Without `all_parts` the parts of single capsules are left out; there are thousands.
    """
    row = explanation.document()
    for document, each in zip(row["classes"], explanation.classes, strict=True):
        document["why"] = describe_reasons(each)
        document["heat_map"] = _rounded(each)
        if not all_parts:
            document["parts"] = {
                "image": round(each.image, _DIGITS),
                "messages": {name: round(value, _DIGITS) for name, value in each.messages.items()},
                "rest": round(each.rest, _DIGITS),
            }
            document.pop("length", None)
    return row


def _rounded(explained: ClassExplanation) -> list[list[float]]:
    return [[round(float(cell), _DIGITS) for cell in row] for row in explained.heat_map()]
