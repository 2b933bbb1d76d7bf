"""Calibrate the machine: measure its coefficients once, in about a second, store them, and use them in every choice.

Kernels are chosen by predicted cost, so the coefficients decide what is computed in which order. They are therefore
measured once a machine and then read from the store: a choice never changes between two runs. They are rounded
coarsely. A figure whose runs disagree is measured again while there is time. A figure that stays unsteady, or that is
far from what the static facts say, is left out: the static figure stands, and the record, and `einsmith info`, say
why. A figure measured while the machine does something else (`tuning.calibration.load`) is neither stored nor used: the
next process measures again, and until one has found the machine quiet, all choose by the static figures. Processes that
choose alike find the code that others have compiled.
"""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from einsmith.base import environment, locks, messages
from einsmith.base.caches import Once
from einsmith.base.errors import BusyError, EinsmithError, StoreWarning
from einsmith.base.private import PrivateFolder
from einsmith.base.system import memory
from einsmith.codegen.cache import native
from einsmith.cost.facts import REUSED_L3_FRACTION, Target
from einsmith.kernels import autoconfig
from einsmith.kernels.pattern import Pattern
from einsmith.kernels.pattern_keys import code_of
from einsmith.tuning.calibration import store
from einsmith.tuning.calibration.load import MIN_WATCH_SECONDS, Watch
from einsmith.tuning.calibration.probes import PLAIN, WHOLE_L3, Probe, dot_probe, probes, tile_probe

_WARNED = Once("why a machine is not measured", 64)

BUDGET = 2.6
"""Most seconds of a calibration; probes that find no time keep their static figures."""
ROUNDS_SECONDS = 0.8
"""Seconds of measuring after all probes are compiled: long enough to include quiet moments."""
MEASURE_SECONDS = 0.3
"""Seconds of the budget reserved for measuring when probes take long to compile."""
ATTEMPTS = 3
"""Most calibrations made on request, until the machine is quiet in one."""
MIN_ROUNDS = 4
"""Fewest rounds in which all probes run."""
SLOW_PROBE_ROUNDS = 6
"""Rounds for each run of a slow probe (`Probe.slow`); the other probes run in every round."""
MAX_SLOWDOWN, MAX_SPEEDUP = 5.0, 20.0
"""Largest factors by which a plausible figure is slower or faster than the static one. A disturbance only ever makes a
figure slower."""
MAX_LEVEL_SPEEDUP = 1.25
"""Largest factor by which a level of the memory hierarchy plausibly measures faster than the level before it."""
MIN_MEMORY_RATIO = 1.3
"""Least ratio of the times of a byte from memory and from L3 at which times tell how much L3 has held."""
MIN_L3_SHARE = 0.25
"""Least fraction of L3 that data is taken to get: below it, the times of arrays as large as L3 and of memory differ by
less than either varies, and neighbours come and go (0.12 to 0.35 and 0.64 in eight measurements within two hours on a
machine that others share)."""
STEPS_PER_DECADE = 24
"""Number of values between 1 and 10 to which coefficients are rounded: steps of 10 %."""

PATTERN_SECONDS = 0.2
"""Most seconds of measuring for one registered pattern, once a machine."""

_lock = locks.Reentrant("measuring this machine")
_target: Target | None = None
_patterns = 0  # how many patterns had been registered when _target was found


def target(threads: int | None = None) -> Target:
    """Return this machine as a target with measured coefficients, unless EINSMITH_CALIBRATE is 0, and with at most
    `threads` cores.

    The coefficients are measured at the first call on a machine that does nothing else, read from the store later, and
    constant for the life of the process. Where nothing can be stored, and while the machine is busy, the static figures
    stand: choices that changed from run to run would change rounding, and find no code that is kept.
    """
    global _target, _patterns
    with _lock:
        if _target is None:
            _target, _patterns = _find(), 0
        if _patterns != len(autoconfig.PATTERNS):
            _target, _patterns = with_patterns(_target), len(autoconfig.PATTERNS)
        machine = _target
    return machine if threads is None or threads >= machine.cores else replace(machine, cores=threads)


def forget() -> None:
    """Make the next `target()` read the knob and the store again."""
    global _target
    with _lock:
        _target = None


class Figures(NamedTuple):
    """Results of the probes: seconds per unit of work by name, the reasons why other figures are left out, and what
    disturbed the measurement (empty if nothing did)."""

    seconds: dict[str, float]
    left_out: dict[str, str]
    disturbance: str = ""


def _find() -> Target:
    static = native.host_target()
    if not environment.CALIBRATE.get():
        return static
    try:
        known = store.load(static)
        if known is not None:
            return known
        _writable(store.path_of(static).parent)
        figures = _measure(static)
        if figures.disturbance:
            _say(f"the static figures are used, as the machine is busy: {figures.disturbance}")
            return static
        return _save(static, figures, overwrite=False)
    except (OSError, MemoryError, EinsmithError) as e:
        _warn(f"this machine cannot be measured, so kernels are chosen by static figures of the processor: {e}")
        return static


def calibrate() -> Target:
    """Measure this machine anew, at most ATTEMPTS times, and replace its record.

    Returns the machine with its coefficients. Raises BusyError where the machine was never quiet; the earlier record
    stands. Raises OSError where nothing can be stored.
    """
    static = native.host_target()
    _writable(store.path_of(static).parent)
    for _ in range(ATTEMPTS):
        figures = _measure(static)
        if not figures.disturbance:
            return _save(static, figures, overwrite=True)
    consequence = "the earlier figures stay valid" if store.load(static) is not None else "no figures are stored"
    raise BusyError(f"the machine is busy: while it was measured {figures.disturbance}; {consequence}; try again later")


def _measure(static: Target) -> Figures:
    """Run the probes; return their plausible figures, and the reasons why others are left out."""
    start = time.perf_counter()
    seconds, left_out, disturbance = measure(static, BUDGET)
    plausible_seconds, rejected = plausible(static, seconds)
    if not has_simultaneous_runs(static, plausible_seconds):
        shared_figures = [x for x in plausible_seconds if x == "launch" or x.endswith(" all")]
        rejected |= dict.fromkeys(shared_figures, "the threads never ran at the same time")
        plausible_seconds = {name: x for name, x in plausible_seconds.items() if name not in shared_figures}
    _say(f"calibrated in {time.perf_counter() - start:.2f} s")
    return Figures(plausible_seconds, left_out | rejected, disturbance)


def _save(static: Target, figures: Figures, overwrite: bool) -> Target:
    return store.save(assemble(static, figures.seconds), sorted(figures.seconds), overwrite, figures.left_out)


def _say(what: str) -> None:
    if environment.debug() >= 1:
        messages.say(f"einsmith: {what}")


def _warn(what: str) -> None:
    """Warn once that kernels are chosen without measurements."""
    if _WARNED(what):
        warnings.warn(what, StoreWarning, stacklevel=4)


def with_patterns(target: Target) -> Target:
    """Return the machine with the coefficients that registered patterns measure for themselves (`Pattern.probes`),
    from the store where they are recorded for the pattern's source. Where nothing can be measured or stored, and while
    the machine is busy, the patterns' defaults stand."""
    if not environment.CALIBRATE.get():
        return target
    measured: dict[str, float] = {}
    for pattern in autoconfig.PATTERNS:
        code = code_of(pattern)
        if type(pattern).probes is Pattern.probes or code is None:
            continue
        key = hashlib.blake2b(pattern.name.encode() + code, digest_size=8).hexdigest()
        try:
            known = store.load_pattern(target, key)
            if known is None:
                _writable(store.path_of(target).parent)
                start = time.perf_counter()
                compiled = _compile_probes(pattern.probes(target), start + BUDGET)
                watch, begun = Watch(), time.perf_counter()
                _run(compiled, begun + PATTERN_SECONDS, start + BUDGET)
                if disturbance := _disturbance(watch, begun):
                    _say(f"the pattern {pattern.name!r} uses its defaults, as the machine is busy: {disturbance}")
                    continue
                known = {p.name: round_to_step(p.seconds) for p in compiled}
                known = store.save_pattern(target, key, known)
            measured |= known
        except (OSError, MemoryError, EinsmithError) as e:
            _warn(f"the pattern {pattern.name!r} cannot be measured and uses its defaults: {e}")
    return replace(target, measured=tuple(sorted(measured.items()))) if measured else target


def _compile_probes(programs: Iterable[Probe], latest: float) -> list[Probe]:
    """Compile probes and run each once, until `latest` has passed; return them."""
    out: list[Probe] = []
    for probe in programs:
        probe.run()
        out.append(probe)
        if time.perf_counter() > latest:
            break
    return out


def _run(probes_to_run: Sequence[Probe], end: float, latest: float) -> None:
    """Run all probes in turn, many times: a disturbance then hits one run of each instead of every run of one. At
    least MIN_ROUNDS rounds are run, and more until `end`. No run begins after `latest`, as one may take a
    thousand times longer on a machine whose cores are busy with something else."""
    rounds = 0
    while rounds < MIN_ROUNDS or time.perf_counter() < end:
        for probe in probes_to_run:
            if probe.slow and rounds % SLOW_PROBE_ROUNDS:
                continue
            if time.perf_counter() > latest:
                return
            probe.run()
        rounds += 1


def _writable(folder: Path) -> None:
    """Raise OSError where `folder` cannot be written, before time is spent on figures that cannot be stored."""
    with PrivateFolder(folder) as opened, opened.temporary("try"):
        pass


def measure(static: Target, budget: float) -> Figures:
    """Return the figures of those probes that have time to run in `budget` seconds."""
    latest = time.perf_counter() + budget
    compiled = _compile_probes(probes(static, memory_bytes(static)), latest - MEASURE_SECONDS)
    watch, begun = Watch(), time.perf_counter()
    _run(compiled, begun + ROUNDS_SECONDS, latest)
    while (again := [p for p in compiled if not p.steady]) and time.perf_counter() < latest:
        for probe in again:
            if time.perf_counter() < latest:
                probe.run()
    unsteady = {p.name: f"its {len(p.runs)} runs disagree" for p in compiled if not p.steady}
    return Figures({p.name: p.seconds for p in compiled if p.steady}, unsteady, _disturbance(watch, begun))


def _disturbance(watch: Watch, begun: float) -> str:
    """Return what makes figures measured since the time `begun` doubtful; empty if nothing does."""
    if time.perf_counter() - begun < MIN_WATCH_SECONDS:  # too short to see what else the machine does
        return "compiling took all the time that there was to measure"
    return watch.disturbance()


def defaults(static: Target) -> dict[str, float]:
    """Return the figures that the static facts predict for the probes, in seconds per unit of work."""
    out = {fn: seconds for fn, seconds in static.special_seconds}
    out |= {n: getattr(static, f"{n}_seconds") for n in ("load", "unaligned", "store", "broadcast", "gather")}
    out |= {n: 1 / rate for n, rate in zip(_LEVELS, static.bytes_per_second, strict=False)}
    out |= {"fma": 1 / static.fma_per_second, "memory": 1 / static.core_bandwidth}
    for probe, rates in ((dot_probe, static.dots), (tile_probe, static.tiles)):
        out |= {probe(n): static.multiplies / rate / static.fma_per_second for n, rate in rates}
    out["chain"] = static.overheads.latency * static.cycle_seconds
    return out | {"l3 all": 1 / static.l3_bandwidth, "memory all": 1 / static.memory_bandwidth}


_LEVELS = ("l1", "l2", "l3", "memory")


def plausible(static: Target, figures: dict[str, float]) -> tuple[dict[str, float], dict[str, str]]:
    """Split figures into plausible ones and reasons why the others are not. A figure is implausible where it is far
    from the static one, or where a level of the memory hierarchy measures slower than the level behind it."""
    copy, rejected = figures.get(PLAIN, 0.0), dict[str, str]()
    for name, default in defaults(static).items():
        if name in figures:
            # A special function is measured on top of a copy.
            most = default * MAX_SLOWDOWN + (copy if static.special(name) else 0.0)
            if not default / MAX_SPEEDUP <= figures[name] <= most:
                rejected[name] = f"{figures[name] / default:.2g} times the static figure"
    for nearer, farther in zip(_LEVELS, _LEVELS[1:], strict=False):
        is_known = nearer in figures and farther in figures and nearer not in rejected
        if is_known and figures[farther] * MAX_LEVEL_SPEEDUP < figures[nearer]:
            rejected[nearer] = f"slower than {farther}"
    return {name: seconds for name, seconds in figures.items() if name not in rejected}, rejected


def memory_bytes(static: Target) -> int:
    """Return the bytes on which the bandwidth of main memory is measured: more than the caches hold and little of what
    is free; 0 where there is too little free memory."""
    free = memory.available_bytes()
    size = max(64 << 20, min(4 * static.l3, 192 << 20))
    return size if size <= free // 8 else 0


def assemble(static: Target, figures: dict[str, float]) -> Target:
    """Return the machine with coefficients computed from the probes' seconds per unit; a coefficient without a probe
    stays static."""

    def rate(name: str, default: float) -> float:
        return round_to_step(1 / bound(figures[name], 1 / default)) if name in figures else default

    def seconds(name: str, default: float, less: float = 0.0) -> float:
        # Time of a function beyond a copy's; the copy overlaps with it, so at least half counts.
        return (
            round_to_step(bound(max(figures[name] - less, figures[name] / 2), default)) if name in figures else default
        )

    fma = rate("fma", static.fma_per_second)
    waits = figures.get("chain", 0.0) / static.overheads.latency * fma / static.lanes()  # vectors multiplied in a cycle
    multiplies = min(4.0, max(0.5, 2.0 ** round(math.log2(waits)))) if waits else static.multiplies

    def per_cycle(name: str, default: float) -> float:
        is_known = "fma" in figures and name in figures
        return round_to_step(multiplies * figures["fma"] / figures[name]) if is_known else default

    dots = tuple((n, per_cycle(dot_probe(n), rate)) for n, rate in static.dots)
    tiles = tuple((n, per_cycle(tile_probe(n), rate)) for n, rate in static.tiles)
    levels = [rate(n, r) for n, r in zip(_LEVELS, static.bytes_per_second, strict=False)]
    core = rate("memory", static.core_bandwidth)
    levels = [*levels, core]
    for i in range(1, 4):  # no level is faster than the one before it
        levels[i] = min(levels[i], levels[i - 1])
    together = has_simultaneous_runs(static, figures)
    launch = figures["launch"] - figures["task"] if together else static.launch_seconds
    l3 = shared_bandwidth(
        figures, "l3", levels[2], static.l3_bandwidth / static.bytes_per_second[2], static.cores, together
    )
    memory = shared_bandwidth(
        figures, "memory", levels[3], static.memory_bandwidth / static.core_bandwidth, static.cores, together
    )
    plain = figures.get(PLAIN, 0.0)
    return replace(
        static,
        fma_per_second=fma,
        multiplies=multiplies,
        dots=dots,
        tiles=tiles,
        bytes_per_second=(levels[0], levels[1], levels[2]),
        l3_share=l3_share(figures),
        l3_bandwidth=l3,
        memory_bandwidth=memory,
        core_bandwidth=levels[3],
        load_seconds=seconds("load", static.load_seconds),
        unaligned_seconds=seconds("unaligned", static.unaligned_seconds),
        store_seconds=seconds("store", static.store_seconds),
        broadcast_seconds=seconds("broadcast", static.broadcast_seconds),
        gather_seconds=seconds("gather", static.gather_seconds),
        special_seconds=tuple((fn, seconds(fn, default, plain)) for fn, default in static.special_seconds),
        launch_seconds=round_to_step(bound(launch, static.launch_seconds)) if together else static.launch_seconds,
    )


def has_simultaneous_runs(static: Target, figures: dict[str, float]) -> bool:
    """Return whether all threads were seen at work at once.

    Where other programs keep the cores busy they never are; the probes then say nothing about launches and shared
    levels, and the static figures give the proportions.
    """
    task, launch = figures.get("task", 0.0), figures.get("launch", math.inf)
    return static.cores > 1 and launch - task < 0.5 * task * (static.cores - 1)


def shared_bandwidth(
    figures: dict[str, float], level: str, alone: float, share: float, cores: int, together: bool
) -> float:
    """Return the bytes per second of all cores together from a level of the memory hierarchy; one core alone gets
    `alone`."""
    share = max(1.0, min(share, cores))
    if together and f"{level} all" in figures and level in figures:
        share = max(1.0, min(figures[level] / figures[f"{level} all"], cores))
    return round_to_step(alone * share)


def l3_share(figures: dict[str, float]) -> float:
    """Return the fraction of L3 that data of this process gets, by the time of arrays as large as L3 (`WHOLE_L3`).

    It is 1 where as much of them comes from L3 as of reused data on a machine of one's own, where memory is hardly
    slower than L3, so that times say nothing, and where the arrays are slower than memory, which is a disturbance."""
    if not {"l3", WHOLE_L3, "memory"} <= figures.keys():
        return 1.0
    near, far = figures["l3"], figures["memory"]
    if far < MIN_MEMORY_RATIO * near or far * MAX_LEVEL_SPEEDUP < figures[WHOLE_L3]:
        return 1.0
    held = (far - figures[WHOLE_L3]) / (far - near)
    return round_to_step(min(1.0, max(MIN_L3_SHARE, held / REUSED_L3_FRACTION)))


def bound(seconds: float, default: float) -> float:
    """Clamp `seconds` to the plausible factors of `default`."""
    return min(max(seconds, default / MAX_SPEEDUP), default * MAX_SLOWDOWN)


def round_to_step(value: float) -> float:
    """Round to the nearest of STEPS_PER_DECADE steps a decade (10 % apart), to three digits, so that two calibrations
    mostly agree."""
    step = 10 ** (round(math.log10(value) * STEPS_PER_DECADE) / STEPS_PER_DECADE)
    return float(f"{step:.3g}")
