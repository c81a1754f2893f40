"""Choices of a run, and the models they name."""

from __future__ import annotations

import pytest

from cutaway.errors import ConfigError
from cutaway.train.config import SIZES, TrainConfig


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
    assert TrainConfig().lr == 0.006
    assert TrainConfig(optimizer="adamw").lr == 0.001
    assert TrainConfig(optimizer="adamw", lr=0.5).lr == 0.5


def test_plain_data_and_back() -> None:
    config = TrainConfig(texts=("a", "b"), lr=0.1, seed=3)
    assert TrainConfig.from_dict(config.to_dict()) == config


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


def test_gpt2_does_not_share_key_heads() -> None:
    with pytest.raises(ConfigError, match="--arch llama"):
        TrainConfig(n_kv_heads=2).model(10)
