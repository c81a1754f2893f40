"""`/v1/models`, `/v1/completions` and `/v1/chat/completions`: the API that the official `openai` client speaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from cutaway.errors import ServeError
from cutaway.generate.decoding import Generation
from cutaway.serve.answers import ChatShape, CompletionShape, Draft, Json, Scored, Shape, scored, usage_of
from cutaway.serve.reply import CLIENT_LEFT, ERRORS, JsonRoute
from cutaway.serve.requests import ChatBody, CompletionBody, Sampled, prompts_of
from cutaway.serve.service import Served, Service, prompt_logprobs
from cutaway.serve.stream import Event, EventStream, Texts, unless_left

EITHER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The texts, whole, or with `stream` as server-sent events.",
        "content": {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {}},
    }
}

router = APIRouter(prefix="/v1", route_class=JsonRoute, responses=ERRORS)


@router.get("/models")
async def models(service: Served) -> Json:
    """The one model there is."""
    return {"object": "list", "data": [_model(service)]}


@router.get("/models/{name:path}")
async def model(name: str, service: Served) -> Json:
    """The model by its name."""
    service.check_model(name)
    return _model(service)


def _model(service: Service) -> Json:
    return {"id": service.name, "object": "model", "created": service.created, "owned_by": "cutaway"}


@router.post("/completions", response_model=None, responses=EITHER)
async def completions(body: CompletionBody, request: Request, service: Served) -> Response:
    """Continue one text or several."""
    service.check_model(body.model)
    given = prompts_of(body.prompt)
    service.scheduler.check_count(len(given) * body.n_each)  # before anything is done for one of them
    prompts = [await service.ids(prompt) for prompt in given]
    shape = CompletionShape(service.name, service.model.tokenizer, body.n_logprobs, body.wants_usage)
    echoes = None
    if body.echo:
        echoes = [draft for ids in prompts for draft in await _echoes(service, ids, body.n_logprobs, body.n_each)]
    return await answer(service, request, body, shape, prompts, body.n_new, body.n_logprobs, echoes)


@router.post("/chat/completions", response_model=None, responses=EITHER)
async def chat_completions(body: ChatBody, request: Request, service: Served) -> Response:
    """The next turn of a conversation."""
    service.check_model(body.model)
    messages = [message.plain() for message in body.messages]
    ids = await asyncio.to_thread(service.model.tokenizer.chat, messages)
    shape = ChatShape(service.name, service.model.tokenizer, body.n_logprobs, body.wants_usage)
    return await answer(service, request, body, shape, [await service.ids(ids)], body.n_new, body.n_logprobs)


async def answer(
    service: Service,
    request: Request,
    body: Sampled,
    shape: Shape,
    prompts: Sequence[list[int]],
    n_new: int,
    n_logprobs: int | None,
    echoes: Sequence[Draft] | None = None,
) -> Response:
    """Generate, and send the texts as they come or all together."""
    if n_new == 0 and echoes is None:
        raise ServeError("max_tokens = 0: nothing would come of it; use 1 or more")
    generations = await asyncio.to_thread(_generations, service, body, prompts, n_new, n_logprobs)
    drafts = list(echoes) if echoes is not None else [Draft() for _ in generations]
    texts = Texts(service.scheduler, generations)
    if body.stream:
        return EventStream(texts, _chunks(texts, drafts, shape, body))
    with texts:
        finished = await unless_left(request.receive, _collected(texts, drafts, n_logprobs is not None))
    if finished is None:
        return Response(status_code=CLIENT_LEFT)
    return JSONResponse(await asyncio.to_thread(shape.whole, drafts, _usage(texts, body.n_each)))


def _generations(
    service: Service, body: Sampled, prompts: Sequence[list[int]], n_new: int, n_logprobs: int | None
) -> list[Generation]:
    return [
        generation
        for ids in prompts
        for i in range(body.n_each)
        for generation in service.model.generations(
            [ids],
            max_tokens=n_new,
            # 0 alternatives still report the token's own log-probability
            logprobs=0 if n_logprobs is None else min(max(n_logprobs, 1), service.model.config.d_vocab),
            **body.options(i),
        )
    ]


async def _echoes(service: Service, ids: list[int], n_logprobs: int | None, n: int) -> list[Draft]:
    """The prompt as the beginning of n texts, with its log-probabilities where they are asked for."""
    entries: list[Scored] = []
    if n_logprobs is not None:
        entries = await service.look(lambda: prompt_logprobs(service.model, ids, n_logprobs))
    text = service.model.decode(ids, skip_special=True)
    return [Draft(text=text, entries=list(entries), echoes=True) for _ in range(n)]


def _grow(draft: Draft, event: Event, reports: bool) -> tuple[str, list[Scored]]:
    """Add what has come to the draft; what is new of it."""
    draft.finish_reason = event.finish_reason
    if event.piece is None:
        return "", []
    entries = [scored(event.piece.choice)] if reports else []
    draft.text += event.piece.text
    draft.entries += entries
    return event.piece.text, entries


async def _collected(texts: Texts, drafts: Sequence[Draft], reports: bool) -> bool:
    async for event in texts:
        _grow(drafts[event.i], event, reports)
    return True


async def _chunks(texts: Texts, drafts: Sequence[Draft], shape: Shape, body: Sampled) -> AsyncIterator[Json]:
    for i, draft in enumerate(drafts):
        for chunk in shape.opening(i):
            yield chunk
        if draft.text or draft.entries:
            yield shape.chunk(i, draft, draft.text, draft.entries)
    async for event in texts:
        draft = drafts[event.i]
        text, entries = _grow(draft, event, shape.n_logprobs is not None)
        if text or entries:
            yield shape.chunk(event.i, draft, text, entries)
        if event.finish_reason is not None:
            yield shape.last(event.i, event.finish_reason)
    if body.wants_usage:
        yield shape.count(_usage(texts, body.n_each))


def _usage(texts: Texts, n_each: int) -> dict[str, Any]:
    """A prompt counts once, however many texts continue it."""
    n_prompt = sum(len(g.request.prompt) for g in texts.generations[::n_each])
    n_new = sum(len(g.choices) for g in texts.generations)
    return usage_of(n_prompt, n_new, sum(n for i, n in texts.n_known.items() if i % n_each == 0))
