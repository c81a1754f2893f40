"""The checks of `verify`: the network against itself by another way, against its file, and against transformers."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import math
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from cutaway.checkpoint.folder import load_folder, save_folder
from cutaway.checkpoint.load import LoadReport
from cutaway.config import DynamicScaling, LongRopeScaling, ModelConfig, RotaryConfig, WindowMaskConfig
from cutaway.errors import TokenizerError, UnsupportedError
from cutaway.network import Transformer
from cutaway.nn.cache import Cache
from cutaway.nn.reference import STAGES
from cutaway.nn.tap import Tap
from cutaway.text.ids import IdTokenizer
from cutaway.text.tokenizer import Tokenizer

__all__ = ["HARD_STRINGS", "Check", "run_checks"]

TOLERANCE = 1e-5  # times the largest logit, where that is above 1
N_TOKENS = 32
N_STEPS = 8  # of them read one at a time
MAX_WINDOW = 512  # a wider window is not filled: that would take too long
MAX_SAVED_BYTES = 2_000_000_000

PASSAGE = (
    "The ferryman has two banks to choose from, and money in neither: 3.50 € a head, he said in 1984.\n"
    "def cross(river):\n    return river.width / 2  # «drüben» 川を渡る 😸\n"
)
HARD_STRINGS = (
    "",
    " ",
    " ?",
    "hello !",
    "  two  spaces, then three   .",
    "\n\n\ttab and breaks\r\n",
    "the word 'social' isn't  \"quoted\"",
    "party . . . in",
    "    def f(x):\n\treturn x[0]\n",
    "3333+777=4110; 1,000,000.00",
    "naïve café, e\u0301 and é",
    "日本語、한국어, العربية, עברית, ไทย",
    "😸 👩‍👩‍👧‍👦 🇫🇷",
    "a\x00b\x7fc",
    "\ufeffmark, \u200bzero width, \u00a0hard space, \ufe30",
    "say <|endoftext|> now, <s> and </s>, <|im_start|>user",
    "▁ underline Ġ Ċ Ā",
    "a" * 300,
)


@dataclass(frozen=True, kw_only=True)
class Check:
    """The largest difference found and the largest allowed; or why nothing was compared."""

    name: str = ""
    error: float | None = None
    tolerance: float | None = None
    detail: str = ""

    @property
    def state(self) -> Literal["passed", "failed", "skipped"]:
        if self.error is None or self.tolerance is None:
            return "skipped"
        return "passed" if self.error <= self.tolerance else "failed"  # NaN fails

    def to_dict(self) -> dict[str, Any]:
        """Plain data; an error that is no number is None there, as JSON has no word for it."""
        error = self.error if self.error is not None and math.isfinite(self.error) else None
        return {**asdict(self), "error": error, "state": self.state}


def run_checks(
    network: Transformer, tokenizer: Tokenizer | IdTokenizer, report: LoadReport, progress: Callable[[str], object]
) -> Iterator[Check]:
    """Every check of a float32 network; `progress` hears the name of each before it starts."""
    with torch.inference_mode():
        tokens = sample(network, tokenizer)
        logits = network(tokens)
        steps: dict[str, Callable[[], Check]] = {
            "tokenizer round trip": lambda: round_trip(tokenizer),
            "finite logits": lambda: finite(logits),
            "cached = full": lambda: compare(cached_logits(network, tokens), logits),
            "batched = alone": lambda: compare(*batched_and_alone(network, tokens, logits)),
            "fused kernel = reference": lambda: compare(network(tokens, tap=EveryStage()), logits),
            "saved = loaded": lambda: saved(network, report.family),
            "transformers": lambda: against_transformers(Path(report.source), tokens, logits),
        }
        for name, step in steps.items():
            progress(name)
            yield replace(step(), name=name)


def sample(network: Transformer, tokenizer: Tokenizer | IdTokenizer) -> Int[Tensor, "1 T"]:
    """A text of the model's own tokens, or ids at random where it has no tokenizer; it outgrows a small window."""
    config = network.config
    known = min(config.d_vocab, tokenizer.d_vocab)
    ids = torch.randint(0, known, (MAX_WINDOW + N_TOKENS,), generator=torch.Generator().manual_seed(0)).tolist()
    with contextlib.suppress(TokenizerError):  # a model without a tokenizer, or one that cannot write the passage
        ids = [i for i in tokenizer.encode(PASSAGE) if i < known] + ids
    windows = [mask.size for mask in config.masks if isinstance(mask, WindowMaskConfig) and mask.size <= MAX_WINDOW]
    n_tokens = min(max([0, *windows]) + N_TOKENS, config.n_ctx, *_fixed_lengths(config))
    return torch.tensor([ids[:n_tokens]], device=network.embed.weight.device)


def _fixed_lengths(config: ModelConfig) -> Iterator[int]:
    """Past these lengths the rotation of earlier keys changes, so that cached and full mean different things."""
    for position in config.positions:
        if isinstance(position, RotaryConfig) and isinstance(position.scaling, DynamicScaling | LongRopeScaling):
            yield position.scaling.n_ctx_original


def compare(found: Float[Tensor, "*B N V"], expected: Float[Tensor, "*B N V"], detail: str = "") -> Check:
    """The largest difference of two sets of logits, and what is allowed at their size."""
    largest = float(expected.abs().max())
    return Check(
        error=float((found - expected).abs().max()),
        tolerance=TOLERANCE * max(1.0, largest),
        detail=detail or f"{expected.numel() // expected.shape[-1]} tokens, largest logit {largest:.1f}",
    )


def round_trip(tokenizer: Tokenizer | IdTokenizer) -> Check:
    """How many of the hard strings do not come back as they were."""
    if isinstance(tokenizer, IdTokenizer):
        return Check(detail="no tokenizer: the model works by ids")
    changed = [text for text in HARD_STRINGS if _there_and_back(tokenizer, text) != text]
    detail = f"{changed[0][:40]!r} becomes {_there_and_back(tokenizer, changed[0])[:80]!r}" if changed else ""
    return Check(error=len(changed), tolerance=0, detail=detail or f"{len(HARD_STRINGS)} hard strings")


def _there_and_back(tokenizer: Tokenizer, text: str) -> str:
    try:
        return tokenizer.decode(tokenizer.encode(text, bos=False))
    except TokenizerError as error:
        return f"error: {error}"


def finite(logits: Float[Tensor, "1 T V"]) -> Check:
    """How many logits are no numbers."""
    return Check(error=int((~logits.isfinite()).sum()), tolerance=0, detail=f"{logits.numel()} logits")


def cached_logits(network: Transformer, tokens: Int[Tensor, "1 T"]) -> Float[Tensor, "1 T V"]:
    """The logits of a prompt's pass, and of one pass for each of the last tokens."""
    cache = Cache(network.config, 1, network.embed.weight)
    n_prompt = max(1, tokens.shape[1] - N_STEPS)
    passes = [tokens[:, :n_prompt], *(tokens[:, i : i + 1] for i in range(n_prompt, tokens.shape[1]))]
    return torch.cat([network(new, cache) for new in passes], dim=1)


def batched_and_alone(
    network: Transformer, tokens: Int[Tensor, "1 T"], logits: Float[Tensor, "1 T V"]
) -> tuple[Float[Tensor, "N V"], Float[Tensor, "N V"]]:
    """The logits of the text and of two of its parts, from one pass together and from a pass each."""
    [text], n = tokens, tokens.shape[1]
    texts = [text, text[: max(1, n // 4)], text[n // 3 :]]
    n_real = [len(text) for text in texts]
    together = network.unembed(network.residual(pad_sequence(texts, batch_first=True), n_new=n_real))
    alone = [logits[0], *(network(text[None])[0] for text in texts[1:])]
    return torch.cat([row[:n] for row, n in zip(together, n_real, strict=True)]), torch.cat(alone)


class EveryStage(Tap):
    """Asks for every stage of attention, which only the reference kernel has."""

    def wants(self, *names: str) -> bool:
        return not set(STAGES).isdisjoint(names)


def saved(network: Transformer, family: str) -> Check:
    """How many weights are others after a folder was written and read."""
    n_bytes = sum(p.nbytes for p in network.parameters())
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if n_bytes > min(MAX_SAVED_BYTES, 0.9 * free):
        limit = "the check writes 2 GB at most" if n_bytes > MAX_SAVED_BYTES else f"{free / 1e9:.1f} GB are free"
        return Check(detail=f"{n_bytes / 1e9:.1f} GB as float32, {limit}")
    with tempfile.TemporaryDirectory(prefix="cutaway-") as folder:
        try:
            save_folder(network, Path(folder), preferred=family)
        except UnsupportedError as error:
            return Check(detail=str(error))
        again, _ = load_folder(Path(folder), torch.float32, network.embed.weight.device)
    if again.config != network.config:
        return Check(error=float("inf"), tolerance=0, detail="the config comes back as another one")
    pairs = zip(again.parameters(), network.parameters(), strict=True)
    n_changed = sum(int(((a != b) & ~(a.isnan() & b.isnan())).sum()) for a, b in pairs)  # NaN may stay NaN
    return Check(error=n_changed, tolerance=0, detail="every weight")


def against_transformers(path: Path, tokens: Int[Tensor, "1 T"], logits: Float[Tensor, "1 T V"]) -> Check:
    """The logits of transformers, which reads the same file in float32."""
    if importlib.util.find_spec("transformers") is None:
        return Check(detail="transformers is not installed")
    place, file = (path, None) if path.is_dir() else (path.parent, path.name)
    try:
        with _quiet_transformers() as transformers:
            theirs = transformers.AutoModelForCausalLM.from_pretrained(
                place, gguf_file=file, dtype=torch.float32, attn_implementation="eager", local_files_only=True
            )
            found = theirs.eval().to(tokens.device)(tokens).logits
    except Exception as error:  # a library of many files and many kinds of errors
        reason = " ".join(str(error).split())[:150]
        return Check(detail=f"transformers cannot read it ({type(error).__name__}: {reason})")
    return compare(logits, found, f"{type(theirs).__name__}, transformers {transformers.__version__}")


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[Any]:
    """The library, without its progress bars and reports."""
    transformers: Any = importlib.import_module("transformers")
    logging = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        # Some of its bars know no switch.
        with warnings.catch_warnings(action="ignore"), contextlib.redirect_stderr(io.StringIO()):
            yield transformers
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
