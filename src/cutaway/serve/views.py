"""What the page asks of the server: the model's facts, the next token, and every question about the inside."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi import Path as PathParam
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, StreamingResponse
from pydantic import Field, ValidationError

from cutaway import __version__
from cutaway.account import parameters
from cutaway.account.hardware import HARDWARE
from cutaway.claims.quiz import Mark, asked, questions, right_letter
from cutaway.claims.run import CLAIMS
from cutaway.errors import CutawayError, ServeError
from cutaway.figures import Figure, HeatMap, HeatMaps, Result, plain
from cutaway.language_model import LanguageModel
from cutaway.presets import PRESETS
from cutaway.serve.kept import Answer, Kept, new_name
from cutaway.serve.questions import MOST, QUESTIONS, Asked, Question
from cutaway.serve.reply import CLIENT_LEFT, JsonRoute, Refusal, error_of
from cutaway.serve.requests import Body, OnePrompt, prompt_of
from cutaway.serve.runlog import read_run
from cutaway.serve.service import Served, Service
from cutaway.serve.staged import STAGES, Staged
from cutaway.serve.stream import Texts, unless_left
from cutaway.serve.tower import Tower
from cutaway.serve.turns import Said, Turns
from cutaway.serve.written import Next, explained, next_of
from cutaway.show import html
from cutaway.text.ids import IdTokenizer

AT_ONCE = 40_000  # cells of a heat map that is sent before it is asked for
PROMPTS = {"bard": "ROMEO:\nBut, soft! what light through yonder"}
PROMPT = "The capital of France is"
NO_STORE = {"Cache-Control": "no-store"}

log = logging.getLogger("cutaway.serve")
router = APIRouter(prefix="/page/api", route_class=JsonRoute, include_in_schema=False)
drawing = APIRouter(include_in_schema=False)  # what draws the figures, shared with the files that are saved


@dataclass(kw_only=True, eq=False)
class Exhibits:
    """What the server was started with beside its model: others to compare with, and the folder of a training run."""

    others: Mapping[str, LanguageModel] = field(default_factory=dict)
    run: Path | None = None
    kept: Kept = field(default_factory=Kept)


def _exhibits(request: Request) -> Exhibits:
    found: Exhibits = request.app.state.exhibits
    return found


Shown = Annotated[Exhibits, Depends(_exhibits)]


@drawing.get("/assets/{name}.{kind}")
async def asset(name: str, kind: str) -> Response:
    """A file of the page, looked for again each time, so that a newer server has no older page."""
    path = ASSETS.get(f"{name}.{kind}")
    if path is None:
        raise HTTPException(404)
    return FileResponse(path, headers={"Cache-Control": "no-cache"})


ASSETS = {
    path.name: path
    for folder in ((Path(__file__).parent / "page"), Path(str(files("cutaway.show") / "web")))
    for path in (sorted(folder.iterdir()) if folder.is_dir() else ())
    if path.suffix in (".js", ".css", ".html", ".svg")
}


@router.get("/model")
async def facts(service: Served, exhibits: Shown) -> Response:
    """What is served: its sizes, and what else there is to ask of."""
    model, config = service.model, service.model.config
    ids = isinstance(model.tokenizer, IdTokenizer)
    sizes = ("n_layers", "n_heads", "n_kv_heads", "d_model", "d_head", "d_ff", "d_vocab", "n_ctx")
    return _json(
        {
            "name": service.name,
            "version": __version__,
            "config": {name: getattr(config, name) for name in sizes},
            "n_parameters": parameters.total(config),
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": str(model.device),
            "most": min(MOST, config.n_ctx),
            "prompt": "1 2 3" if ids else PROMPTS.get(service.name, PROMPT),
            "others": list(exhibits.others),
            "run": exhibits.run is not None,
            "presets": list(PRESETS),
            "hardware": list(HARDWARE),
        }
    )


class NextBody(Body):
    """The next token of a text under these settings. The draw depends on the seed and on how long the text is."""

    prompt: OnePrompt
    temperature: float = Field(0.8, ge=0)
    top_k: int | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int = Field(0, ge=0, lt=2**31)


@router.post("/next", response_model=None)
async def next_token(body: NextBody, request: Request, service: Served, exhibits: Shown) -> Response:
    """What may come next, and what would be picked."""
    ids = await service.ids(prompt_of(body.prompt))
    if len(ids) > MOST:
        raise ServeError(f"prompt = {len(ids)} tokens: the page shows {MOST} at most; shorten it")
    options = body.model_dump(exclude={"prompt"}) | {"seed": body.seed * 100_003 + len(ids)}
    generation = await asyncio.to_thread(explained, service.model, ids, options)
    with Texts(service.scheduler, [generation]) as texts:

        async def read() -> bool:
            async for _ in texts:
                pass
            return True

        if await unless_left(request.receive, read()) is None:
            return Response(status_code=CLIENT_LEFT)
    return await _kept(exhibits, Answer(await asyncio.to_thread(next_of, service.model, generation)))


@router.post("/ask/{name}", response_model=None)
async def ask(name: str, request: Request, service: Served, exhibits: Shown) -> Response:
    """A question of the list, answered at once, or told about line by line where it takes many passes."""
    kind = QUESTIONS.get(name)
    if kind is None:
        raise HTTPException(404) from Refusal(404, f"{name[:40]!r} is no question: one of {', '.join(QUESTIONS)}")
    body = _checked(kind, await request.json())

    def answered(tell: Any) -> Result:
        about = Asked(model=service.model, name=service.name, others=exhibits.others, run=exhibits.run, tell=tell)
        return body.answer(about)

    if body.long:
        return StreamingResponse(
            _told(service, exhibits, Turns(service, answered, yields=body.yields)),
            media_type="application/x-ndjson",
            headers=NO_STORE | {"X-Accel-Buffering": "no"},
        )
    found = await unless_left(request.receive, service.look(lambda: answered(lambda said: None)))
    if found is None:
        return Response(status_code=CLIENT_LEFT)
    return await _kept(exhibits, Answer(found))


async def _told(service: Service, exhibits: Exhibits, turns: Turns) -> AsyncIterator[bytes]:
    """How far it is, and what is found so far, line by line; then the answer under the same name, or the error."""
    name = new_name()
    try:
        async for one in turns.run():
            said, found = (one, one.so_far) if isinstance(one, Said) else (None, one)
            answer = None if found is None else Answer(found, name)
            line = await asyncio.to_thread(_told_line, said, answer)
            if answer is not None:
                exhibits.kept.add(answer)
            yield line
    except Exception as error:
        if not isinstance(error, CutawayError):
            log.exception("a question failed")
        yield _line(error_of(error)[1])


@router.get("/answers/{name}/figures/{i}")
async def figure(name: str, i: int, exhibits: Shown) -> Response:
    """One figure of an answer, whole."""
    found = _figure(exhibits, name, i)
    return await asyncio.to_thread(lambda: _json(html.parts(found)))


@router.get("/answers/{name}/figures/{i}/{map_name}")
async def one_map(name: str, i: int, map_name: str, exhibits: Shown) -> Response:
    """The numbers of one of many heat maps."""
    found = _figure(exhibits, name, i)
    if not isinstance(found, HeatMaps) or map_name not in found.names:
        raise HTTPException(404) from Refusal(404, f"{map_name[:40]!r} is no map of this figure")
    return await asyncio.to_thread(lambda: _json(html.map_parts(found, map_name)))


@router.get("/answers/{name}/cell/{query}/{key}")
async def cell(name: str, query: int, key: int, exhibits: Shown) -> Response:
    """One query and one key through the stages of a head."""
    found = _answer(exhibits, name).result
    if not isinstance(found, Staged):
        raise HTTPException(404) from Refusal(404, "this answer is of no head")
    return _json([html.parts(one) for one in found.cell(query, key)])


@router.get("/answers/{name}/html")
async def saved(name: str, exhibits: Shown) -> Response:
    """An answer as one file that needs no network."""
    found = _answer(exhibits, name).result
    results = [found, *found.answers]
    text = await asyncio.to_thread(lambda: html.document(results, found.heading).encode("utf-8", "replace"))
    headers = NO_STORE | {"Content-Disposition": 'attachment; filename="cutaway.html"'}
    return Response(text, media_type="text/html", headers=headers)


@router.get("/claims")
async def cards() -> Response:
    """The fourteen claims, untested."""
    fields = ("number", "title", "says", "criterion", "control", "conditions", "code")
    return _json([{name: plain(getattr(claim, name), 6) for name in fields} for claim in CLAIMS])


@router.get("/quiz/{seed}")
async def quiz(seed: Annotated[int, PathParam(ge=0, lt=2**31)]) -> Response:
    """The questions in the order of that seed; nothing in them tells the right answers."""
    return _json([asked(question) for question in questions(seed)])


@router.get("/run")
async def run(exhibits: Shown) -> Response:
    """The training run that the server was started with, as it is now."""
    folder = exhibits.run
    if folder is None:
        raise HTTPException(404) from Refusal(404, "no run is shown: start the server with --run FOLDER")
    return await _kept(exhibits, Answer(await asyncio.to_thread(read_run, folder)))


async def _kept(exhibits: Exhibits, answer: Answer) -> Response:
    """An answer as the page gets it, kept for what the page asks next."""
    response = await asyncio.to_thread(lambda: _json(_sent(answer)))
    exhibits.kept.add(answer)
    return response


def _checked(kind: type[Question], data: Any) -> Question:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        errors = [one | {"loc": ("body", *one["loc"])} for one in error.errors(include_url=False)]
        raise RequestValidationError(errors) from error


def _answer(exhibits: Exhibits, name: str) -> Answer:
    try:
        return exhibits.kept.get(name)
    except Refusal as refusal:
        raise HTTPException(404) from refusal


def _figure(exhibits: Exhibits, name: str, i: int) -> Figure:
    figures = _answer(exhibits, name).figures
    if not 0 <= i < len(figures):
        raise HTTPException(404) from Refusal(404, f"figure {i}: the answer has 0 to {len(figures) - 1}")
    return figures[i]


def _sent(answer: Answer) -> dict[str, Any]:
    """An answer as the page gets it; large heat maps behind the first come when they are asked for."""
    made, result = answer.figures, answer.result  # here: the event loop, which counts their bytes, has not the time
    sent: dict[str, Any] = {"id": answer.id, "heading": result.heading}
    if isinstance(result, Tower | Next):
        return sent | {"data": result.to_dict()}
    figures = []
    for i, one in enumerate(made):
        later = i > 0 and isinstance(one, HeatMap) and one.values.size > AT_ONCE
        figures.append({"kind": one.kind, "title": one.title, "later": True} if later else html.parts(one))
    if isinstance(result, Staged):
        sent["data"] = {"stages": [stage.name for stage in STAGES], "labels": list(result.found.labels)}
    if isinstance(result, Mark):
        sent["data"] = {"right": right_letter(result.question), "is_right": result.is_right}
    return sent | {"figures": figures}


def _json(value: Any) -> Response:
    return Response(_text(value), media_type="application/json", headers=NO_STORE)


def _line(value: Any) -> bytes:
    return (_text(value) + "\n").encode()


def _told_line(said: Said | None, answer: Answer | None) -> bytes:
    sent = None if answer is None else _sent(answer)
    if said is None:
        return _line({"answer": sent})
    progress = {"done": said.done, "total": said.total, "words": said.words}
    return _line({"progress": progress} | ({} if sent is None else {"so_far": sent}))


def _text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_number)
    return text.encode("utf-8", "replace").decode()


def _number(value: Any) -> Any:
    return plain(value.item(), 6) if isinstance(value, np.generic) else str(value)
