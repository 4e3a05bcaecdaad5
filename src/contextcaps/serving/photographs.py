"""Routes of the page: photographs whose features are kept, so that an answer moves their tags at once."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import Field, StrictBool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from contextcaps.serving.api import REFUSALS, checked, explanation_row
from contextcaps.serving.bodies import Options, Uploaded, parse_json
from contextcaps.serving.engine import Engine, Features, Scores
from contextcaps.serving.refusals import Refused
from contextcaps.serving.service import Service, unless_gone
from contextcaps.tagging.explanation import Move
from contextcaps.tagging.formats import row_object
from contextcaps.tagging.reasons import describe_through

__all__ = ["photograph_routes"]

_MOVES = 30  # moved classes that an answer has at most
_THROUGH = 3  # classes through which a score moved, by name

Key = Annotated[str, Path(pattern="^[0-9a-f]{32}$", description="128 random bits that the page has drawn.")]


class _Told(Options):
    since: dict[str, StrictBool] = Field(
        default_factory=dict, description="What was known before: moves are those since then."
    )


_TOLD = {
    "required": False,
    "content": {"application/json": {"schema": _Told.model_json_schema()}},
}


def photograph_routes(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1/photographs", responses=REFUSALS, tags=["for the page"])

    async def options_of(request: Request) -> _Told:
        async with service.body(request) as body:
            return parse_json(_Told, body) if body else _Told.model_validate({})

    async def kept(engine: Engine, key: str) -> Features:
        """Return what is kept of a photograph, ready for answers."""
        features = service.kept.get(engine.name, key)
        if features is None:
            raise Refused(404, "not_kept", "this photograph's features are not kept any more; send it again")
        ready = await service.in_head(lambda: engine.ready(features))
        if ready is not features and service.kept.get(engine.name, key) is features:
            service.kept.put(engine.name, key, ready)
        return ready

    @router.put(
        "/{key}",
        summary="Tag a photograph and keep its features for a while.",
        openapi_extra={"requestBody": {"required": True, "content": {"application/octet-stream": {"schema": {}}}}},
    )
    async def put(key: Key, request: Request, model: str | None = None) -> JSONResponse:
        """Take the file's bytes as they are, and give the scores of all classes."""
        engine = service.engine(model)
        async with service.body(request) as body:
            upload = Uploaded(key, body)
            del body
            (answered,) = await unless_gone(request, service.compute(engine, [upload], {}))
        if answered.found is None:
            raise Refused(422, "bad_image", answered.error or "")
        service.kept.put(engine.name, key, answered.found.features)
        service.metrics.kept.set(service.kept.size)
        return JSONResponse(_row(engine, key, answered.found.scores, {}))

    @router.post("/{key}", summary="Say what is known of a kept photograph.", openapi_extra={"requestBody": _TOLD})
    async def tell(key: Key, request: Request) -> JSONResponse:
        """Run again what sees known labels, the field; give all scores, and what moved through which classes."""
        options = await options_of(request)
        engine, _ = checked(service, options)
        engine.check(options.since)
        features = await kept(engine, key)

        def compute() -> dict[str, Any]:
            moves: Sequence[Move] = ()
            if engine.explains and options.known != options.since:
                moves = engine.explain(key, features, (), options.known, options.since).moves[:_MOVES]
            row = _row(engine, key, engine.told(features, options.known), options.known)
            row["moves"] = [
                {
                    "name": move.name,
                    "before": round(move.before, 6),
                    "after": round(move.after, 6),
                    "through": dict(list(move.through.items())[:_THROUGH]),
                    "sentence": describe_through(move),
                }
                for move in moves
            ]
            return row

        return JSONResponse(await service.in_head(compute))

    @router.post(
        "/{key}/explain",
        summary="Say why a kept photograph has its tags.",
        openapi_extra={"requestBody": _TOLD},
    )
    async def explain(key: Key, request: Request) -> JSONResponse:
        """Give the heat map and the sentence of each tag, and of other classes that are asked for."""
        options = await options_of(request)
        engine, _ = checked(service, options, explains=True)
        features = await kept(engine, key)

        def compute() -> dict[str, Any]:
            explanation = engine.explain(key, features, options.classes, options.known, since=options.known)
            return explanation_row(explanation, options.parts == "all")

        return JSONResponse(await service.in_head(compute))

    @router.post(
        "/{key}/question",
        summary="Say which class to ask about.",
        openapi_extra={"requestBody": _TOLD},
    )
    async def question(key: Key, request: Request) -> JSONResponse:
        """Give the class whose answer is expected to settle most of the others, and how many bits; null for none."""
        options = await options_of(request)
        engine, _ = checked(service, options)
        if not engine.asks:
            raise Refused(422, "no_questions", f"model: {engine.name} can be told no labels one by one")
        features = await kept(engine, key)
        found = await service.in_head(lambda: engine.question(features, options.known))
        name, bits = found or (None, 0.0)
        return JSONResponse({"name": name, "bits": round(bits, 4)})

    @router.delete("/{key}", summary="Forget a photograph.", status_code=204)
    async def forget(key: Key) -> Response:
        """Free its memory; also where it is not there."""
        for name in service.engines:
            service.kept.drop(name, key)
        service.metrics.kept.set(service.kept.size)
        return Response(status_code=204)

    return router


def _row(engine: Engine, key: str, scores: Scores, known: Mapping[str, bool]) -> dict[str, Any]:
    """Return a photograph's row with the scores of all classes."""
    thresholds = engine.check(known)
    return {
        "model": engine.name,
        **row_object(engine.tagging(key, scores, thresholds, None, known), engine.classes, True),
    }
