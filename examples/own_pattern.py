"""A pattern of one's own: transposes of matrices by square tiles in registers (docs/patterns.md explains the parts).

python examples/own_pattern.py
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

import einsmith as es
from einsmith.base import dtypes as dt
from einsmith.codegen.loopnest.nest import Builder, SSAValue
from einsmith.cost.facts import Target
from einsmith.ir.nodes import Axis, Piece, Read
from einsmith.kernels import autoconfig
from einsmith.kernels.pattern import Cost, Kernel, Launch, Lowered, Pattern
from einsmith.tuning.calibration.probes import Probe, probe


class TileConfig(NamedTuple):
    """side: rows and columns of a tile, one vector each; tasks: how many runs of tile rows may go on at once."""

    side: int
    tasks: int


class TransposeTiles(Pattern):
    """`Y[i,j] = X[j,i]` of float32, where both extents are multiples of 4."""

    name = "transpose tiles"
    version = 1

    def match(self, kernel: Kernel) -> bool:
        part = kernel.root.parts[0]
        if len(kernel.stages) > 1 or len(kernel.root.parts) > 1 or len(kernel.shape) != 2:
            return False
        body = part.body if isinstance(part, Piece) else None
        swapped = isinstance(body, Read) and body.index == (Axis(1), Axis(0)) and body.dtype is dt.f32
        dense = all(x.row_major for x in kernel.buffers)
        return swapped and dense and all(n and n % 4 == 0 for n in kernel.shape)

    def configs(self, kernel: Kernel, target: Target) -> list[TileConfig]:
        # A tile and its half-made copy must fit the registers.
        largest = min(target.lanes(), target.vector_registers // 2)
        sides = [n for n in (4, 8, 16) if n <= largest and all(e % n == 0 for e in kernel.shape)]
        tasks = dict.fromkeys((1, 4 * target.cores))
        return [TileConfig(n, min(t, kernel.shape[0] // n)) for n in sides for t in tasks]

    def cost(self, kernel: Kernel, config: TileConfig, target: Target) -> Cost:
        rows, cols = kernel.shape
        n = config.side
        tiles = rows // n * (cols // n)
        shuffles = n * (n.bit_length() - 1)
        # What `probes` has measured; before that, a core does one shuffle while it does two multiply-adds.
        shuffle_seconds = target.coefficient("shuffle of two vectors", 2 * target.lanes() / target.fma_per_second)
        each = n * (target.load_seconds + target.store_seconds) + shuffles * shuffle_seconds
        cores = min(target.cores, config.tasks)
        nbytes = 8.0 * rows * cols
        launch = target.launch_seconds if config.tasks > 1 else 0.0
        return Cost(tiles * each / cores, target.seconds_for_bytes(nbytes, nbytes, config.tasks), launch=launch)

    def probes(self, target: Target) -> Iterator[Probe]:
        """The measuring program of what `cost` asks for: one tile transposed in registers, over and over."""
        n, turns = min(target.lanes(), target.vector_registers // 2), 200
        b = Builder("probe_shuffle", 2)
        tile = [b.load(b.buffers[0], b.const(r * n), "f32", n) for r in range(n)]
        with b.loop(0, turns, init=tile) as loop:
            loop.next = transposed(b, list(loop.carried))
        for r, row in enumerate(loop.results):
            b.store(row, b.buffers[0], b.const(r * n))
        shuffles = turns * n * (n.bit_length() - 1)
        yield probe("shuffle of two vectors", b.finish(), target, [np.ones(n * n, np.float32)], shuffles)

    def lower(self, kernel: Kernel, config: TileConfig, target: Target) -> Lowered:
        (rows, cols), n = kernel.shape, config.side
        source, out = kernel.stages[0].args[0][1], kernel.stages[0].outputs[0]
        b = Builder(f"transpose_{rows}x{cols}_{n}_{config.tasks}", len(kernel.buffers) + 1)
        x, y = b.buffers[source], b.buffers[out]
        run = -(-(rows // n) // config.tasks) * n  # rows of Y of a task
        lo = b.mul(b.task, b.const(run))
        hi = b.op("min", b.add(lo, b.const(run)), b.const(rows))
        with b.loop(lo, hi, n) as i, b.loop(0, cols, n) as j:
            # Row r of the tile is X[j + r, i : i + n].
            at = b.add(b.mul(j.var, b.const(rows)), i.var)
            tile = [b.load(x, b.add(at, b.const(r * rows)), "f32", n) for r in range(n)]
            at = b.add(b.mul(i.var, b.const(cols)), j.var)
            for r, row in enumerate(transposed(b, tile)):
                b.store(row, y, b.add(at, b.const(r * cols)))
        return Lowered([Launch(b.finish(), -(-rows // run))])


def transposed(b: Builder, tile: list[SSAValue]) -> list[SSAValue]:
    """The rows of a tile's transpose: row numbers and lane numbers swap one bit after the other."""
    n, bit = len(tile), 1
    while bit < n:
        low = [lane if not lane & bit else n + (lane ^ bit) for lane in range(n)]
        high = [lane | bit if not lane & bit else n + lane for lane in range(n)]
        pairs = [(tile[r & ~bit], tile[r | bit]) for r in range(n)]
        tile = [b.shuffle(*pairs[r], high if r & bit else low) for r in range(n)]
        bit *= 2
    return tile


def main() -> None:
    autoconfig.register(TransposeTiles())
    transpose = es.op("Y[i,j] = X[j,i]")
    x = np.random.default_rng(0).standard_normal((1200, 720), np.float32)
    y = transpose(x)
    assert np.array_equal(y, x.T)
    print("Y is X.T, shape", y.shape)

    # The very same kernel, in every configuration that some pattern has for it: predicted and measured.
    from einsmith.api import tracing
    from einsmith.driver.executable import Executable
    from einsmith.tuning.kernels.measure import seconds_of

    traced = tracing.trace_call(transpose, (x,), {})
    run = Executable(traced.graph, traced.bind, threads=1)
    kernel = run.plan.calls[0].kernel
    for name, seconds in run.target.measured:
        print(f"measured: {name} takes {seconds * 1e9:.2f} ns")
    found = autoconfig.choose(kernel, run.target).alternatives[:8]
    patterns = {p.name: p for p in autoconfig.PATTERNS}
    times = seconds_of(kernel, [(patterns[name], config) for name, config, _ in found], run.target, threads=1)
    for (name, config, cost), seconds in zip(found, times, strict=True):
        print(f"{cost.seconds * 1e6:8.1f} us predicted {seconds * 1e6:8.1f} us measured  {name} {config}")


if __name__ == "__main__":
    main()
