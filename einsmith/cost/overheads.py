"""Tabulate the overheads of kernels on a microarchitecture that calibration does not measure.

Calibration measures multiply-adds, loads, bytes and functions by programs of their own
(`tuning.calibration.calibrate`). Overheads show only within whole kernels: they are fitted by predicting and measuring
many kernels of random shapes (`benchmarks.cost_model`), the experiment behind every number here unless another one is
named. Cycles are clock cycles: an Intel Cascade Lake, which multiplies two vectors per cycle, and an AMD Zen 4, which
multiplies one, take about as many for the same kernels. Fits of the table to the searches of one machine brought no
reliable gain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields


@dataclass(frozen=True)
class Overheads:
    """Overheads of register tiles of contractions, and below of other patterns and of launches.

    M is the side whose elements are broadcast, N the side of vectors, K the reduction."""

    latency: float = 4.0
    """Latency of a multiply-add (cycles) on today's cores (Arm's, AMD's since Zen 3 and Intel's since Skylake; five
    before)."""

    # Cycles within a step of K.
    touched_row: float = 1.4
    """Cycles taken from arithmetic for each row of memory that a vector touches, where it touches several."""
    every_other: float = 1.5
    """Cycles taken from arithmetic by a vector of every other element of a row."""
    gather: float = 27.0
    """Cycles taken from arithmetic by a gather."""
    broadcast: float = 0.6
    """Cycles per element of M that is loaded and broadcast: more than half a port, as the multiply-add waits for it."""
    mask: float = 1.1
    """Cycles taken from arithmetic per vector read under a mask, for each mask."""
    packed_mask: float = 0.75
    """Cycles per mask of a vector that is read for packing, where nothing waits for it. With 0.25, packing
    without a halo copy took 1.15 to 1.45 times as long beside its prediction as packing from one (three convolutions on
    a Zen 3)."""
    in_registers: float = 12.0
    """Most cycles of a step's reads of vectors from parts of several rows each such that their addresses and masks stay
    in registers (eight parts)."""
    reloaded: float = 1.4
    """Extra cycles for each cycle of reads beyond `in_registers`, whose addresses and masks are reloaded."""
    line: float = 2.4
    """Cycles per cache line that comes from L2."""
    walked: float = 1.0
    """Cycles taken from arithmetic per vector of N from L2, where every tile of M walks all of N."""
    rewalked: float = 2.0
    """Cycles taken from arithmetic per vector of N read in place from beyond L2 by every tile of M: prefetching the
    next panel evicts the current one from L1."""
    conflict: float = 1.2
    """Most cycles per row and point of K where rows of M read in place evict each other from L1 (shared sets)."""
    translate_m: float = 7.0
    """Cycles of a TLB miss of an address of M."""
    translate_n: float = 4.0
    """Cycles of a TLB miss of an address of N."""
    rotate: float = 1.15
    """Factor on the cycles of steps whose sums the register allocator rotates through the stack."""

    # Cycles around steps of K.
    loop: float = 14.0
    """Cycles to begin and end a run of K, over which operands read in place have constant strides."""
    unrolled_loop: float = 10.0
    """Cycles to begin and end a run of K that is unrolled."""
    most_begun: float = 3.0
    """Most cycles per point of a run that beginning and ending it counts as."""
    overlap: int = 6
    """Order of the norm by which the limits of a step, its arithmetic and its loads, add up. Tiles of 8 sums, as many
    as the latency needs, took 1.03 to 1.15 times as long for each multiply-add as tiles of 12, those of 9 and 10 sums
    1.01 to 1.12 times, those of 4 and 6 the latency (products of 96 to 480 rows, 60 to 250 points of K, on a Zen 3)."""
    iteration: float = 3.0
    """Cycles of an iteration of the innermost loop of a direct form, outside its products."""
    tile: float = 20.0
    """Cycles to begin a register tile."""
    tile_row: float = 3.0
    """Cycles to begin a register tile, per row of it."""
    stored_sum: float = 1.5
    """Cycles per vector of sums at the end of its tile."""
    waiting_sum: float = 2.1
    """Cycles per vector of sums that is kept in scratch until the next block of K."""
    far_sum: float = 4.0
    """Cycles per vector of sums kept in scratch that is loaded from L2 and stored there."""
    lane_sum: float = 4.0
    """Cycles to add the lanes of a vector."""
    strips: float = 8.0
    """Cycles per cache line of results that leave L2, where many rows are written a stretch at a time. On a Zen 4, 18
    to 1,435 rows of 2,535 to 32,770 elements, 8 to 32 points of K: tiles of M innermost took 1.2 to 2.2 times as long
    as outermost, 5 to 27 cycles a line, on one core and two; rows that are whole lines took equally long."""
    partial_sum: float = 2.0
    """Cycles per vector of a part of K, to add it to the other parts."""

    # Cycles of what follows the sums of a tile (the epilogue).
    transposed_results: float = 8.0
    """Cycles per vector of transposing a square of vectors through scratch."""
    taken_sum: float = 0.7
    """Cycles per vector of adding results to a sum that the epilogue takes of them, and in `centred_sum` to one of
    squares less their mean. Both, and the cycles per row: products of 16 x 64 x 128 x 3136 and 16 x 256 x 256 x 784
    points, with rows of 1 to 4 vectors. Without them and `finished_sum` sums join kernels of small planes, where they
    take longer: MobileNet v2's step at batch 1 took 1.04 times as long (median of six)."""
    taken_sum_row: float = 2.5
    """Cycles per row of a tile of such a sum."""
    centred_sum: float = 2.2
    """Cycles per vector of adding results to a centred sum."""
    centred_sum_row: float = 7.0
    """Cycles per row of a tile of a centred sum."""
    finished_sum: float = 25.0
    """Cycles of combining the lanes of an element of a sum at the end of a task (planes of 14 x 14)."""
    finished_centred_sum: float = 60.0
    """Cycles of combining the lanes of an element of a centred sum (planes of 14 x 14)."""

    # Cycles of packing.
    copied: float = 2.0
    """Cycles per packed vector, beyond its loads."""
    far_copy: float = 1.5
    """Further cycles per packed vector where the panel exceeds L1."""
    transposed: float = 8.0
    """Cycles per packed vector along K, which is transposed with others."""
    transposed_m: float = 5.0
    """Cycles per packed vector of M that is transposed with others."""
    unaligned: float = 6.0
    """Cycles per packed vector of M whose rows are not a multiple of the lanes: its stores cross cache lines."""
    halo: float = 6.0
    """Cycles per vector of a halo copy."""
    launched: float = 1.6
    """Factor on packing in a launch of its own, whose results go to a buffer."""

    # Fractions of a transfer time that stall.
    waited: float = 0.6
    """Factor on the extra transfer time of narrow strips from memory (`strip`), where packing hits the TLBs or strips
    are prefetched."""
    walks: float = 2.0
    """Factor on the extra transfer time of narrow strips (`strip`), where every row of a packed strip misses the TLBs.
    """
    abreast: float = 0.6
    """Fraction of the transfer of rows of N from memory that stalls, where tiles prefetch more than a line of each: all
    lines of a row miss at once, whereas hardware fetches the neighbour of a single line. Products of 6 to 32 rows, 96
    to 469 points of K, on a Zen 4: tiles of one vector took 0.5 to 0.9 of the time of those of two to four."""
    shared_rows: float = 16.0
    """Rows of M: the multiply-adds of 1.5 times as many hide nothing of `abreast`, of 2.5 times as many all of it."""
    streamed: float = 0.1
    """Fraction of the transfer of packed tiles from beyond L2 that stalls although they are prefetched."""
    strip: float = 450.0
    """Width (bytes) of a strip that, read row by row across pages, takes twice the time of a contiguous read."""
    read_twice: float = 2.5
    """How often the bytes of a packed buffer move in L3: strips are read, lines fetched for writing, and written."""
    far_twice: float = 6.0
    """How often the bytes of a packed buffer count where they come from memory."""

    # Streams.
    streams: int = 10
    """Most rows beyond L2 that a core reads at once, a vector of each in turn, as fast as one."""
    stencil_streams: int = 3
    """Most rows beyond L2 that a stencil reads and writes at once as fast as one."""
    crowded: float = 0.03
    """Fraction of memory time that each stream beyond `streams` adds."""
    long_row: int = 1024
    """Bytes of a row of results from which on it counts as a stream of its own; shorter rows, which follow each other,
    count in part. Tiles of 1 to 8 rows of 36 depthwise convolutions from memory, in all directions, rows of 28 to 210
    elements: the chosen tiles take 1.04 of the least time, and 1.1 to 1.7 if all rows count alike."""

    def __repr__(self) -> str:
        """Name the coefficients that differ from the table, as a target's text is part of every key on disk."""
        changed = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Overheads({', '.join(f'{name}={value!r}' for name, value in changed)})"

    def crowding(self, rows: float, streams: int | None = None) -> float:
        """Return the fraction by which memory time grows when `rows` rows are accessed in turn; this time stalls.

        streams: rows that are free (None: `self.streams`)."""
        return self.crowded * max(0.0, rows - (self.streams if streams is None else streams))

    # Capacities of TLBs and caches.
    near_pages: int = 48
    """Pages of one operand that the first-level TLB holds, besides those of other operands."""
    most_pages: int = 1024
    """Pages of one operand that stay in all TLBs of a core together (the TLBs hold 1.5 times as many)."""
    mask_registers: int = 7
    """Masks that registers hold: those of AVX-512."""
    held: float = 0.75
    """Fraction of L2 that an operand may fill that is walked repeatedly."""
    panel: float = 0.6
    """Fraction of L2 that a panel of N may fill."""

    # Reductions, stencils and other patterns.
    exposed: float = 0.2
    """Fraction of the shorter of multiply-adds and loads that is not hidden behind the longer one (345 reductions of
    random shapes). Other operations wait for their loads: nothing is hidden."""
    unaligned_loads: float = 1.5
    """Loads that one vector along a reduction counts as: rows begin anywhere, so half of the loads cross lines."""
    prologue: float = 0.7
    """Multiply-adds that an operation on a loaded vector counts as, of a stencil whose operand is computed (a 3x3
    filter after a batch norm and a ReLU6)."""
    block_seconds: float = 3e-9
    """Seconds that a member's code takes to begin on a block of rows (72 fusions on a Zen 4, two configurations of each
    measured: those taken with 1e-8 took 4 % longer than the best, with 3e-9 2.4 %)."""

    exposed_rows: float = 0.5
    """Fraction of the shorter of work and memory traffic that is not hidden behind the longer one in a member of a row
    fusion whose blocks exceed L1. 196 fusions of norms, softmaxes and sums, 8 to 262,144 rows of 16 to 262,144
    elements, on a core of a Zen 4: what the prices choose, fused or separate, takes 4.4 % longer than the best that was
    measured, and what is always fused 7 %. With 0.25 it is 4.1 %, but a convolution's sums are left to a row fusion
    that takes 1.3 times as long."""

    # Seconds of launches.
    step_seconds: float = 2e-9
    """Seconds of a step of a loop in one kernel, beside its kernels: addresses, and the latency of a number that the
    next step needs (running products in float64 take 1.9 ns a step, Xeon of 2 cores, November 2026)."""
    call_seconds: float = 1e-7
    """Seconds that the code of a launch takes to begin."""
    parallel_seconds: float = 4e-7
    """Seconds of work below which another thread does not pay, although it is awake within a program."""
    task_seconds: float = 1e-7
    """Seconds that each task after the first costs."""


@dataclass
class Instructions:
    """Vector instructions, or loads, that parts of code count as on any machine with vectors."""

    gather: float = 20.0
    """Loads that gathering a vector counts as."""
    pair: float = 3.0
    """Loads that a vector of every other element counts as (two loads and a shuffle)."""
    gathered_lane: float = 3.0
    """Instructions of one lane of a gather or scatter."""
    mask: float = 5.0
    """Instructions of a vector's mask."""
    strided_mask: float = 1.0
    """Instructions of the mask of one of the vectors that hold lanes 2 to 4 elements apart, which are masked only where
    the buffer ends (3x3 pooling with padding: 2.3 ms for 3.2 million results of 112 x 112 planes, 17.8 ms by
    gathers)."""
    uniform: float = 0.3
    """Instructions of an access that is uniform over the lanes; the least of any access."""
    transposed_tile: float = 6.0
    """Instructions of the loads of a square tile that is transposed, in addition to log2(lanes) shuffles for each of
    its columns that are used (12 kernels of widths 2 to 10, a core of a Zen 4)."""
    shift: float = 3.0
    """Instructions of a shift of lanes in a scan and of the combination with it; a shift counts as two."""
    chain: float = 8.0
    """Latency of a combination in a scan (instructions that could issue meanwhile)."""
    tail: float = 7.0
    """Instructions of adding a vector of a scatter under a mask."""
    term: float = 30.0
    """Latency that each further term adds to `tail` (instructions that could issue meanwhile): the term waits for the
    store of neighbouring elements."""
    step: Mapping[str, float] = field(default_factory=lambda: {"max": 3.0, "min": 3.0, "argmax": 5.0, "argmin": 5.0})
    """Instructions of a combiner's step where it is not a single one: NaN is propagated, arg-reductions carry an
    index."""
    merge: Mapping[str, float] = field(default_factory=lambda: {"argmax": 14.0, "argmin": 14.0})
    """Instructions that merge two states, for combiners where it is not a single one."""
    step_latency: Mapping[str, float] = field(
        default_factory=lambda: {"max": 15.0, "min": 15.0, "argmax": 26.0, "argmin": 26.0}
    )
    """Latency of a combiner's step (instructions that could issue meanwhile); 8 for combiners that are not listed."""
    sum_latency: Mapping[bool, float] = field(default_factory=lambda: {False: 4.0, True: 8.0})
    """Latency of adding a term, or a product, to a sum in scalar code (instructions that could issue meanwhile).
    Measured on a core of a Zen 5 of 4.1 GHz: 1.4 cycles a term of a sum of rows of 200, 3.4 of a product of 64x256 and
    256x64."""
    reduction_mask: Mapping[bool, tuple[float, float]] = field(
        default_factory=lambda: {False: (6.0, 26.0), True: (0.0, 14.0)}
    )
    """Instructions to compute the mask of a vector of a guarded read in a loop over a reduction, beyond what the access
    counts: (adjacent lanes, lanes 2 to 4 elements apart), by whether the innermost reduction is unrolled, so that a
    part of the mask is computed outside of the loop. 20 padded convolutions of random shapes on a Zen 3: the median
    extra cycles are 2 and 13 where nothing is unrolled, -1 and 7 where the innermost reduction is."""


INSTRUCTIONS = Instructions()
"""The table of this code. A fit changes the cycles of `Overheads`, not these counts."""
