"""How well a model predicts a text: loss, perplexity, bits per byte."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from cutaway.data.documents import Reader
from cutaway.data.files import find_sources
from cutaway.errors import ConfigError, DataError
from cutaway.language_model import LanguageModel
from cutaway.text.tokenizer import Tokenizer
from cutaway.train.loss import IGNORE, Objective

TOKENS_A_PASS = 4096


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a model makes of a text. A document's first token is scored only where a begin token stands before it."""

    loss: float  # [nat/token]
    perplexity: float
    bits_per_byte: float
    n_tokens: int  # scored
    n_bytes: int  # of text that the scored tokens stand for
    n_documents: int
    n_ctx: int
    stride: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data; a number that is not finite, which JSON does not have, becomes None."""
        return {name: value if math.isfinite(value) else None for name, value in asdict(self).items()}


def evaluate(
    model: LanguageModel,
    texts: str | Path | Sequence[str | Path],
    *,
    n_ctx: int | None = None,
    stride: int | None = None,
    lenient: bool = False,
    text_field: str = "text",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Score every token of some texts, each from what stands before it in its document.

    Past the context a window slides on by `stride` tokens, and only those new to it are scored: each has at least
    n_ctx − stride tokens before it. A small stride is exact and slow; None takes half of n_ctx.

    Args:
        n_ctx: tokens a window reads; None takes the model's context, 1024 at most.
    Raises:
        DataError: no text, or nothing in it to score.
        ConfigError: a stride or context out of range.
    """
    n_ctx = min(model.config.n_ctx, 1024) if n_ctx is None else n_ctx
    stride = max(1, n_ctx // 2) if stride is None else stride
    if not 1 <= n_ctx <= model.config.n_ctx:
        raise ConfigError(f"n_ctx = {n_ctx}: it must be from 1 to the model's context, {model.config.n_ctx}")
    if not 1 <= stride <= n_ctx:
        raise ConfigError(f"stride = {stride}: it must be from 1 to n_ctx = {n_ctx}")
    sources, _ = find_sources(texts)
    reader = Reader(sources, lenient=lenient, text_field=text_field)
    n_all = sum(source.n_bytes for source in sources)
    objective = Objective(model.network).eval()
    loss, n_tokens, n_bytes, n_documents = 0.0, 0, 0, 0
    for document in reader.documents():
        text = "".join(document)
        tokens = model.encode(text)
        has_begin = bool(tokens) and tokens[0] == model.tokenizer.bos_id
        n_documents += 1
        n_tokens += max(0, len(tokens) - 1)
        n_bytes += len(text.encode()) - (0 if has_begin else _n_first_bytes(model, tokens))
        for batch in batches(tokens, n_ctx, stride):
            loss += _loss(objective, batch)
            progress(reader.n_bytes_read, n_all)
    if not n_tokens:
        named = ", ".join(str(source.path) for source in sources[:3]) + " …" * (len(sources) > 3)
        raise DataError(f"{named}: nothing to score, as no document has two tokens: give more text")
    mean = loss / n_tokens
    return Evaluation(
        loss=mean,
        perplexity=math.exp(mean) if mean < 700 else math.inf,
        bits_per_byte=loss / math.log(2) / n_bytes if n_bytes else math.nan,
        n_tokens=n_tokens,
        n_bytes=n_bytes,
        n_documents=n_documents,
        n_ctx=n_ctx,
        stride=stride,
    )


def _n_first_bytes(model: LanguageModel, tokens: Sequence[int]) -> int:
    """Bytes of text that the first token stands for.

    A part of a character is decoded to U+FFFD, which is longer; and a token's own space may be none of the text.
    """
    n_decoded = len(model.decode(tokens[:1]).encode())
    if not tokens or not isinstance(model.tokenizer, Tokenizer):
        return n_decoded
    return min(n_decoded, len(model.tokenizer.token_bytes(tokens[0])))


Window = tuple[list[int], list[int]]  # tokens, and the target of each; IGNORE where another window scores it


def windows(tokens: Sequence[int], n_ctx: int, stride: int) -> Iterator[Window]:
    """The windows of one document, in which every token but the first is a target exactly once."""
    scored = 1
    for start in range(0, len(tokens), stride):
        if scored >= len(tokens):
            return
        read = list(tokens[start : start + n_ctx])
        targets = list(tokens[start + 1 : start + n_ctx + 1])
        read = read[: len(targets)]
        yield read, [IGNORE] * (scored - start - 1) + targets[scored - start - 1 :]
        scored = start + 1 + len(targets)


def batches(tokens: Sequence[int], n_ctx: int, stride: int) -> Iterator[list[Window]]:
    """Windows of one length together."""
    held: list[Window] = []
    for window in windows(tokens, n_ctx, stride):
        if held and (len(window[0]) != len(held[0][0]) or (len(held) + 1) * n_ctx > TOKENS_A_PASS):
            yield held
            held = []
        held.append(window)
    if held:
        yield held


@torch.inference_mode()
def _loss(objective: Objective, batch: Sequence[Window]) -> float:
    device = objective.network.embed.weight.device
    tokens, targets = (torch.tensor(rows, device=device) for rows in zip(*batch, strict=True))
    return float(objective(tokens, targets))
