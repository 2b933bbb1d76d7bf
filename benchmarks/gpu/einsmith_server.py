"""Einsmith on a card, in a process of its own."""

from __future__ import annotations

import gc
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks.choices import planned_calls
from benchmarks.gpu import kernels
from benchmarks.gpu.launching import CardBench
from benchmarks.gpu.peer_server import PeerServer, PeerStep
from benchmarks.gpu.problems import Case
from benchmarks.gpu.sessions import Session
from benchmarks.worker import module_of
from einsmith import functional
from einsmith.base import dtypes as dt
from einsmith.base.errors import EinsmithError
from einsmith.bench.verify import STEP_TOLERANCE
from einsmith.driver import registry
from einsmith.driver.bound_program import BoundProgram
from einsmith.driver.cuda import Cuda
from einsmith.gpu.cuda.launches import TileCode
from einsmith.gpu.tiles.ir import TileBuilder, TileParameter
from einsmith.gpu.tiles.lower import lower
from einsmith.gpu.tiles.pieces import Tiling
from einsmith.gpu.tiles.verify import verify
from einsmith.kernels import autoconfig
from einsmith.kernels.pattern import Launch, Lowered
from einsmith.schedule.kernel import Kernel
from einsmith.tuning.kernels import decisions
from einsmith.tuning.kernels.measure import MachineCode, example_buffers

CARD = "cuda"
THREADS = 1
STEPS = 3
UPDATES = {"fp32": STEP_TOLERANCE, "tf32": 0.3, "bf16": 0.6}
"""Of the norm of each parameter's change in STEPS steps, against the CPU's in fp32; relative. A wrong gradient is off
by 1 and more."""
LOSSES = {"fp32": 1e-4, "tf32": 5e-3, "bf16": 5e-2}
NOTHING = 1e-4
"""A change that is this part of all parameters' or less is compared on that scale: it is zero but for rounding."""
RUNS = 7
"""Timed runs of a configuration, of which the median counts."""
TILES = ((128, 128, 32, 8, 3), (128, 256, 32, 8, 3), (128, 128, 64, 8, 3), (64, 64, 32, 4, 3))
"""m, n, k, warps and stages with which products are timed."""


class EinsmithServer(PeerServer):
    """The card, and programs on it."""

    def begin(self, fake: bool) -> None:
        """Find the card. Raises DeviceError where there is none. fake: the interpreter of the tile IR in its place."""
        self.fake = fake
        if fake:
            from tests.cuda.fake import backend

            registry.register(backend())
        target = registry.target_of(registry.check_device(CARD), THREADS)
        found = registry.backend_of(target)
        assert isinstance(found, Cuda)
        self.backend, self.target, self.bench = found, target, CardBench(found)
        self.device = found.card.device

    # -- facts

    def facts(self) -> dict[str, Any]:
        """Return what the driver and nvidia-smi say of the card."""
        facts = self.device.facts
        out = {"card": facts.name, **{k: v for k, v in facts._asdict().items() if k != "name"}}
        query = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit,temperature.gpu,pstate"
        tool = shutil.which("nvidia-smi")
        if tool is None or self.fake:
            return out | {"nvidia-smi": "not available: there is no nvidia-smi"}
        command = [tool, f"--query-gpu={query}", "--format=csv,noheader", "--id=0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        if done.returncode:
            return out | {"nvidia-smi": f"not available: {done.stderr.strip() or done.stdout.strip()}"}
        return out | dict(zip(query.split(","), (v.strip() for v in done.stdout.split(",")), strict=False))

    # -- kernels

    def prepare_kernels(self, names: list[str], most: int | None) -> dict[str, Any]:
        """Compile the kernels of several kinds side by side."""
        kernels.prepare(self.bench, names, most)
        return {}

    def kernel(self, name: str, most: int | None) -> dict[str, Any]:
        """Compare all cases of a kind of kernels with the evaluator."""
        return kernels.check(self.bench, name, most)

    # -- steps

    def steps(self, model: str, precision: str, batch: int) -> dict[str, Any]:
        """Compare training steps of a small network with those of the CPU's program in fp32."""
        case = Case(model, batch, True)
        problem = case.problem()
        arrays = problem.arrays()

        def train(**options: Any) -> tuple[list[float], dict[str, np.ndarray], Any]:
            copied = {n: a.copy() for n, a in arrays.items()}
            session = module_of(problem, "einsmith").build(problem, copied, 2, "einsmith", **options)
            losses = [session.step() for _ in range(STEPS)]
            return losses, {n: np.array(v) for n, v in session.results().items()}, session

        losses, found, session = train(device=CARD, precision=precision)
        expected, results, _ = train(device="cpu")
        loss = max(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(losses, expected, strict=True))
        changes = {n: (found[n] - arrays[n], v - arrays[n]) for n, v in results.items()}
        size = sum(b.size for _, b in changes.values())
        whole = np.sqrt(sum(float(np.sum(np.square(b, dtype=np.float64))) for _, b in changes.values()) / size)
        off = {
            n: float(np.linalg.norm(a - b) / max(float(np.linalg.norm(b)), NOTHING * whole * np.sqrt(b.size), 1e-30))
            for n, (a, b) in changes.items()
        }
        worst = max(off, key=lambda n: np.nan_to_num(off[n], nan=np.inf))
        is_right = loss <= LOSSES[precision] and off[worst] <= UPDATES[precision]
        (run,) = session.trainer.compiler.programs.values()
        out = {
            "status": "ok" if is_right else "wrong",
            "loss": loss,
            "change": off[worst],
            "worst": worst,
            "launches": len(run.program.launches),
            "edges": len(run.program.edges),
        }
        reason = f"losses are off by {loss:.1e}, the change of {worst} by {off[worst]:.1e}"
        return out if is_right else out | {"reason": reason}

    # -- coefficients

    def copies(self, nbytes: int) -> dict[str, Any]:
        """Return the bytes a second that a copy within the card's memory reads and writes together."""
        memory = self.backend.card.memory
        source, to = memory.block(nbytes), memory.block(nbytes)
        some = np.random.default_rng(0).integers(0, 256, min(nbytes, 1 << 26), np.uint8)
        for start in range(0, nbytes, some.size):
            self.device.upload(source.address + start, some[: nbytes - start], self.device.stream)
        seconds = self.bench.time(lambda: self.device.copy(to.address, source.address, nbytes, self.device.stream))
        return {"bytes": nbytes, "seconds": seconds, "bytes_per_second": _rate(2 * nbytes, seconds)}

    def launch_gaps(self, programs: int, count: int) -> dict[str, Any]:
        """Return the seconds from one launch in a graph to the next one, which waits for it, and those of a graph of
        one launch."""
        b = TileBuilder("touch")
        at = b.program()
        source, to = (b.parameter(TileParameter("f32", programs, n)) for n in (0, 1))
        b.store(to, at, b.load(source, at))
        f = b.finish(programs)
        verify(f)
        lowered = Lowered([Launch(f, programs)])
        raw = np.random.default_rng(0).standard_normal(programs, np.float32).view(np.uint8)
        ready = self.bench.place(lowered, 1, 1, [raw, raw])
        one, many = (self.bench.seconds(ready.nodes, n) for n in (1, count))
        return {"programs": programs, "one": one, "launch_gap": (many - one) / (count - 1)}

    def dots(self, precision: str, size: int, stored: str) -> dict[str, Any]:
        """Return the operations a second of the fastest tiling of a square product, a multiply-add counted twice.

        stored: element type in memory; "bf16" is only for the precision of that name."""
        kernel = _product(size, stored)
        every = []
        for m, n, k, warps, stages in TILES[-1:] if self.fake else TILES:
            lowered = lower(kernel, Tiling(m, n, k, 1, precision), "contraction")
            every.append((f"m={m} n={n} k={k} warps={warps} stages={stages}", lowered, warps, stages))
        self.bench.compile([x[1:] for x in every])
        times, faults = self._race(kernel, every, precision)
        if not times:
            raise RuntimeError(f"no tiling runs: {faults}")
        best = min(times, key=times.__getitem__)
        return {
            "size": size,
            "seconds": times[best],
            "tiling": best,
            "operations_per_second": _rate(2 * size**3, times[best]),
            "times": times,
            "faults": faults,
        }

    def _race(
        self, kernel: Kernel, made: list[tuple[str, Lowered, int, int]], precision: str, until: float = float("inf")
    ) -> tuple[dict[str, float], dict[str, str]]:
        """Return the seconds of each configuration by its text, and what is wrong with others. All must agree with the
        first one on random data before they are timed; none begins after the time `until`."""
        arrays, runner = example_buffers(kernel), self.backend.runner
        times: dict[str, float] = {}
        faults: dict[str, str] = {}
        first: list[np.ndarray] | None = None
        for text, lowered, warps, stages in made:
            if times and time.monotonic() > until:
                break
            launches = [(TileCode(x.function, warps, stages), x.tasks, False) for x in lowered.launches]
            data: Any = None
            run: Any = None  # both hold the memory of the one before
            try:
                data = runner.place(arrays)
                run = runner.prepare(MachineCode(launches, 0, lowered.workspace), [data], 1)
                got = [block.read() for block in data]
                first = first or got
                if reason := _difference(kernel, got, first, precision):
                    faults[text] = reason
                    continue
                times[text] = median(run() for _ in range(1 if self.fake else RUNS))
            except EinsmithError as e:
                faults[text] = f"{type(e).__name__}: {' '.join(str(e).split())[:200]}"
                if kernels.is_lost(e):
                    raise
        return times, faults

    # -- regret

    def regret(self, case: Case, precision: str, count: int, most: int, seconds: float) -> dict[str, Any]:
        """Return what the cost model's choices lose against the best of `most` configurations, for the `count` kernels
        that take most of a training step; about `seconds` in all."""
        self.close()
        until = time.monotonic() + seconds
        session = Session(case, precision)
        run, arrays = session.run, session.arrays
        spent = run.time_calls(arrays, 2)
        calls = list(zip(run.calls, run.kernels, run.turns, spent, strict=True))
        by_kernel: dict[Any, list[float]] = {}
        for call, _, _, took in calls:
            by_kernel.setdefault(call.kernel, []).append(took)
        slowest = sorted(by_kernel, key=lambda k: -sum(by_kernel[k]))[:count]
        rows = [self._regret_of(k, sum(by_kernel[k]), len(by_kernel[k]), run, most, until, precision) for k in slowest]
        ratios = [(r["spent"], r["regret"]) for r in rows if r["regret"] is not None]
        gained = sum(s * (1 - 1 / r) for s, r in ratios)
        total = sum(spent)
        return {
            "kernels": rows,
            "total": total,
            "median": median(r for _, r in ratios) if ratios else None,
            "share": gained / total if total else None,
        }

    def _regret_of(
        self, kernel: Any, spent: float, calls: int, run: BoundProgram, most: int, until: float, precision: str
    ) -> dict[str, Any]:
        target = run.target
        choice = autoconfig.choose(kernel, target)
        made: list[tuple[str, Lowered, int, int]] = []
        predicted: dict[str, float] = {}
        refused: dict[str, str] = {}
        for name, config, cost in choice.alternatives[:most]:
            pattern = next(p for p in self.backend.patterns if p.name == name)
            text = decisions.format_choice(pattern, config)
            try:
                lowered = decisions.lower_choice(replace(choice, pattern=pattern, config=config))
            except EinsmithError as e:
                refused[text] = f"{type(e).__name__}: {' '.join(str(e).split())[:200]}"
                continue
            made.append((text, lowered, config.warps, config.stages))
            predicted[text] = cost.seconds
        if time.monotonic() < until:
            self.bench.compile([x[1:] for x in made])
        times, faults = self._race(kernel, made, precision, until)
        chosen = decisions.format_choice(choice.pattern, choice.config)
        best = min(times, key=times.__getitem__) if times else None
        return {
            "kernel": kernels.describe(kernel),
            "calls": calls,
            "spent": spent,
            "chosen": chosen,
            "predicted": predicted.get(chosen),
            "seconds": times.get(chosen),
            "best": best,
            "regret": times[chosen] / times[best] if best and times.get(chosen) and times[best] else None,
            "times": times,
            "faults": refused | faults,
        }

    # -- dynamic

    def searched(self, case: Case, precision: str, seconds: float, options: dict[str, Any]) -> dict[str, Any]:
        """Train with options that search configurations for so many seconds; return the steps' seconds before and
        after, and what was explored."""
        self.close()
        plain = Session(case, precision)
        before = median(plain.seconds(3) for _ in range(3))
        session = Session(case, precision, **options)
        end, steps = time.monotonic() + seconds, 0
        while time.monotonic() < end or not steps:
            session.step()
            steps += 1
        after = median(session.seconds(3) for _ in range(3))
        return {
            "steps": steps,
            "static_seconds": before,
            "seconds": after,
            "times_as_fast": _rate(before, after),
            "explored": str(session.trainer.explored)[-2000:],
        }

    # -- a network beside its peers

    def build(self, case: Case, precision: str, form: str) -> dict[str, Callable[[], PeerStep]]:
        """Return a function that sets up a training step."""
        return {"": partial(Session, case, precision)}

    def open(self, case: Case, precision: str, form: str, path: str) -> dict[str, Any]:
        """Begin a training step as `PeerServer.open` does; tell of its launches, too."""
        self.close()
        out = super().open(case, precision, form, path)
        session: Any = self._opened(form)
        return out | {"launches": len(session.run.program.launches)}

    def close(self) -> dict[str, Any]:
        """Free what is open; programs and what they hold refer to each other."""
        super().close()
        gc.collect()
        return {}


def _rate(amount: float, seconds: float) -> float | None:
    """Return an amount a second; None where the clock has not moved, as that of an interpreter."""
    return amount / seconds if seconds > 0 else None


def _product(size: int, stored: str) -> Kernel:
    """Return a square product, whose second operand is transposed: float32, of operands that are stored in a type."""

    def product(a: Any, b: Any) -> Any:
        return functional.matmul(a.astype("float32"), b.astype("float32").transpose(1, 0))

    (call,), _ = planned_calls(product, [((size, size), dt.dtype_of(stored))] * 2)
    return call.kernel


def _difference(kernel: Kernel, got: list[np.ndarray], first: list[np.ndarray], precision: str) -> str:
    """Return how the bytes of a kernel's buffers differ from those after another configuration; empty where rounding
    explains it."""
    tolerance = {"bf16": 2e-2, "tf32": 5e-3}.get(precision, 1e-3)
    for n, (a, b, buffer) in enumerate(zip(got, first, kernel.buffers, strict=True)):
        mine, other = (buffer.dtype.wide(x.view(buffer.dtype.numpy)).astype(np.float64) for x in (a, b))
        allowed = tolerance * np.nanmax(np.abs(other), initial=1e-30) if buffer.dtype.is_float else 0.0
        if not np.allclose(mine, other, rtol=0, atol=allowed, equal_nan=True):
            off = float(np.nanmax(np.abs(mine - other)))
            return f"buffer {n} differs by up to {off:.1e} from that of the first configuration"
    return ""
