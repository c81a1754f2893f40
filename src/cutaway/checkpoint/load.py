"""From a file's tensors to a network: every parameter filled, every tensor used or listed with its reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from cutaway.checkpoint.layout import Layout, Part, foreign_parts
from cutaway.checkpoint.weights import Weights, without_wrappers
from cutaway.config import ModelConfig
from cutaway.errors import CheckpointError
from cutaway.network import Transformer

HEAD = "head.weight"
EMBED = "embed.weight"


@dataclass(kw_only=True)
class LoadReport:
    """What was found in a file and what became of it.

    `generation` holds the fields of a folder's generation_config.json, and the ids that only its config.json names.
    """

    family: str
    source: str
    stored: str
    used: list[str] = field(default_factory=list)
    unused: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    generation: dict[str, Any] = field(default_factory=dict)


def load_network(
    weights: Weights,
    config: ModelConfig,
    layout: Layout,
    report: LoadReport,
    *,
    buffers: Iterable[str] = (),
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    owned: bool = False,
) -> Transformer:
    """Build the network and fill it. Nothing is allocated before every name and shape has been found right.

    Args:
        owned: what is read is in memory of its own, so that a tensor can become a parameter without a copy.
    Raises:
        CheckpointError: a parameter that the file does not fill, or a tensor of another shape.
    """
    stored = _Stored(weights, layout)
    config = _settle_head(config, layout, stored, report)
    if config.tied:
        layout = {ours: parts for ours, parts in layout.items() if ours != HEAD}
    _check_names(layout, stored)  # before anything is built for each layer that the config claims
    with torch.device("meta"), _Uninitialised():
        network = Transformer(config)
    parameters = dict(network.named_parameters())
    _check_shapes(parameters, layout, stored)

    tensors = {}
    for ours, parts in layout.items():
        tensors[ours] = _fill(parts, parameters[ours].shape, stored, owned, dtype or weights.dtype, device)
        report.used += [stored.names[part.theirs] for part in parts]
    if config.tied:
        tensors[HEAD] = tensors[EMBED]
    network.load_state_dict(tensors, assign=True)
    network.tie()
    _list_unused(stored, layout, buffers, report)
    return network.eval()


def _fill(
    parts: tuple[Part, ...],
    shape: torch.Size,
    stored: _Stored,
    owned: bool,
    dtype: torch.dtype,
    device: torch.device | str | None,
) -> Tensor:
    """One parameter from its foreign parts."""
    if owned and len(parts) == 1:
        return parts[0].to_ours(stored.read(parts[0].theirs)).to(device, dtype)
    whole = torch.empty(shape, dtype=dtype, device=device)
    for part in parts:
        whole[part.rows].copy_(part.to_ours(stored.read(part.theirs)))
    return whole


class _Uninitialised(TorchFunctionMode):
    """Modules leave out their first random values. Of no use here, on "meta" they cost seconds: a compiler's import."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return None
        return func(*args, **(kwargs or {}))


class _Stored:
    """The file's tensors under the layout's names: wrapper prefixes dropped, a missing first word forgiven."""

    def __init__(self, weights: Weights, layout: Layout) -> None:
        clean = without_wrappers(weights.shapes)
        self.all = set(clean.values())
        self.weights = weights
        self.names: dict[str, str] = {}
        for _, part in foreign_parts(layout):
            # A bare GPT2Model, LlamaModel … is saved without the word that its language model puts in front.
            for name in (part.theirs, part.theirs.split(".", 1)[1]):
                if name in clean:
                    self.names[part.theirs] = clean[name]
                    break

    def shape(self, name: str) -> tuple[int, ...]:
        return self.weights.shapes[self.names[name]]

    def read(self, name: str) -> Tensor:
        return self.weights.read(self.names[name])


def _settle_head(config: ModelConfig, layout: Layout, stored: _Stored, report: LoadReport) -> ModelConfig:
    """Tied or not: what the file holds decides where it and the config disagree."""
    (head,), (embed,) = layout[HEAD], layout[EMBED]
    if head.theirs not in stored.names:
        if not config.tied:
            report.notes.append(
                "the config asks for an output head of its own, the file has none: tied to the embedding"
            )
        return replace(config, tied=True)
    if not config.tied or embed.theirs not in stored.names:
        return config
    equal = stored.shape(head.theirs) == stored.shape(embed.theirs)
    if equal:
        kept = stored.read(head.theirs).clone()
        equal = torch.equal(kept, stored.read(embed.theirs))
    if equal:
        report.unused[stored.names[head.theirs]] = "equal to the embedding it is tied to"
        return config
    report.notes.append("the config ties the output head to the embedding, the file's head differs: the file's is kept")
    return replace(config, tied=False)


def _check_names(layout: Layout, stored: _Stored) -> None:
    missing = [part.theirs for _, part in foreign_parts(layout) if part.theirs not in stored.names]
    if missing:
        rest = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(f"the file has no tensor {missing[0]}{rest}: weights and config are not of one model")


def _check_shapes(parameters: Mapping[str, Tensor], layout: Layout, stored: _Stored) -> None:
    unfilled = set(parameters) - set(layout)
    assert not unfilled, f"no layout entry for {sorted(unfilled)}"
    for ours, part in foreign_parts(layout):
        wanted = _their_shape(parameters[ours], part)
        if stored.shape(part.theirs) != wanted:
            raise CheckpointError(
                f"{stored.names[part.theirs]} has shape {list(stored.shape(part.theirs))}, the config needs "
                f"{list(wanted)}: weights and config are not of one model"
            )


def _their_shape(parameter: Tensor, part: Part) -> tuple[int, ...]:
    return tuple(part.to_theirs(parameter[part.rows]).shape)


def _list_unused(stored: _Stored, layout: Layout, buffers: Iterable[str], report: LoadReport) -> None:
    patterns = [re.compile(pattern) for pattern in buffers]
    for name in sorted(stored.all - set(report.used) - set(report.unused)):
        known = any(pattern.search(name) for pattern in patterns)
        report.unused[name] = "a buffer, computed anew" if known else "no place in this family"
    unknown = [name for name, reason in report.unused.items() if reason == "no place in this family"]
    if unknown:
        rest = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        report.notes.append(f"not used: {unknown[0]}{rest}, which has no place in this family")
