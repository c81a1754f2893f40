"""LanguageModel: a network and its tokenizer, what a user holds."""

from __future__ import annotations

import copy
import difflib
import inspect
import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cutaway.checkpoint.files import write_atomically, writing
from cutaway.checkpoint.folder import load_folder, save_folder
from cutaway.checkpoint.gguf import GGUFFile
from cutaway.checkpoint.gguf_model import load_gguf
from cutaway.checkpoint.load import LoadReport
from cutaway.checkpoint.sources import default_model, resolve
from cutaway.config import ModelConfig
from cutaway.errors import ContextError, GenerationError, TokenizerError
from cutaway.generate.decoding import Generation, Piece, Request, decode, padded
from cutaway.generate.sampling import Choice, SamplingConfig, plain
from cutaway.generate.stopping import FinishReason, StopStrings
from cutaway.inside.edits import Edit
from cutaway.inside.trace import LIMIT, Trace, Watch, trace, watching
from cutaway.network import Transformer
from cutaway.nn.devices import as_device, as_dtype
from cutaway.text.gguf_tokenizer import tokenizer_from_gguf
from cutaway.text.ids import IdTokenizer
from cutaway.text.pieces import token_id
from cutaway.text.prompt import Prompt, as_list, items_of
from cutaway.text.tokenizer import Tokenizer
from cutaway.text.tokenizer_files import end_ids_of, remove_tokenizer

__all__ = ["LanguageModel", "LoadNote", "Output", "Prompt", "as_device", "as_dtype", "as_list", "load", "output_of"]


class LoadNote(UserWarning):
    """Something about a file that its user should know, such as a default that was used."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """What came of one prompt.

    `tokens` are the new ids, an end token included; `passes` counts forward passes over this text: one a token.
    """

    text: str
    tokens: list[int]
    finish_reason: FinishReason
    passes: int
    n_prompt: int
    choices: list[Choice]
    trace: Trace | None = field(default=None, compare=False)  # of what was read, where it was asked for

    @property
    def logprobs(self) -> list[tuple[float, tuple[tuple[int, float], ...]]] | None:
        """Each token's log-probability and the best alternatives [nats], if asked for."""
        if not self.choices or self.choices[0].logprob is None:
            return None
        return [(choice.logprob or 0.0, choice.top_logprobs) for choice in self.choices]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "text": self.text,
            "tokens": self.tokens,
            "finish_reason": self.finish_reason,
            "passes": self.passes,
            "n_prompt": self.n_prompt,
            "logprobs": None if self.logprobs is None else [list(entry) for entry in self.logprobs],
        }


class LanguageModel:
    """A transformer that reads and writes text. Wherever text goes in, token ids go in too."""

    def __init__(
        self,
        network: Transformer,
        tokenizer: Tokenizer | IdTokenizer,
        report: LoadReport,
        end_ids: frozenset[int],
    ) -> None:
        self.network = network.eval()
        self.tokenizer = tokenizer
        self.report = report
        self.end_ids = end_ids

    @property
    def config(self) -> ModelConfig:
        """The architecture."""
        return self.network.config

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.network.embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights."""
        return self.network.embed.weight.dtype

    def encode(self, text: str, *, special: bool = False, bos: bool | None = None) -> list[int]:
        """Text to ids. Text that looks like a special token is plain text unless `special`."""
        return self.tokenizer.encode(text, special=special, bos=bos)

    def decode(self, tokens: Sequence[int], *, skip_special: bool = False) -> str:
        """Ids to text, exactly."""
        return self.tokenizer.decode(tokens, skip_special=skip_special)

    def logits(self, prompt: Prompt | Sequence[Prompt]) -> Tensor | list[Tensor]:
        """The scores of each next token [T V]; a list of prompts gives a list, each as if alone.

        Raises:
            ContextError: a prompt longer than the context.
            TokenizerError: an id outside the vocabulary, or what is neither text nor ids.
        """
        prompts, alone = as_list(prompt)
        rows = self._logits([self.ids(one) for one in prompts])
        return rows[0] if alone else rows

    @torch.inference_mode()
    def _logits(self, texts: list[list[int]]) -> list[Tensor]:
        if not texts:
            return []
        tokens, n_real = padded(texts, self.device)
        logits = self.network.unembed(self.network.residual(tokens, n_new=n_real))
        return [row[:n] for row, n in zip(logits, n_real, strict=True)]

    def generate(self, prompt: Prompt | Sequence[Prompt], **options: Any) -> Output | list[Output]:
        """Continue a prompt, or a list of prompts together, each as it would be alone.

        Options are those of `stream`, and
            trace: names of what to keep of the whole generation, as in `trace`; the result then has a `trace`.
            limit: what the traces may hold together [B].
        Raises:
            InsideError: more than the limit; otherwise as in `stream`. Nothing has run then.
        """
        prompts, alone = as_list(prompt)
        outputs = self._run(prompts, **options)
        return outputs[0] if alone else outputs

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[str]:
        """Continue a prompt, piece by piece; joined, the pieces are `generate`'s text.

        Args:
            max_tokens: new tokens at most [256].
            temperature: 0 is greedy [0.8].
            top_k, top_p, min_p, repetition_penalty: see SamplingConfig [off].
            stop: a string or several, none of them empty, that end the text and are not part of it.
            seed: makes the run repeatable; None draws one.
            cache: False re-runs the whole text for every token, as the lecture's loop does.
            logprobs: how many best alternatives to report with each token [0: nothing].
            edits: what to change in every pass, over the prompt and over each new token, as in `trace`.
        Raises:
            GenerationError: an option out of its range, or one that there is not.
            InsideError: an edit of what there is not.
            ContextError: a prompt longer than the context.
            TokenizerError: an id outside the vocabulary, or what is neither text nor ids.
        """
        pieces = self.run([prompt], **options)  # checked here and now, not at the first piece
        return (piece.text for _, piece in pieces if piece.text)

    def _run(
        self,
        prompts: list[Prompt],
        /,
        *,
        trace: str | Sequence[str] | None = None,
        edits: Edit | Sequence[Edit] = (),
        limit: int = LIMIT,
        **options: Any,
    ) -> list[Output]:
        generations = self.generations(prompts, **options)
        watch = watching(self.network, generations, keep=trace, edits=edits, limit=limit)
        texts = {id(g): "" for g in generations}
        for generation, piece in self._steps(generations, watch, **options):
            texts[id(generation)] += piece.text
        traces = [None] * len(generations) if trace is None else watch.traces(generations)
        return [output_of(g, texts[id(g)], found) for g, found in zip(generations, traces, strict=True)]

    def _steps(
        self, generations: list[Generation], watch: Watch, *, cache: bool = True, **_: Any
    ) -> Iterator[tuple[Generation, Piece]]:
        if watch.idle:
            return decode(self.network, generations, use_cache=cache)
        return watch.decode(generations, use_cache=cache)

    def trace(self, prompt: Prompt | Sequence[Prompt], **options: Any) -> Trace | list[Trace]:
        """The inside of a pass, or with `generate` of a generation; a list of prompts gives a list, each as if alone.

        Options are those of `cutaway.inside.trace.trace`: keep, edits, generate, grad, of, limit.
        """
        prompts, alone = as_list(prompt)
        traces = trace(self, prompts, **options)
        return traces[0] if alone else traces

    def run(
        self, prompts: Sequence[Prompt], /, *, edits: Edit | Sequence[Edit] = (), **options: Any
    ) -> Iterator[tuple[Generation, Piece]]:
        """Every step of several prompts as it happens: the text so far and the piece it grew by."""
        generations = self.generations(prompts, **options)
        watch = watching(self.network, generations, keep=None, edits=edits)
        return self._steps(generations, watch, **options)

    def generations(
        self,
        prompts: Sequence[Prompt],
        /,
        *,
        max_tokens: int = 256,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        stop: str | Sequence[str] | None = (),
        seed: int | None = None,
        cache: bool = True,
        logprobs: int = 0,
        explain: bool = False,
        **unknown: Any,
    ) -> list[Generation]:
        """The prompts, checked and ready to decode."""
        if unknown:
            raise GenerationError(no_such_option(next(iter(unknown))))
        max_tokens, seed, logprobs = plain(max_tokens), plain(seed), plain(logprobs)
        if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 0:
            raise GenerationError(f"max_tokens = {max_tokens!r}: it must be a whole number of 0 or more")
        if isinstance(logprobs, bool) or not isinstance(logprobs, int) or not 0 <= logprobs <= self.config.d_vocab:
            raise GenerationError(f"logprobs = {logprobs!r}: it must be a whole number from 0 to {self.config.d_vocab}")
        sampling = SamplingConfig(
            temperature=plain(temperature),
            top_k=plain(top_k),
            top_p=plain(top_p),
            min_p=plain(min_p),
            repetition_penalty=plain(repetition_penalty),
        )
        stops = StopStrings(() if stop is None else stop)
        return [
            Generation(
                Request(
                    prompt=tuple(self.ids(prompt)),
                    max_tokens=max_tokens,
                    sampling=sampling,
                    stops=stops,
                    end_ids=self.end_ids,
                    seed=seed,
                    n_logprobs=logprobs or None,
                    explain=explain,
                    n_known=min(self.tokenizer.d_vocab, self.config.d_vocab),
                ),
                self.tokenizer.stream(skip_special=True, continues=True),
                self.config.n_ctx,
            )
            for prompt in prompts
        ]

    def ids(self, prompt: Prompt) -> list[int]:
        """A prompt's ids, checked against the vocabulary and the context; nothing becomes BOS, if there is one.

        Raises:
            GenerationError: an empty prompt for a model without BOS.
            TokenizerError, ContextError: see `stream`.
        """
        ids = self.encode(prompt) if isinstance(prompt, str) else [*map(token_id, items_of(prompt))]
        if not ids:
            if self.tokenizer.bos_id is None:
                raise GenerationError("the prompt is empty and this model has no begin token: give it some text")
            ids = [self.tokenizer.bos_id]
        for token in (min(ids), max(ids)):
            if not 0 <= token < self.config.d_vocab:
                raise TokenizerError(f"token id {token} is outside the vocabulary: 0 to {self.config.d_vocab - 1}")
        if len(ids) > self.config.n_ctx:
            raise ContextError(
                f"the prompt has {len(ids)} tokens, the model's context is {self.config.n_ctx}: shorten the prompt"
            )
        return ids

    def save(self, folder: str | Path, *, dtype: torch.dtype | str | None = None) -> None:
        """Write a folder that transformers loads as its native class, tokenizer included.

        What a model that was there before has under the same names is replaced; its other files of weights,
        tokenizer and template are removed once the new ones are whole. Sampling defaults of the folder that this
        model was loaded from are written again.

        Args:
            dtype: of the weights in the files, as in `load`; None keeps what they are held in.
        Raises:
            ConfigError: a type that is none of these.
            UnsupportedError: an architecture that no family can express; nothing has been written then.
            CheckpointError: the folder cannot be written.
        """
        folder, d_vocab, loaded = Path(folder), self.config.d_vocab, self.report.generation
        dtype = as_dtype(dtype)
        network = self.network if dtype is None else copy.deepcopy(self.network).to(dtype)
        end_ids = [i for i in sorted(self.end_ids) if 0 <= i < d_vocab]
        ids = {
            "bos_token_id": first_id((self.tokenizer.bos_id, loaded.get("bos_token_id")), d_vocab),
            "eos_token_id": end_ids[0] if len(end_ids) == 1 else end_ids or None,
            "pad_token_id": first_id((self.tokenizer.pad_id, loaded.get("pad_token_id")), d_vocab),
        }
        save_folder(network, folder, preferred=self.report.family, extra=ids)
        with writing(folder):
            if isinstance(self.tokenizer, Tokenizer):
                self.tokenizer.save(folder)
            generation = json.dumps(loaded | ids, indent=2).encode() + b"\n"
            write_atomically(folder / "generation_config.json", generation)
            if not isinstance(self.tokenizer, Tokenizer):
                remove_tokenizer(folder)


def load(
    name: str | Path | None = None,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    revision: str | None = None,
    progress: bool = True,
) -> LanguageModel:
    """Load a model: a bundled one, an alias, a folder, a .gguf file, or a Hub id.

    Args:
        name: None takes the default, or what CUTAWAY_MODEL names.
        dtype: "float32", "bfloat16", "float16" or a torch type; None keeps what the file stores, and makes
            quantised weights float32.
        device: None takes a GPU if there is one.
        revision: of a Hub id.
    Warns:
        LoadNote: what a user should know about the file, such as a default that was used.
    Raises:
        CheckpointError: no such model, damaged or unsupported files.
        ConfigError: a config that cannot be built.
    """
    dtype = as_dtype(dtype)  # a wrong one is told before anything is fetched
    device = as_device(device)
    path = resolve(name if name is not None else default_model(), revision=revision, progress=progress)
    with torch.inference_mode(False):  # weights made in it could never be read for gradients
        if path.is_file():
            with GGUFFile(path) as file:
                network, report = load_gguf(file, dtype, device)
                tokenizer = tokenizer_from_gguf(file.metadata)
            named_ends: frozenset[int] = frozenset()
        else:
            network, report = load_folder(path, dtype, device)
            tokenizer = Tokenizer.from_folder(path)
            named_ends = end_ids_of(path)
    bos_id, pad_id = (
        first_id([report.generation.get(name)], network.config.d_vocab) for name in ("bos_token_id", "pad_token_id")
    )
    reader = tokenizer or IdTokenizer(network.config.d_vocab, bos_id=bos_id, pad_id=pad_id)
    if reader.d_vocab > network.config.d_vocab:
        report.notes.append(
            f"the tokenizer has ids up to {reader.d_vocab - 1}, the model up to {network.config.d_vocab - 1}: "
            "it may be another model's"
        )
    for note in report.notes:
        warnings.warn(f"{path}: {note}", LoadNote, stacklevel=2)
    return LanguageModel(network, reader, report, end_ids=reader.eos_ids | named_ends)


def output_of(generation: Generation, text: str, trace: Trace | None = None) -> Output:
    """The result of a finished text."""
    assert generation.finish_reason is not None
    n_prompt = len(generation.request.prompt)
    return Output(
        text=text,
        tokens=generation.tokens[n_prompt:],
        finish_reason=generation.finish_reason,
        passes=len(generation.choices),
        n_prompt=n_prompt,
        choices=generation.choices,
        trace=trace,
    )


def first_id(found: Iterable[Any], d_vocab: int) -> int | None:
    """The first that is an id of the vocabulary: a file may carry one that is not, which transformers refuses."""
    return next((i for i in found if type(i) is int and 0 <= i < d_vocab), None)


def no_such_option(name: str) -> str:
    """What to say about an option that `generations` does not have."""
    parameters = inspect.signature(LanguageModel.generations).parameters.values()
    known = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    close = difflib.get_close_matches(name, known, n=1)
    return f"{name} is no option: " + (f"did you mean {close[0]}?" if close else f"use {', '.join(known)}")
