"""What the experiments share: the model on trial, texts for it, and small models trained on the spot."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import cutaway
from cutaway.checked import short
from cutaway.checkpoint.load import LoadReport
from cutaway.config import CausalMaskConfig, ModelConfig, RotaryConfig
from cutaway.data.vocabulary import Sample, train_tokenizer
from cutaway.errors import InsideError
from cutaway.inside.edits import Edit
from cutaway.inside.trace import Trace, trace
from cutaway.language_model import LanguageModel
from cutaway.network import Transformer
from cutaway.text.ids import IdTokenizer
from cutaway.text.tokenizer import Tokenizer
from cutaway.train.config import TrainConfig
from cutaway.train.initialise import initialise
from cutaway.train.loss import Objective
from cutaway.train.optimizer import build_optimizers, set_rate
from cutaway.train.schedule import learning_rate

# Sentences of our own in plain words, for a model that reads text.
PASSAGE = (
    "The old man sat on the bank of the river and watched the water go by. A boat came down the stream, slow and "
    "heavy, with a boy at the oar who sang a song that the old man knew. He had sung it himself when he was young, "
    "before the war, before the mill was built and the road was made. The boy saw him and lifted his hand, and the "
    "old man lifted his. Then the boat was gone behind the trees, and the water was as smooth as it had been."
)

# What is trained on the spot: small enough for seconds, and with positions in which "one further" is easily learned.
SMALL = ModelConfig(n_layers=2, n_ctx=32, d_model=64, d_vocab=257, n_heads=4, position=RotaryConfig())
TRAINING = TrainConfig(steps=160, batch_size=24, warmup=16, optimizer="muon", lr=1e-2)
LEAST_CONTEXT = 4  # one token, three that follow: with fewer there is no other order, and no growth
SEEDS = 2**32  # no further from 0, so that what is derived from a seed is one too
LEAST_VOCABULARY = 16  # in a smaller one a shuffle may be no shuffle
N_TESTS = 48  # windows of text that it has not seen
HELD_OUT = 0.1  # of the text, at its end
START = "def "

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Small:
    """A model trained on the spot, and its losses [nat/byte]."""

    model: LanguageModel
    losses: tuple[float, ...]  # of every step
    all_at_once: float  # on text that it has not seen, each window in one pass, as in training
    from_before: float  # on the same windows, each byte from those before it alone, as when it writes
    text: str  # what it writes after START


@dataclass(frozen=True, kw_only=True, eq=False)
class Lab:
    """A model on trial. Everything drawn at random comes from the seed."""

    model: LanguageModel
    name: str = "the model"
    seed: int = 0
    progress: Progress = lambda said: None
    _small: dict[ModelConfig, Small] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises InsideError where the model is too small for the experiments, or the seed too large."""
        if abs(self.seed) > SEEDS:
            raise InsideError(f"seed = {short(self.seed)}: it must be a whole number from -2^32 to 2^32")
        for what, n, least in (
            ("context", self.model.config.n_ctx, LEAST_CONTEXT),
            ("vocabulary", self.model.config.d_vocab, LEAST_VOCABULARY),
        ):
            if n < least:
                raise InsideError(f"{self.name}: a {what} of {n} is too small for the claims: they need {least} tokens")

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


def train_small(config: ModelConfig, *, seed: int = 0, training: TrainConfig = TRAINING) -> Small:
    """Train on this program's source, read as bytes, and score what it has not seen."""
    tokenizer, text = source_text()
    n_train = int(len(text) * (1 - HELD_OUT))
    network = Transformer(config)
    initialise(network, seed)
    objective, draws = Objective(network), torch.Generator().manual_seed(seed)
    optimizers = build_optimizers(network, training)
    losses = []
    for step in range(training.steps):
        set_rate(optimizers, learning_rate(step, training))
        windows = _windows(text[:n_train], config.n_ctx, training.batch_size, draws)
        loss: Tensor = objective(windows[:, :-1], windows[:, 1:]) / windows[:, 1:].numel()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    report = LoadReport(family="gpt_neox", source="trained on the spot", stored="float32")
    unseen = _windows(text[n_train:], config.n_ctx, N_TESTS, torch.Generator().manual_seed(seed))
    model = LanguageModel(network.eval(), tokenizer, report, frozenset())
    n_new = config.n_ctx - len(START)
    return Small(
        model=model,
        text="".join(model.stream(START, max_tokens=n_new, temperature=0.5, seed=seed)),
        losses=tuple(losses),
        all_at_once=loss_all_at_once(network, unseen),
        from_before=loss_from_before(network, unseen),
    )


@torch.no_grad()
def loss_all_at_once(network: Transformer, windows: Tensor) -> float:
    """The loss of all bytes in one pass, as training has it [nat/byte]."""
    return float(F.cross_entropy(network(windows[:, :-1]).transpose(1, 2), windows[:, 1:]))


@torch.no_grad()
def loss_from_before(network: Transformer, windows: Tensor) -> float:
    """The loss of the same bytes, each from a pass over those before it alone, as when a text grows [nat/byte]."""
    lengths = range(1, windows.shape[1])
    losses = [F.cross_entropy(network(windows[:, :n])[:, -1], windows[:, n]) for n in lengths]
    return float(torch.stack(losses).mean())


@functools.cache
def source_text() -> tuple[Tokenizer, Tensor]:
    """This program's Python files as byte tokens [N], and their tokenizer."""
    tokenizer, _ = train_tokenizer("bytes", Sample())
    files = sorted(Path(cutaway.__file__).parent.rglob("*.py"))
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    return tokenizer, torch.tensor(tokenizer.encode(text, bos=False))


def _windows(text: Tensor, n_ctx: int, n_windows: int, draws: torch.Generator) -> Tensor:
    starts = torch.randint(len(text) - n_ctx, (n_windows,), generator=draws)
    return text[starts[:, None] + torch.arange(n_ctx + 1)]
