"""Runs from text to model: what comes out, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import cutaway
from cutaway.errors import ConfigError, DataError, TrainingError
from cutaway.train import state
from cutaway.train.loop import Loop
from cutaway.train.optimizer import clip
from cutaway.train.run import train
from support import runs
from support.runs import Watching, weights
from support.vocabularies import byte_level

TEXT = runs.bottles(120)
TINY = runs.TINY | {"tokenizer": "chars"}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize("arch", ["gpt2", "llama"])
def test_text_becomes_a_model_that_transformers_loads(text: Path, tmp_path: Path, arch: str) -> None:
    seen = Watching()
    result = train(text, out=tmp_path / "run", display=seen, arch=arch, **TINY | {"steps": 60, "tokenizer": "bytes"})
    assert result.end == "finished"
    assert len(seen.losses) == 60
    assert seen.losses[-1] < 0.75 * seen.losses[0]
    assert abs(seen.losses[0] - math.log(257)) < 0.1  # at first every id is as likely as any
    model = cutaway.load(tmp_path / "run")
    folder = max((tmp_path / "run").glob("step-*"))
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    ids = model.encode("9 bott")
    assert AutoTokenizer.from_pretrained(folder)("9 bott").input_ids == ids
    logits = theirs(torch.tensor([ids])).logits[0].detach()
    torch.testing.assert_close(model.logits(ids), logits, atol=1e-5 * float(logits.abs().max().clamp(1)), rtol=0)
    assert type(theirs).__name__ == {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM"}[arch]


def test_only_the_newest_and_the_best_checkpoints_stay(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a loss that is no number is never the best."""
    values = iter([3.0, 1.0, math.nan, 2.0, 2.0, 2.0])
    monkeypatch.setattr(Loop, "evaluate", lambda self, stream: next(values))
    result = train(text, out=tmp_path / "run", **TINY, steps=6, eval_every=1, save_every=1, keep=2)
    assert (result.best_step, result.best_loss) == (2, 1.0)
    assert sorted(p.name for p in (tmp_path / "run").glob("step-*")) == [f"step-{n:08d}" for n in (2, 5, 6)]
    assert str(cutaway.load(tmp_path / "run").report.source).endswith("step-00000002")


@pytest.mark.parametrize(("precision", "advice"), [("fp32", ""), ("bf16", ", or start another .* --precision fp32")])
def test_the_advice_where_a_loss_is_no_number_can_be_followed(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, advice: str
) -> None:
    """A resumed run may have a lower rate, but no other precision; and one in fp32 has no better."""
    monkeypatch.setattr("cutaway.train.loop.clip", lambda module, limit: math.nan)
    with pytest.raises(TrainingError, match=rf"resume with a lower --lr than 0\.\d+{advice}$"):
        train(text, out=tmp_path / "run", **TINY | {"precision": precision}, steps=1)


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_what_is_no_number_stops_before_the_step(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    out = tmp_path / "run"
    if what == "loss":
        plain = Loop.loss
        monkeypatch.setattr(Loop, "loss", lambda self, s, w: plain(self, s, w) * (math.inf if self.number > 3 else 1))
        step = Loop.step
        monkeypatch.setattr(Loop, "step", lambda self, n: (setattr(self, "number", n), step(self, n))[1])
    else:
        n_clips = iter(range(100))
        monkeypatch.setattr(
            "cutaway.train.loop.clip", lambda module, limit: math.nan if next(n_clips) == 4 else clip(module, limit)
        )
    with pytest.raises(TrainingError, match=r"step 5: .* no weight was changed"):
        train(text, out=out, **TINY, steps=9, save_every=2)
    monkeypatch.undo()
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "cache"))
    assert train(out=out, resume=True).step == 9
    train(text, out=tmp_path / "whole", **TINY, steps=9, save_every=2)
    assert torch.equal(weights(out), weights(tmp_path / "whole"))


def test_too_little_text(tmp_path: Path) -> None:
    """T1: 7 bytes and their end are 8 ids, and windows of 8 need one more; T3: one newline, and nothing at all."""
    for content, found in (("abcdefg", "8 tokens"), ("\n", "2 tokens")):
        path = tmp_path / "few.txt"
        path.write_text(content)
        with pytest.raises(DataError, match=f"{found}.* needs 9"):
            train(path, out=tmp_path / "run", **TINY | {"tokenizer": "bytes"}, val_fraction=0.0)
    (tmp_path / "none.txt").write_bytes(b"")
    with pytest.raises(DataError, match=r"none\.txt"):
        train(tmp_path / "none.txt", out=tmp_path / "run", **TINY)


def test_a_validation_part_below_one_window_is_said_before_the_first_step(tmp_path: Path) -> None:
    """T2: 100 characters, windows of 16, a tenth held out: trains without validation and says so, never NaN."""
    path = tmp_path / "short.txt"
    path.write_text(TEXT[:100])
    seen = Watching()
    result = train(path, out=tmp_path / "run", display=seen, **TINY | {"n_ctx": 16, "eval_every": 2, "steps": 4})
    assert any("training without validation" in note for note in seen.notes)
    assert not seen.vals
    assert result.best_loss is None
    assert cutaway.load(tmp_path / "run").logits([0]).isfinite().all()


def test_digits_can_be_sampled_from_nothing_and_strange_characters_are_named(tmp_path: Path) -> None:
    """T9."""
    path = tmp_path / "digits.txt"
    path.write_text("0123456789\n" * 100)
    seen = Watching()
    train(path, out=tmp_path / "run", display=seen, **TINY | {"steps": 2, "sample_every": 2})
    assert seen.samples
    model = cutaway.load(tmp_path / "run")
    assert set(model.generate("", max_tokens=5, seed=0).text) <= set("0123456789\n")
    with pytest.raises(cutaway.TokenizerError, match=r"'a'.*'\?'"):
        model.generate("a?1")


def test_two_evaluations_of_a_model_with_dropout_are_the_same(text: Path, tmp_path: Path) -> None:
    """X7: dropout acts in training alone."""
    seen = Watching()
    train(text, out=tmp_path / "run", display=seen, **TINY, dropout=0.5, steps=2, eval_every=1, lr=1e-12)
    assert seen.vals[0] == pytest.approx(seen.vals[1], abs=1e-6)


def test_a_model_is_trained_further(text: Path, tmp_path: Path) -> None:
    train(text, out=tmp_path / "first", **TINY, steps=4)
    seen = Watching()
    options = {"from_model": str(tmp_path / "first"), "steps": 3, "batch_size": 4, "compile": "off", "sample_every": 0}
    train(text, out=tmp_path / "second", display=seen, **options, lr=1e-12)
    torch.testing.assert_close(weights(tmp_path / "second"), weights(tmp_path / "first"))
    assert cutaway.load(tmp_path / "second").encode("3 bo") == cutaway.load(tmp_path / "first").encode("3 bo")


def test_what_is_refused(text: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no run to resume"):
        train(out=tmp_path / "none", resume=True)
    with pytest.raises(DataError, match="no texts"):
        train(out=tmp_path / "none")
    with pytest.raises(ConfigError, match=r"stepz.*no such option"):
        train(text, out=tmp_path / "none", stepz=3)
    train(text, out=tmp_path / "run", **TINY, steps=1)
    with pytest.raises(TrainingError, match="holds a run already"):
        train(text, out=tmp_path / "run", **TINY)
    with pytest.raises(TrainingError, match="seed: cannot change"):
        train(out=tmp_path / "run", resume=True, seed=5)
    with pytest.raises(TrainingError, match=r"reads the texts it has: leave out .*text\.txt"):
        train(text, out=tmp_path / "run", resume=True)
    assert train(out=tmp_path / "run", resume=True, steps=2).step == 2
    with pytest.raises(ConfigError, match="does not divide"):
        train(text, out=tmp_path / "odd", **TINY | {"batch_size": 3, "accumulate": 2})


def test_a_run_that_cannot_fit_is_refused_with_its_numbers(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cutaway.train.settle.available_memory", lambda device: 1000)
    with pytest.raises(TrainingError, match=r"needs .* available"):
        train(text, out=tmp_path / "run", **TINY)


def test_what_a_model_says_of_sampling_outlives_its_training(text: Path, tmp_path: Path) -> None:
    """Also when the run is stopped and resumed; ids that end a text only as long as the tokenizer is the same."""
    base = train(text, out=tmp_path / "first", **TINY | {"tokenizer": "bytes"}, steps=1)
    model = cutaway.load(base.folder)
    model.report.generation["temperature"] = 0.6
    model.end_ids |= {10}
    model.save(tmp_path / "base")
    options = {"from_model": str(tmp_path / "base"), "batch_size": 4, "compile": "off", "sample_every": 0}
    train(text, out=tmp_path / "run", display=Watching(stop_at=1), **options, steps=3)
    for resume in (False, True):
        if resume:
            train(out=tmp_path / "run", resume=True)
        tuned = cutaway.load(max((tmp_path / "run").glob("step-*")))
        assert tuned.report.generation["temperature"] == 0.6
        assert tuned.end_ids == {10, 256}
    train(text, out=tmp_path / "other", **options, steps=1, tokenizer="chars")
    other = cutaway.load(tmp_path / "other")
    assert other.report.generation["temperature"] == 0.6
    assert other.end_ids == {other.tokenizer.bos_id}


def test_a_save_that_failed_is_not_the_best(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And an early end that cannot be saved is an error."""
    values = iter([3.0, 2.0, 2.5, 2.5])
    monkeypatch.setattr(Loop, "evaluate", lambda self, stream: next(values))
    plain, broken = state._seal, {2}

    def seal(partial: Path, position: state.Position) -> None:
        if position.step in broken:
            raise OSError(28, "No space left on device")
        plain(partial, position)

    monkeypatch.setattr(state, "_seal", seal)
    result = train(text, out=tmp_path / "run", **TINY, steps=4, eval_every=1, save_every=1, keep=1)
    assert (result.best_step, result.best_loss) == (3, 2.5)
    assert (tmp_path / "run" / "step-00000003").exists()
    monkeypatch.setattr(Loop, "evaluate", lambda self, stream: 1.0)
    broken.add(3)
    with pytest.raises(TrainingError, match=r"step 3 could not be saved \(No space left on device\)"):
        train(text, out=tmp_path / "early", **TINY, steps=9, eval_every=1, patience=2, save_every=100)


def test_what_is_wrong_inside_the_library_that_writes_is_said_in_one_line(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch.distributed.checkpoint.hf_storage.HuggingFaceStorageWriter.write_data", full)
    with pytest.raises(TrainingError, match=r"could not be saved \(No space left on device\)"):
        train(text, out=tmp_path / "run", **TINY, steps=2)


def test_a_tokenizer_without_a_begin_token_is_not_sampled_from(text: Path, tmp_path: Path) -> None:
    backend = byte_level({})
    backend.save(str(tmp_path / "tokenizer.json"))
    seen = Watching()
    options = TINY | {"tokenizer": str(tmp_path / "tokenizer.json"), "sample_every": 1}
    assert train(text, out=tmp_path / "run", display=seen, **options, steps=2).end == "finished"


def test_nothing_is_left_where_nothing_began(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        train(tmp_path / "nothing", out=tmp_path / "run")
    with pytest.raises(TrainingError, match="no run to resume"):
        train(out=tmp_path / "other", resume=True)
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "other").exists()
