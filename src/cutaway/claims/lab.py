"""What the experiments share: the model on trial, texts for it, and small models trained on the spot."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

import cutaway
from cutaway.checkpoint.load import LoadReport
from cutaway.config import CausalMaskConfig, ModelConfig
from cutaway.data.vocabulary import Sample, train_tokenizer
from cutaway.inside.edits import Edit
from cutaway.inside.trace import Trace, trace
from cutaway.language_model import LanguageModel
from cutaway.network import Transformer
from cutaway.text.ids import IdTokenizer
from cutaway.text.tokenizer import Tokenizer
from cutaway.train.initialise import initialise
from cutaway.train.loss import Objective

# Sentences of our own in plain words, for a model that reads text.
PASSAGE = (
    "The old man sat on the bank of the river and watched the water go by. A boat came down the stream, slow and "
    "heavy, with a boy at the oar who sang a song that the old man knew. He had sung it himself when he was young, "
    "before the war, before the mill was built and the road was made. The boy saw him and lifted his hand, and the "
    "old man lifted his. Then the boat was gone behind the trees, and the water was as smooth as it had been."
)

# What is trained on the spot: small enough for seconds, large enough to learn from more than the last letter.
SMALL = ModelConfig(n_layers=2, n_ctx=64, d_model=64, d_vocab=257, n_heads=4)
STEPS, BATCH, RATE = 200, 16, 3e-3
HELD_OUT = 0.1  # of the text, at its end

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Small:
    """A model trained on the spot, and how its loss fell [nat/token]."""

    model: LanguageModel
    losses: tuple[float, ...]  # of every step
    held_out: float  # on text that it has not seen


@dataclass(frozen=True, kw_only=True, eq=False)
class Lab:
    """A model on trial. Everything drawn at random comes from the seed."""

    model: LanguageModel
    name: str = "the model"
    seed: int = 0
    progress: Progress = lambda said: None
    _small: dict[ModelConfig, Small] = field(default_factory=dict)

    def about(self, model: LanguageModel) -> Lab:
        """The same lab with another model on trial."""
        return replace(self, model=model)

    def ids(self, n: int) -> list[int]:
        """The first n tokens of a plain text, over and over if need be; random ids without a tokenizer."""
        tokenizer = self.model.tokenizer
        if isinstance(tokenizer, IdTokenizer):
            return self.random_ids(n)
        ids = tokenizer.encode(PASSAGE)
        return (ids * (n // len(ids) + 1))[:n]

    def random_ids(self, n: int) -> list[int]:
        """Ids drawn evenly from the vocabulary."""
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(self.model.config.d_vocab, (n,), generator=generator).tolist()

    def small(self, config: ModelConfig = SMALL) -> Small:
        """A small model of that shape, trained on this program's own source, by its bytes. Trained once for a shape."""
        if config not in self._small:
            masked = "" if config.mask == CausalMaskConfig() else " without the mask"
            self.progress(f"training a model of {config.n_layers} layers{masked}")
            self._small[config] = train_small(config, seed=self.seed)
        return self._small[config]


def look(model: LanguageModel, ids: list[int], keep: str | list[str], edits: Sequence[Edit] = ()) -> Trace:
    """The inside of one pass over these tokens."""
    return trace(model, [ids], keep=keep, edits=edits)[0]


@torch.no_grad()
def scores(model: LanguageModel, ids: list[int]) -> Tensor:
    """The logits of one pass [T V]."""
    logits: Tensor = model.network(torch.tensor([ids], device=model.device))
    return logits[0]


def scores_with(network: Transformer, ids: list[int], weights: dict[str, Tensor]) -> Tensor:
    """The logits of one pass in which some weights, by their names, are others [T V]. The network is left alone."""
    shared = {"head.weight": network.head.weight} if network.config.tied else {}  # untied here: each by its own name
    tokens = torch.tensor([ids], device=network.embed.weight.device)
    logits: Tensor = torch.func.functional_call(network, shared | weights, (tokens,), tie_weights=False)
    return logits[0]


@contextmanager
def replaced(network: Transformer, name: str, weight: Tensor) -> Iterator[None]:
    """The network with other numbers in one of its weights, until the block ends."""
    parameter = network.get_parameter(name)
    before = parameter.data
    parameter.data = weight
    try:
        yield
    finally:
        parameter.data = before


def far(found: Tensor, expected: Tensor) -> float:
    """max|Δ| over max(1, max|expected|)."""
    found, expected = found.double(), expected.double()
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1))


def train_small(config: ModelConfig, *, seed: int = 0, steps: int = STEPS) -> Small:
    """Train on this program's source, read as bytes: AdamW, a rate that rises for a tenth and then falls to zero."""
    tokenizer, text = source_text()
    n_train = int(len(text) * (1 - HELD_OUT))
    network = Transformer(config)
    initialise(network, seed)
    objective, draws = Objective(network), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min((step + 1) / (steps / 10), (steps - step) / (0.9 * steps))
        loss = _loss(objective, _windows(text[:n_train], config.n_ctx, draws))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        unseen = torch.Generator().manual_seed(seed)
        tests = [_loss(objective, _windows(text[n_train:], config.n_ctx, unseen)) for _ in range(8)]
    report = LoadReport(family="gpt2", source="trained on the spot", stored="float32")
    return Small(
        model=LanguageModel(network, tokenizer, report, frozenset()),
        losses=tuple(losses),
        held_out=torch.stack(tests).mean().item(),
    )


@functools.cache
def source_text() -> tuple[Tokenizer, Tensor]:
    """This program's Python files as byte tokens [N], and their tokenizer."""
    tokenizer, _ = train_tokenizer("bytes", Sample())
    files = sorted(Path(cutaway.__file__).parent.rglob("*.py"))
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    return tokenizer, torch.tensor(tokenizer.encode(text, bos=False))


def _windows(text: Tensor, n_ctx: int, draws: torch.Generator) -> Tensor:
    starts = torch.randint(len(text) - n_ctx, (BATCH,), generator=draws)
    return text[starts[:, None] + torch.arange(n_ctx + 1)]


def _loss(objective: Objective, windows: Tensor) -> Tensor:
    loss: Tensor = objective(windows[:, :-1], windows[:, 1:]) / windows[:, 1:].numel()
    return loss
