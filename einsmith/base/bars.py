"""Show progress bars on the standard error."""

from __future__ import annotations

from typing import Any

from einsmith.base import locks

BAR, TIME_LEFT = "<bar>", "<time left>"
"""Columns of a `Bar` that are no texts."""


class Bar:
    """A progress bar on the standard error, which is shown until it is stopped.

    Args:
        columns: formats of texts, which may read `task.fields`, and BAR and TIME_LEFT
        total: the work that is to be done; None where it is not known
        transient: whether the bar is removed at its end
        fields: the fields that texts read, at first
    """

    def __init__(self, *columns: str, total: float | None = None, transient: bool = False, **fields: Any):
        with locks.IMPORTING:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        kinds = {BAR: BarColumn, TIME_LEFT: TimeRemainingColumn}
        parts = [kinds[c]() if c in kinds else TextColumn(c) for c in columns]
        # A console of its own: a forked child may find the common one locked.
        self._bar = Progress(*parts, console=Console(stderr=True), transient=transient)
        self._bar.start()
        self._task = self._bar.add_task("", total=total, **fields)

    def update(self, completed: float, **values: Any) -> None:
        """Show how much is done. values: fields, and the total."""
        self._bar.update(self._task, completed=completed, **values)

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._bar.console.print(line, markup=False, highlight=False)

    def stop(self) -> None:
        """End the bar and restore the terminal."""
        self._bar.stop()
