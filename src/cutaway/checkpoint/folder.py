"""A `transformers` folder: config.json and safetensors, read without remote code and written for the native class."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from cutaway.checkpoint.families import FAMILIES
from cutaway.checkpoint.families.family import Family
from cutaway.checkpoint.fields import Fields
from cutaway.checkpoint.files import read_json, replacing, write_atomically, writing
from cutaway.checkpoint.layout import export
from cutaway.checkpoint.load import HEAD, LoadReport, load_network
from cutaway.checkpoint.weights import SafetensorsFolder, without_wrappers
from cutaway.config import ModelConfig
from cutaway.errors import CutawayError, UnsupportedError
from cutaway.network import Transformer

SHARD_BYTES = 4 << 30
INDEX = "model.safetensors.index.json"
IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|" + re.escape(INDEX))


def family_of(data: Mapping[str, Any], origin: str) -> Family:
    """The family a config names.

    Raises:
        UnsupportedError: a `model_type` that Cutaway does not implement.
    """
    name = data.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise UnsupportedError(f"{origin}: model_type = {name!r}: Cutaway knows {', '.join(FAMILIES)}")
    return FAMILIES[name]


def load_folder(
    folder: Path, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> tuple[Transformer, LoadReport]:
    """The network in a folder, and what was found there.

    Raises:
        CheckpointError, ConfigError: see the classes.
    """
    data = read_json(folder / "config.json")
    family = family_of(data, str(folder / "config.json"))
    fields = Fields(data, str(folder / "config.json"))
    config = family.read(fields)
    weights = SafetensorsFolder(folder)
    report = LoadReport(
        family=family.model_type,
        source=str(folder),
        stored=_dtype_name(weights.dtype),
        notes=fields.notes,
        generation=_generation(folder, data),
    )
    network = load_network(
        weights, config, family.layout(config), report, buffers=family.buffers, dtype=dtype, device=device
    )
    return network, report


def _generation(folder: Path, data: Mapping[str, Any]) -> dict[str, Any]:
    path = folder / "generation_config.json"
    stated = read_json(path) if path.is_file() else {}
    return stated | {name: data[name] for name in IDS if name in data and stated.get(name) is None}


def native_family(config: ModelConfig, preferred: str | None = None) -> tuple[Family, dict[str, Any]]:
    """A family whose config says exactly this architecture, and that config.

    Raises:
        UnsupportedError: no family can express it.
    """
    names = ([preferred] if preferred in FAMILIES else []) + [name for name in FAMILIES if name != preferred]
    for name in names:
        family = FAMILIES[name]
        with contextlib.suppress(CutawayError, AttributeError):
            data = family.write(config)
            if family.read(Fields(data)) == config:
                return family, {
                    "model_type": family.model_type,
                    "architectures": [family.architecture],
                } | data
    raise UnsupportedError(
        "no transformers family has this architecture: it can be used here but not saved as a folder"
    )


def save_folder(
    network: Transformer,
    folder: Path,
    *,
    preferred: str | None = None,
    extra: Mapping[str, Any] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write config.json and safetensors that `transformers` loads as its own class with equal logits.

    Every file is written beside its final name, flushed and renamed; the config, which makes the folder a model,
    comes last. Then the weights of a model that was there before are removed. `extra` fields (token ids) are added
    to the config.

    Raises:
        UnsupportedError: no family can express the architecture.
        CheckpointError: the folder cannot be written, or is a file.
    """
    family, data = native_family(network.config, preferred)
    layout = family.layout(network.config)
    if network.config.tied:
        del layout[HEAD]
    stored = dict(network.named_parameters())
    parameters = {name: stored[wrapped].detach().cpu() for name, wrapped in without_wrappers(stored).items()}
    # Named even where there is none: the classes' own defaults may lie outside this vocabulary.
    no_ids = dict.fromkeys(IDS)
    data = {
        **data,
        **no_ids,
        **(extra or {}),
        "torch_dtype": _dtype_name(next(iter(parameters.values())).dtype),
    }
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        written = _write_weights(parameters, layout, folder, shard_bytes)
        write_atomically(folder / "config.json", json.dumps(data, indent=2).encode() + b"\n")
        # Another model's shards, or its index, would win over these the next time.
        for path in folder.glob("model*.safetensors*"):
            if WEIGHTS.fullmatch(path.name) and path.name not in written:
                path.unlink()


def _write_weights(parameters: Mapping[str, Tensor], layout: Any, folder: Path, shard_bytes: int) -> set[str]:
    """The weights, in one file or in shards with an index; the names of the files."""
    shards: list[dict[str, Any]] = [{}]
    size = 0
    for ours, parts in layout.items():
        n_bytes = parameters[ours].nbytes
        if shards[-1] and size + n_bytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][ours] = parts
        size += n_bytes
    index: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        one = len(shards) == 1
        name = "model.safetensors" if one else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = export(parameters, shard)
        with replacing(folder / name) as temporary:
            save_file(tensors, temporary, metadata={"format": "pt"})
        index |= dict.fromkeys(tensors, name)
    names = set(index.values())
    if len(shards) > 1:
        total = sum(parameters[ours].nbytes for ours in layout)
        table = {"metadata": {"total_size": total}, "weight_map": index}
        write_atomically(folder / INDEX, json.dumps(table, indent=2).encode() + b"\n")
        names.add(INDEX)
    return names


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
