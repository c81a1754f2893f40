"""Contract 1 on a real model: SmolLM2-135M from its GGUF file, against transformers reading the same file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from cutaway.checkpoint.gguf import GGUFFile
from cutaway.checkpoint.gguf_model import load_gguf
from cutaway.checkpoint.sources import resolve
from support.tiny import distance, random_tokens

PROMPTS = ["The Ġcapital Ġof ĠFrance Ġis", "Once Ġupon Ġa Ġtime , Ġthere", "def Ġmain ( ): Ċ", "1 + 1 ="]


@pytest.fixture(scope="module")
def path() -> Path:
    return resolve("smollm2", progress=False)


def test_logits_equal_those_of_transformers_from_the_same_file(path: Path) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    with GGUFFile(path) as file:
        network, report = load_gguf(file)
        ids = {token: i for i, token in enumerate(file.metadata["tokenizer.ggml.tokens"])}
        assert sorted(report.used) == sorted(file.tensors)
    assert report.stored == "Q4_1, Q8_0, F32"
    assert not report.unused
    assert not report.notes
    assert network.config.tied
    assert network.embed.weight.dtype == torch.float32
    prompts = [torch.tensor([[ids[token] for token in prompt.split()]]) for prompt in PROMPTS]
    with torch.inference_mode():
        for tokens in [*prompts, random_tokens(1, 64, d_vocab=network.config.d_vocab)]:
            assert distance(network(tokens), theirs(tokens).logits) <= 1e-5


MEASURE = """
import json, resource, sys
import torch
from cutaway.checkpoint.gguf import GGUFFile
from cutaway.checkpoint.gguf_model import load_gguf

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

before = peak()
with GGUFFile(sys.argv[1]) as file:
    network, _ = load_gguf(file, dtype=getattr(torch, sys.argv[2]))
size = sum(parameter.nbytes for parameter in network.parameters())
print(json.dumps({"ratio": (peak() - before) / size, "modules": list(sys.modules)}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak's unit, and which pages count, differ elsewhere")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loading_holds_hardly_more_than_the_network(path: Path, dtype: str) -> None:
    """The peak, file pages included, stays under 1.2 × the final size; and no compiler is imported on the way."""
    done = subprocess.run([sys.executable, "-c", MEASURE, str(path), dtype], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["ratio"] <= 1.2
    assert not {"torch._dynamo", "sympy"} & set(found["modules"])
