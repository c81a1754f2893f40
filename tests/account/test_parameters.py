"""The account is exact: names, shapes and counts equal the built network's, for every preset, family and config."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given

from cutaway.account import parameters
from cutaway.account.formula import Formula
from cutaway.checkpoint.aliases import ALIASES
from cutaway.config import ModelConfig, NoPositionConfig
from cutaway.network import Transformer
from cutaway.presets import PRESETS, classic
from support.configs import FAMILY_CONFIGS, configs, family_config
from support.tiny import OURS


def built(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every parameter's shape in the network itself, which takes no memory."""
    with torch.device("meta"):
        network = Transformer(config)
    return {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}


def check(config: ModelConfig) -> None:
    network = built(config)
    assert parameters.shapes(config) == network
    n = sum(torch.Size(shape).numel() for shape in network.values())
    assert parameters.total(config) == n
    assert sum(row.total for row in parameters.table(config)) == n
    assert sum(parameters.by_group(config).values()) == n
    inside = [shape for name, shape in network.items() if name.startswith("blocks.0.")]
    assert parameters.in_block(config) == sum(torch.Size(shape).numel() for shape in inside)
    assert parameters.block_matrices(config) == sum(torch.Size(shape).numel() for shape in inside if len(shape) == 2)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_as_built(name: str) -> None:
    config = PRESETS[name]
    assert parameters.total(config) == parameters.total(replace(config, n_layers=2)) + (
        config.n_layers - 2
    ) * parameters.in_block(config)
    check(replace(config, n_layers=2) if config.n_layers > 48 else config)  # blocks are alike: build few of many


@pytest.mark.parametrize("config", OURS.values(), ids=OURS)
def test_every_kind_of_part_is_as_built(config: ModelConfig) -> None:
    check(config)


@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_families_are_as_built(name: str) -> None:
    model_type, changes = FAMILY_CONFIGS[name]
    check(family_config(model_type, **changes))


@given(config=configs())
def test_any_config_is_as_built(config: ModelConfig) -> None:
    check(config)


@given(config=configs())
def test_the_formula_beside_a_number_gives_it(config: ModelConfig) -> None:
    names = {"V": config.d_vocab, "d": config.d_model, "H": config.n_heads, "K": config.n_kv_heads}
    names |= {"Dh": config.d_head, "F": config.d_ff, "n_ctx": config.n_ctx}
    for row in parameters.table(config):
        if row.each:
            python = row.formula.replace("²", "*d").replace("·", "*")
            for digit in "0123456789":
                for letter in names:
                    python = python.replace(f"{digit}{letter}", f"{digit}*{letter}")
            assert eval(python, {}, names) == row.each, row.formula  # made of letters, digits and + above


def test_n1_gpt2_small() -> None:
    """N1: the tied table once, the untied twice; the head's own size; the position table's."""
    gpt2 = PRESETS["gpt2"]
    assert parameters.total(gpt2) == 124_439_808
    untied = replace(gpt2, tied=False)
    assert parameters.total(untied) == 163_037_184
    assert parameters.by_group(untied)["head"] == 38_597_376
    assert parameters.by_group(gpt2)["head"] == 0
    assert parameters.total(replace(gpt2, position=NoPositionConfig())) == 123_653_376


def test_published_counts() -> None:
    assert parameters.total(PRESETS["gpt3"]) == 174_604_259_328  # arXiv:2005.14165, table D.1: 174,600 M
    released = {"llama2-7b": 6_738_415_616, "llama2-70b": 68_976_648_192, "llama3-8b": 8_030_261_248}
    released |= {"llama3-70b": 70_553_706_496, "llama3.1-405b": 405_853_388_800, "mistral-7b": 7_241_732_096}
    released |= {"smollm2-135m": ALIASES["smollm2"].n_parameters, "gpt2": ALIASES["gpt2"].n_parameters}
    released |= {"llama3.2-1b": ALIASES["llama3.2-1b"].n_parameters}
    assert {name: parameters.total(PRESETS[name]) for name in released} == released


def test_the_lectures_formulas() -> None:
    gpt3 = PRESETS["gpt3"]
    formulas = {str(parameters.group_formula(gpt3, group)) for group in ("attention", "feed-forward", "norms")}
    assert formulas == {"4d²", "8d²", "4d"}
    assert str(parameters.group_formula(PRESETS["llama3-8b"], "attention")) == "2d² + 2d·K·Dh"
    rows = {row.name: row for row in parameters.table(gpt3)}
    assert (rows["W_1"].formula, rows["W_1"].each, rows["W_1"].n_layers) == ("4d²", 4 * 12288**2, 96)
    assert rows["head W_U, the embedding's own table"].total == 0
    share = parameters.by_group(gpt3)["feed-forward"] / (96 * parameters.in_block(gpt3))
    assert share == pytest.approx(2 / 3, abs=1e-4)


def test_heads_do_not_change_the_count() -> None:
    counts = {parameters.total(classic(2, n_heads, 64, 32, 50)) for n_heads in (1, 2, 4, 8)}
    assert len(counts) == 1


def test_formulas_add_and_multiply() -> None:
    d, f = Formula.of("d"), Formula.of("F", 3)
    assert str(d * d + d * d) == "2d²"
    assert str((d + f) * d) == "d² + 3d·F"
    assert ((d + f) * d).value(ModelConfig(n_layers=1, n_ctx=1, d_model=2, d_vocab=1, n_heads=1, d_ff=5)) == 34
