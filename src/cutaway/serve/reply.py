"""JSON in and out: bodies read away from the event loop, errors in OpenAI's shape, large answers in pieces."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from cutaway.errors import (
    BusyError,
    ContextError,
    CutawayError,
    GenerationError,
    InsideError,
    NumericsError,
    ServeError,
    TokenizerError,
)
from cutaway.serve.scheduler import PassError

RETRY_AFTER = "1"  # [s]
CLIENT_LEFT = 499  # nobody sees it
CLIENTS = (ServeError, GenerationError, InsideError, TokenizerError)  # what a request can be wrong about
SURROGATE = re.compile("[\ud800-\udfff]")
TOLD = {"application/json": {"schema": {
    "type": "object",
    "properties": {"error": {
        "type": "object",
        "properties": {
            "message": {"type": "string"},
            "type": {"type": "string"},
            "param": {"type": ["string", "null"]},
            "code": {"type": ["string", "null"]},
        },
        "required": ["message", "type", "param", "code"],
    }},
    "required": ["error"],
}}}  # fmt: skip
ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "The request cannot be served.", "content": TOLD},
    "5XX": {"description": "The server cannot serve it now.", "content": TOLD},
}

log = logging.getLogger("cutaway.serve")


class NotFoundError(Exception):
    """The request names a model that is not here."""


class Refusal(Exception):
    """A request that goes no further than its head or its size."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class JsonRequest(Request):
    """A request whose body is read as JSON by another thread, and whose strings are whole characters."""

    async def json(self) -> Any:
        return await asyncio.to_thread(parse, await self.body())


class JsonRoute(APIRoute):
    """A route that takes such requests."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        handler = super().get_route_handler()

        async def with_json(request: Request) -> Response:
            response: Response = await handler(JsonRequest(request.scope, request.receive))
            return response

        return with_json


def parse(body: bytes) -> Any:
    """JSON as it is sent: UTF-8. Half of a surrogate pair is no character and becomes U+FFFD.

    Raises:
        ServeError: what is no JSON, or a number that JSON does not have, or what is nested too deeply to be walked.
    """
    try:
        text = body.decode("utf-8-sig")
        value = json.loads(text, parse_constant=_no_number)
        return whole(value) if "\\u" in text else value
    except RecursionError as error:
        raise ServeError("the body is nested too deeply: send less") from error
    except ValueError as error:  # a UnicodeDecodeError is one
        raise ServeError(f"the body is no JSON: {_printable(str(error))}") from error


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def whole(value: Any) -> Any:
    """The same value, every string in it without lone surrogates."""
    if isinstance(value, str):
        return SURROGATE.sub("\ufffd", value)  # pairs have become one character already
    if isinstance(value, list):
        return [whole(item) for item in value]
    if isinstance(value, dict):
        return {whole(name): whole(item) for name, item in value.items()}
    return value


def encoded(value: Any) -> Iterator[str]:
    """JSON text in pieces, none of which keeps other threads waiting for long."""
    if isinstance(value, dict):
        yield "{"
        for i, (name, item) in enumerate(value.items()):
            yield f"{', ' * (i > 0)}{json.dumps(name)}: "
            yield from encoded(item)
        yield "}"
    elif isinstance(value, list) and any(isinstance(item, list | dict) for item in value[:1]):
        yield "["
        for i, item in enumerate(value):
            yield ", " * (i > 0)
            yield from encoded(item)
        yield "]"
    else:
        yield json.dumps(value, ensure_ascii=False, allow_nan=False)


def large(value: Any) -> Response:
    """A large answer; call it from another thread than the event loop's."""
    return Response("".join(encoded(value)), media_type="application/json")


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """An error as clients of this API know it."""
    return {"error": {"message": _printable(message), "type": kind, "param": param, "code": code}}


def error_of(error: Exception) -> tuple[int, dict[str, Any]]:
    """The status and the body that tell an error."""
    message = str(error)
    if isinstance(error, NotFoundError):
        return 404, error_body(message, "invalid_request_error", "model", "model_not_found")
    if isinstance(error, BusyError):
        return 503, error_body(message, "overloaded_error", None, "busy")
    if isinstance(error, ContextError):
        return 400, error_body(message, "invalid_request_error", "prompt", "context_length_exceeded")
    if isinstance(error, CLIENTS) and not isinstance(error, NumericsError | PassError):
        found = re.match(r"(\w+)(?:\[[^]]*\])? (?:=|has|holds)", message)
        return 400, error_body(message, "invalid_request_error", found[1] if found else None)
    return 500, error_body(message or type(error).__name__, "server_error")


def error_response(error: Exception) -> JSONResponse:
    """The whole answer that tells an error."""
    status, body = error_of(error)
    return JSONResponse(body, status, {"Retry-After": RETRY_AFTER} if status == 503 else None)


def refusal_response(refusal: Refusal) -> JSONResponse:
    """The whole answer that tells a refusal."""
    kind = "authentication_error" if refusal.status == 401 else "invalid_request_error"
    return JSONResponse(error_body(str(refusal), kind), refusal.status, refusal.headers)


def tell_errors(app: FastAPI) -> None:
    """Let every error of the app be told in that shape."""

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = [str(part) for part in first["loc"][1:] if isinstance(part, int) or part.isidentifier()]
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "missing" and not place:
            message = "the body is empty: send a JSON object"
        elif first["type"] != "value_error":
            message = f"{'.'.join(place) or 'the body'}: {message[:1].lower()}{message[1:]}"
            if first["type"] == "model_attributes_type":
                message = "the body must be a JSON object, sent with Content-Type: application/json"
        named = re.match(r"(\w+)(?: =| is no field|:)", message)
        return JSONResponse(
            error_body(message, "invalid_request_error", place[0] if place else named and named[1]), 400
        )

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> JSONResponse:
        cause = error.__cause__
        if isinstance(cause, CutawayError):
            return error_response(cause)
        if isinstance(cause, Refusal):
            return refusal_response(cause)
        if error.status_code == 404:
            body = error_body("no such address here: see /openapi.json", "invalid_request_error", None, "not_found")
        else:
            body = error_body(str(error.detail), "invalid_request_error")
        return JSONResponse(body, error.status_code, error.headers)

    async def named(_: Request, error: Exception) -> JSONResponse:
        return error_response(error)

    for kind in (CutawayError, NotFoundError):
        app.add_exception_handler(kind, named)

    @app.exception_handler(ClientDisconnect)
    async def left(_: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_LEFT)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        log.error("a request failed", exc_info=error)
        return JSONResponse(error_body("something went wrong here; see the server's log", "server_error"), 500)


def _printable(message: str) -> str:
    """An error's text may quote what was sent, which may be no text at all."""
    return SURROGATE.sub("\ufffd", message)
