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
from dataclasses import replace
from math import prod

from einsmith.base import dtypes as dt
from einsmith.gpu.cards import GpuTarget
from einsmith.gpu.tiles.access import SECTOR
from einsmith.gpu.tiles.chain_search import find_chain
from einsmith.gpu.tiles.chains import Chain, SweepPhase
from einsmith.gpu.tiles.contraction import fit_dot, narrow_operands
from einsmith.gpu.tiles.lane_facts import BodyFacts, ProductFacts, body_facts, product_facts, products_of
from einsmith.gpu.tiles.lower import patterns
from einsmith.gpu.tiles.pieces import TileConfig, Tiling, blocks, least_power, member_tiling
from einsmith.gpu.tiles.reduction import fit
from einsmith.gpu.tiles.rows import rows_in_block
from einsmith.gpu.tiles.scatter import scatter_to_reductions
from einsmith.gpu.tiles.segments import COMPARED, ORDERED, SortedScatter, sorted_scatter
from einsmith.gpu.tiles.sweeps import MOST_ROWS
from einsmith.gpu.tiles.times import MOST_REGISTERS, WARP, TileProgram, Times, launch_times
from einsmith.ir.nodes import Piece, Reduce
from einsmith.schedule.contraction_problem import Problem
from einsmith.schedule.footprint import bytes_by_buffer
from einsmith.schedule.kernel import Kernel, Member, Rows

SCHEDULERS = 4
"""Instructions that a multiprocessor begins in a cycle, each for a warp."""
ISSUED = 0.65
"""Part of these cycles in which an instruction can begin: chains of dependent ones wait 4 to 6 cycles, and a few warps
do not fill them (a convolution of 64 channels, docs/gpu.md: 290 instructions of 4 warps took 850 cycles)."""
TURN, ADDRESS, COPY, GUARD, DIVISION = 45, 2, 2.5, 14, 11
"""Instructions of a warp: of a turn of a loop; of the address of an access; of a copy of it to shared memory; of the
conditions of an access; of a quotient and remainder by a number that is not a power of two."""
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
COMPARISON = 12
"""Instructions that count a term's comparison with another one (`segments`): three conditions and sums."""
SPILLED = 12
"""Instructions of a turn for each register that a thread lacks."""


def price(kernel: Kernel, kind: str, config: TileConfig, target: GpuTarget) -> list[Times]:
    """Return the predicted seconds of each launch of a kernel that a pattern (`lower.patterns`) lowers."""
    tiling = config.tiling(target.precision)
    if isinstance(kernel, Rows):
        return {"rows": _rows, "members": _members, "sweeps": _sweeps, "joined": _joined}[kind](kernel, config, target)
    if kind == "scatter" and (scatter := sorted_scatter(kernel)) is not None:
        return _sorted(kernel, scatter, config, target)
    if kind == "scatter":
        return [t for part in scatter_to_reductions(kernel) for t in _pieces(part, "reduction", tiling, config, target)]
    if kind == "contraction":
        k, products, others = products_of(kernel)
        out = [t for p in products for t in _contraction(k, p, len(k.root.parts), tiling, config, target)]
        return out + [t for x in others for t in _piece(k, "reduction", x, tiling, config, target)]
    return _pieces(kernel, kind, tiling, config, target)


def programs_of(kernel: Kernel, config: TileConfig, target: GpuTarget) -> list[TileProgram]:
    """Return the program of each product of a contraction."""
    tiling = config.tiling(target.precision)
    k, products, _ = products_of(kernel)
    return [dot_program(product_facts(k, p), fit_dot(tiling, p), config, p, target)[0] for p in products]


def least_seconds(kernel: Kernel, kind: str, target: GpuTarget) -> float:
    """Return a lower bound of the seconds of a kernel in any configuration and under any order of its buffers'
    dimensions: its products at the precision's rate, or its bytes."""
    if isinstance(kernel, Rows):
        return target.launch_gap
    if 0 in kernel.shape:
        return 0.0
    footprint = _bytes(kernel)
    products = 0.0
    if kind == "contraction":
        for p in products_of(kernel)[1]:
            precision = "f64" if p.dtype is dt.f64 else "bf16" if narrow_operands(p) else target.precision
            products += 2 * prod(p.sizes) / target.rate(precision)
    return max(products, _memory(footprint, 0.0, 0.0, target)) + target.launch_gap


def _bytes(kernel: Kernel) -> int:
    return sum(bytes_by_buffer(kernel))


def _memory(footprint: float, fetched: float, level1: float, target: GpuTarget) -> float:
    """Return the seconds of a launch's bytes.

    footprint: bytes that it touches; fetched: bytes that the shared cache delivers to multiprocessors; level1: bytes
    that their own caches deliver."""
    kept = min(1.0, target.kept * target.last_level / max(1.0, footprint))
    far = footprint * (kept / target.l3_bandwidth + (1 - kept) / target.memory_bandwidth)
    return max(far, fetched / (COPIED * target.cycles), level1 / target.level1_bandwidth)


def _sorted(kernel: Kernel, s: SortedScatter, config: TileConfig, target: GpuTarget) -> list[Times]:
    """Return the seconds of the launches of a scatter whose terms are sorted (`segments.lower_sorted`)."""
    terms, results = s.count_terms(), prod(kernel.shape)
    rows = prod(kernel.root.shape[d] for d in s.rows)
    small = TileProgram(config.warps, 32, 0, 1.0, 0.0, TURN, 0.0, LOADED, STARTED / 2)
    keys, zeros = (
        launch_times(small, blocks(n, 128), _memory(4 * n, 4 * n, 0.0, target), target) for n in (terms, rows)
    )
    issue = COMPARISON * ORDERED * COMPARED / WARP / SCHEDULERS / ISSUED
    order = TileProgram(config.warps, 64, 0, blocks(terms, COMPARED), 0.0, issue, 0.0, PIPELINED, STARTED)
    width = results // max(1, rows)
    lanes = min(max(config.m, 32), least_power(width))
    at_once = max(1, min(config.m // lanes, least_power(rows)))
    turns = max(1.0, terms / max(1, min(rows, terms)))
    each = (TURN + (ADDRESS + COPY + 4) * at_once * lanes / WARP) / SCHEDULERS / ISSUED
    sums = TileProgram(config.warps, 48, 0, turns * min(1.0, terms / max(1, rows)), 0.0, each, 0.0, LOADED, STARTED)
    moved = _bytes(kernel)
    return [
        keys,
        zeros,
        launch_times(order, blocks(terms, ORDERED), 0.0, target),
        launch_times(sums, blocks(rows, at_once) * blocks(width, lanes), _memory(moved, moved, 0.0, target), target),
    ]


# ------------------------------------------------------------------------------------------------------ contractions


def _contraction(
    kernel: Kernel, p: Problem, share: int, tiling: Tiling, config: TileConfig, target: GpuTarget
) -> list[Times]:
    """Return the times of one of `share` pieces of a kernel."""
    t = fit_dot(tiling, p)
    batch, m, n, k = p.sizes
    if not batch * m * n:
        return []
    facts = product_facts(kernel, p)
    program, fetched = dot_program(facts, t, config, p, target)
    tiles = batch * blocks(m, t.m) * blocks(n, t.n)
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
    facts: ProductFacts, t: Tiling, config: TileConfig, p: Problem, target: GpuTarget
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


def _pieces(kernel: Kernel, kind: str, tiling: Tiling, config: TileConfig, target: GpuTarget) -> list[Times]:
    pieces = (p for p in kernel.root.parts if isinstance(p, Piece))
    return [t for p in pieces for t in _piece(kernel, kind, p, tiling, config, target)]


def _piece(
    kernel: Kernel, kind: str, piece: Piece, tiling: Tiling, config: TileConfig, target: GpuTarget
) -> list[Times]:
    if not prod(piece.extents):
        return []
    if not isinstance(piece.body, Reduce):
        return [_elementwise(kernel, piece, tiling, config, target)]
    if kind == "stencil":
        return [_elementwise(kernel, piece, tiling, config, target, prod(piece.body.extents))]
    return _reduction(kernel, piece, tiling, config, target)


def _elementwise(
    kernel: Kernel, piece: Piece, tiling: Tiling, config: TileConfig, target: GpuTarget, terms: int = 1
) -> Times:
    """Return the times of a launch whose lanes are results, each with all of its terms."""
    facts = body_facts(kernel, piece)
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
    facts = body_facts(kernel, piece)
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


def _combined_turn(facts: BodyFacts, m: int, k: int, warps: int, states: int) -> tuple[float, float, float]:
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


def _members(rows: Rows, config: TileConfig, target: GpuTarget) -> list[Times]:
    """Return the times of the launches of a row fusion whose members have functions of their own."""
    return [t for m in rows.members for t in _member(m, config, target)]


def _member(m: Member, config: TileConfig, target: GpuTarget) -> list[Times]:
    kind = patterns(m.kernel)[0]
    t = member_tiling(config.tiling(target.precision), kind)
    return price(m.kernel, kind, replace(config, m=t.m, n=t.n, k=t.k), target)


def _joined(rows: Rows, config: TileConfig, target: GpuTarget) -> list[Times]:
    """Return the times of a launch of independent members, all at once where there is a multiprocessor for each."""
    times = [t for m in rows.members for t in price(m.kernel, "pointwise", config, target)]
    points = [prod(p.extents) for m in rows.members for p in m.kernel.root.parts if isinstance(p, Piece)]
    combine = max if sum(blocks(n, min(config.m, least_power(n))) for n in points if n) <= target.cores else sum
    passed = (len(times) - 1) * TURN * config.warps / SCHEDULERS / ISSUED / target.clock
    turns, ends = (combine([x[n] for x in times] or [0.0]) for n in (0, 1))
    return [Times(turns, ends + passed, sum(x.memory for x in times), target.launch_gap)]


def _sweeps(rows: Rows, config: TileConfig, target: GpuTarget) -> list[Times]:
    """Return the times of the launches of a chain of reductions."""
    chain = find_chain(rows)
    assert chain is not None
    out: list[Times] = []
    for step in chain.steps:
        if isinstance(step, SweepPhase):
            out.append(_sweep(chain, step, config, target))
        else:
            out += _member(chain.members[step], config, target)
    return out


def _sweep(chain: Chain, phase: SweepPhase, config: TileConfig, target: GpuTarget) -> Times:
    """Return the predicted times of a launch that recomputes tile tensors and reduces them. Each of its programs holds
    a block of one side and loops over the blocks of the other side, once per sweep."""
    held, swept = chain.sides[phase.held], chain.sides[1 - phase.held]
    rows, columns, batch = chain.count(held), chain.count(swept), chain.count(chain.batch)
    m = max(16, min(MOST_ROWS, config.m, least_power(rows)))
    n = max(16, min(MOST_ROWS, config.n, least_power(columns)))
    programs, turns = batch * blocks(rows, m), blocks(columns, n) * len(phase.sweeps)
    members = {*chain.makers.values(), *(k for sinks in phase.sweeps for k in sinks)}
    flops = ops = 0.0
    footprint = 0
    for kernel in (chain.members[k].kernel for k in members):
        for piece in (p for p in kernel.root.parts if isinstance(p, Piece)):
            if isinstance(piece.body, Reduce):
                flops += 2.0 * prod(piece.domain)
            else:
                ops += body_facts(kernel, piece).ops * prod(piece.extents)
        footprint += min(bytes_by_buffer(kernel), default=0)
    threads = config.warps * WARP
    turn = max(1, programs * turns)
    lanes = m * n / threads
    factors = flops / turn / (2 * m * n) * (m + n) / threads  # elements of factors that a thread loads in a turn
    split = SPLIT + STAGED if target.precision.endswith("x3") else 0.0
    issue = TURN + ops / turn / threads + 12 * lanes + factors * (ADDRESS + COPY / 4 + split)
    program = TileProgram(
        config.warps,
        240,
        96 << 10,
        turns,
        flops / turn * target.cycles / target.rate(target.precision),
        issue * config.warps / SCHEDULERS / ISSUED,
        4 * factors * threads / COPIED,
        THROUGH_REGISTERS,
        STARTED + LOADED,
        True,
    )
    return launch_times(program, programs, _memory(footprint, footprint, 0.0, target), target)


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
    """Group consecutive members that are lowered together; a member that sums over the rows is a group of its own."""
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
            facts = body_facts(m.kernel, piece)
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
