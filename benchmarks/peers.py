"""One real model in both programs: ours, and transformers reading the folder that ours saved."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

import cutaway

TEXT = "The history of the steam engine begins with a kettle, and it goes on like this: "


def smollm2(dtype: torch.dtype) -> tuple[cutaway.LanguageModel, PreTrainedModel]:
    """SmolLM2-135M with the same weights in both."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    ours = cutaway.load("smollm2", dtype=dtype)
    with tempfile.TemporaryDirectory() as folder:
        ours.save(Path(folder) / "smollm2")
        theirs = AutoModelForCausalLM.from_pretrained(Path(folder) / "smollm2", dtype=dtype)
    return ours, theirs.eval()
