"""Show the progress of a training or a search: a bar on terminals and in notebooks, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from einsmith.base import messages
from einsmith.base.bars import BAR, TIME_LEFT, Bar
from einsmith.tuning.kernels.decisions import name_of


class Progress:
    """A progress bar on a terminal or in a notebook; elsewhere a plain line an epoch, and within long ones one every
    LINE_SECONDS. `show`: False for nothing at all."""

    LINE_SECONDS = 30.0  # frequent enough for a log to show life; a night's training fits some thousand lines

    def __init__(self, show: bool | None):
        self.show = show if show is not None else True
        self.notebook = _notebook() if self.show else None
        self.bar = self.show and (self.notebook is not None or messages.is_terminal(sys.stderr))
        self._last = 0.0 if self.bar else time.perf_counter()
        self._shown_bar: Bar | None = None
        self._handle: Any = None  # handle of a notebook's display
        self._process = os.getpid()

    def step(self, epoch: int, epochs: int, done: int, length: int | None, loss: float, rate: float) -> None:
        """Show a step, at most ten times a second on a bar.

        Args:
            epoch: number of the epoch
            epochs: number of epochs
            done: batches done in the epoch
            length: batches of an epoch (None: not known)
            loss: mean loss of the epoch so far
            rate: samples per second
        """
        now = time.perf_counter()
        if not self.show or now - self._last < (0.1 if self.bar else self.LINE_SECONDS):
            return
        self._last = now
        if self._process != os.getpid():  # forked inside the training: the bar is the parent's
            self.show, self.bar, self._shown_bar = False, False, None
            return
        batches = f"{done}/{length}" if length else f"{done}"
        if self.notebook is not None:
            bar = f'<progress value="{done}" max="{length}"></progress>' if length else "<progress></progress>"
            self._display(f"epoch {epoch + 1}/{epochs} {bar} {batches} &nbsp; loss {loss:.4f} &nbsp; {rate:.0f}/s")
            return
        if not self.bar:
            line = f"epoch {epoch + 1}/{epochs}  batch {batches}  loss {loss:.4f}  {rate:.0f}/s"
            messages.say(line)
            return
        if self._shown_bar is None:
            texts = "{task.completed}/{task.total}", "loss {task.fields[loss]:.4f}  {task.fields[rate]:.0f}/s"
            self._shown_bar = Bar("epoch {task.fields[epoch]}", BAR, *texts, TIME_LEFT, epoch="", loss=0.0, rate=0.0)
        self._shown_bar.update(done, total=length, epoch=f"{epoch + 1}/{epochs}", loss=loss, rate=rate)

    def _display(self, html: str) -> None:
        assert self.notebook is not None
        content = self.notebook.HTML(html)
        if self._handle is None:
            self._handle = self.notebook.display(content, display_id=True)
        else:
            self._handle.update(content)

    def close(self) -> None:
        """End the bar and restore the terminal."""
        if self._shown_bar is not None and self._process == os.getpid():
            self._shown_bar.stop()
        self._shown_bar = None

    def epoch(self, epoch: int, epochs: int, row: Mapping[str, Any]) -> None:
        """Print the results of an epoch as a line that stays."""
        self.close()
        self._last = time.perf_counter()
        shown = {n: v for n, v in row.items() if n == "loss" or n.startswith("val_")}
        line = f"epoch {epoch}/{epochs}  " + "  ".join(f"{n} {v:.4f}" for n, v in shown.items())
        if not self.show:
            return
        if self.notebook is not None:
            self._display(line.replace("  ", " &nbsp; "))
            self._handle = None
        else:
            messages.say(line)


def _notebook() -> Any:
    """Return the module IPython.display inside a notebook's kernel, else None. Does not import IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or type(shell).__name__ != "ZMQInteractiveShell":
        return None
    return sys.modules.get("IPython.display") or ipython.display  # type: ignore[union-attr]


class SearchProgress:
    """Progress of a kernel search: a bar on a terminal, elsewhere a plain line every LINE_SECONDS.

    An instance is the callback of `tuning.tune` for measured candidates.

    seconds: time of the search; step: predicted seconds of each kernel in a run of the program, in all turns of loops;
    show: False for no output."""

    LINE_SECONDS = 10.0

    def __init__(self, seconds: float, step: Mapping[Any, float], show: bool = True):
        self.seconds, self.show = seconds, show
        self._parts = dict(step)
        self._candidates = 0
        self._began = self._last = time.monotonic()
        self._bar: Bar | None = None
        if self.show and messages.is_terminal(sys.stderr):
            self._bar = Bar("tuning", BAR, "{task.fields[text]}", total=seconds, transient=True, text="")

    @property
    def total(self) -> float:
        """Seconds of all kernels in a run, measured where known, else predicted."""
        return sum(self._parts.values())

    def __call__(self, result: Any, candidate: Any, seconds: float) -> None:
        self._parts[result.kernel] = result.turns * result.seconds
        self._candidates += 1
        if self.show and len(result.faults) > 0 and result.faults[-1][0] == candidate:
            self._say(f"rejected, {result.faults[-1][1]}: {candidate} for {name_of(result.kernel)[:8]}")
        now = time.monotonic()
        if not self.show or now - self._last < (0.1 if self._bar is not None else self.LINE_SECONDS):
            return
        self._last = now
        text = f"{self._candidates} tried, kernels {self.total * 1e3:.3f} ms"
        if self._bar is not None:
            self._bar.update(now - self._began, text=f"{text}  {candidate}"[:120])
        else:
            self._say(f"tuning {now - self._began:.0f}/{self.seconds:.0f} s  {text}")

    def _say(self, line: str) -> None:
        (messages if self._bar is None else self._bar).say(line)

    def __enter__(self) -> SearchProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
