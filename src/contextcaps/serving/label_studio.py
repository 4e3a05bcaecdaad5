"""An ML backend of Label Studio: its annotators get these tags as pre-labels.

The protocol is that of label-studio-ml: `/health`, `/setup`, `/predict`. A task names its photograph by an address,
which is opened only below /data/ of the Label Studio that `--label-studio` names; or it has the photograph in itself
(`data:image/…;base64,…`).
"""

import asyncio
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse

from contextcaps.serving.api import REFUSALS
from contextcaps.serving.bodies import Uploaded, parse_json
from contextcaps.serving.engine import Engine
from contextcaps.serving.label_studio_photographs import TaskPhotographs
from contextcaps.serving.refusals import Refused
from contextcaps.serving.service import Answered, Service, unless_gone
from contextcaps.tagging.tags import Tag

__all__ = ["Control", "control_of", "label_studio_routes", "prediction"]

_AT_ONCE = 4  # photographs that are fetched at once
_CONFIG_LENGTH = 2**20


class _Setup(BaseModel):
    schema_: str = Field("", alias="schema", max_length=_CONFIG_LENGTH)


class _Task(BaseModel):
    data: dict[str, Any] = Field(default_factory=dict)


class _Predict(BaseModel):
    tasks: list[_Task] = Field(max_length=1000)
    label_config: str = Field(max_length=_CONFIG_LENGTH)


class Control(NamedTuple):
    """The part of a labelling configuration that takes tags."""

    name: str
    to_name: str
    """Name of the photograph's part."""
    value: str
    """Where a task has the photograph."""
    choices: dict[str, str]
    """Class of the model, in small letters → the choice that stands for it."""
    is_multiple: bool


def control_of(config: str) -> Control:
    """Find the choices of a photograph in a labelling configuration.

    A choice stands for the class of its name, or for those that it lists as predicted_values, as Label Studio has it.

    Raises:
        Refused: it has none, or is no XML.

    >>> config = '<Image name="i" value="$photo"/><Choices name="c" toName="i"><Choice value="Cat"/></Choices>'
    >>> control_of(f"<View>{config}</View>")
    Control(name='c', to_name='i', value='photo', choices={'cat': 'Cat'}, is_multiple=False)
    """
    wrong = Refused(422, "label_config", "label_config: expected <Choices toName=IMAGE> for an <Image name=IMAGE>")
    if "<!DOCTYPE" in config or "<!ENTITY" in config:  # it has no use for either; they can grow for ever
        raise wrong
    try:
        root = ElementTree.fromstring(config)  # noqa: S314  # without entities
    except (ElementTree.ParseError, ValueError):
        raise wrong from None
    images = {each.get("name", ""): each.get("value", "") for each in root.iter("Image")}
    for choices in root.iter("Choices"):
        name, to_name = choices.get("name", ""), choices.get("toName", "")
        if not name or not to_name or to_name not in images:
            continue
        found: dict[str, str] = {}
        for choice in choices.iter("Choice"):
            shown = choice.get("alias", "") or choice.get("value", "")
            for each in [choice.get("value", ""), *choice.get("predicted_values", "").split(",")]:
                if each.strip():
                    found[each.strip().lower()] = shown
        return Control(name, to_name, images[to_name].lstrip("$"), found, choices.get("choice") == "multiple")
    raise wrong


def prediction(control: Control, tags: Sequence[Tag], version: str) -> dict[str, Any]:
    """Return a photograph's tags as Label Studio takes a prediction; classes without a choice are left out."""
    known = [(control.choices[tag.name.lower()], tag.score) for tag in tags if tag.name.lower() in control.choices]
    chosen = list(dict.fromkeys(choice for choice, _ in known))[: None if control.is_multiple else 1]
    scores = [max(score for choice, score in known if choice == each) for each in chosen]
    result = {
        "from_name": control.name,
        "to_name": control.to_name,
        "type": "choices",
        "value": {"choices": chosen},
    }
    score = round(sum(scores) / len(scores), 6) if scores else 0.0
    return {"result": [result] if chosen else [], "score": score, "model_version": version}


def label_studio_routes(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter(responses=REFUSALS, tags=["for Label Studio"])
    fetching, photographs = ThreadPoolExecutor(_AT_ONCE, "fetch"), TaskPhotographs(service.config)

    def body(kind: type[BaseModel]) -> dict[str, Any]:
        schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
        schema.pop("$defs", None)
        if "tasks" in schema["properties"]:
            schema["properties"]["tasks"]["items"] = {"type": "object", "properties": {"data": {"type": "object"}}}
        return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}

    async def fetched(given: Any) -> Uploaded | str:
        """Return a task's photograph, or why there is none."""
        loop = asyncio.get_running_loop()
        try:
            content = await loop.run_in_executor(fetching, photographs.content, given)
        except ValueError as error:
            return str(error)
        return Uploaded(0, content)

    async def answered(engine: Engine, givens: list[Any]) -> list[Answered]:
        """Fetch and compute photographs, a few at once; what cannot be had has an error."""
        results: list[Answered] = []
        for start in range(0, len(givens), _AT_ONCE):
            found = await asyncio.gather(*(fetched(each) for each in givens[start : start + _AT_ONCE]))
            computed = iter(await service.compute(engine, [each for each in found if isinstance(each, Uploaded)], {}))
            results += [next(computed) if isinstance(each, Uploaded) else Answered(0, None, each) for each in found]
        return results

    @router.get("/health", summary="Say to Label Studio that this is an ML backend.")
    async def health() -> JSONResponse:
        """Answer as label-studio-ml does."""
        return JSONResponse({"status": "UP", "model_class": "contextcaps"})

    @router.post("/setup", summary="Take a project's labelling configuration.", openapi_extra=body(_Setup))
    async def setup(request: Request) -> JSONResponse:
        """Say which model answers; refuse a configuration without choices of a photograph."""
        async with service.body(request) as content:
            wanted = parse_json(_Setup, content)
        if wanted.schema_:
            control_of(wanted.schema_)
        return JSONResponse({"model_version": service.engine(None).name})

    @router.post("/predict", summary="Tag the photographs of tasks.", openapi_extra=body(_Predict))
    async def predict(request: Request) -> JSONResponse:
        """Give each task the choices that stand for its tags; one that cannot be read gets none, and an `error`."""
        engine = service.engine(None)
        async with service.body(request) as content:
            wanted = parse_json(_Predict, content)
        control = control_of(wanted.label_config)
        givens = [task.data.get(control.value) for task in wanted.tasks]
        thresholds, results = engine.check({}), []
        for each in await unless_gone(request, answered(engine, givens)):
            if each.found is None:
                results.append({**prediction(control, (), engine.name), "error": each.error})
            else:
                tagging = engine.tagging(0, each.found.scores, thresholds, None, {})
                results.append(prediction(control, tagging.tags, engine.name))
        return JSONResponse({"results": results, "model_version": engine.name})

    return router
