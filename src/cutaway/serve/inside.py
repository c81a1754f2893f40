"""`/v1/trace` and `/v1/lens`: what happens inside a pass, as JSON."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Response

from cutaway.inside.labels import labels
from cutaway.inside.lens import lens
from cutaway.inside.names import fitting, sizes
from cutaway.inside.trace import predict_bytes, trace
from cutaway.serve.reply import ERRORS, JsonRoute, large
from cutaway.serve.requests import LensBody, TraceBody, names_of, prompt_of
from cutaway.serve.service import Served

router = APIRouter(prefix="/v1", route_class=JsonRoute, responses=ERRORS)


@router.post("/trace", response_model=None)
async def traced(body: TraceBody, service: Served) -> Response:
    """The values of one pass, by name. The logits are sent where `keep` names them."""
    service.check_model(body.model)
    ids = await service.ids(prompt_of(body.prompt))
    config, keep = service.model.config, names_of(body.keep)
    targets = fitting(config, keep, [(len(ids), len(ids))])
    axes = sizes(config, 1, len(ids), len(ids))
    if body.values is not False:
        service.check_numbers(sum(target.n_bytes(axes, len(ids), 1) for target in targets), "the trace")
    limit = service.limits.cache_bytes
    found = (await service.look(lambda: trace(service.model, [ids], keep=keep, limit=limit)))[0]
    names = [] if body.values is False else [str(target) for target in targets]
    digits = 4 if body.digits is None else body.digits

    def data() -> Response:
        words = labels(service.model.tokenizer, found.tokens)
        predicted = predict_bytes(config, keep, len(ids), itemsize=service.model.dtype.itemsize)
        return large({"labels": words, "predicted_bytes": predicted, **found.to_dict(values=names, digits=digits)})

    return await asyncio.to_thread(data)


@router.post("/lens", response_model=None)
async def lensed(body: LensBody, service: Served) -> Response:
    """What every layer would say at every position."""
    service.check_model(body.model)
    ids = await service.ids(prompt_of(body.prompt))
    k = 5 if body.k is None else body.k
    n_states = 1 + service.model.config.n_layers * (2 if body.sublayers else 1)
    n_read = min(body.last or len(ids), len(ids))
    service.check_numbers(n_states * n_read * (2 * k + 5), "the lens")
    found = await service.look(
        lambda: lens(
            service.model,
            ids,
            target=body.target,
            actual=bool(body.actual),
            k=k,
            sublayers=bool(body.sublayers),
            last=body.last,
            limit=service.limits.cache_bytes,
        )
    )
    return await asyncio.to_thread(lambda: large(found.to_dict()))
