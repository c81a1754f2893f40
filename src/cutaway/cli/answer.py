"""One text being generated for the command line: its pieces, and what to say about it afterwards."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cutaway.language_model import LanguageModel, Prompt


class Answer:
    """Iterate over it for the pieces of text; what has come so far stays, also when that is interrupted.

    A seed is drawn if none is given, so that it can be shown and the run repeated.
    """

    def __init__(self, model: LanguageModel, prompt: Prompt, **options: Any) -> None:
        self.seed: int = int.from_bytes(os.urandom(4), "big") if options["seed"] is None else options["seed"]
        self.text = ""
        self.seconds = 0.0
        self._network = model.network
        self._n_ctx = model.config.n_ctx
        self._cache: bool = options["cache"]
        [self._generation] = model.generations([prompt], **{**options, "seed": self.seed})

    def __iter__(self) -> Iterator[str]:
        from cutaway.generate.decoding import decode

        start = time.perf_counter()
        for _, piece in decode(self._network, [self._generation], use_cache=self._cache):
            self.seconds = time.perf_counter() - start
            self.text += piece.text
            yield piece.text

    @property
    def finish_reason(self) -> str:
        """Why it ended."""
        return self._generation.finish_reason or "interrupted"

    @property
    def filled_context(self) -> bool:
        """Whether no further token could be read."""
        return len(self._generation.tokens) > self._n_ctx

    def to_dict(self) -> dict[str, Any]:
        """Plain data, once it is finished."""
        from cutaway.language_model import output_of

        return output_of(self._generation, self.text).to_dict() | {"seed": self.seed, "seconds": self.seconds}

    def summary(self) -> str:
        """One line about it."""
        n = len(self._generation.choices)
        rate = f" · {n / self.seconds:.1f} tokens/s" if n else ""
        return f"{n} tokens · {n} passes{rate} · {self.finish_reason} · seed {self.seed}"
