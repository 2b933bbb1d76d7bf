"""What kernels take on a microarchitecture beyond what calibration measures: one table.

Calibration measures multiply-adds, loads, bytes and functions by programs of their own (`tune.calibrate`). What is left
shows only within whole kernels: it is found by predicting and measuring many kernels of random shapes
(`benchmarks.cost_model`), which is the experiment behind every number here unless another one is named. Cycles are of
the clock: on an Intel Cascade Lake, which multiplies two vectors in one, and an AMD Zen 4, which multiplies one, the
same kernels take about the same of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Overheads:
    """Of register tiles of contractions, unless said otherwise. M is the side of broadcast elements, N the one of
    vectors, K what is summed."""

    latency: float = 4.0
    """Cycles of a multiply-add whose sum is waited for: of today's cores (Arm's, AMD's since Zen 3 and Intel's since
    Skylake; five before)."""

    # Cycles within a step of K.
    broadcast: float = 0.65
    """An element of M which is loaded for all lanes: more than a port's half, as the multiply-add waits for it."""
    mask: float = 1.1
    """A vector that is read under a mask, for each mask, from arithmetic."""
    packed_mask: float = 0.25
    """The same where it is packed, where nothing waits for it."""
    in_registers: float = 12.0
    """Of reading a step's vectors from parts of several rows each: so many of them that places and masks stay in
    registers; eight parts."""
    reloaded: float = 1.4
    """How much longer, as a part, those beyond take."""
    line: float = 2.4
    """A line that comes from the second level."""
    walked: float = 1.0
    """A vector of N from the second level, as all of N is for every tile of M, from arithmetic."""
    rewalked: float = 2.0
    """A vector of N that every tile of M reads in place where it lies beyond the second level, from arithmetic: what
    is asked for of the next panel pushes it out of the first one."""
    conflict: float = 1.2
    """A row and point of K, at most, where rows of M read in place push each other out of the first level."""
    translate_m: float = 7.0
    """An address of M whose page the tables of addresses have lost."""
    translate_n: float = 4.0
    """The same of N."""
    rotate: float = 1.3
    """How much longer steps take whose sums the allocator rotates by way of the stack."""

    # Cycles around steps of K.
    loop: float = 14.0
    """A run of K, in which operands read in place lie evenly, to begin and to end."""
    unrolled_loop: float = 10.0
    """The same of one that is unrolled."""
    most_begun: float = 3.0
    """The most that this is for each point of a run."""
    tile: float = 20.0
    """A tile to begin."""
    tile_row: float = 3.0
    """The same for each row of it."""
    stored_sum: float = 1.5
    """A vector of sums at its tile's end."""
    waiting_sum: float = 2.1
    """The same where it waits in scratch for the next block of K."""
    far_sum: float = 4.0
    """A vector of waiting sums that comes from the second level and goes there."""
    lane_sum: float = 4.0
    """The lanes of a vector to be added."""
    strips: float = 8.0
    """A line of results that leave the second level, where many rows are written a stretch at a time. On a Zen 4, 18
    to 1,435 rows of 2,535 to 32,770 elements, 8 to 32 points of K: tiles of M innermost took 1.2 to 2.2 times as long
    as outermost, 5 to 27 cycles a line, on one core and two; rows that are whole lines as long."""
    partial_sum: float = 2.0
    """A vector of a part of K, to be added to the others."""

    # Cycles of packing.
    copied: float = 2.0
    """A vector, beyond its loads."""
    far_copy: float = 1.5
    """The same, in addition, where the panel leaves the first level."""
    transposed: float = 8.0
    """A vector along K, which is transposed with others."""
    transposed_m: float = 3.5
    """The same of M."""
    unaligned: float = 6.0
    """A vector of M whose rows are no multiple of lanes: it is stored over the borders of lines."""
    halo: float = 6.0
    """A vector of a halo copy."""
    launched: float = 1.6
    """How much longer packing takes where it is a launch of its own, whose results go to a buffer."""

    # Parts of the way of bytes that is waited for.
    waited: float = 0.6
    """Of narrow strips of N from beyond the caches, where pages are at hand for packing, or strips are asked for."""
    walks: float = 2.0
    """The same where every row of a strip that is packed has to find its page."""
    abreast: float = 0.6
    """Of rows of N from beyond the caches that tiles ask for, where they take more than a line of each: all of a row's
    lines are missed at once, where hardware brings the neighbour of one. Products of 6 to 32 rows, 96 to 469 points of
    K, on a Zen 4: tiles of one vector took 0.5 to 0.9 of the time of those of two to four."""
    shared_rows: float = 16.0
    """Rows of M: the multiply-adds of 1.5 times as many hide nothing of that, of 2.5 times as many all of it."""
    streamed: float = 0.1
    """Of packed tiles from beyond the second level, although they are asked for."""
    parted: float = 0.5
    """Of lines beyond the caches which two pieces store their parts of, each by itself."""
    strip: float = 450.0
    """Bytes: a strip of so many, read row by row across pages, takes twice the time of as many in one stretch."""
    read_twice: float = 2.5
    """How often a packed buffer's bytes move in the last level: strips read, lines fetched to be written, written."""
    far_twice: float = 6.0
    """The same where they come from memory."""

    # Streams.
    streams: int = 10
    """Rows beyond the second level that a core reads at once, a vector of each in turn, as fast as one."""
    stencil_streams: int = 3
    """The same of the rows of a stencil, which are written too."""
    crowded: float = 0.03
    """What each one more adds to the time that memory takes."""
    long_row: int = 1024
    """Bytes of a row of results from which on it is a stream of its own: shorter ones, which follow each other, are so
    in part. Tiles of 1 to 8 rows of 36 depthwise convolutions from memory, in all directions, rows of 28 to 210
    elements: those chosen take 1.04 of the least time, 1.1 to 1.7 where all rows count alike."""

    def crowding(self, rows: float, streams: int | None = None) -> float:
        """How much longer than one stretch of memory so many rows take which are read in turn, as a part of its time:
        it is waited for."""
        return self.crowded * max(0.0, rows - (self.streams if streams is None else streams))

    # What tables and levels hold.
    near_pages: int = 48
    """Pages of one operand that the nearest table of addresses keeps, beside those of what else is read."""
    most_pages: int = 1024
    """Pages of one operand whose addresses stay in all tables of a core together, which have half as many more."""
    held: float = 0.75
    """The part of the second level that a side which is walked again and again may fill."""
    panel: float = 0.6
    """The part of it that a panel of N may fill."""
