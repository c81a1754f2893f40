"""A training run from its texts to its last checkpoint."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn

from cutaway.checkpoint.files import read_json, write_atomically
from cutaway.data.shards import Prepared
from cutaway.errors import ConfigError, TrainingError
from cutaway.language_model import LanguageModel, load
from cutaway.network import Transformer
from cutaway.nn.devices import as_device
from cutaway.train import state
from cutaway.train.config import TrainConfig
from cutaway.train.display import Display
from cutaway.train.distributed import Ranks, check_batch, joined, replicate, shard
from cutaway.train.initialise import fill, initialise
from cutaway.train.loop import Loop
from cutaway.train.loss import Objective
from cutaway.train.optimizer import build_optimizers, past
from cutaway.train.settle import Settled, check_compiler, foresee, read_texts, reread_texts, room, settle, sharded
from cutaway.train.state import Position
from cutaway.train.watch import Watcher

# What may change when a run is resumed. With other `steps` the rate follows the longer or shorter schedule from there.
CHANGEABLE = ("steps", "lr", "eval_every", "sample_every", "save_every", "keep", "patience")


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """How a run ended. `end` is "finished", "stopped" (asked to, and saved) or "early" (no better for `patience`)."""

    folder: str
    end: str
    step: int
    loss: float | None  # of the last step made [nat/token]
    best_step: int | None
    best_loss: float | None
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def train(
    texts: str | Path | Sequence[str | Path] = (),
    *,
    out: str | Path,
    resume: bool = False,
    device: torch.device | str | None = None,
    display: Display | None = None,
    **choices: Any,
) -> TrainResult:
    """Turn texts into a model.

    Args:
        texts: files, folders or globs; none when resuming.
        out: the folder of the run, which can be loaded as a model from its first checkpoint on.
        resume: go on with the run in `out` from its newest whole checkpoint, as if it had never stopped.
        device: None takes a GPU if there is one.
        choices: the fields of TrainConfig; when resuming, only those in CHANGEABLE.
    Raises:
        DataError: texts that cannot be read, or are too few.
        ConfigError: a choice out of its range.
        TrainingError: a run that cannot start, go on, or be saved.
    """
    folder = Path(out)
    given = (texts,) if isinstance(texts, str | Path) else tuple(texts)
    if resume and not (folder / "run.json").exists():
        raise TrainingError(f"{folder} holds no run to resume: give texts to start one")
    if resume and given:
        raise TrainingError(f"a resumed run reads the texts it has: leave out {', '.join(map(str, given))}")
    with joined(as_device(device)) as ranks, _alone(folder, ranks), _own_random_numbers(ranks):
        shown = display if display is not None and ranks.leads else Display()
        if resume:
            config, settled = _read_run(folder, choices)
            prepared = reread_texts(config, settled, shown)
            check_batch(config.batch_size, config.accumulate, ranks)
            settled = sharded(config, settled, prepared, ranks)
            begun = bool(state.steps(folder))
            base = load(config.from_model, device="cpu", dtype="float32") if config.from_model and not begun else None
            return _go(folder, config, settled, prepared, base, ranks, shown)
        config = _config(texts=tuple(str(text) for text in given), **choices)
        ranks.wait()  # the first process may be about to write what the next line looks for
        if (folder / "run.json").exists():
            raise TrainingError(f"{folder} holds a run already: --resume it, or name another folder")
        base = load(config.from_model, device="cpu", dtype="float32") if config.from_model else None
        prepared = read_texts(config, base, shown)
        settled = settle(config, prepared, base, ranks)
        return _go(folder, config, settled, prepared, base, ranks, shown)


def _go(
    folder: Path,
    config: TrainConfig,
    settled: Settled,
    prepared: Prepared,
    base: LanguageModel | None,
    ranks: Ranks,
    display: Display,
) -> TrainResult:
    """From what was settled to the end."""
    if prepared.val is not None and len(prepared.val) < settled.n_ctx + 1:
        prepared.notes.append(
            f"{len(prepared.val)} tokens to validate with, one window needs {settled.n_ctx + 1}: "
            "training without validation"
        )
        prepared = replace(prepared, val=None)
    path, position = _newest(folder, display)
    if position.step > config.steps:
        raise TrainingError(f"steps = {config.steps}: the run has made {position.step} already, give as many or more")
    plan = foresee(config, settled, prepared, ranks, n_made=position.step)
    display.planned(plan, prepared.notes)
    plan.check(room(ranks))
    check_compiler(settled, ranks)

    objective, module = _spread(settled, config, base, ranks)
    optimizers = build_optimizers(objective, config)
    tensors = {name.removeprefix("network."): p for name, p in _everything(objective, optimizers)}
    if path is not None:
        _restore(path, position, tensors, ranks, display)
    position = replace(position, world=ranks.world, threads=torch.get_num_threads())
    if ranks.leads:
        content = {"config": config.to_dict(), "settled": settled.to_dict()}
        write_atomically(folder / "run.json", json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n")

    loop = Loop(config, settled, module, optimizers, prepared, ranks)
    watcher = Watcher(folder, config, settled, objective, prepared.tokenizer, tensors, ranks, display)
    watcher.seconds_per_token = plan.flops_per_token / (plan.peak * ranks.world)
    with watcher.open(position.step):
        end = loop.run(position, watcher)
    return TrainResult(
        folder=str(folder),
        end=end,
        step=position.step,
        loss=watcher.loss,
        best_step=position.best_step,
        best_loss=position.best_loss,
        seconds=position.seconds,
    )


def _everything(objective: Objective, optimizers: list[torch.optim.Optimizer]) -> Iterator[tuple[str, Tensor]]:
    """All that a checkpoint holds: the weights, and what the optimizers keep of the past."""
    yield from objective.named_parameters()
    yield from past(objective, optimizers).items()


def _spread(
    settled: Settled, config: TrainConfig, base: LanguageModel | None, ranks: Ranks
) -> tuple[Objective, nn.Module]:
    """The network on its device, over the processes, with its first numbers; and the module that a step calls."""
    with torch.device("meta"):
        network = Transformer(settled.network)
    objective = Objective(network)
    if settled.compiled:
        for part in network.blocks if settled.sharded else [objective]:  # a shard is gathered between compiled parts
            part.compile()
    if settled.sharded:
        shard(objective, settled.bf16)
    objective.to_empty(device=ranks.device)
    network.tie()
    if base is None:
        initialise(network, config.seed)
    else:
        fill(network, base.network)
    if config.dropout:
        for block in network.blocks:
            block.drop = nn.Dropout(config.dropout)
    return objective, objective if settled.sharded else replicate(objective, ranks)


def _newest(folder: Path, display: Display) -> tuple[Path | None, Position]:
    """The checkpoint to go on from, and where the run stood then; its beginning, if nothing was saved yet."""
    if not state.steps(folder):
        return None, Position()
    path, position, damaged = state.newest(folder)
    for problem in damaged:
        display.note(f"damaged checkpoint, not used: {problem}")
    return path, position


def _restore(path: Path, position: Position, tensors: dict[str, Tensor], ranks: Ranks, display: Display) -> None:
    """All numbers as they were in a checkpoint."""
    state.restore(path, tensors, ranks)
    if ranks.leads:
        for newer in [found for found in state.steps(path.parent) if found > path]:
            state.set_aside(newer)  # damaged: it must not count as one of those that are kept
    display.note(f"resumed from {path}")
    n_threads = torch.get_num_threads()
    if (position.world, position.threads) != (ranks.world, n_threads):
        display.note(
            f"saved by {position.world} processes of {position.threads} threads, now {ranks.world} of {n_threads}: "
            "equal but for rounding"
        )


def _read_run(folder: Path, choices: dict[str, Any]) -> tuple[TrainConfig, Settled]:
    """What the run in a folder was asked to do and settled, with what may change changed."""
    content = read_json(folder / "run.json")
    config = TrainConfig.from_dict(content.get("config", {}))
    fixed = [name for name, value in choices.items() if name not in CHANGEABLE and getattr(config, name, 0) != value]
    if fixed:
        raise TrainingError(
            f"{', '.join(fixed)}: cannot change when a run is resumed, only {', '.join(CHANGEABLE)} can: "
            f"start another run with --from {folder}"
        )
    return replace(config, **choices), Settled.from_dict(content.get("settled", {}))


def _config(**choices: Any) -> TrainConfig:
    try:
        return TrainConfig(**choices)
    except TypeError as error:
        raise ConfigError(f"{str(error).rpartition('() ')[2]}: no such option of a training run") from error


def _own_random_numbers(ranks: Ranks) -> contextlib.AbstractContextManager[None]:
    """The caller's generators are as they were when the run ends: of the CPU, and of this process's GPU."""
    return torch.random.fork_rng([ranks.device] if ranks.device.type == "cuda" else [])


@contextlib.contextmanager
def _alone(folder: Path, ranks: Ranks) -> Iterator[None]:
    """One run at a time in a folder."""
    if not ranks.leads:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock", timeout=0)
        lock.acquire()
    except Timeout as error:
        raise TrainingError(f"{folder}: another process trains there now: wait for it, or name another") from error
    except OSError as error:
        raise TrainingError(f"{folder}: cannot be written ({error.strerror}): name another folder") from error
    try:
        yield
    finally:
        lock.release()
        if not (folder / "run.json").exists():  # nothing came of it: leave nothing behind
            with contextlib.suppress(OSError):
                (folder / ".lock").unlink()
                folder.rmdir()
