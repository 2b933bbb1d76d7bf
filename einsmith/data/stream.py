"""Cut a long sequence into windows: each continues where the window before ended, or each stands alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from einsmith.base.arguments import Count, check_arguments
from einsmith.base.arrays import as_numpy
from einsmith.base.errors import DtypeError, IndexOutOfRange, ShapeError


class Stream:
    """Windows of a token sequence; see `stream`.

    Attributes: `columns` [n, batch] (the sequence cut into `batch` pieces that lie side by side), `batch`, `steps`,
    `size` (predictions a full batch), `samples` (predictions an epoch), and `next_epoch`, the number of the epoch that
    the next plain iteration goes through; all epochs are equal.
    """

    @check_arguments
    def __init__(self, tokens: Any, batch: Count, steps: Count, drop_last: bool = True):
        tokens = _sequence(tokens)
        self.batch, self.steps, self.drop_last = int(batch), steps, drop_last
        length = len(tokens) // self.batch
        least = self.steps + 1 if drop_last else 2
        if length < least:
            raise ShapeError(
                f"{len(tokens)} tokens give {self.batch} columns of {length}; a window of {self.steps} steps and "
                f"the token after it need {least}"
            )
        self.columns = np.ascontiguousarray(tokens[: length * self.batch].reshape(self.batch, length).T, np.int64)
        self.size = self.batch * self.steps
        self.samples = self.size * len(self) if drop_last else self.batch * (length - 1)
        self.next_epoch = 0

    def __len__(self) -> int:
        """Return the number of windows per epoch, with a shorter last one unless it is dropped."""
        n = len(self.columns) - 1
        return n // self.steps if self.drop_last else -(-n // self.steps)

    @check_arguments
    def epoch(self, n: int, start: int = 0) -> Iterator[tuple[np.ndarray, ...]]:
        """Return an iterator over the windows (x, begins, y) of an epoch from window number `start` on.

        `next_epoch` does not change. Raises IndexOutOfRange."""
        if n < 0 or not 0 <= start <= len(self):
            raise IndexOutOfRange(f"epoch {n}, window {start}: an epoch has windows 0 to {len(self)}")
        return self._windows(start)

    def _windows(self, start: int) -> Iterator[tuple[np.ndarray, ...]]:
        for k in range(start, len(self)):
            first = k * self.steps
            last = min(first + self.steps, len(self.columns) - 1)
            y = self.columns[first + 1 : last + 1].ravel()
            yield self.columns[first:last], np.full(self.batch, k == 0), y

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        self.next_epoch += 1
        return self._windows(0)

    def __repr__(self) -> str:
        return f"Stream({len(self)} windows of {self.steps} steps, batch {self.batch})"


@check_arguments
def stream(tokens: Any, batch: Count, steps: Count, drop_last: bool = True) -> Stream:
    """Return windows of a token sequence for a language model, as (x, begins, y), for truncated backpropagation through
    time.

    tokens: integers [n], cut into `batch` columns that are read in parallel, `steps` tokens at a time: window k of a
    column continues window k - 1, so that a model may carry its hidden state from one to the next. x: tokens,
    int64 [steps, batch]; begins: bool [batch], true where a column starts anew and a carried state must not be used;
    y: the tokens that follow those of x, int64 [steps * batch], in the order of x. The remainder that fills no column,
    and the shorter last window unless drop_last is False, are left out. Raises ShapeError, DtypeError.
    """
    return Stream(tokens, batch, steps, drop_last)


@check_arguments
def windows(tokens: Any, steps: Count) -> tuple[np.ndarray, np.ndarray]:
    """Cut a token sequence into windows of `steps` tokens for a model without state; return (x, y) for `batches`.

    tokens: integers [n]. x: int64 [N, steps], consecutive windows; y: int64 [N, steps], the token that follows each
    token of x. The remainder that fills no window is left out. Raises ShapeError, DtypeError.
    """
    tokens = _sequence(tokens).astype(np.int64)
    n = (len(tokens) - 1) // steps
    if n < 1:
        raise ShapeError(
            f"{len(tokens)} tokens fill no window: {steps} steps and the token after them need {steps + 1}"
        )
    x, y = (tokens[k : k + n * steps].reshape(n, steps) for k in (0, 1))
    return x, y


def _sequence(tokens: Any) -> np.ndarray:
    """Return the tokens as a one-dimensional integer array. Raises ShapeError, DtypeError."""
    tokens = as_numpy(tokens, "tokens")
    if tokens.ndim != 1:
        raise ShapeError(f"tokens has shape {tokens.shape}; windows are cut from one sequence, [n]")
    if tokens.dtype.kind not in "iu":
        raise DtypeError(f"tokens is {tokens.dtype}; they must be integers")
    return tokens
