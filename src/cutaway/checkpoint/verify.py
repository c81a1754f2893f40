"""What a loaded checkpoint is, and whether its numbers hold: what `cutaway verify` shows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from cutaway.checkpoint.checks import Check, run_checks
from cutaway.checkpoint.folder import load_folder
from cutaway.checkpoint.gguf import GGUFFile
from cutaway.checkpoint.gguf_model import load_gguf
from cutaway.checkpoint.load import LoadReport
from cutaway.config import MaskConfig, ModelConfig, PositionConfig
from cutaway.network import Transformer
from cutaway.text.ids import IdTokenizer
from cutaway.text.tokenizer import Tokenizer

__all__ = ["TokenizerFacts", "Verification", "verify"]

Kind = TypeVar("Kind", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class TokenizerFacts:
    """What there is of a tokenizer."""

    d_vocab: int
    bos_id: int | None
    add_bos: bool
    end_ids: tuple[int, ...]
    chat_template: bool


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was loaded, and how every check came out.

    `stored` is how the file keeps most of the weights, `dtype` how they are kept now, in `n_bytes` [B]. `positions`
    and `masks` give each kind that occurs with the layers that have it.
    """

    source: str
    family: str
    stored: str
    dtype: str
    device: str
    n_parameters: int
    n_bytes: int
    used: tuple[str, ...]
    unused: dict[str, str]
    notes: tuple[str, ...]
    config: ModelConfig
    tokenizer: TokenizerFacts | None
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.state != "failed" for check in self.checks)

    @property
    def positions(self) -> dict[PositionConfig, tuple[int, ...]]:
        """Each kind of position, with its layers."""
        return _by_kind(self.config.positions)

    @property
    def masks(self) -> dict[MaskConfig, tuple[int, ...]]:
        """Each kind of mask, with its layers."""
        return _by_kind(self.config.masks)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "source": self.source,
            "family": self.family,
            "stored": self.stored,
            "dtype": self.dtype,
            "device": self.device,
            "n_parameters": self.n_parameters,
            "n_bytes": self.n_bytes,
            "used": list(self.used),
            "unused": self.unused,
            "notes": list(self.notes),
            "config": self.config.to_dict(),
            "tokenizer": None if self.tokenizer is None else vars(self.tokenizer),
            "checks": [check.to_dict() for check in self.checks],
            "passed": self.passed,
        }


def verify(
    network: Transformer,
    tokenizer: Tokenizer | IdTokenizer,
    report: LoadReport,
    end_ids: frozenset[int] = frozenset(),
    *,
    progress: Callable[[str], object] = lambda name: None,
) -> Verification:
    """Check a network that was loaded from a file against itself, its file, and transformers where that is installed.

    The checks compute in float32, whatever the weights are kept in: half precision differs from itself by more than
    any tolerance worth having. So weights kept otherwise are read a second time.

    Args:
        progress: called with the name of each check before it starts.
    Raises:
        CheckpointError: the file cannot be read again.
    """
    parameters = list(network.parameters())
    dtype = parameters[0].dtype
    device = parameters[0].device
    exact = network if dtype == torch.float32 else _read_again(Path(report.source), device)
    return Verification(
        source=report.source,
        family=report.family,
        stored=report.stored,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        n_parameters=sum(p.numel() for p in parameters),
        n_bytes=sum(p.nbytes for p in parameters),
        used=tuple(report.used),
        unused=dict(report.unused),
        notes=tuple(report.notes),
        config=network.config,
        tokenizer=None if isinstance(tokenizer, IdTokenizer) else _facts(tokenizer, end_ids),
        checks=tuple(run_checks(exact, tokenizer, report, progress)),
    )


def _facts(tokenizer: Tokenizer, end_ids: frozenset[int]) -> TokenizerFacts:
    return TokenizerFacts(
        d_vocab=tokenizer.d_vocab,
        bos_id=tokenizer.bos_id,
        add_bos=tokenizer.add_bos,
        end_ids=tuple(sorted(tokenizer.eos_ids | end_ids)),
        chat_template=tokenizer.chat_template is not None,
    )


def _read_again(path: Path, device: torch.device) -> Transformer:
    if path.is_dir():
        return load_folder(path, torch.float32, device)[0]
    with GGUFFile(path) as file:
        return load_gguf(file, torch.float32, device)[0]


def _by_kind(kinds: Sequence[Kind]) -> dict[Kind, tuple[int, ...]]:
    return {kind: tuple(i for i, other in enumerate(kinds) if other == kind) for kind in dict.fromkeys(kinds)}
