"""Share what commands that train have in common: interrupts between steps, schedules, folders and loss curves."""

from __future__ import annotations

import math
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from einsmith.base import files
from einsmith.base.errors import SaveError


class Interrupted(Exception):
    """Raised after a step during which Ctrl-C came."""


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Context that yields a function returning whether Ctrl-C came. A second Ctrl-C interrupts at once, as usual."""
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came:
            signal.default_int_handler(number, frame)
        came = True

    try:
        old = signal.signal(signal.SIGINT, note)
    except ValueError:  # only the main thread handles signals
        yield lambda: False
        return
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGINT, old)


def cosine_rate(lr: float, step: int, steps: int, warm_up: float) -> float:
    """Return the learning rate of step number `step` (from 0) of `steps`.

    It rises linearly to `lr` over the fraction `warm_up` of the steps, and ends at a hundredth."""
    done = min((step + 1) / max(1, steps), 1.0)
    if done < warm_up:
        return lr * done / warm_up
    fall = 0.5 * (1 + math.cos(math.pi * (done - warm_up) / (1 - warm_up)))
    return lr * (0.01 + 0.99 * fall)


def check_writable(target: Path, is_saved: Callable[[Path], bool]) -> None:
    """Make the save folder and check that it can be written, before time is spent on training.

    is_saved: whether a folder that is not empty may be replaced. Raises SaveError."""
    try:
        is_free = not files.exists(target) or (files.is_folder(target) and not any(target.iterdir()))
        if not is_free and not is_saved(target):
            raise SaveError(f"{target} exists and is not a saved run; choose another folder or remove it")
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except SaveError:
        raise
    except OSError as e:
        raise SaveError(f"cannot save to {target}: {e.strerror or e}; choose a folder that can be written") from e


def draw_curve(
    losses: Sequence[float],
    history: Sequence[dict[str, float]],
    path: Path,
    title: str,
    say: Callable[[str], None],
) -> None:
    """Draw the loss curve of a run; a failure is only reported, as the save is valid without it."""
    from einsmith.cli.curve import draw

    try:
        draw(losses, history, path, title)
    except Exception as e:
        say(f"saved, but the loss curve cannot be drawn: {type(e).__name__}: {e}")
