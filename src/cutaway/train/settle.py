"""What "auto" means on this machine: settled before the first step and kept, so that a resumed run computes alike."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from cutaway.config import ModelConfig
from cutaway.data.preparing import prepare
from cutaway.data.shards import Prepared, is_prepared, open_prepared
from cutaway.errors import DataError, TrainingError
from cutaway.language_model import LanguageModel, load
from cutaway.nn.devices import multiplies_bf16
from cutaway.text.ids import IdTokenizer
from cutaway.train.config import TrainConfig
from cutaway.train.display import Display
from cutaway.train.distributed import Ranks, check_batch
from cutaway.train.plan import Plan, available_memory, make_plan

LONG = 300.0  # predicted seconds from which compiling pays
WIDE = 128  # d_model from which a CPU's bf16 products pay: there they make a step of 64 tokens 1.9 times as fast
ROOM = 0.8  # of the memory there is: a model that needs more is sharded
PREPARING = ("tokenizer", "vocab_size", "val_fraction", "text_field", "lenient")  # choices about texts, not tokens


@dataclass(frozen=True, kw_only=True)
class Settled:
    """A run's decisions. `family` is what a model it started from was stored as, `generation` its sampling defaults."""

    data: Path
    key: str  # of its tokens, a hash of all that they depend on
    network: ModelConfig
    n_ctx: int
    family: str
    bf16: bool
    sharded: bool
    compiled: bool
    generation: dict[str, Any] = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype:
        """What matrix products are made in."""
        return torch.bfloat16 if self.bf16 else torch.float32

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"data": str(self.data), "network": self.network.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Settled:
        """The inverse of `to_dict`.

        Raises:
            TrainingError: it is not what a run settled.
        """
        try:
            return cls(**{**data, "data": Path(data["data"]), "network": ModelConfig.from_dict(data["network"])})
        except (TypeError, KeyError) as error:
            raise TrainingError(f"run.json is damaged or from another version ({error}): start another run") from error


def read_texts(config: TrainConfig, base: LanguageModel | None, display: Display) -> Prepared:
    """The texts as tokens: the base model's, where there is one and no tokenizer is asked for.

    A folder that `prepare` has filled is taken as it is.

    Raises:
        DataError: texts that cannot be read, or are too few.
        TrainingError: a base model without a tokenizer, or tokens that are not those of the base model.
    """
    if not config.texts:
        raise DataError("no texts: name a file, a folder or a glob of text")
    if len(config.texts) == 1 and is_prepared(folder := Path(config.texts[0]).expanduser().absolute()):
        return _read_tokens(folder, config, base)
    own = base.tokenizer if base is not None and config.tokenizer == TrainConfig.tokenizer else None
    if isinstance(own, IdTokenizer):
        raise TrainingError(f"{config.from_model} has no tokenizer: name one with --tokenizer")
    return prepare(
        config.texts,
        tokenizer=own or config.tokenizer,
        vocab_size=config.vocab_size,
        seed=config.seed,
        val_fraction=config.val_fraction,
        lenient=config.lenient,
        text_field=config.text_field,
        progress=display.reading,
    )


def reread_texts(config: TrainConfig, settled: Settled, display: Display) -> Prepared:
    """The tokens of a run that goes on; made again from its texts where they are gone.

    Raises:
        DataError: the texts cannot be read.
        TrainingError: they are other texts by now.
    """
    try:
        prepared = open_prepared(settled.data)
    except DataError:  # gone or damaged
        base = load(config.from_model, device="cpu") if config.from_model else None
        prepared = read_texts(config, base, display)
    if prepared.key != settled.key:
        raise TrainingError(
            f"{settled.data} is gone or was made anew, and {', '.join(config.texts)} are other texts by now: "
            "bring either back, or start another run"
        )
    return prepared


def _read_tokens(folder: Path, config: TrainConfig, base: LanguageModel | None) -> Prepared:
    asked = [name for name in PREPARING if getattr(config, name) != getattr(TrainConfig, name)]
    if asked:
        raise DataError(f"{', '.join(asked)}: settled when the tokens in {folder} were made, leave it out")
    prepared = open_prepared(folder)
    own = None if base is None or isinstance(base.tokenizer, IdTokenizer) else base.tokenizer
    if own is not None and own.backend_state() != prepared.tokenizer.backend_state():
        raise TrainingError(f"{folder} was made with another tokenizer than {config.from_model} has: use its own")
    return prepared


def settle(config: TrainConfig, prepared: Prepared, base: LanguageModel | None, ranks: Ranks) -> Settled:
    """Decide everything that was left open.

    Raises:
        DataError: fewer tokens than one window needs.
        TrainingError: a batch that does not split evenly, or a tokenizer with more ids than the base model.
    """
    d_vocab = prepared.tokenizer.d_vocab
    network = config.model(d_vocab) if base is None else base.config
    if d_vocab > network.d_vocab:
        raise TrainingError(f"the tokenizer has {d_vocab} ids, the model {network.d_vocab}: use the model's own")
    n_ctx = min(config.n_ctx or 1024, network.n_ctx)
    if len(prepared.train) < n_ctx + 1:
        raise DataError(
            f"{len(prepared.train)} tokens to train on, one window of n_ctx = {n_ctx} needs {n_ctx + 1}: "
            "give more text, or a smaller --n-ctx"
        )
    check_batch(config.batch_size, config.accumulate, ranks)
    pays = bool(ranks.least(_bf16_pays(ranks.device, network.d_model)))
    bf16 = config.precision == "bf16" or (config.precision == "auto" and pays)
    whole = Settled(
        data=prepared.folder,
        key=prepared.key,
        network=network,
        n_ctx=n_ctx,
        family="" if base is None else base.report.family,
        bf16=bf16,
        sharded=False,
        compiled=False,
        generation={} if base is None else _generation(base, prepared),
    )
    spread = sharded(config, whole, prepared, ranks)
    long = ranks.least(foresee(config, spread, prepared, ranks).seconds) > LONG
    compiled = config.compile == "on" or (config.compile == "auto" and long and bool(ranks.least(_has_compiler())))
    return replace(spread, compiled=compiled)


def _generation(base: LanguageModel, prepared: Prepared) -> dict[str, Any]:
    """The base model's sampling defaults, and the ids that end its texts where the tokenizer is its own."""
    theirs = None if isinstance(base.tokenizer, IdTokenizer) else base.tokenizer.backend_state()
    own = theirs == prepared.tokenizer.backend_state()
    kept = {name: value for name, value in base.report.generation.items() if own or not name.endswith("_token_id")}
    return kept | ({"eos_token_id": sorted(base.end_ids)} if own else {})


def sharded(config: TrainConfig, settled: Settled, prepared: Prepared, ranks: Ranks) -> Settled:
    """The decision for the processes that there are now; a run may go on with another number of them."""
    fits = foresee(config, replace(settled, sharded=False), prepared, ranks).n_bytes <= ROOM * room(ranks)
    wanted = config.parallel == "sharded" or (config.parallel == "auto" and not fits)
    return replace(settled, sharded=wanted and ranks.world > 1)


def check_compiler(settled: Settled, ranks: Ranks) -> None:
    """A compiled run needs a compiler wherever it runs, also where it is resumed.

    Raises:
        TrainingError: a process has none.
    """
    if settled.compiled and not ranks.least(_has_compiler()):
        raise TrainingError(
            "the run is compiled, and torch.compile finds no C++ compiler here: install g++ (or name yours in CXX), "
            "or start a run with --compile off"
        )


def room(ranks: Ranks) -> int:
    """The memory that every process has for itself [B]; all call it, and all are told the same."""
    return int(ranks.least(available_memory(ranks.device) // ranks.neighbours))


def foresee(config: TrainConfig, settled: Settled, prepared: Prepared, ranks: Ranks, n_made: int = 0) -> Plan:
    """What the run will cost, after so many steps."""
    return make_plan(
        settled.network,
        n_tokens=len(prepared.train),
        n_val_tokens=len(prepared.val) if prepared.val is not None else 0,
        n_documents=prepared.n_documents,
        batch_size=config.batch_size,
        n_ctx=settled.n_ctx,
        n_steps=config.steps,
        n_made=n_made,
        optimizer=config.optimizer,
        n_processes=ranks.world,
        sharded=settled.sharded,
        dtype=settled.dtype,
        device=ranks.device,
        accumulate=config.accumulate,
        dropout=config.dropout > 0,
    )


def _bf16_pays(device: torch.device, d_model: int) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    if device.type != "cpu" or d_model < WIDE:
        return False
    return multiplies_bf16()


def _has_compiler() -> bool:
    """Whether the one compiler is there that torch.compile looks for, and no other."""
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    return shutil.which(os.environ.get("CXX", usual)) is not None
