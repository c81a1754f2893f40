"""What a client may ask for: the bodies of the API, checked.

A field that would change the answer and is not supported is refused, never ignored; one that is merely somebody
else's business, such as `user`, is taken and ignored.
"""

from __future__ import annotations

import difflib
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, FailFast, Field, WithJsonSchema, model_validator

from cutaway.errors import ServeError
from cutaway.generate.stopping import MAX_STOPS

MAX_N = 64
MAX_LOGPROBS = 20
MAX_MESSAGES = 4096

IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
TEXT = {"type": "string"}
SEVERAL = {"type": "array", "minItems": 1, "maxItems": MAX_N}
# Checked by `prompts_of`, whose first error ends it: a union would list one for every element of every kind.
Prompts = Annotated[Any, WithJsonSchema({"anyOf": [TEXT, IDS, {**SEVERAL, "items": TEXT}, {**SEVERAL, "items": IDS}]})]
OnePrompt = Annotated[Any, WithJsonSchema({"anyOf": [TEXT, IDS]})]
NOTHING = {"type": "null"}
STRINGS = {"type": "array", "items": {**TEXT, "minLength": 1}, "maxItems": MAX_STOPS}
Stop = Annotated[Any, WithJsonSchema({"anyOf": [{**TEXT, "minLength": 1}, STRINGS, NOTHING]})]
PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": TEXT},
    "required": ["type", "text"],
}
Content = Annotated[Any, WithJsonSchema({"anyOf": [TEXT, {"type": "array", "items": PART}, NOTHING]})]
Keep = Annotated[Any, WithJsonSchema({"anyOf": [TEXT, {"type": "array", "items": TEXT, "maxItems": 256}]})]
Target = Annotated[Any, WithJsonSchema({"anyOf": [TEXT, {"type": "integer"}, NOTHING]})]


class Body(BaseModel):
    """The base: unknown fields are refused by name, with the nearest known one."""

    model_config = ConfigDict(strict=True, extra="ignore", json_schema_extra={"additionalProperties": False})
    ignored: ClassVar[frozenset[str]] = frozenset()
    refused: ClassVar[dict[str, tuple[Any, ...]]] = {}  # with the values that ask for nothing

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            hint = ", sent with Content-Type: application/json" if isinstance(data, bytes) else ""
            raise ValueError(f"the body must be a JSON object{hint}")
        for name, value in data.items():
            if name in cls.refused:
                if value is not None and value not in cls.refused[name]:
                    raise ValueError(f"{name} = {str(value)[:40]}: not supported here; leave it out")
            elif name not in cls.model_fields and name not in cls.ignored:
                close = difflib.get_close_matches(name, cls.model_fields, n=1)
                hint = f"did you mean {close[0]}?" if close else f"use {', '.join(cls.model_fields)}"
                raise ValueError(f"{name[:40]} is no field: {hint}")
        return data


class StreamOptions(Body):
    """What a stream holds besides the text."""

    ignored = frozenset({"include_obfuscation"})
    include_usage: bool | None = None


class Sampled(Body):
    """What both ways to ask for text share. Null is the same as leaving a field out."""

    ignored = frozenset(
        {"user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
    )
    refused: ClassVar[dict[str, tuple[Any, ...]]] = {
        "presence_penalty": (0,),
        "frequency_penalty": (0,),
        "logit_bias": ({},),
    }

    model: str | None = None
    n: int | None = Field(None, ge=1, le=MAX_N)
    max_tokens: int | None = Field(None, ge=0)
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0)
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stop: Stop = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def n_each(self) -> int:
        """Texts for every prompt."""
        return self.n or 1

    @property
    def wants_usage(self) -> bool:
        """Whether the stream ends with a count of tokens."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def options(self, i: int) -> dict[str, Any]:
        """How text i of a prompt is sampled, as `LanguageModel.generations` knows it."""
        return {
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": 1.0 if self.repetition_penalty is None else self.repetition_penalty,
            "stop": self.stop,
            "seed": None if self.seed is None else _seed(self.seed, i),
        }

    @model_validator(mode="after")
    def _streams(self) -> Sampled:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options without stream: leave it out, or set stream true")
        return self


class CompletionBody(Sampled):
    """A text, or several, to continue."""

    refused: ClassVar[dict[str, tuple[Any, ...]]] = {**Sampled.refused, "suffix": ("",)}

    prompt: Prompts
    max_tokens: int | None = Field(None, ge=0, description="16 if left out; 0 only with echo.")
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1, le=MAX_N, description="Only equal to n.")

    @model_validator(mode="after")
    def _honest(self) -> CompletionBody:
        if self.best_of not in (None, self.n_each):
            raise ValueError(f"best_of = {self.best_of} with n = {self.n_each}: not supported here; leave best_of out")
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens = 0: nothing would come of it; use 1 or more, or set echo true")
        return self

    @property
    def n_new(self) -> int:
        """New tokens at most."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def n_logprobs(self) -> int | None:
        """Alternatives to report with each token; None: not even its own log-probability."""
        return self.logprobs


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(strict=True, extra="ignore")

    role: str = Field(min_length=1, max_length=64)
    content: Content = None
    name: str | None = None
    tool_calls: list[Any] | None = Field(None, max_length=0)
    function_call: None = None
    audio: None = None

    def plain(self) -> dict[str, str]:
        """As a chat template knows it. `developer` is the newer word for `system`."""
        text = self.content or ""
        if isinstance(text, list):
            text = "".join(map(_text_of, text))
        if not isinstance(text, str):
            raise ServeError(f"content = {str(text)[:40]}: give a text, or a list of parts of type text")
        named = {} if self.name is None else {"name": self.name}
        return {"role": "system" if self.role == "developer" else self.role, "content": text} | named


class ChatBody(Sampled):
    """A conversation to continue."""

    ignored = Sampled.ignored | {"parallel_tool_calls", "reasoning_effort", "verbosity"}
    refused: ClassVar[dict[str, tuple[Any, ...]]] = {
        **Sampled.refused,
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "response_format": ({"type": "text"},),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "web_search_options": (),
    }

    messages: Annotated[list[Message], FailFast()] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1, description="1024 if left out; the newer word.")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    @model_validator(mode="after")
    def _honest(self) -> ChatBody:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs without logprobs: set logprobs true")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens differ: give one of them")
        return self

    @property
    def n_new(self) -> int:
        """New tokens at most."""
        return self.max_completion_tokens or self.max_tokens or 1024

    @property
    def n_logprobs(self) -> int | None:
        """Alternatives to report with each token; None: not even its own log-probability."""
        return (self.top_logprobs or 0) if self.logprobs else None


class TraceBody(Body):
    """A look at the values inside a pass."""

    model: str | None = None
    prompt: OnePrompt
    keep: Keep = Field(description="Trace names, with wildcards and parts: blocks.*.attn.pattern[head 0].")
    values: bool | None = Field(None, description="Send the numbers too [true]; false sends names and shapes.")
    digits: int | None = Field(None, ge=1, le=17, description="Significant digits [4].")


class LensBody(Body):
    """What every layer would say."""

    model: str | None = None
    prompt: OnePrompt
    target: Target = None
    actual: bool | None = None
    k: int | None = Field(None, ge=1, le=100)
    sublayers: bool | None = None
    last: int | None = Field(None, ge=1)


def names_of(keep: Any) -> list[str]:
    """The names of what a trace is to keep.

    Raises:
        ServeError: neither a name nor a list of up to 256 of them.
    """
    names = [keep] if isinstance(keep, str) else keep
    if not isinstance(names, list) or len(names) > 256 or not all(isinstance(name, str) for name in names):
        raise ServeError(f"keep = {str(keep)[:40]}: give a name, or a list of at most 256 of them")
    return names


def prompts_of(value: Any) -> list[str | list[int]]:
    """The prompts of a completion, each text or ids.

    Raises:
        ServeError: anything else, or more of them than MAX_N.
    """
    if isinstance(value, list) and value and not isinstance(value[0], int):
        if len(value) > MAX_N:
            raise ServeError(f"prompt has {len(value)} texts, the limit is {MAX_N}: split the request")
        return [prompt_of(one) for one in value]
    return [prompt_of(value)]


def prompt_of(value: Any) -> str | list[int]:
    """One prompt, text or ids.

    Raises:
        ServeError: anything else.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise ServeError(f"prompt = {str(value)[:40]}: give a text, a list of token ids, or a list of such prompts")
    wrong = next((one for one in value if type(one) is not int), None)
    if wrong is not None:
        raise ServeError(f"prompt holds {str(wrong)[:40]!r} among token ids: give whole numbers alone, or texts alone")
    return value


def _text_of(part: Any) -> str:
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise ServeError(f"content holds {str(part)[:60]}: this model reads text alone")
    text: str = part["text"]
    return text


def _seed(seed: int, i: int) -> int:
    """Each text of a prompt has its own: seed, seed + 1 …, the same whatever else is being served."""
    return seed + i if seed + i < 2**64 else seed + i - 2**64
