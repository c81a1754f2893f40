"""The checks of verify: green on what is sound, and each red when what it watches breaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cutaway.checkpoint import checks
from cutaway.checkpoint.checks import Check, sample
from cutaway.checkpoint.folder import load_folder
from cutaway.checkpoint.gguf import GGUFFile
from cutaway.checkpoint.gguf_model import load_gguf
from cutaway.checkpoint.load import LoadReport
from cutaway.checkpoint.verify import Verification, verify
from cutaway.config import RotaryConfig, WindowMaskConfig
from cutaway.network import Transformer
from cutaway.nn.attention import Attention
from cutaway.nn.cache import LayerCache
from cutaway.nn.reference import Reference
from cutaway.text.ids import IdTokenizer
from cutaway.text.tokenizer import Tokenizer
from support.gguf_files import write_gguf
from support.tiny import reference_folder, reference_model
from support.vocabularies import byte_level

Loaded = tuple[Transformer, LoadReport]
IDS = IdTokenizer(67)


def states(result: Verification) -> dict[str, str]:
    return {check.name: check.state for check in result.checks}


def failed(network: Transformer, report: LoadReport) -> set[str]:
    result = verify(network, IDS, report)
    assert result.passed == (not any(state == "failed" for state in states(result).values()))
    return {name for name, state in states(result).items() if state == "failed"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verify") / "llama"
    reference_folder(path, "llama")
    return path


@pytest.fixture
def loaded(folder: Path) -> Loaded:
    return load_folder(folder)


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "gemma2", "gemma3_text", "phi3", "smollm3"])
def test_every_check_is_green_for_very_different_families(family: str, tmp_path: Path) -> None:
    """Learned and partial rotary positions, soft caps, windows smaller than the text, layers without position."""
    reference_folder(tmp_path, family)
    network, report = load_folder(tmp_path)
    result = verify(network, IDS, report)
    assert result.passed
    expected = dict.fromkeys(states(result), "passed") | {"tokenizer round trip": "skipped"}
    assert states(result) == expected
    assert len(expected) == 7


def test_what_was_loaded_is_told(loaded: Loaded, folder: Path) -> None:
    network, report = loaded
    result = verify(network, IDS, report)
    assert (result.source, result.family) == (str(folder), "llama")
    assert result.n_parameters == sum(p.numel() for p in network.parameters())
    assert result.n_bytes == 4 * result.n_parameters
    assert result.positions == {network.config.positions[0]: (0, 1, 2)}
    assert result.masks == {network.config.masks[0]: (0, 1, 2)}
    assert set(result.used) == set(report.used)
    told = result.to_dict()
    assert json.loads(json.dumps(told)) == told
    assert told["config"] == network.config.to_dict()
    assert told["passed"] is True


def test_positions_and_masks_are_told_once_a_kind(tmp_path: Path) -> None:
    """Gemma 3: far layers turn slower and see all, near ones have a window."""
    reference_folder(tmp_path, "gemma3_text")
    network, report = load_folder(tmp_path)
    result = verify(network, IDS, report)
    thetas = {kind.theta: layers for kind, layers in result.positions.items() if isinstance(kind, RotaryConfig)}
    assert len(thetas) == 2
    assert sorted(i for layers in thetas.values() for i in layers) == [0, 1, 2, 3, 4, 5]
    assert result.masks[WindowMaskConfig(size=4)] == (0, 1, 2, 3, 4)


def test_half_precision_is_checked_in_float32(folder: Path) -> None:
    """G9: bf16 differs from itself by 0.1 on a real model, so correctness is gated in float32."""
    network, report = load_folder(folder, torch.bfloat16)
    result = verify(network, IDS, report)
    assert (result.stored, result.dtype) == ("float32", "bfloat16")
    assert result.n_bytes == 2 * result.n_parameters
    assert result.passed


def test_a_quantised_file_is_read_again_and_by_transformers_too(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", reference_model("llama", intermediate_size=64), kind="Q8_0")
    with GGUFFile(path) as file:
        network, report = load_gguf(file, torch.bfloat16)
    result = verify(network, IDS, report)
    assert (result.source, result.stored, result.dtype) == (str(path), "Q8_0, F32", "bfloat16")
    assert states(result) == dict.fromkeys(states(result), "passed") | {"tokenizer round trip": "skipped"}
    assert result.checks[-1].detail.startswith("LlamaForCausalLM, transformers ")


def test_progress_hears_every_check(loaded: Loaded) -> None:
    heard: list[str] = []
    result = verify(loaded[0], IDS, loaded[1], progress=heard.append)
    assert heard == [check.name for check in result.checks]


# --- each check sees what it is there for ---


def test_weights_that_are_not_the_files(loaded: Loaded) -> None:
    network, report = loaded
    with torch.no_grad():
        network.blocks[1].attn.out.weight[0, 0] += 0.1  # type: ignore[union-attr, index]
    assert failed(network, report) == {"transformers"}


def test_logits_that_are_no_numbers(loaded: Loaded) -> None:
    network, report = loaded
    with torch.no_grad():
        network.final_norm.weight[0] = torch.nan  # type: ignore[index]
    assert {"finite logits", "cached = full", "transformers"} <= failed(network, report)


def test_a_cache_that_forgets(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    original = LayerCache.append

    def forgetful(self: LayerCache, k: Any, v: Any) -> Any:
        keys, values = original(self, k, v)
        return keys * (torch.arange(keys.shape[2]) > 0)[:, None], values

    monkeypatch.setattr(LayerCache, "append", forgetful)
    assert failed(*loaded) == {"cached = full"}


def test_rows_that_see_each_other(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Attention.forward

    def leaky(self: Attention, x: Any, *rest: Any) -> Any:
        return original(self, x + 1e-3 * (len(x) - 1), *rest)

    monkeypatch.setattr(Attention, "forward", leaky)
    assert failed(*loaded) == {"batched = alone"}


def test_a_fused_kernel_with_another_scale(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Reference.__call__

    def scaled(self: Reference, q: Any, *rest: Any) -> Any:
        return original(self, q * 1.01, *rest)

    monkeypatch.setattr(Reference, "__call__", scaled)
    assert failed(*loaded) == {"fused kernel = reference"}


def test_a_folder_that_comes_back_changed(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    def lossy(path: Path, *rest: Any) -> Loaded:
        network, report = load_folder(path, *rest)
        with torch.no_grad():
            network.embed.weight[3, 1] += 1e-6
        return network, report

    monkeypatch.setattr(checks, "load_folder", lossy)
    assert failed(*loaded) == {"saved = loaded"}


@pytest.mark.parametrize(("before", "after", "state"), [(0.5, "nan", "failed"), ("nan", "nan", "passed")])
def test_a_weight_that_comes_back_as_no_number(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch, before: float | str, after: str, state: str
) -> None:
    """One number in all; one that was none before is no change."""
    network, report = loaded

    def lossy(path: Path, *rest: Any) -> Loaded:
        again, found = load_folder(path, *rest)
        with torch.no_grad():
            again.embed.weight[3, 1] = float(after)
        return again, found

    with torch.no_grad():
        network.embed.weight[3, 1] = float(before)
    monkeypatch.setattr(checks, "load_folder", lossy)
    check = checks.saved(network, report.family)
    assert (check.state, check.error) == (state, int(state == "failed"))


def test_a_model_too_large_to_save_is_not_saved(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MAX_SAVED_BYTES", 1000)
    result = verify(loaded[0], IDS, loaded[1])
    assert result.passed
    assert states(result)["saved = loaded"] == "skipped"


def test_transformers_absent_or_unable_is_said(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    network, report = loaded
    report.source = str(Path(report.source).parent)
    [check] = [c for c in verify(network, IDS, report).checks if c.name == "transformers"]
    assert check.state == "skipped"
    assert check.detail.startswith("transformers cannot read it (")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    [check] = [c for c in verify(network, IDS, report).checks if c.name == "transformers"]
    assert (check.state, check.detail) == ("skipped", "transformers is not installed")


def test_a_tokenizer_that_loses_something(loaded: Loaded) -> None:
    sound = Tokenizer(byte_level({}), bos_id=None, eos_ids=frozenset(), add_bos=False)
    result = verify(loaded[0], sound, loaded[1])
    assert states(result)["tokenizer round trip"] == "passed"
    assert result.tokenizer is not None
    assert result.tokenizer.d_vocab == 256
    sound.encode = lambda text, **options: [ord(c) for c in text.strip()]  # type: ignore[method-assign, assignment]
    [check] = [c for c in verify(loaded[0], sound, loaded[1]).checks if c.name == "tokenizer round trip"]
    assert check.state == "failed"
    assert check.detail.startswith("' ' becomes ''")


# --- the text they run on ---


def test_the_text_outgrows_a_small_window_and_stays_within_the_context(tmp_path: Path) -> None:
    reference_folder(tmp_path / "window", "mistral", sliding_window=40, max_position_embeddings=100)
    assert sample(load_folder(tmp_path / "window")[0], IDS).shape == (1, 72)
    reference_folder(tmp_path / "short", "llama", max_position_embeddings=9)
    assert sample(load_folder(tmp_path / "short")[0], IDS).shape == (1, 9)
    scaling = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    reference_folder(tmp_path / "dynamic", "llama", max_position_embeddings=20, rope_parameters=scaling)
    assert sample(load_folder(tmp_path / "dynamic")[0], IDS).shape == (1, 20)


def test_a_context_of_one_token_is_enough(tmp_path: Path) -> None:
    reference_folder(tmp_path, "llama", max_position_embeddings=1)
    assert not failed(*load_folder(tmp_path))


@pytest.mark.parametrize(
    ("error", "tolerance", "state"),
    [
        (1e-5, 1e-5, "passed"),
        (2e-5, 1e-5, "failed"),
        (0, 0, "passed"),
        (float("nan"), 1e-5, "failed"),
        (None, None, "skipped"),
    ],
)
def test_a_check_passes_up_to_its_tolerance(error: float | None, tolerance: float | None, state: str) -> None:
    assert Check(error=error, tolerance=tolerance).state == state
