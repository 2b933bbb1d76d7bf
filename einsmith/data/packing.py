"""Arrange documents in rows of one length: packed, several in a row, or padded, one in a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from einsmith.base.arguments import Count, Size, check_arguments
from einsmith.data.batching import Batches
from einsmith.data.documents import Document

IGNORED = -100
"""Target of a place that is not learned; losses ignore it."""
NARROWEST = 16
"""Least width of a padded batch: the widths are the full one and its halves, so that few programs are compiled."""


class TokenRows(Batches):
    """Batches of rows of tokens, (tokens, positions, segments, targets), all int32 [size, length].

    positions: places of tokens in their documents; segments: numbers of documents in a row, which differ for documents
    that must not see each other; targets: the token after each, -100 where it is not learned. Padded rows have no
    positions and segments: (tokens, targets), of the least width that holds the documents of the batch. The last batch
    of an epoch is filled up with empty rows, so that all have one size.

    documents, cut: number of documents, and of those that were cut as they are too long; labels: number of targets.
    """

    def __init__(self, arrays: Sequence[np.ndarray], size: Count, seed: Size | None, documents: Size, cut: Size):
        super().__init__(tuple(arrays[:-1]), arrays[-1], size, seed, transform=self._finish)
        self.documents, self.cut = documents, cut
        self.labels = int((arrays[-1] != IGNORED).sum())

    def labels_of(self, epoch: int) -> list[int]:
        """Return the number of targets in each batch of an epoch."""
        counts = (self.arrays[-1] != IGNORED).sum(1)
        order = self.order(epoch)
        counts = counts if order is None else counts[order]
        return [int(counts[n : n + self.size].sum()) for n in range(0, self.samples, self.size)]

    def _finish(self, rng: Any, *batch: np.ndarray) -> tuple[np.ndarray, ...]:
        *inputs, targets = batch
        if lacking := self.size - len(targets):
            inputs = [np.concatenate([a, np.zeros((lacking, a.shape[1]), a.dtype)]) for a in inputs]
            targets = np.concatenate([targets, np.full((lacking, targets.shape[1]), IGNORED, targets.dtype)])
        if len(inputs) == 1:
            width = _shared_width(targets)
            return np.ascontiguousarray(inputs[0][:, :width]), np.ascontiguousarray(targets[:, :width])
        return (*inputs, targets)


def _shared_width(targets: np.ndarray) -> int:
    """Return the least of the widths of batches that holds all targets."""
    needed = int(np.flatnonzero((targets != IGNORED).any(0))[-1]) + 1
    width = targets.shape[1]
    while width // 2 >= max(needed, NARROWEST):
        width //= 2
    return width


@check_arguments
def rows(
    documents: Sequence[Document], length: Count, size: Count, seed: Size | None = None, *, is_packed: bool = True
) -> TokenRows:
    """Return batches of documents.

    A document with more tokens than fit is cut into pieces, each of which begins anew; of a prompt with a completion,
    the beginning of the prompt is left out, and the end of a completion that is longer than a row.

    Args:
        documents: what `documents` has read
        length: tokens in a row
        size: rows in a batch
        seed: seed of the order of rows, which differs in each epoch; None keeps the order
        is_packed: whether a row holds several documents, which must not see each other
    """
    pieces, cut = [], 0
    for document in documents:
        parts = _pieces(document, length)
        cut += sum(len(part) - 1 for part, _ in parts) < len(document.tokens) - 1 or len(parts) > 1
        pieces += parts
    if is_packed:
        places = _pack([len(tokens) - 1 for tokens, _ in pieces], length)
    else:
        places = [[n] for n in range(len(pieces))]
    tokens, positions, segments, targets = (np.zeros((len(places), length), np.int32) for _ in range(4))
    targets[...] = IGNORED
    for row, members in enumerate(places):
        start = 0
        for number, member in enumerate(members):
            piece, prompt = pieces[member]
            end = start + len(piece) - 1
            tokens[row, start:end], targets[row, start:end] = piece[:-1], piece[1:]
            targets[row, start : start + max(prompt - 1, 0)] = IGNORED
            positions[row, start:end], segments[row, start:end] = np.arange(end - start), number
            start = end
        positions[row, start:], segments[row, start:] = np.arange(length - start), len(members)
    arrays = (tokens, positions, segments, targets) if is_packed else (tokens, targets)
    return TokenRows(arrays, size, seed, len(documents), cut)


def _pieces(document: Document, length: int) -> list[tuple[np.ndarray, int]]:
    """Cut a document into pieces (tokens, how many of them are no targets) with `length` targets at most.

    A piece begins with the last token of the piece before, which is a target there and an input here."""
    tokens, prompt = document.tokens, document.prompt
    if len(tokens) <= length + 1:
        return [(tokens, prompt)]
    if not prompt:
        return [(tokens[n : n + length + 1], 0) for n in range(0, len(tokens) - 1, length)]
    first = max(min(len(tokens) - length - 1, prompt - 1), 0)
    return [(tokens[first : first + length + 1], prompt - first)]


def _pack(lengths: Sequence[int], length: int) -> list[list[int]]:
    """Return the members of each row, by number: the longest first, each in the fullest row that holds it (best fit
    decreasing; Johnson et al. 1974, SIAM J. Comput. 3). Every row's members fit its length.

    TokenRows are kept by their room, and a number has a bit for each room that some row has."""
    out: list[list[int]] = []
    by_room: list[list[int]] = [[] for _ in range(length + 1)]
    rooms = 0
    for n in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        needed = lengths[n]
        if fitting := rooms >> needed:
            room = needed + (fitting & -fitting).bit_length() - 1
            row = by_room[room].pop()
            if not by_room[room]:
                rooms &= ~(1 << room)
        else:
            room, row = length, len(out)
            out.append([])
        out[row].append(n)
        by_room[room - needed].append(row)
        rooms |= 1 << (room - needed)
    return out
