"""Model folders to change, load, damage and save."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from cutaway.checkpoint.folder import load_folder
from cutaway.checkpoint.load import LoadReport
from cutaway.errors import CutawayError
from cutaway.language_model import LanguageModel
from cutaway.text.ids import IdTokenizer
from cutaway.text.tokenizer import Tokenizer
from support.tiny import OURS, random_network, random_tokens
from support.vocabularies import byte_level

TOKENS = random_tokens(1, 12)


def edit_config(folder: Path, **changes: Any) -> None:
    """Change fields; None removes one."""
    path = folder / "config.json"
    data = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in data.items() if v is not None}))


def edit_tensors(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    path = folder / "model.safetensors"
    save_file({k: v.contiguous() for k, v in change(load_file(path)).items()}, path)


def logits(folder: Path) -> Tensor:
    network, _ = load_folder(folder)
    with torch.inference_mode():
        return network(TOKENS)


def refused(folder: Path, kind: type[CutawayError], *words: str) -> None:
    with pytest.raises(kind) as error:
        load_folder(folder)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def language_model(name: str = "grouped", tokenizer: Tokenizer | None = None, **ids: Any) -> LanguageModel:
    report = LoadReport(family="llama", source="test", stored="float32")
    network = random_network(replace(OURS[name], d_vocab=260))
    return LanguageModel(network, tokenizer or IdTokenizer(260), report, frozenset(ids.get("ends", ())))


def bytes_tokenizer(template: str | None = None) -> Tokenizer:
    backend = byte_level({}, special=("<b>", "<e>"))
    return Tokenizer(backend, bos_id=256, eos_ids=frozenset({257}), add_bos=True, chat_template=template)


numbers = (
    st.integers() | st.floats() | st.sampled_from([0, 1, 2, 2**31, 2**63, 10**400, -(10**400), 1e308, 5e-324, 1.0])
)
