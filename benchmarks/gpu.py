"""What the printed kernels do on a graphics card:
python -m benchmarks.gpu --json FILE [--seconds 500] [part ...]

The parts, in this order: `machine`, `kernels`, and a network of benchmarks.models each. What the file holds is not run
again, so that a run that was cut off is continued. Results are compared before anything is timed: kernels with PyTorch
on the same numbers in double precision, networks with the processor's programs, by losses and updated parameters.

Programs of this back end are not Einsmith's on a card: each kernel is the fastest of a few configurations, the plan is
the one that the processor would be given, and everything waits for what came before it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks import card
from benchmarks.models import TRAINING
from benchmarks.peers import einsmith_peer
from einsmith.bench.networks import NetworkStep
from einsmith.bench.peers import torch_peer, torch_recurrent
from einsmith.bench.problem import Workload
from einsmith.bench.recurrent import LR, Recurrent
from einsmith.bench.verify import STEP_TOLERANCE
from einsmith.driver import registry
from einsmith.kernels import autoconfig
from einsmith.kernels.pattern import Lowered
from einsmith.schedule.kernel import Kernel
from tests.kernels import samples
from tests.kernels.layouts import LAYOUTS, laid_out
from tests.tiles.card import Shape, compiled

NETWORKS = (
    "lenet5-b256", "capsulenet-b16", "resnet18-b16", "milstm-b16-t28", "sublstm-b16-t28", "scrn-b16-t28",
    "lltm-b16-t28", "gpt_small-b1", "vit_small-b16",
)  # fmt: skip
PRECISIONS = {"fp32": "tf32x3", "tf32": "tf32", "bf16": "bf16"}
"""Of products of float32, by the name that users give them."""
TOLERANCES, UPDATE_TOLERANCES = {"fp32": 1e-4, "tf32": 2e-3}, {"fp32": STEP_TOLERANCE, "tf32": 0.3}
"""Of a network's losses, and of the norms of its parameters' updates, against the processor's; relative."""
COMPILE_SECONDS = 240.0
"""At most, to compile the candidates of the kernels."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="*", default=["machine", "kernels", *NETWORKS])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=500.0, help="after which no part begins")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds to compile a network's candidates")
    parser.add_argument("--compile", action="store_true", help="torch.compile among the peers")
    asked = parser.parse_args()
    until = time.monotonic() + asked.seconds
    found: dict[str, Any] = json.loads(asked.json.read_text()) if asked.json.exists() else {}
    for part in asked.part:
        if part in found:
            continue
        if time.monotonic() > until:
            print(f"{part} and what follows it is left for another run")
            break
        begin = time.monotonic()
        if part == "machine":
            found[part] = machine()
        elif part == "kernels":
            found[part] = list(kernels(until))
        else:
            found[part] = network(TRAINING[part], asked.limit, asked.compile)
        asked.json.write_text(json.dumps(found, indent=1))
        print(f"-- {part}: {time.monotonic() - begin:.0f} s", flush=True)


# ------------------------------------------------------------------------------------------------------------- machine

TOUCH = """import triton
import triton.language as tl


@triton.jit
def touch(p0):
    tl.store(p0 + tl.program_id(0), 1.0)
"""


def machine() -> dict[str, Any]:
    """Memory's speed, and what a launch in a graph costs after the one before it."""
    x = torch.randn(1 << 28, device="cuda")
    y = torch.empty_like(x)
    facts = torch.cuda.get_device_properties(0)
    out: dict[str, Any] = {
        "card": facts.name,
        "multiprocessors": facts.multi_processor_count,
        "torch": torch.__version__,
        "copy_bytes_per_second": 2 * x.nbytes / card.timed(lambda: y.copy_(x)),
    }
    for programs in (1, 132):
        code = compiled(TOUCH, "touch", ("*fp32:16",), Shape(4, 1))
        for count in (1, 100, 1000):
            graph = card.captured(lambda: [code[(programs, 1, 1)](x) for _ in range(count)])  # noqa: B023
            out[f"seconds of {count} launches of {programs}"] = card.timed(graph.replay, 20)
    a = torch.randn(8192, 8192, device="cuda")
    for name, tf32 in (("fp32", False), ("tf32", True)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        out[f"product of 8192, {name}, FLOP/s"] = 2 * 8192**3 / card.timed(lambda: a @ a)
    b = a.bfloat16()
    out["product of 8192, bf16, FLOP/s"] = 2 * 8192**3 / card.timed(lambda: b @ b)
    print(json.dumps(out, indent=1), flush=True)
    return out


# ------------------------------------------------------------------------------------------------------------- kernels

Tensors = list[torch.Tensor]


def _conv(
    b: int, c: int, n: int, o: int, last: bool
) -> dict[str, tuple[Kernel, Callable[[Tensors], torch.Tensor], int]]:
    """A 3x3 convolution of images n by n in all directions, with PyTorch's and the operations."""
    how = next(x for x in LAYOUTS if x.name == "channels last")

    def make(kernel: Kernel) -> Kernel:
        made = laid_out(kernel, how) if last else kernel
        assert isinstance(made, Kernel)
        return made

    flops = 2 * 9 * b * c * o * n * n
    where = "NHWC" if last else "NCHW"
    grad = torch.nn.grad
    return {
        f"conv {b}x{c}x{n}x{n} to {o}, {where}": (
            make(samples.conv(b, c, n, n, o, 3, 3, 1)), lambda t: F.conv2d(t[0], t[1], padding=1), flops),
        f"conv dX {b}x{c}x{n}x{n} to {o}, {where}": (
            make(samples.conv_dx(b, c, n, n, o, 3, 3, 1)),
            lambda t: grad.conv2d_input((b, c, n, n), t[1], t[0], padding=1), flops),
        f"conv dW {b}x{c}x{n}x{n} to {o}, {where}": (
            make(samples.conv_dw(b, c, n, n, o, 3, 3, 1)),
            lambda t: grad.conv2d_weight(t[1], (o, c, 3, 3), t[0], padding=1), flops),
    }  # fmt: skip


def _product(kind: str, t: Tensors) -> torch.Tensor:
    a, b = t
    return (a if kind[0] == "N" else a.T) @ (b if kind[1] == "N" else b.T)


def cases() -> dict[str, tuple[Kernel, Callable[[Tensors], torch.Tensor], int]]:
    """Kernels by name: what PyTorch makes of the same arguments, and floating-point operations (0: bytes count)."""
    out: dict[str, tuple[Kernel, Callable[[Tensors], torch.Tensor], int]] = {}
    for m, n, k in (
        (4096, 4096, 4096),
        (1024, 1024, 1024),
        (512, 3072, 768),
        (3136, 64, 576),
        (64, 4096, 1024),
        (1000, 509, 997),
    ):
        for kind in ("NN", "NT", "TN"):
            out[f"product {kind} {m}x{n}x{k}"] = (
                samples.product(m, n, k, kind),
                partial(_product, kind),
                2 * m * n * k,
            )
    for b, c, n, o in ((16, 64, 56, 64), (16, 256, 14, 256)):
        for last in (False, True):
            out |= _conv(b, c, n, o, last)
    out["bias and relu 3x4096x4096"] = (samples.bias_relu(4096, 4096), lambda t: F.relu(t[0] + t[1][:, None]), 0)
    out["sums of 7 rows of 4194304"] = (samples.rows("sum", 1 << 22), lambda t: t[0].sum(1), 0)
    out["sums of 4096 columns of 8192"] = (samples.columns("sum", 4096, 8192), lambda t: t[0].sum(0), 0)
    return out


def kernels(until: float) -> Iterator[dict[str, Any]]:
    """Every candidate of the kernels, compared and timed; PyTorch's operation beside them at equal precision."""
    found = cases()
    prepared: dict[tuple[str, str], list[tuple[card.Choice, Lowered, str]]] = {}
    for precision, (name, (kernel, _, flops)) in itertools.product(PRECISIONS, found.items()):
        if flops or precision == "fp32":
            prepared[name, precision] = card.lowered_candidates(kernel, PRECISIONS[precision])
    jobs = [job for made in prepared.values() for x in made for job in card.jobs_of(*x)]
    print(f"{len(set(jobs))} functions to compile", flush=True)
    done = card.compile_all(jobs, min(until, time.monotonic() + COMPILE_SECONDS))
    bench = card.Workbench()
    for (name, precision), made in prepared.items():
        kernel, theirs, flops = found[name]
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
        arguments = [torch.randn(b.shape, device="cuda") for b in kernel.buffers[:-1]]
        want = theirs([a.double() for a in arguments])
        row = {"name": name, "precision": precision, "torch": _of_torch(theirs, arguments, precision, "NHWC" in name)}
        row["candidates"] = tried = [_tried(bench, kernel, x, arguments, want, done) for x in made]
        _tell(row, kernel, flops, [e for e in tried if "seconds" in e])
        yield row


def _of_torch(theirs: Callable[[Tensors], torch.Tensor], arguments: Tensors, precision: str, last: bool) -> float:
    """Seconds of PyTorch's operation as a graph, on arguments in the types and layouts that it likes best."""
    taken = [a.bfloat16() for a in arguments] if precision == "bf16" else arguments
    if last:
        taken = [a.contiguous(memory_format=torch.channels_last) for a in taken]
    return card.timed(card.captured(lambda: theirs(taken)).replay, 10)


def _tried(
    bench: card.Workbench, kernel: Kernel, made: tuple[card.Choice, Lowered, str], arguments: Tensors,
    want: torch.Tensor, done: Mapping[tuple, str],
) -> dict[str, Any]:  # fmt: skip
    """A candidate's error (of the results' root mean square), its time, and the card's resources that it takes."""
    choice, lowered, text = made
    faults = [done.get(job, "not compiled in time") for job in card.jobs_of(*made)]
    if any(faults):
        return {"choice": str(choice), "fault": next(filter(None, faults))}
    try:
        got, codes = bench.result(kernel, lowered, text, choice.shape, arguments)
        return {
            "choice": str(choice),
            "error": float((got.double() - want).abs().max() / want.square().mean().sqrt()),
            "seconds": bench.seconds(kernel, lowered, text, choice.shape),
            "registers": [c.n_regs for c in codes],
            "spills": [c.n_spills for c in codes],
            "shared": [c.metadata.shared for c in codes],
        }
    except Exception as e:  # too much shared memory, say: that candidate is none
        return {"choice": str(choice), "fault": f"{type(e).__name__}: {str(e)[:300]}"}


def _tell(row: Mapping[str, Any], kernel: Kernel, flops: int, timed: Sequence[Mapping[str, Any]]) -> None:
    head = f"{row['name']} {row['precision']}:"
    if not timed:
        print(head, "no candidate", row["candidates"], flush=True)
        return
    best = min(timed, key=lambda e: e["seconds"])
    seconds, worst = best["seconds"], max(e["error"] for e in timed)
    moved = sum(b.nbytes for b in kernel.buffers)
    rate = f"{flops / seconds / 1e12:.0f} TFLOP/s" if flops else f"{moved / seconds / 1e9:.0f} GB/s"
    print(f"{head} {seconds * 1e6:.1f} us, {rate}; PyTorch {row['torch'] * 1e6:.1f}; off {worst:.1e}; {best['choice']}",
          flush=True)  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ networks


@contextmanager
def seated(backend: card.CardBackend) -> Iterator[None]:
    """The card's back end as that of every program."""
    before = registry.DEFAULT, dict(registry.BACKENDS), dict(autoconfig.OTHERS)
    registry.BACKENDS[backend.name], autoconfig.OTHERS[backend.name], registry.DEFAULT = (
        backend,
        backend.patterns,
        backend,
    )
    try:
        yield
    finally:
        registry.DEFAULT = before[0]
        registry.BACKENDS.clear()
        registry.BACKENDS.update(before[1])
        autoconfig.OTHERS.clear()
        autoconfig.OTHERS.update(before[2])


def steps_of(problem: Workload, arrays: dict[str, np.ndarray]) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses of the first steps, and the results after them."""
    session = einsmith_peer.build(problem, {n: a.copy() for n, a in arrays.items()}, 2, "einsmith")
    losses = [float(session.step()) for _ in range(2)]
    return losses, {n: v.copy() for n, v in session.results().items()}


def network(problem: Workload, limit: float, compile: bool) -> dict[str, Any]:
    """A network's training step at two precisions, compared with the processor's, and PyTorch's beside it."""
    arrays = problem.arrays()
    expected = steps_of(problem, arrays)
    out: dict[str, Any] = {}
    for precision in TOLERANCES:
        out[f"einsmith {precision}"] = _of_card(problem, arrays, expected, precision, limit)
        torch.cuda.empty_cache()
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
        for form, measure in peers(problem, arrays, compile):
            try:
                out[f"{form} {precision}"] = measure()
                print(f"    {form}: {out[f'{form} {precision}'] * 1e3:.3f} ms", flush=True)
            except Exception as e:  # a peer that cannot run this network: said, and the others go on
                out[f"{form} {precision}"] = f"{type(e).__name__}: {str(e)[:200]}"
                print(f"    {form}: {out[f'{form} {precision}']}", flush=True)
    return out


def _of_card(
    problem: Workload, arrays: dict[str, np.ndarray], expected: tuple[list[float], dict[str, np.ndarray]],
    precision: str, limit: float,
) -> dict[str, Any]:  # fmt: skip
    losses, results = expected
    backend = card.CardBackend(PRECISIONS[precision], limit)
    begin = time.monotonic()
    with seated(backend):
        mine, updated = steps_of(problem, arrays)
        prepared = time.monotonic() - begin
        steps = max(backend.made, key=lambda s: len(s.launches))
        seconds = steps.seconds()
    loss = max(abs(a / b - 1) for a, b in zip(mine, losses, strict=True))
    worst, name = max((_distance(updated[n] - arrays[n], v - arrays[n]), n) for n, v in results.items())
    patterns: dict[str, list[float]] = {}
    for code, _ in steps.calls:
        patterns.setdefault(code.choice.pattern, []).append(code.seconds)
    launches = sum(len(code.functions) for code, _ in steps.calls)
    right = loss < TOLERANCES[precision] and worst < UPDATE_TOLERANCES[precision]
    print(f"{problem.name} {precision}: {seconds * 1e3:.3f} ms, {launches} launches, prepared in {prepared:.0f} s; "
          f"loss off {loss:.1e}, {name} {worst:.1e}: {'right' if right else 'WRONG'}", flush=True)  # fmt: skip
    for pattern, times in patterns.items():
        print(f"    {pattern}: {sum(times) * 1e3:.3f} ms alone in {len(times)} calls", flush=True)
    return {
        "seconds": seconds, "launches": launches, "prepared": prepared, "loss": loss, "update": worst, "right": right,
        "patterns": patterns, "faults": backend.faults,
    }  # fmt: skip


def _distance(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got - want) / max(float(np.linalg.norm(want)), 1e-20))


def peers(
    problem: Workload, arrays: Mapping[str, np.ndarray], compile: bool
) -> Iterator[tuple[str, Callable[[], float]]]:
    """PyTorch's training step on the card, launch by launch, as a graph, and compiled."""
    layouts = (False, True) if isinstance(problem, NetworkStep) and len(problem.sample) == 3 else (False,)
    for last in layouts:
        name = "torch" + " channels last" * last
        begun = partial(_on_card, problem, arrays, last)
        yield name, partial(_timed, _eager, begun)
        yield f"{name} graph", partial(_timed, _graph, begun)
    if compile:
        yield "torch.compile graph", partial(_timed, _graph, partial(_on_card, problem, arrays, layouts[-1], True))


def _timed(measure: Callable[[Callable[[], Any]], float], begun: Callable[[], Callable[[], Any]]) -> float:
    return measure(begun())


def _on_card(
    problem: Workload, arrays: Mapping[str, np.ndarray], last: bool, compile: bool = False
) -> Callable[[], Any]:
    """Begins a step of forward, backward and update."""
    copied, peer = {n: a.copy() for n, a in arrays.items()}, "compile" if compile else "torch"
    if isinstance(problem, Recurrent):
        cell = torch_recurrent.build(problem, copied, peer, "fused LSTM" if problem.network == "lstm_lm" else "")
        for v in cell.p.values():
            v.data = v.data.cuda()
        state = tuple(s.cuda() for s in cell.state)
        loss = partial(cell.loss, cell.p, cell.x.cuda(), state, cell.y.cuda())
        optimizer = torch.optim.SGD(list(cell.p.values()), lr=LR, foreach=True)
    else:
        assert isinstance(problem, NetworkStep)
        training = torch_peer.TorchTraining(problem, copied, peer, last)
        training.module.cuda()
        loss, optimizer = partial(training.loss, training.x.cuda(), training.y.cuda()), training.optimizer

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        optimizer.step()

    return step


def _eager(step: Callable[[], Any], rounds: int = 10) -> float:
    """Seconds of a step among many, waited for at their end."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(rounds):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / rounds


def _graph(step: Callable[[], Any]) -> float:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return card.replayed(graph)


if __name__ == "__main__":
    main()
