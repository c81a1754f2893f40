"""What a user may call a type of numbers or a device, as torch has it."""

from __future__ import annotations

import torch

from cutaway.checked import short
from cutaway.errors import ConfigError

DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
}


def as_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """A type by its name.

    Raises:
        ConfigError: an unknown name, or a type no model runs in.
    """
    found = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if dtype is not None and found not in DTYPES.values():
        raise ConfigError(f"dtype = {short(dtype)}: use float32, bfloat16 or float16")
    return found


def as_device(device: torch.device | str | None) -> torch.device:
    """A device by its name; None takes a GPU if there is one.

    Raises:
        ConfigError: no such device here, or one that holds no numbers.
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0][:120]
        raise ConfigError(f"device = {short(str(device))} cannot be used here ({reason}): try cpu") from error
    if found.type == "meta":
        raise ConfigError("device = 'meta' holds shapes and no numbers: use cpu or cuda")
    return torch.device(device)


def multiplies_bf16() -> bool:
    """Whether the CPU has instructions for products in bf16, with which torch's take half the time of those in fp32."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
