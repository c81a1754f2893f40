"""Reading a foreign config.json: every field checked where it is read, every default said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cutaway.checked import is_finite, short
from cutaway.config import LIMITS
from cutaway.errors import ConfigError


class Fields:
    """A foreign configuration whose values are hostile until checked; `notes` collects what the user should know."""

    def __init__(self, data: Mapping[str, Any], origin: str = "config.json") -> None:
        self.data = data
        self.origin = origin
        self.notes: list[str] = []

    def __contains__(self, name: str) -> bool:
        return self.data.get(name) is not None

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number from 1 to 2⁶³ - 1."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**63:
            raise self.wrong(name, value, "it must be a whole number of 1 or more, below 2^63")
        return value

    def n_layers(self) -> int:
        """The number of layers, bounded before anything is listed layer by layer."""
        value = self.count("num_hidden_layers")
        if value > LIMITS["n_layers"]:
            raise self.wrong("num_hidden_layers", value, f"at most {LIMITS['n_layers']} are built")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._take(name, default)
        if not is_finite(value) or value <= 0:
            raise self.wrong(name, value, "it must be a finite number above 0")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._take(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, value, "it must be true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        value = self._take(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, value, "it must be a string")
        return value

    def optional_count(self, name: str) -> int | None:
        """A whole number of 1 or more, or nothing."""
        return self.count(name) if name in self else None

    def optional_number(self, name: str, default: float | None = None) -> float | None:
        """A number above 0; `null` in the file means none, absence the default."""
        if name in self.data and self.data[name] is None:
            return None
        return self.number(name, default) if name in self or default is not None else None

    def items(self, name: str, kind: type, length: int) -> list[Any]:
        """A list of `length` values of one type (a longer one is cut: families store spare entries)."""
        value = self._take(name, None)
        if not isinstance(value, list) or len(value) < length or not all(isinstance(v, kind) for v in value[:length]):
            raise self.wrong(name, value, f"it must list {length} values, one a layer")
        return value[:length]

    def part(self, name: str) -> Fields | None:
        """A nested object, or nothing."""
        if name not in self:
            return None
        value = self.data[name]
        if not isinstance(value, Mapping):
            raise self.wrong(name, value, "it must be an object")
        nested = Fields(value, f"{self.origin}, {name}")
        nested.notes = self.notes
        return nested

    def replace(self, **changes: object) -> Fields:
        """The same configuration with other values, None removing one; what is noted there is noted here."""
        kept = {name: value for name, value in self.data.items() if name not in changes}
        changed = Fields(kept | {name: value for name, value in changes.items() if value is not None}, self.origin)
        changed.notes = self.notes
        return changed

    def refuse(self, name: str, supported: object, default: object) -> None:
        """Stop at a choice Cutaway does not implement."""
        value = self.data.get(name, default)
        if value != supported and value is not None:
            raise self.wrong(name, value, f"only {supported!r} is implemented")

    def wrong(self, name: str, value: object, why: str) -> ConfigError:
        """The error for one field."""
        return ConfigError(f"{self.origin}: {name} = {short(value)}: {why}")

    def _take(self, name: str, default: object) -> Any:
        value = self.data.get(name)
        if value is not None:
            return value
        if default is None:
            raise ConfigError(f"{self.origin}: {name} is missing and has no default: add it")
        return default
