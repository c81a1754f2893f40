"""What the server has done so far, in the text format of Prometheus."""

from __future__ import annotations

import bisect
import time
from collections import Counter
from collections.abc import Iterator

BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # [s]


class Histogram:
    """How many durations were at most as long as each of BUCKETS [s]."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds

    def lines(self, name: str, what: str) -> Iterator[str]:
        yield f"# HELP {name} {what}"
        yield f"# TYPE {name} histogram"
        n = 0
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), self.counts, strict=True):
            n += count
            yield f'{name}_bucket{{le="{bound}"}} {n}'
        yield f"{name}_sum {self.total:.6f}"
        yield f"{name}_count {n}"


class Metrics:
    """Counters that the scheduler's thread writes and the event loop reads."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, int]] = Counter()  # by path and status
        self.prompt_tokens = 0
        self.known_tokens = 0
        self.new_tokens = 0
        self.passes = 0
        self.cancelled = 0
        self.cache_bytes = 0
        self.first_token = Histogram()
        self.duration = Histogram()

    def first(self, created: float, n_prompt: int) -> None:
        """A text that was asked for at `created` has its first token."""
        self.prompt_tokens += n_prompt
        self.first_token.add(time.monotonic() - created)

    def ended(self, created: float) -> None:
        """A text that was asked for at `created` is finished."""
        self.duration.add(time.monotonic() - created)

    def text(self, n_running: int, n_waiting: int) -> str:
        """All of it."""
        return "\n".join(self._lines(n_running, n_waiting)) + "\n"

    def _lines(self, n_running: int, n_waiting: int) -> Iterator[str]:
        yield "# HELP cutaway_requests_total Answers given, by path and status."
        yield "# TYPE cutaway_requests_total counter"
        for (path, status), n in sorted(self.answers.items()):
            yield f'cutaway_requests_total{{path="{path}",status="{status}"}} {n}'
        for name, kind, what, value in (
            ("prompt_tokens_total", "counter", "Prompt tokens of texts that have begun.", self.prompt_tokens),
            ("known_tokens_total", "counter", "Prompt tokens read for an earlier text.", self.known_tokens),
            ("new_tokens_total", "counter", "Tokens generated.", self.new_tokens),
            ("passes_total", "counter", "Passes that gave each running text a token.", self.passes),
            ("cancelled_total", "counter", "Texts whose client left.", self.cancelled),
            ("running", "gauge", "Texts that get tokens or are being read.", n_running),
            ("waiting", "gauge", "Texts that wait for their turn.", n_waiting),
            ("cache_bytes", "gauge", "Keys and values held.", self.cache_bytes),
        ):
            yield f"# HELP cutaway_{name} {what}"
            yield f"# TYPE cutaway_{name} {kind}"
            yield f"cutaway_{name} {value}"
        yield from self.first_token.lines("cutaway_first_token_seconds", "From the request to its first token.")
        yield from self.duration.lines("cutaway_text_seconds", "From the request to the end of its text.")
