"""A `transformers` folder: config.json and safetensors, read without remote code and written for the native class."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from cutaway.checkpoint.families import FAMILIES
from cutaway.checkpoint.families.family import Family
from cutaway.checkpoint.fields import Fields
from cutaway.checkpoint.layout import export
from cutaway.checkpoint.load import HEAD, LoadReport, load_network
from cutaway.checkpoint.weights import SafetensorsFolder, without_wrappers
from cutaway.config import ModelConfig
from cutaway.errors import CheckpointError, CutawayError, DamagedFileError, UnsupportedError
from cutaway.network import Transformer

MAX_CONFIG_BYTES = 16 << 20
SHARD_BYTES = 4 << 30


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of bounded size.

    Raises:
        DamagedFileError: too large, not UTF-8, not JSON, or not an object.
    """
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise DamagedFileError(f"{path}: {path.stat().st_size} bytes; a config has at most {MAX_CONFIG_BYTES}")
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing: a model folder needs it") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path}: not JSON ({error}): fetch it again") from error
    if not isinstance(data, dict):
        raise DamagedFileError(f"{path}: holds {type(data).__name__}, not an object: fetch it again")
    return data


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
        family=family.model_type, source=str(folder), stored=_dtype_name(weights.dtype), notes=fields.notes
    )
    network = load_network(
        weights, config, family.layout(config), report, buffers=family.buffers, dtype=dtype, device=device
    )
    return network, report


def end_ids_of(folder: Path) -> frozenset[int]:
    """The ids that end a text, from every file that names some: config.json and generation_config.json."""
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        if (folder / name).is_file():
            value = read_json(folder / name).get("eos_token_id")
            ids = value if isinstance(value, list) else [value]
            found |= {i for i in ids if isinstance(i, int) and not isinstance(i, bool) and i >= 0}
    return frozenset(found)


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
    comes last. `extra` fields (token ids) are added to the config.

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
    no_ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    data = {
        **data,
        **no_ids,
        **(extra or {}),
        "torch_dtype": _dtype_name(next(iter(parameters.values())).dtype),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_weights(parameters, layout, folder, shard_bytes)
        write_atomically(folder / "config.json", json.dumps(data, indent=2).encode() + b"\n")
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be written ({error.strerror or error})") from error


def _write_weights(parameters: Mapping[str, Tensor], layout: Any, folder: Path, shard_bytes: int) -> None:
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
    stale = folder / "model.safetensors.index.json"
    if len(shards) > 1:
        total = sum(parameters[ours].nbytes for ours in layout)
        table = {"metadata": {"total_size": total}, "weight_map": index}
        write_atomically(stale, json.dumps(table, indent=2).encode() + b"\n")
    else:
        stale.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name in the same folder that takes the place of `path` once it is whole and on the disk."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """A small file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
