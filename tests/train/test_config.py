"""Choices of a run, and the models they name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cutaway.errors import ConfigError
from cutaway.train.config import SHAPE, SIZES, TrainConfig


def test_the_default_is_the_classic_of_the_lecture() -> None:
    model = TrainConfig().model(100)
    assert (model.n_layers, model.n_heads, model.d_model, model.d_ff, model.n_ctx) == (4, 4, 256, 1024, 256)
    assert type(model.position).__name__ == "LearnedPositionConfig"
    assert model.tied


def test_llama_shares_key_heads_and_has_as_many_weights_in_its_gate() -> None:
    model = TrainConfig(arch="llama", size="small").model(100)
    assert (model.n_heads, model.n_kv_heads, model.d_ff) == (6, 3, 1024)
    assert 3 * model.d_ff == 8 * model.d_model


def test_a_preset_has_its_own_architecture() -> None:
    assert TrainConfig(size="smollm2-135m", n_layers=2).model(321).n_kv_heads == 3
    with pytest.raises(ConfigError, match="has its own"):
        TrainConfig(size="smollm2-135m", arch="gpt2").model(321)


def test_every_number_can_be_given_alone() -> None:
    model = TrainConfig(n_layers=2, d_model=128, d_ff=300, n_ctx=64, n_heads=8).model(50)
    assert (model.n_layers, model.d_model, model.d_ff, model.n_ctx, model.n_heads) == (2, 128, 300, 64, 8)
    assert TrainConfig(d_model=192).model(50).n_heads == 3  # heads of 64


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("arch", ["gpt2", "llama"])
def test_sizes_build(size: str, arch: str) -> None:
    assert TrainConfig(size=size, arch=arch).model(321).d_vocab == 321  # type: ignore[arg-type]


def test_the_rate_goes_with_the_optimizer() -> None:
    assert TrainConfig().top_rate == 0.006
    assert TrainConfig(optimizer="adamw").top_rate == 0.001
    assert TrainConfig(optimizer="adamw", lr=0.5).top_rate == 0.5


def test_plain_data_and_back() -> None:
    for config in (TrainConfig(texts=("a", "b"), lr=0.1, seed=3), TrainConfig(optimizer="adamw")):
        assert TrainConfig.from_dict(json.loads(config.to_json())) == config


@pytest.mark.parametrize(
    "choice",
    [
        {"lr": -0.1},
        {"lr": float("nan")},
        {"steps": 0},
        {"batch_size": 6, "accumulate": 4},
        {"val_fraction": 1.0},
        {"dropout": -0.1},
        {"arch": "bert"},
        {"size": "huge"},
        {"seed": -1},
        {"precision": "fp8"},
        {"n_layers": "four"},
    ],
)
def test_a_choice_out_of_range_is_named(choice: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(reversed(choice))):
        TrainConfig(**choice)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["vocab_size", "n_layers", "n_heads", "n_kv_heads", "d_model", "d_ff", "n_ctx", "steps", "keep"]
)
def test_a_count_of_nothing_is_not_the_default(name: str) -> None:
    for value in (0, -1):
        choice: dict[str, Any] = {name: value}
        with pytest.raises(ConfigError, match=rf"^{name} = {value}: it must be a whole number from 1 to "):
            TrainConfig(**choice)


def test_a_rate_of_nothing_is_not_the_default() -> None:
    for rate in (0, 0.0):
        with pytest.raises(ConfigError, match=rf"^lr = {rate}: it must be above 0$"):
            TrainConfig(lr=rate)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"arch": "lama"}, "arch = 'lama': one of gpt2, llama"),
        ({"precision": "fp8"}, "precision = 'fp8': one of auto, fp32, bf16"),
        ({"lr": float("nan")}, "lr = nan: it must be a finite number"),
        ({"clip": float("inf")}, "clip = inf: it must be a finite number"),
        ({"n_layers": "four"}, "n_layers = 'four': it must be a whole number"),
        ({"lenient": 1}, "lenient = 1: it must be true or false"),
        ({"from_model": 3}, "from_model = 3: it must be a text"),
        ({"texts": ("a", 1)}, "texts = ('a', 1): it must be a tuple, each a text"),
    ],
)
def test_a_misspelt_choice_is_told_what_there_is(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        TrainConfig(**choice)
    assert str(error.value) == message


def test_a_model_to_start_from_has_its_own_shape() -> None:
    given: dict[str, Any] = {"arch": "gpt2", "size": "nano", "n_layers": 4, "n_heads": 2, "n_kv_heads": 2}
    given |= {"d_model": 8, "d_ff": 8}
    assert tuple(given) == SHAPE
    for name, value in given.items():
        with pytest.raises(ConfigError) as error:
            TrainConfig(from_model="runs/first", **{name: value})
        assert str(error.value) == f"{name}: the model that --from names has its own shape, leave it out"
    with pytest.raises(ConfigError, match=r"^arch, d_ff: the model"):
        TrainConfig(from_model="runs/first", arch="llama", d_ff=8)
    assert TrainConfig(from_model="runs/first", n_ctx=64, dropout=0.1).n_ctx == 64
    TrainConfig(**given)  # nothing to start from


def test_gpt2_does_not_share_key_heads() -> None:
    with pytest.raises(ConfigError, match="--arch llama"):
        TrainConfig(n_kv_heads=2).model(10)
