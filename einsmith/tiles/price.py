"""Predict the seconds of a kernel's launches on a card from its shapes, layouts and tile sizes.

The form is that of tritonBLAS (2025, arXiv 2512.04226). Programs run in waves, as many at once as registers and shared
memory allow. A turn of a program's loop takes the longest of its dots, its instructions and its copies; its loads have
a latency, which other programs of the multiprocessor hide. A launch takes as long as its waves, or as the bytes from
memory and from the caches, whichever is longer.

Instructions are counted per access: a lane that moves 16 bytes at once needs one address where one that moves single
elements needs four or eight. The counts are fitted to the machine code of Triton 3.6 for Hopper (instructions of a warp
in a turn of 3x3 convolutions of 128 channels and of products, tiles of 128 by 128 by 32, 8 warps: within 15 % of 18
kernels), the cycles to docs/gpu.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from einsmith.base import dtypes as dt
from einsmith.cost.gpu import GpuTarget
from einsmith.cost.roofline import Cost, in_turn
from einsmith.ir.analysis.predicates import guarded_reads
from einsmith.ir.nodes import Apply, Expr, Piece, Read, Reduce, axes_of, cached_postorder, reads
from einsmith.kernels.contraction.problem import Operand, Problem, problems
from einsmith.schedule.footprint import bytes_by_buffer
from einsmith.schedule.kernel import Kernel, Member, Rows
from einsmith.tiles.access import SECTOR, LaneAccess, LaneRun, read_access, store_access
from einsmith.tiles.contraction import fit_dot, in_memory_order, narrow_operands
from einsmith.tiles.lower import patterns
from einsmith.tiles.pieces import TileConfig, Tiling, blocks, least_power, memory_order
from einsmith.tiles.reduction import fit
from einsmith.tiles.rows import rows_in_block
from einsmith.tiles.scatter import scatter_to_reductions

WARP = 32
SCHEDULERS = 4
"""Instructions that a multiprocessor begins in a cycle, each for a warp."""
ISSUED = 0.65
"""Part of these cycles in which an instruction can begin: chains of dependent ones wait 4 to 6 cycles, and a few warps
do not fill them (a convolution of 64 channels, docs/gpu.md: 290 instructions of 4 warps took 850 cycles)."""
TURN, ADDRESS, COPY, GUARD, DIVISION = 45, 2, 2.5, 14, 11
"""Instructions of a warp: of a turn of a loop; of the address of an access; of a copy of it to shared memory; of the
conditions of an access; of a quotient and remainder by a number that is no power of two."""
SPLIT, ROUNDED, STAGED = 11.5, 1.2, 3.0
"""Instructions for an element of an operand that is split for three products, rounded to 16 bits, or computed before it
goes to shared memory."""
TRANSPOSED = 0.4
"""Cycles for an element of float32 that lies along another axis than K: tf32 wants K inside, and elements are copied
one by one, with conflicts of banks (docs/gpu.md: 0.6 for a product NN of 4096, 0.39 for the gradient of a convolution
by its filter, 0.25 for that by its image)."""
COPIED = 42
"""Bytes a cycle that a multiprocessor gets from the shared cache (products NT of 4096 in tf32, tiles of 128 by 128: 40,
docs/gpu.md)."""
STARTED, LOADED, PIPELINED, THROUGH_REGISTERS = 1500, 900, 150, 200
"""Cycles: until a program's first turn begins; of a load that is not begun turns ahead; of a turn's barriers where
loads are begun ahead; of these barriers where operands go through registers."""
MOST_REGISTERS = 255
"""Registers of a thread."""
SPILLED = 12
"""Instructions of a turn for each register that a thread lacks."""
_WEIGHTS = {
    "div": 10, "sqrt": 10, "rsqrt": 10, "exp": 8, "log": 14, "tanh": 24, "sigmoid": 16, "erf": 24, "sin": 24,
    "cos": 24, "pow": 70, "random_bits": 60, "cast": 1, "where": 1,
}  # fmt: skip
"""Instructions of a function; 1 of those that are missing."""


class Times(NamedTuple):
    """Predicted seconds of a launch.

    turns: of the turns of its programs' loops, wave after wave
    ends: of their first loads, epilogues and stores
    memory: of the bytes from memory and from the shared cache, which are moved at the same time
    launch: between it and the launch before it
    tensor, issue, copies: what the turns would take at least for their dots, their instructions, and their copies to
        shared memory, each alone
    """

    turns: float
    ends: float
    memory: float
    launch: float
    tensor: float = 0.0
    issue: float = 0.0
    copies: float = 0.0

    @property
    def cost(self) -> Cost:
        """The launch's cost."""
        return Cost(self.turns + self.ends, self.memory, 0.0, self.launch)


class TileProgram(NamedTuple):
    """A program of a launch.

    warps, registers, shared: what it takes of a multiprocessor: warps, registers of a thread, bytes of shared memory
    turns: turns of its loop
    tensor, issue, copies: cycles of a turn for its dots, for its instructions, and for its copies to shared memory,
        each alone on a multiprocessor
    latency: cycles of a turn that other programs hide
    ends: cycles before and after the loop
    is_in_order: whether a turn's dots wait for its instructions
    """

    warps: int
    registers: int
    shared: int
    turns: float
    tensor: float
    issue: float
    copies: float
    latency: float
    ends: float
    is_in_order: bool = False

    @property
    def busy(self) -> float:
        """Cycles in which a turn keeps a multiprocessor busy."""
        if self.is_in_order:
            return max(self.tensor + self.issue, self.copies)
        return max(self.tensor, self.issue, self.copies)

    def resident(self, target: GpuTarget) -> int:
        """Return how many such programs a multiprocessor runs at once; 0 where it cannot run one."""
        threads = self.warps * WARP
        of_registers = target.registers // (min(MOST_REGISTERS, self.registers) * threads)
        return min(of_registers, target.resident // threads, target.shared // max(1, self.shared), 32)


def launch_times(p: TileProgram, programs: int, memory: float, target: GpuTarget) -> Times:
    """Return the predicted seconds of a launch of programs. memory: seconds of the bytes that they move."""
    resident = max(1, p.resident(target))
    waves, rest = divmod(programs, target.cores * resident)
    turns = ends = 0.0
    for count, at_once in ((waves, resident), (1 if rest else 0, blocks(rest, target.cores))):
        turns += count * p.turns * max(at_once * p.busy, p.busy + p.latency)
        ends += count * (p.ends if at_once < 2 else p.ends * (1 + 0.25 * (at_once - 1)))
    all_turns = programs * p.turns / target.cycles
    return Times(
        turns / target.clock,
        ends / target.clock,
        memory,
        target.launch_gap,
        p.tensor * all_turns,
        p.issue * all_turns,
        p.copies * all_turns,
    )


def price(kernel: Kernel | Rows, kind: str, config: TileConfig, target: GpuTarget) -> list[Times]:
    """Return the predicted seconds of each launch of a kernel that a pattern (`lower.patterns`) lowers."""
    tiling = config.tiling(target.precision)
    if isinstance(kernel, Rows):
        return _rows(kernel, config, target)
    if kind == "scatter":
        return [t for part in scatter_to_reductions(kernel) for t in _pieces(part, "reduction", tiling, config, target)]
    if kind == "contraction":
        out: list[Times] = []
        for p in products_of(kernel):
            out += _contraction(kernel, p, tiling, config, target)
            out += [_elementwise(kernel, x, tiling, config, target) for x in p.constant_pieces]
        return out
    return _pieces(kernel, kind, tiling, config, target)


def programs_of(kernel: Kernel, config: TileConfig, target: GpuTarget) -> list[TileProgram]:
    """Return the program of each product of a contraction."""
    tiling = config.tiling(target.precision)
    return [
        dot_program(_product_facts(kernel, p), fit_dot(tiling, p), config, p, target)[0] for p in products_of(kernel)
    ]


def least_seconds(kernel: Kernel | Rows, kind: str, target: GpuTarget) -> float:
    """Return a lower bound of the seconds of a kernel in any configuration and under any order of its buffers'
    dimensions: its products at the precision's rate, or its bytes."""
    if isinstance(kernel, Rows):
        return target.launch_gap
    if 0 in kernel.shape:
        return 0.0
    footprint = _bytes(kernel)
    products = 0.0
    if kind == "contraction":
        for p in problems(kernel.root) or ():
            precision = "f64" if p.dtype is dt.f64 else "bf16" if narrow_operands(p) else target.precision
            products += 2 * prod(p.sizes) / target.rate(precision)
    return max(products, _memory(footprint, 0.0, 0.0, target)) + target.launch_gap


def cost_of_launches(times: Sequence[Times]) -> Cost:
    """Return the cost of launches that run one after the other."""
    return in_turn([t.cost for t in times] or [Cost(0.0, 0.0)])


# ---------------------------------------------------------------------------------------------------------- analyses


@lru_cache(maxsize=4096)
def products_of(kernel: Kernel) -> tuple[Problem, ...]:
    """Return the products of a contraction's kernel, with axes in the order of memory."""
    return tuple(in_memory_order(kernel, p) for p in problems(kernel.root) or ())


class _TileRead(NamedTuple):
    """A read of an operand that varies along both dimensions of its tile. is_along_k: whether its lanes run along K
    rather than the other dimension, whichever has the wider accesses."""

    itemsize: int
    is_along_k: bool
    run: LaneRun


class _OperandFacts(NamedTuple):
    """What an operand's tile costs, whatever its size. ops: instructions for an element beside its reads; is_plain:
    whether it is a read alone."""

    tiles: tuple[_TileRead, ...]
    ops: float
    is_guarded: bool
    is_plain: bool


class _ProductFacts(NamedTuple):
    """What a product costs, whatever its tiles. divisions: quotients by numbers that are no powers of two to find K's
    axes; is_narrow: whether operands of 16 bits are multiplied as they are."""

    operands: tuple[_OperandFacts, _OperandFacts]
    divisions: float
    is_narrow: bool
    epilogue: float
    stores: tuple[tuple[int, LaneRun], ...]


@lru_cache(maxsize=4096)
def _product_facts(kernel: Kernel, p: Problem) -> _ProductFacts:
    extents = p.extents
    sides = (p.left, p.right)
    narrow = narrow_operands(p)
    expressions = narrow or (p.operands[0].expr, p.operands[1].expr)
    facts = tuple(
        _operand_facts(kernel, p, o, e, side) for o, e, side in zip(p.operands, expressions, sides, strict=True)
    )
    lanes = [a for a in p.right if extents[a] > 1] or list(p.left)
    stores = tuple((a.itemsize, a.along(lanes, extents)) for a in _stores(kernel, p.piece))
    return _ProductFacts(
        (facts[0], facts[1]), _divisions(p.k, extents), narrow is not None, _epilogue_ops(kernel), stores
    )


def _operand_facts(kernel: Kernel, p: Problem, o: Operand, e: Expr, side: Sequence[int]) -> _OperandFacts:
    tiles = []
    of_side, of_k = frozenset(side), frozenset(p.k)
    found = dict.fromkeys(reads(e))
    guards = [*o.guards, *(g for _, gs in guarded_reads(e, lambda r: True) for g in gs)] if found else []
    for r in found:
        a = read_access(kernel.stages[0], kernel.buffers, r, guards)
        if a is not None and a.axes & of_k and (a.axes & of_side or not side):
            by_k, by_side = a.along(p.k, p.extents), a.along(side, p.extents)
            is_along_k = (-by_k.vector, by_k.fetched) <= (-by_side.vector, by_side.fetched)
            tiles.append(_TileRead(a.itemsize, is_along_k, by_k if is_along_k else by_side))
    conditions = axes_of(*guards)
    is_guarded = bool(conditions & of_k) and bool(conditions & of_side)
    return _OperandFacts(tuple(tiles), _ops((e,)), is_guarded, isinstance(e, Read) and len(tiles) == 1)


def _divisions(axes: Sequence[int], extents: Sequence[int]) -> float:
    """Return the quotients by which a number becomes the positions along axes; shifts count as a tenth of one."""
    inner = [extents[a] for a in axes if extents[a] > 1][1:]
    return sum(1.0 if n & (n - 1) else 0.1 for n in inner)


@lru_cache(maxsize=8192)
def _ops(bodies: tuple[Expr, ...]) -> float:
    """Return the instructions for an element of expressions, beside those of reads and their indices."""
    inside: set[Expr] = set()
    for e in cached_postorder(bodies):
        if isinstance(e, Read):
            inside.update(cached_postorder(tuple(e.index)))
    return float(
        sum(_WEIGHTS.get(e.fn, 1) for e in cached_postorder(bodies) if isinstance(e, Apply) and e not in inside)
    )


def _epilogue_ops(kernel: Kernel) -> float:
    return 3.0 + sum(_ops(tuple(s.template.parts[0].bodies)) for s in kernel.stages[1:])


def _stores(kernel: Kernel, piece: Piece) -> list[LaneAccess]:
    """Return the accesses of a piece's stores, and of the epilogue's reads, whose axes are the output's."""
    out = [store_access(n, kernel.buffers[n], piece) for s in kernel.stages for n in s.outputs if n is not None]
    for s in kernel.stages[1:]:
        for body in s.template.parts[0].bodies:
            accesses = (read_access(s, kernel.buffers, r) for r in reads(body))
            out += [a for a in accesses if a is not None]
    return out


def _bytes(kernel: Kernel) -> int:
    return sum(bytes_by_buffer(kernel))


def _memory(footprint: float, fetched: float, level1: float, target: GpuTarget) -> float:
    """Return the seconds of a launch's bytes.

    footprint: bytes that it touches; fetched: bytes that the shared cache delivers to multiprocessors; level1: bytes
    that their own caches deliver."""
    kept = min(1.0, target.kept * target.last_level / max(1.0, footprint))
    far = footprint * (kept / target.l3_bandwidth + (1 - kept) / target.memory_bandwidth)
    return max(far, fetched / (COPIED * target.cycles), level1 / target.level1_bandwidth)


# ------------------------------------------------------------------------------------------------------ contractions


def _contraction(kernel: Kernel, p: Problem, tiling: Tiling, config: TileConfig, target: GpuTarget) -> list[Times]:
    t = fit_dot(tiling, p)
    batch, m, n, k = p.sizes
    if not batch * m * n:
        return []
    facts = _product_facts(kernel, p)
    program, fetched = dot_program(facts, t, config, p, target)
    tiles = batch * blocks(m, t.m) * blocks(n, t.n)
    share = len(products_of(kernel))
    results = batch * m * n
    footprint = _bytes(kernel) / share
    if t.split == 1:
        fetched = fetched * tiles * program.turns + results * sum(run.fetched for _, run in facts.stores)
        return [launch_times(program, tiles, _memory(footprint, fetched, 0.0, target), target)]
    partial = 4 * results * t.split
    fetched = fetched * tiles * t.split * program.turns + partial
    first = launch_times(program, tiles * t.split, _memory(footprint + partial, fetched, 0.0, target), target)
    size = min(t.m * t.n, least_power(results))
    lanes = size / (config.warps * WARP)
    issue = (t.split * (ADDRESS + 2) + facts.epilogue + 4 * len(facts.stores)) * lanes * config.warps / SCHEDULERS
    second = TileProgram(config.warps, 64, 0, 1.0, 0.0, issue / ISSUED, 0.0, LOADED, STARTED / 2)
    stored = results * sum(run.fetched for _, run in facts.stores)
    moved = _memory(partial + stored, partial + stored, 0.0, target)
    return [first, launch_times(second, blocks(results, size), moved, target)]


def dot_program(
    facts: _ProductFacts, t: Tiling, config: TileConfig, p: Problem, target: GpuTarget
) -> tuple[TileProgram, float]:
    """Return the program of a contraction, and the bytes that a turn fetches from the shared cache."""
    threads, k = config.warps * WARP, p.sizes[3]
    if p.dtype is dt.f64:
        precision = "f64"
    else:
        precision = "bf16" if facts.is_narrow else t.precision
    split_in_three = precision.endswith("x3")
    instructions, copied, transposed, fetched = float(TURN), 0.0, 0.0, 0.0
    shared, staging, registers, is_in_order = 0.0, 0.0, 40.0, False
    element = 2 if precision == "bf16" else 8 if p.dtype is dt.f64 else 4
    for o, rows in zip(facts.operands, (t.m, t.n), strict=True):
        elements = rows * t.k / threads
        rounds = precision == "bf16" and not facts.is_narrow
        through = not o.is_plain and not facts.is_narrow or split_in_three or rounds
        for x in o.tiles:
            vector, item = x.run.vector, x.itemsize
            accesses = max(1.0, elements / vector)
            if x.is_along_k:
                places = max(1.0, t.k / (WARP * vector))
            else:
                places = accesses
            is_turned = not x.is_along_k and precision == "tf32" and not through
            copies = elements if is_turned else accesses
            instructions += accesses * (ADDRESS + (GUARD if o.is_guarded else 0)) + copies * COPY
            instructions += places * facts.divisions * DIVISION
            shared += rows * t.k * item
            copied += rows * t.k * item
            fetched += rows * t.k * x.run.fetched
            if is_turned:
                transposed += rows * t.k * TRANSPOSED
            if vector * item < 4:  # what is smaller than 4 bytes goes through registers
                is_in_order, instructions = True, instructions + elements * STAGED
            if vector == 1:
                registers += accesses
        if not o.is_plain:
            instructions += elements * o.ops
        if through:
            is_in_order = True
            instructions += elements * (SPLIT if split_in_three else ROUNDED)
            if not o.is_plain:
                instructions += elements * STAGED
            staging += rows * t.k * element * (2 if split_in_three else 1)
            registers += elements * (3 if split_in_three else 0.7)
    registers += t.m * t.n / threads * (2 if p.dtype is dt.f64 else 1)
    if registers > MOST_REGISTERS:
        instructions += SPILLED * (registers - MOST_REGISTERS)
    in_use = shared * config.stages if config.stages > 1 else 0.0 if staging else shared
    latency = (THROUGH_REGISTERS if is_in_order else PIPELINED) + (LOADED if config.stages < 2 else 0)
    flops = 2 * t.m * t.n * t.k
    slow = 2.0 if t.m < 64 or config.warps < 4 else 1.0  # no instruction of a group of four warps
    epilogue = t.m * t.n / threads * (facts.epilogue + 4 * len(facts.stores)) * config.warps / SCHEDULERS / ISSUED
    program = TileProgram(
        config.warps,
        int(registers),
        int(in_use + staging),
        blocks(blocks(k, t.k), t.split),
        slow * flops * target.cycles / target.rate(precision),
        instructions * config.warps / SCHEDULERS / ISSUED,
        max(copied / COPIED, transposed),
        latency,
        STARTED + LOADED + epilogue,
        is_in_order,
    )
    return program, fetched


# ------------------------------------------------------------------------------------- points, stencils and reductions


class _BodyFacts(NamedTuple):
    """What a piece's body costs at a point, by lanes along its results and along its terms.

    reads: (bytes of an element, accesses along results, accesses along terms, whether the place depends on results,
        whether on terms)
    """

    reads: tuple[tuple[int, LaneRun, LaneRun, bool, bool], ...]
    ops: float
    divisions: float
    term_divisions: float
    epilogue: float
    stores: tuple[tuple[int, LaneRun], ...]


@lru_cache(maxsize=4096)
def _facts_of(kernel: Kernel, piece: Piece) -> _BodyFacts:
    domain, rank = piece.domain, len(piece.extents)
    order = memory_order(kernel, piece)
    terms = tuple(range(rank, len(domain)))
    found = []
    for r in dict.fromkeys(r for body in piece.bodies for r in reads(body)):
        a = read_access(kernel.stages[0], kernel.buffers, r)
        if a is not None:
            on_results, on_terms = (not a.axes.isdisjoint(x) for x in (order, terms))
            found.append((a.itemsize, a.along(order, domain), a.along(terms, domain), on_results, on_terms))
    stores = tuple((a.itemsize, a.along(order, domain)) for a in _stores(kernel, piece))
    return _BodyFacts(
        tuple(found),
        _ops(tuple(piece.bodies)),
        _divisions(order, domain),
        _divisions(terms, domain),
        _epilogue_ops(kernel),
        stores,
    )


def _pieces(kernel: Kernel, kind: str, tiling: Tiling, config: TileConfig, target: GpuTarget) -> list[Times]:
    out: list[Times] = []
    for piece in kernel.root.parts:
        assert isinstance(piece, Piece)
        if not prod(piece.extents):
            continue
        if not isinstance(piece.body, Reduce):
            out.append(_elementwise(kernel, piece, tiling, config, target))
        elif kind == "stencil":
            out.append(_elementwise(kernel, piece, tiling, config, target, prod(piece.body.extents)))
        else:
            out += _reduction(kernel, piece, tiling, config, target)
    return out


def _elementwise(
    kernel: Kernel, piece: Piece, tiling: Tiling, config: TileConfig, target: GpuTarget, terms: int = 1
) -> Times:
    """Return the times of a launch whose lanes are results, each with all of its terms."""
    facts = _facts_of(kernel, piece)
    count, threads = prod(piece.extents), config.warps * WARP
    size = min(tiling.m, least_power(count))
    lanes = max(1.0, size / threads)
    widest = max((run.vector for run in (*(x[1] for x in facts.reads), *(x[1] for x in facts.stores))), default=1)
    instructions = lanes / min(widest, lanes) * facts.divisions * DIVISION
    level1 = fetched = 0.0
    for _, run, *_ in facts.reads:
        instructions += terms * lanes / min(run.vector, lanes) * (ADDRESS + COPY)
        level1 += terms * count * run.fetched
        fetched += count * run.fetched
    for _, run in facts.stores:
        instructions += lanes / min(run.vector, lanes) * (ADDRESS + COPY)
        fetched += count * run.fetched
    instructions += lanes * (terms * facts.ops + facts.epilogue)
    registers = 24 + lanes * (2 + len(facts.reads) * min(terms, 4))
    if registers > MOST_REGISTERS:
        instructions += SPILLED * (registers - MOST_REGISTERS)
    footprint = _bytes(kernel) / len(kernel.root.parts)
    program = TileProgram(
        config.warps,
        int(registers),
        0,
        1.0,
        0.0,
        instructions * config.warps / SCHEDULERS / ISSUED,
        0.0,
        LOADED,
        STARTED / 2,
    )
    return launch_times(program, blocks(count, size), _memory(footprint, fetched, level1, target), target)


def _reduction(kernel: Kernel, piece: Piece, tiling: Tiling, config: TileConfig, target: GpuTarget) -> list[Times]:
    assert isinstance(piece.body, Reduce)
    facts = _facts_of(kernel, piece)
    results, terms = prod(piece.extents), prod(piece.body.extents)
    if not terms:
        return [_elementwise(kernel, piece, tiling, config, target)]
    t = fit(tiling, results, terms)
    threads = config.warps * WARP
    issue, registers, fetched = _combined_turn(facts, t.m, t.k, config.warps, len(piece.bodies))
    turns = blocks(blocks(terms, t.k), t.split)
    combined = 12 * max(1.0, t.m * t.k / threads) + 200 + facts.epilogue * max(1.0, t.m / threads)
    ends = STARTED / 2 + combined * config.warps / SCHEDULERS / ISSUED
    program = TileProgram(config.warps, int(registers), 4096, turns, 0.0, issue, 0.0, LOADED, ends)
    programs = blocks(results, t.m)
    footprint = _bytes(kernel) / len(kernel.root.parts)
    stored = results * sum(run.fetched for _, run in facts.stores)
    moved = fetched * programs * t.split * turns
    if t.split == 1:
        return [launch_times(program, programs, _memory(footprint, moved + stored, 0.0, target), target)]
    partial = 4.0 * results * t.split * len(piece.bodies)
    first = launch_times(program, programs * t.split, _memory(footprint, moved + partial, 0.0, target), target)
    lanes = max(1.0, t.m * least_power(t.split) / threads)
    second = TileProgram(
        config.warps, 64, 4096, 1.0, 0.0, lanes * 12 * config.warps / SCHEDULERS / ISSUED, 0.0, LOADED, STARTED / 2
    )
    return [first, launch_times(second, programs, _memory(partial + stored, partial + stored, 0.0, target), target)]


def _combined_turn(facts: _BodyFacts, m: int, k: int, warps: int, states: int) -> tuple[float, float, float]:
    """Return (cycles of the instructions of a turn that combines k terms of m results, registers of a thread, bytes
    that the turn fetches)."""
    threads = warps * WARP
    lanes = max(1.0, m * k / threads)
    instructions, fetched = 10.0, 0.0
    registers = 28 + lanes * states
    for item, by_results, by_terms, on_results, on_terms in facts.reads:
        tile = (m if on_results else 1) * (k if on_terms else 1)
        if on_results and on_terms:
            along = by_terms if k > 1 and (m == 1 or by_terms.fetched <= by_results.fetched) else by_results
        else:
            along = by_terms if on_terms else by_results
        extent = k if along is by_terms else m
        elements = max(1.0, tile / threads)
        vector = max(1, min(along.vector, extent, int(elements)))
        address = ADDRESS + (facts.term_divisions + 0.2 * facts.divisions) * DIVISION / 2
        instructions += elements / vector * (address + COPY)
        # Lanes of a warp that fill less than a sector waste the rest of it.
        fetched += tile * max(along.fetched, SECTOR / extent if along.fetched >= item else 0.0)
        registers += elements
    instructions += lanes * (facts.ops + 1.5 * states)
    if registers > MOST_REGISTERS:
        instructions += SPILLED * (registers - MOST_REGISTERS)
    return instructions * warps / SCHEDULERS / ISSUED, registers, fetched


# -------------------------------------------------------------------------------------------------------- row fusions


def _rows(rows: Rows, config: TileConfig, target: GpuTarget) -> list[Times]:
    """Return the times of the launches of a row fusion."""
    out: list[Times] = []
    for group in _groups(rows):
        if group[0].reduces:
            out += price(group[0].kernel, patterns(group[0].kernel)[0], config, target)
        else:
            out.append(_row_wise(rows, group, config, target))
    return out


def row_lanes(rows: Rows, config: TileConfig) -> int:
    """Return the most lanes of a tile of the members that do not sum over the rows of a row fusion, and of the terms of
    the others."""
    most = config.m * config.k if any(m.reduces for m in rows.members) else 1
    for group in _groups(rows):
        if group[0].reduces:
            continue
        count = rows_in_block(rows.rows, group, config.m)
        for m in group:
            tiles = [_row_tile(m, p, count, config) for p in m.kernel.root.parts if isinstance(p, Piece)]
            most = max([most, *map(prod, tiles)])
    return most


def _groups(rows: Rows) -> list[list[Member]]:
    """Return the members that are lowered together, in order: those that sum over the rows alone, others in a row."""
    out: list[list[Member]] = []
    for m in rows.members:
        if out and not m.reduces and not out[-1][0].reduces:
            out[-1].append(m)
        else:
            out.append([m])
    return out


def _row_tile(m: Member, piece: Piece, count: int, config: TileConfig) -> tuple[int, int]:
    """Return the results and terms of a tile of a member's piece in a block of `count` rows."""
    results = count * prod(piece.extents) // max(1, piece.extents[m.axis])
    terms = prod(piece.body.extents) if isinstance(piece.body, Reduce) else 1
    return min(config.m, least_power(results)), min(config.k, least_power(max(1, terms)))


def _row_wise(rows: Rows, members: Sequence[Member], config: TileConfig, target: GpuTarget) -> Times:
    count = rows_in_block(rows.rows, members, config.m)
    programs = blocks(rows.rows, count)
    issue = registers = level1 = waits = 0.0
    touched: dict[int, int] = {}
    for m in members:
        for n, place in enumerate(m.places):
            if place < len(rows.buffers):
                touched[place] = max(touched.get(place, 0), bytes_by_buffer(m.kernel)[n])
        for piece in m.kernel.root.parts:
            if not isinstance(piece, Piece) or not prod(piece.extents):
                continue
            facts = _facts_of(m.kernel, piece)
            size, k = _row_tile(m, piece, count, config)
            results = count * prod(piece.extents) // max(1, piece.extents[m.axis])
            terms = prod(piece.body.extents) if isinstance(piece.body, Reduce) else 1
            cycles, own, fetched = _combined_turn(facts, size, k, config.warps, len(piece.bodies))
            turns = blocks(results, size) * blocks(terms, k)
            issue += turns * cycles
            waits += turns * LOADED / 2
            level1 += turns * fetched * programs
            registers = max(registers, own)
    program = TileProgram(config.warps, int(registers), 4096, 1.0, 0.0, issue, 0.0, waits, STARTED / 2)
    footprint = float(sum(touched.values()))
    return launch_times(program, programs, _memory(footprint, footprint, level1, target), target)
