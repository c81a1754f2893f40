"""What hardware can do by its makers' own numbers, as data: matrix rates, memory, links.

Rates are of dense matrix products, without sparsity, accumulated in fp32, where float32 means products in float32
itself and not in TF32. A number that the maker does not give is left out, and what depends on it is unknown.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cutaway.checked import short
from cutaway.errors import ConfigError

GB = 10**9
TERA = 10**12


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One accelerator or machine.

    `rates` [FLOP/s] by the products' type, `bandwidth` of memory [B/s], `memory` [B], `link` to others in the same
    machine, both directions together [B/s]. None: not known.
    """

    name: str
    rates: Mapping[str, float]
    bandwidth: float | None
    memory: int | None
    link: float | None = None
    source: str

    def rate(self, dtype: str) -> float | None:
        """Matrix products of a type [FLOP/s]; None where it is not known."""
        return self.rates.get(dtype)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return vars(self) | {"rates": dict(self.rates)}


def _gpu(
    name: str,
    half: float,
    single: float,
    bandwidth: float,
    memory: float,
    link: float | None,
    source: str,
    *,
    bfloat16: bool = True,
) -> Hardware:
    """From TFLOP/s, GB/s and GB."""
    rates = {"float32": single * TERA, "float16": half * TERA} | ({"bfloat16": half * TERA} if bfloat16 else {})
    return Hardware(
        name=name,
        rates=rates,
        bandwidth=bandwidth * GB,
        memory=int(memory * GB),
        link=None if link is None else link * GB,
        source=source,
    )


def _mac(name: str, single: float | None, bandwidth: float, memory: float, source: str) -> Hardware:
    return Hardware(
        name=name,
        rates={} if single is None else {"float32": single * TERA},
        bandwidth=bandwidth * GB,
        memory=int(memory * GB),
        source=source,
    )


V100, T4 = "NVIDIA V100 datasheet, 2020", "NVIDIA T4 datasheet, 2019"
A100, GA102 = "NVIDIA A100 datasheet, 2021", "NVIDIA Ampere GA102 whitepaper, table 2"
L4, L40S = "NVIDIA L4 datasheet, 2023 (half of the rates with sparsity)", "NVIDIA L40S datasheet, 2023"
ADA = "NVIDIA Ada whitepaper, appendix A"
H100 = "NVIDIA H100 datasheet, 2023 (half of the rates with sparsity)"
H200 = "NVIDIA H200 datasheet, 2024 (half of the rates with sparsity)"
MI300X = "AMD Instinct MI300X data sheet, 2023"
APPLE = "Apple, technical specifications and newsroom"

HARDWARE: dict[str, Hardware] = {
    "v100": _gpu("V100 SXM2 32 GB", 125, 15.7, 900, 32, 300, V100, bfloat16=False),
    "t4": _gpu("T4", 65, 8.1, 320, 16, 32, T4, bfloat16=False),
    "a100-40gb": _gpu("A100 SXM 40 GB", 312, 19.5, 1555, 40, 600, A100),
    "a100": _gpu("A100 SXM 80 GB", 312, 19.5, 2039, 80, 600, A100),
    "a100-pcie": _gpu("A100 PCIe 80 GB", 312, 19.5, 1935, 80, 64, A100),
    "rtx3090": _gpu("GeForce RTX 3090", 71, 35.6, 936, 24, None, GA102),
    "rtx4090": _gpu("GeForce RTX 4090", 165.2, 82.6, 1008, 24, None, ADA),
    "l4": _gpu("L4", 121, 30.3, 300, 24, 64, L4),
    "l40s": _gpu("L40S", 362, 91.6, 864, 48, 64, L40S),
    "h100": _gpu("H100 SXM", 989, 67, 3350, 80, 900, H100),
    "h100-pcie": _gpu("H100 PCIe", 756, 51, 2000, 80, 128, H100),
    "h200": _gpu("H200 SXM", 989, 67, 4800, 141, 900, H200),
    "mi300x": _gpu("Instinct MI300X", 1307.4, 163.4, 5300, 192, 896, MI300X),
    "m1": _mac("Apple M1, 8-core GPU", 2.6, 68.25, 16, APPLE),
    "m1-max": _mac("Apple M1 Max, 32-core GPU", 10.4, 400, 64, APPLE),
    "m2": _mac("Apple M2, 10-core GPU", 3.6, 100, 24, APPLE),
    "m2-ultra": _mac("Apple M2 Ultra, 76-core GPU", 27.2, 800, 192, APPLE),
    "m3-max": _mac("Apple M3 Max, 40-core GPU", None, 400, 128, APPLE),
    "m4-max": _mac("Apple M4 Max, 40-core GPU", None, 546, 128, APPLE),
}


def hardware_named(name: str) -> Hardware:
    """An entry of the table.

    Raises:
        ConfigError: no such name; says the nearest ones.
    """
    found = HARDWARE.get(name.lower().replace(" ", "-").replace("_", "-"))
    if found is None:
        close = difflib.get_close_matches(name.lower(), HARDWARE, n=3)
        meant = f"did you mean {' or '.join(close)}? Known are" if close else "known are"
        raise ConfigError(f"hardware = {short(name)}: {meant} {', '.join(HARDWARE)}; `here` measures this machine")
    return found
