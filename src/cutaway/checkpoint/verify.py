"""What a loaded checkpoint is, and whether its numbers hold: the facts and checks behind `cutaway verify`.

The checks compute in float32 whatever type the weights are kept in: half precision differs from itself by more than
any tolerance worth having.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from cutaway.checkpoint.folder import load_folder, save_folder
from cutaway.checkpoint.gguf import GGUFFile
from cutaway.checkpoint.gguf_model import load_gguf
from cutaway.checkpoint.load import LoadReport
from cutaway.config import ModelConfig, WindowMaskConfig
from cutaway.errors import UnsupportedError
from cutaway.network import Transformer
from cutaway.nn.cache import Cache
from cutaway.nn.kernel import STAGES
from cutaway.nn.position import NoPosition
from cutaway.nn.tap import Tap
from cutaway.text.ids import IdTokenizer
from cutaway.text.tokenizer import Tokenizer

TOLERANCE = 1e-5  # times the largest logit, where that is above 1
MAX_SAVED_BYTES = 2_000_000_000
N_TOKENS = 48
MAX_WINDOW = 512  # wider windows are not filled: it would take too long

PASSAGE = """Once a number is in the residual stream, every later layer can read it: def f(x): return 2*x + 1.
«Ein Fluss hat zwei Ufer», said the ferryman in 1984, and rowed; the price was 3.50 €, 川を渡る."""

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
    """One comparison: the largest difference found and the largest allowed. `skipped` says why none was made."""

    name: str
    error: float | None = None
    tolerance: float | None = None
    detail: str = ""
    skipped: str = ""

    @property
    def state(self) -> Literal["passed", "failed", "skipped"]:
        if self.error is None or self.tolerance is None:
            return "skipped"
        return "passed" if self.error <= self.tolerance else "failed"  # NaN fails

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "state": self.state,
            "error": self.error,
            "tolerance": self.tolerance,
            "detail": self.detail,
            "skipped": self.skipped,
        }


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was loaded and how the checks came out. `n_bytes` is what the weights take in `dtype` [B]."""

    source: str
    family: str
    stored: str
    dtype: str
    device: str
    n_parameters: int
    n_bytes: int
    used: list[str]
    unused: dict[str, str]
    notes: list[str]
    config: ModelConfig
    tokenizer: dict[str, Any] | None
    checks: list[Check]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.state != "failed" for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        ...
