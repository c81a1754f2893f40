"""What a run does between steps: it logs, shows, samples, saves, and listens for a wish to stop."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cutaway.checkpoint.load import LoadReport
from cutaway.errors import TrainingError
from cutaway.language_model import LanguageModel
from cutaway.network import Transformer
from cutaway.text.tokenizer import Tokenizer
from cutaway.train import state
from cutaway.train.config import TrainConfig
from cutaway.train.curve import draw_curve
from cutaway.train.display import Display
from cutaway.train.distributed import Ranks, whole_parameters
from cutaway.train.log import RunLog
from cutaway.train.loss import Objective
from cutaway.train.settle import Settled
from cutaway.train.state import Position

SAMPLE = 120  # tokens
HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)  # where there are terminals to go away
PAUSE = 10.0  # between two pictures of the curve [s], each of which takes up to half a second


class Watcher:
    """Of all processes the leading one shows and writes; saving is done together."""

    seconds_per_token = 0.0  # at the machine's matrix peak
    log: RunLog | None = None
    drawn = 0.0

    def __init__(
        self,
        folder: Path,
        config: TrainConfig,
        settled: Settled,
        objective: Objective,
        tokenizer: Tokenizer,
        tensors: Mapping[str, Tensor],
        ranks: Ranks,
        display: Display,
    ) -> None:
        self.folder = folder
        self.config = config
        self.settled = settled
        self.objective = objective
        self.tokenizer = tokenizer
        self.tensors = tensors
        self.ranks = ranks
        self.display = display
        self.report = LoadReport(
            family=settled.family, source=str(folder), stored="float32", generation=settled.generation
        )
        self.end_ids = tokenizer.eos_ids | frozenset(settled.generation.get("eos_token_id", ()))
        self.stop_asked = False
        self.loss: float | None = None

    @contextlib.contextmanager
    def open(self, first_step: int) -> Iterator[None]:
        """While steps are made, a signal asks for an end after the step that is going on; a second one is at once.

        The signals are Ctrl-C, SIGTERM, and SIGHUP of a terminal that goes away, which may well come twice.
        """
        self.log = RunLog(self.folder, resume_step=first_step, note=self.display.note) if self.ranks.leads else None

        def ask(number: int, frame: Any) -> None:
            if self.stop_asked:
                if number == HANGUP:
                    return
                raise KeyboardInterrupt
            self.stop_asked = True
            with contextlib.suppress(RuntimeError):  # the output was being written just when the signal came
                self.display.note("stopping after this step, and saving; once more to stop at once")

        numbers = [signal.SIGINT, signal.SIGTERM]
        if HANGUP is not None and signal.getsignal(HANGUP) is not signal.SIG_IGN:  # nohup ignores it
            numbers.append(HANGUP)
        before = {}
        with contextlib.suppress(ValueError):  # signals belong to the main thread
            before = {number: signal.signal(number, ask) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            if self.log is not None:
                self._draw()
                self.log.close()

    def asked_to_stop(self) -> bool:
        return self.stop_asked or self.display.closed

    def stepped(self, record: dict[str, Any]) -> None:
        self.loss = record["loss"]
        record["share_of_peak"] = record["tokens_per_s"] * self.seconds_per_token
        self._tell(record, self.display.step)

    def evaluated(self, record: dict[str, Any]) -> None:
        self._tell(record, self.display.evaluation)
        if time.monotonic() > self.drawn + PAUSE:
            self._draw()

    def _tell(self, record: dict[str, Any], show: Any) -> None:
        if self.log is not None:
            self.log.write(record)
            show(record)

    def _draw(self) -> None:
        if self.log is not None and self.log.records:
            with contextlib.suppress(OSError):  # a picture is not worth a run
                draw_curve(self.log.records, self.folder / "curve")
        self.drawn = time.monotonic()

    def sample(self, step: int) -> None:
        """What the model writes from its default start; not a sharded one, whose parts lie apart."""
        starts_somewhere = self.tokenizer.bos_id is not None
        if self.log is None or self.settled.sharded or not starts_somewhere:
            return
        network = self.objective.network
        model = self._model(network)
        text = "".join(model.stream("", max_tokens=min(SAMPLE, network.config.n_ctx - 1), seed=0))
        self.log.write({"step": step, "sample": text})
        self.display.sample(text)

    def save(self, position: Position, *, must: bool) -> bool:
        """A checkpoint. One that fails where it must not is an error; another is told, and the next may find room."""
        whole = None
        if self.settled.sharded:  # the tensors of the state: after a pass the network's own may be in another type
            names = [name for name, _ in self.objective.network.named_parameters()]
            whole = whole_parameters({name: self.tensors[name] for name in names})
        try:
            state.save(self.folder, position, self.tensors, self._writer(whole), self.ranks, keep=self.config.keep)
        except TrainingError as error:
            if must:
                raise
            self.display.note(f"{error}; going on")
            return False
        return True

    def _writer(self, whole: dict[str, Tensor] | None) -> Callable[[Path], None]:
        def write(folder: Path) -> None:
            network = self.objective.network
            if whole is not None:
                with torch.device("meta"):
                    network = Transformer(network.config)
                network.load_state_dict(whole, assign=True, strict=False)
                network.tie()
            self._model(network).save(folder)

        return write

    def _model(self, network: Transformer) -> LanguageModel:
        return LanguageModel(network, self.tokenizer, self.report, self.end_ids)
