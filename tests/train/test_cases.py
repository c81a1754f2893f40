"""Situations that people met with other trainers, where they are not tested beside what they concern."""

from __future__ import annotations

import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import cutaway
from cutaway.checkpoint.load import LoadReport
from cutaway.data import open_prepared, prepare
from cutaway.errors import CutawayError, DataError, TrainingError
from cutaway.network import Transformer
from cutaway.presets import classic
from cutaway.train import evaluate as scoring
from cutaway.train import state
from cutaway.train.config import TrainConfig
from cutaway.train.display import Display
from cutaway.train.distributed import Ranks
from cutaway.train.loop import Loop
from cutaway.train.loss import IGNORE, Objective
from cutaway.train.optimizer import SLOTS, build_optimizers, past
from cutaway.train.run import train
from support.runs import TINY, bottles

OPTIONS = TINY | {"n_layers": 2}
ALONE = Ranks(rank=0, world=1, device=torch.device("cpu"))


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("cutaway.train.watch.draw_curve", lambda records, stem: None)  # not what is looked at here
    path = tmp_path / "text.txt"
    path.write_text(bottles(60))
    return path


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    """Everything in the files of a checkpoint."""
    return {name: tensor for file in folder.rglob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")  # of torch.compile's own import
def test_a_compiled_run_resumed_twice(text: Path, tmp_path: Path) -> None:
    """R1: no file ever has a prefix, and the names are those of the run that is not compiled, also the second time."""
    train(text, out=tmp_path / "plain", **OPTIONS, steps=6)
    with torch.compiler.set_stance("force_eager"):  # wrapped as ever, but the wrapper calls what it wraps
        train(text, out=tmp_path / "run", **OPTIONS | {"compile": "on"}, steps=2)
        for steps in (4, 6):
            assert train(out=tmp_path / "run", resume=True, steps=steps).step == steps
    plain, compiled = tensors_of(tmp_path / "plain" / "step-00000006"), tensors_of(tmp_path / "run" / "step-00000006")
    assert compiled.keys() == plain.keys()
    assert not [name for name in compiled if name.startswith(("_orig_mod.", "module."))]


@pytest.mark.parametrize("prefix", ["_orig_mod.module.", "module._orig_mod."])
def test_a_model_saved_with_a_prefix_is_trained_further_twice(text: Path, tmp_path: Path, prefix: str) -> None:
    """R1: what another trainer saved from a wrapped model; every step after it is the one after the plain model."""
    train(text, out=tmp_path / "base", **OPTIONS, steps=1)
    (wrapped,) = (tmp_path / "base").glob("step-*")
    file = wrapped / "model.safetensors"
    tensors = load_file(file)
    options = {"steps": 1, "batch_size": 4, "compile": "off", "sample_every": 0}
    train(text, out=tmp_path / "plain", from_model=str(wrapped), **options)
    save_file({prefix + name: tensor for name, tensor in tensors.items()}, file)
    train(text, out=tmp_path / "more", from_model=str(wrapped), **options)
    for steps in (2, 3):
        for run in ("plain", "more"):
            train(out=tmp_path / run, resume=True, steps=steps)
        one, other = (tensors_of(tmp_path / run / f"step-{steps:08d}") for run in ("plain", "more"))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert len(load_file(tmp_path / "more" / "step-00000003" / "model.safetensors")) == len(tensors)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_what_an_optimizer_keeps_is_where_its_parameter_is(name: str) -> None:
    """R5: also the count that a fused step reads on its device. Shown on the device that holds no numbers, since the
    order is the same on all: network on its device, optimizers, then their past."""
    with torch.device("meta"):
        objective = Objective(Transformer(classic(2, 2, 8, 8, d_vocab=8)))
    optimizers = build_optimizers(objective, TrainConfig(optimizer=name))  # type: ignore[arg-type]
    kept = past(objective, optimizers)
    assert {tensor.device.type for tensor in kept.values()} == {"meta"}
    n_slots = sum(len(SLOTS[type(o)]) for o in optimizers for group in o.param_groups for _ in group["params"])
    assert len(kept) == n_slots


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_the_past_is_restored_into_the_tensors_that_the_optimizers_use(text: Path, tmp_path: Path, name: str) -> None:
    """R5: in place, so wherever a checkpoint was saved, moments stay on the parameter's device. There is no state of a
    generator that could land on a wrong one: every random number comes from the seed and the step."""
    train(text, out=tmp_path / "run", **OPTIONS, steps=3, optimizer=name)
    (folder,) = (tmp_path / "run").glob("step-*")
    assert not [path for path in folder.rglob("*") if "rng" in path.name]
    config = TrainConfig(**OPTIONS, optimizer=name)  # type: ignore[arg-type]
    objective = Objective(Transformer(config.model(257)))
    optimizers = build_optimizers(objective, config)
    kept = past(objective, optimizers)
    tensors = dict(objective.named_parameters()) | kept
    state.restore(folder, {key.removeprefix("network."): tensor for key, tensor in tensors.items()}, ALONE)
    for optimizer in optimizers:
        for parameter, held in optimizer.state.items():
            assert {tensor.device for tensor in held.values()} == {parameter.device}
            assert all(tensor.count_nonzero() for tensor in held.values())
    assert {float(tensor) for key, tensor in kept.items() if key.endswith(".step")} == {3.0}


def test_another_number_of_processes_or_threads_is_a_note(text: Path, tmp_path: Path) -> None:
    """R5: told, and no crash."""
    train(text, out=tmp_path / "run", **OPTIONS, steps=2)
    (folder,) = (tmp_path / "run").glob("step-*")
    content = json.loads((folder / "state.json").read_text())
    content["position"] |= {"world": 8, "threads": 3}
    (folder / "state.json").write_text(json.dumps(content))
    notes: list[str] = []

    class Notes(Display):
        def note(self, text: str) -> None:
            notes.append(text)

    assert train(out=tmp_path / "run", resume=True, steps=3, display=Notes()).step == 3
    assert [note for note in notes if note.startswith("saved by 8 processes of 3 threads, now 1 of 1: equal but for")]


class Marker:
    """A pickle that leaves a file behind when it is loaded with code enabled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("sealed", [False, True], ids=["damaged", "sealed"])
@pytest.mark.parametrize("where", ["state", "model"])
def test_a_pickle_in_a_checkpoint_never_runs(text: Path, tmp_path: Path, where: str, sealed: bool) -> None:
    """R6: weights and the optimizers' past, also where size and checksum are made to fit."""
    out, marker = tmp_path / "run", tmp_path / "marker"
    train(text, out=out, **OPTIONS, steps=2)
    (folder,) = out.glob("step-*")
    (file,) = folder.glob("state/*.safetensors" if where == "state" else "model.safetensors")
    file.write_bytes(pickle.dumps({"embed.weight": Marker(marker)}))
    if sealed:
        content = json.loads((folder / "state.json").read_text())
        content["files"][file.relative_to(folder).as_posix()] = [file.stat().st_size, zlib.crc32(file.read_bytes())]
        (folder / "state.json").write_text(json.dumps(content))
    if where == "model":
        with pytest.raises(CutawayError, match=r"model\.safetensors") as error:
            cutaway.load(out)
    else:
        with pytest.raises(TrainingError, match="does not fit this run" if sealed else "no whole checkpoint") as error:
            train(out=out, resume=True, steps=3)
    assert "\n" not in str(error.value)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["meta.json", "tokenizer.json"])
def test_a_pickle_among_the_tokens_never_runs(text: Path, tmp_path: Path, name: str) -> None:
    """R6: the data cache and its tokenizer."""
    prepare(text, tokenizer="bytes", folder=tmp_path / "tokens")
    (tmp_path / "tokens" / name).write_bytes(pickle.dumps(Marker(tmp_path / "marker")))
    with pytest.raises(DataError, match="is damaged"):
        open_prepared(tmp_path / "tokens")
    assert not (tmp_path / "marker").exists()


def test_documents_count_by_their_tokens(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X5: 10 and 100 targets with mean losses 1 and 2 make 1.9091, not 1.5."""
    train(text, out=tmp_path / "run", **OPTIONS, steps=1)
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "a.txt").write_text("a" * 11)
    (folder / "b.txt").write_text("b" * 101)

    def told(objective: Objective, batch: Any) -> float:
        targets = [target for _, row in batch for target in row if target != IGNORE]
        return sum({ord("a"): 1.0, ord("b"): 2.0}[target] for target in targets)

    monkeypatch.setattr(scoring, "_loss", told)
    result = scoring.evaluate(cutaway.load(tmp_path / "run"), folder)
    assert (result.n_tokens, round(result.loss, 4)) == (110, 1.9091)


def test_dropout_is_off_wherever_a_model_is_asked(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X7: half of everything dropped in training; two evaluations and two greedy texts in its middle are the same."""
    seen: list[Any] = []
    step = Loop.step

    def watched(self: Loop, number: int) -> tuple[float, float, float]:
        out = step(self, number)
        assert self.module.training
        assert self.prepared.val is not None
        network = self.module.network
        seen.append([self.evaluate(self.prepared.val) for _ in range(2)])
        self.module.train()
        seen.append([greedy(network, self.prepared.tokenizer) for _ in range(2)])
        return out

    monkeypatch.setattr(Loop, "step", watched)
    train(text, out=tmp_path / "run", **OPTIONS, dropout=0.5, steps=2)
    assert len(seen) == 4
    assert all(one == other for one, other in seen)


def greedy(network: Transformer, tokenizer: Any) -> str:
    model = cutaway.LanguageModel(network, tokenizer, LoadReport(family="", source="", stored=""), frozenset())
    return model.generate("9", max_tokens=7, temperature=0).text


def test_a_text_that_names_the_end_does_not_end(text: Path, tmp_path: Path) -> None:
    """K1 in training: the control token stands once a document, at its end, whatever a text says; in chat and run
    alike it is asked for."""
    text.write_text("say <|endoftext|> now\n" * 20)
    train(text, out=tmp_path / "run", **OPTIONS, steps=1, val_fraction=0.0)
    model = cutaway.load(tmp_path / "run")
    prepared = open_prepared(json.loads((tmp_path / "run" / "run.json").read_text())["settled"]["data"])
    ids = prepared.train.read(0, len(prepared.train)).tolist()
    (end,) = model.tokenizer.eos_ids
    assert ids.count(end) == 1
    assert ids[-1] == end
    assert model.decode(ids[:-1]) == text.read_text()
    assert end not in model.encode("say <|endoftext|> now")
