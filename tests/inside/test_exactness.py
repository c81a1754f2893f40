"""Contract 6: the parts sum to the whole, for every family; and a check that fails where something is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

from cutaway.figures import Table
from cutaway.inside import exact
from cutaway.inside.exactness import Exactness
from cutaway.language_model import LanguageModel
from support.tiny import FAMILIES, OURS, distance, random_tokens

Build = Callable[..., LanguageModel]
TEXT = random_tokens(1, 24)[0].tolist()


@pytest.mark.parametrize("name", [*OURS, *FAMILIES])
def test_every_promise_holds_for_every_family(name: str, build: Build) -> None:
    """Contracts 2, 5 and 6 in fp32 on the CPU."""
    model = build(name)
    for prompt in (TEXT, TEXT[:1]):
        found = exact(model, prompt)
        assert len(found.checks) == 7
        assert found.holds, found
        assert all(check.limit <= 1e-5 for check in found.checks)
        assert [check.limit for check in found.checks].count(0.0) == 2
    json.dumps(found.to_dict(), allow_nan=False)
    assert found.to_dict()["checks"][0]["holds"]
    assert found.heading == "Exactness on 1 tokens in float32: every promise holds"


def test_what_holds_so_far_is_told(build: Build) -> None:
    told: list[tuple[int, int, Exactness]] = []
    found = exact(build("grouped"), TEXT, progress=lambda *said: told.append(said))
    assert [said[:2] for said in told] == [(done, 7) for done in range(1, 8)]
    assert told[2][2].heading == "Exactness on 24 tokens in float32: 3 of 7 promises checked, all hold"
    assert told[-1][2] == found


def test_a_pass_without_numbers_keeps_no_promise(build: Build) -> None:
    """But one: a weight that the mask hides is 0 whatever its score is."""
    model = build("grouped")
    with torch.no_grad():
        model.network.blocks[0].attn.out.weight.fill_(torch.nan)
    found = exact(model, TEXT)
    assert {check.name for check in found.checks if check.holds} <= {"nothing above the diagonal"}
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["checks"][1] == {"name": "rows of every pattern sum to 1", "error": None, "limit": 1e-5, "holds": False}


@pytest.mark.parametrize("name", ["grouped", "capped sandwich", "post norms"])
def test_the_parts_of_a_trace_sum_to_the_whole(name: str, build: Build) -> None:
    """Contract 6 from what a trace holds: embedding, every head, biases, every feed-forward."""
    model = build(name)
    trace = model.trace(TEXT)
    total = trace["embed"].double() + trace.get("pos_embed", 0)
    for layer, block in enumerate(model.network.blocks):
        heads = trace[f"blocks.{layer}.attn.head_out"].double().sum(1)
        added = trace[f"blocks.{layer}.attn.out"].double()
        if model.config.norm_placement == "pre":
            added = heads if block.attn.out.bias is None else heads + block.attn.out.bias.detach()
        total = total + added + trace[f"blocks.{layer}.ff.out"]
    assert distance(trace[f"blocks.{model.config.n_layers - 1}.resid_post"].double(), total) <= 1e-5


def test_the_lens_of_the_last_layer_is_the_logits(build: Build) -> None:
    """I2: each layer with its own statistics of the final norm; the last state is not normed twice."""
    model = build("grouped")  # its norm weights are random
    trace = model.trace(TEXT, keep="blocks.*.resid_post")
    with torch.no_grad():
        rows = [model.network.unembed(trace[f"blocks.{layer}.resid_post"])[0] for layer in range(3)]
    assert distance(rows[-1], model.logits(TEXT)) <= 1e-5
    assert distance(rows[0], rows[1]) > 1e-2


@pytest.mark.parametrize(
    ("part", "broken"),
    [("blocks.1.attn", "parts sum to the whole"), ("blocks.1.ff", "looked at = not looked at")],
)
def test_a_network_that_does_more_than_it_names_is_found_out(part: str, broken: str, build: Build) -> None:
    model = build("grouped")
    module = model.network.get_submodule(part)
    forward, calls = module.forward, iter(range(100))
    extra = (lambda: 0.01) if "attn" in part else (lambda: 0.01 * next(calls))  # the second adds another each time
    module.forward = lambda *args: forward(*args) + extra()  # type: ignore[method-assign]
    found = exact(model, TEXT)
    assert not found.holds
    assert broken in [check.name for check in found.checks if not check.holds]
    (table,) = found.figures()
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == [check.name for check in found.checks]
    assert next(row for row in table.rows if row[0] == broken)[3] == "NO"
    assert [row[3] for row in table.rows].count("NO") == sum(not check.holds for check in found.checks)
    assert "promises broken" in found.heading
    json.dumps(table.to_dict(), allow_nan=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_have_limits_of_their_own(dtype: torch.dtype, build: Build) -> None:
    model = build("grouped")
    model.network.to(dtype)
    found = exact(model, TEXT)
    assert found.dtype == str(dtype).removeprefix("torch.")
    assert found.holds, found
