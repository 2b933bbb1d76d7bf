"""Predict how long sums over a group of processes take: latency, bandwidth, and overlap with computation."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from einsmith.base.errors import ArgumentError
from einsmith.distributed.collectives import is_sent_whole
from einsmith.distributed.group import ProcessGroup

_BITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_PROBED = 1 << 10, 1 << 24
"""Bytes of the arrays whose sums are timed: of a message that is latency alone, and of more than buffers on the way
hold."""
_REPEATS = 5


@dataclass(frozen=True)
class Interconnect:
    """The connections of a group, each process with one of its own.

    latency: seconds until a message arrives; bandwidth: bytes per second that a process sends, and receives at the same
    time; overhead, byte_overhead: seconds of a processor's time, at each process, for each message and for each byte
    that the process sends: the overhead and gap of the LogGP model (Alexandrov et al. 1995).
    """

    latency: float
    bandwidth: float
    overhead: float = 1e-6
    byte_overhead: float = 0.0

    def all_reduce_seconds(self, nbytes: float, ranks: int) -> float:
        """Return the seconds of a sum of arrays over `ranks` processes (`Collectives.all_reduce`)."""
        exchanges, sent = _traffic(nbytes, ranks)
        return exchanges * (self.latency + (ranks - 1) * self.overhead) + sent / self.bandwidth

    def busy_seconds(self, nbytes: float, ranks: int) -> float:
        """Return the seconds of a processor that each process spends on a sum of arrays over `ranks` processes."""
        exchanges, sent = _traffic(nbytes, ranks)
        return exchanges * (ranks - 1) * self.overhead + sent * self.byte_overhead


def _traffic(nbytes: float, ranks: int) -> tuple[int, float]:
    """Return the number of exchanges in which arrays are summed, and the bytes that a process sends in all of them."""
    if ranks == 1:
        return 0, 0.0
    exchanges, part = (1, nbytes) if is_sent_whole(nbytes, ranks) else (2, nbytes / ranks)
    return exchanges, exchanges * (ranks - 1) * part


def parse_network(text: str) -> Interconnect:
    """Return the network that a text such as "25 Gb/s, 10 us" describes: bandwidth in bits per second, latency.

    Raises ArgumentError for another text."""
    match = re.fullmatch(r"\s*([\d.]+)\s*([kMGT]?)b/s\s*,\s*([\d.]+)\s*(ns|us|ms|s)\s*", text)
    try:
        if match is None:
            raise ValueError
        bandwidth, latency = float(match[1]) * _BITS[match[2]] / 8, float(match[3]) * _SECONDS[match[4]]
    except ValueError:
        bandwidth, latency = 0.0, 0.0
    if bandwidth <= 0:
        raise ArgumentError(f"the network {text!r} is not a bandwidth and latency, such as '25 Gb/s, 10 us'")
    return Interconnect(latency, bandwidth)


def measure_network(group: ProcessGroup) -> Interconnect:
    """Return the interconnect between the processes of a group, from medians of timed sums. All processes call it
    together, on an otherwise idle machine. Raises ArgumentError for a group of one."""
    if group.size == 1:
        raise ArgumentError("a group of one process has no network; start several, as with mpirun -n 2")
    small, large = (_sum_seconds(group, nbytes) for nbytes in _PROBED)
    exchange, per_byte = _fit(small[0], large[0], group.size)
    busy_exchange, byte_overhead = _fit(min(small[1], small[0]), min(large[1], large[0]), group.size)
    return Interconnect(
        max(exchange - busy_exchange, 0.0), 1 / max(per_byte, 1e-15), busy_exchange / (group.size - 1), byte_overhead
    )


def _sum_seconds(group: ProcessGroup, nbytes: int) -> tuple[float, float]:
    """Return the median (elapsed seconds, processor seconds of a process) of a sum of arrays of `nbytes`, on the
    slowest rank."""
    array, times = np.zeros(nbytes // 4, np.float32), []
    for _ in range(_REPEATS):
        group.barrier()
        start = time.perf_counter(), time.process_time()
        group.wait(group.all_reduce_flat(array))
        times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    passed, busy = (float(group.gather_numbers(float(x)).max()) for x in np.median(times, 0))
    return passed, busy


def _fit(small: float, large: float, ranks: int) -> tuple[float, float]:
    """Return the seconds of an exchange and of a byte sent that explain the seconds of both probed sums."""
    (few, little), (many, much) = (_traffic(n, ranks) for n in _PROBED)
    per_byte = max((large - small * many / few) / (much - little * many / few), 0.0)
    return max((small - little * per_byte) / few, 0.0), per_byte


def exposed_seconds(
    buckets: Sequence[tuple[float, int]], computed: float, ranks: int, network: Interconnect, is_crowded: bool = False
) -> float:
    """Return the seconds that sums add to a step because computation does not hide them.

    Args:
        buckets: (seconds from the step's beginning until the bucket is complete, bytes) of each, summed one after
            another
        computed: seconds of the forward and the backward pass
        ranks: number of processes
        network: the interconnect
        is_crowded: whether the computation uses all cores, so that messages take processor time from it"""
    end = delay = 0.0
    for ready, nbytes in buckets:
        start = max(end, ready + delay)
        end = start + network.all_reduce_seconds(nbytes, ranks)
        if is_crowded and start < computed + delay:
            delay += network.busy_seconds(nbytes, ranks)
    return max(delay, end - computed, 0.0)
