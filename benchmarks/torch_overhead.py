"""What calls inside PyTorch cost beside their arithmetic: python -m benchmarks.torch_overhead [operator module between]

operator: an elementwise formula on 8 numbers, forward and with its gradient, beside torch's own operator, a custom
operator of torch that computes nothing, and the compiled program alone. module: a tiny network by torch.compile's
backends, in evaluation, forward and with its gradient. Microseconds, the best of several turns.

between: programs that alternate with operators of PyTorch's; the threads of one side must not keep the other from its
processors (benchmarks/beside_torch.py). Exits with 1 where either side takes over 1.1 times its time alone.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

import einsmith as es
from benchmarks import beside_torch
from benchmarks.driver import Parser
from einsmith.frontends.torch import TorchOperator, operator

ELEMENTS = 8


def microseconds(f: Callable[[], object], calls: int, turns: int) -> float:
    """Microseconds of a call: the best turn's mean. Other work on the machine only ever adds time."""
    best = float("inf")
    for _ in range(turns):
        start = time.perf_counter()
        for _ in range(calls):
            f()
        best = min(best, (time.perf_counter() - start) / calls)
    return best * 1e6


def empty_operator() -> Callable[[torch.Tensor], torch.Tensor]:
    """A custom operator that gives uninitialized memory: what torch's own registration costs."""

    def body(x: torch.Tensor) -> torch.Tensor:
        return torch.empty(x.shape)

    op = torch.library.custom_op("einsmith_benchmark::empty", body, mutates_args=(), schema="(Tensor x) -> Tensor")
    op.register_fake(body)
    op.register_autograd(lambda ctx, g: op(g), setup_context=lambda ctx, inputs, output: None)
    return op._opoverload


def program_alone(f: TorchOperator, x: torch.Tensor) -> Callable[[], object]:
    """The native program of f with its table of addresses, without torch."""
    f(x)
    compiled = next(iter(f._definition.compiled.values()))
    y = torch.empty_like(x)
    return lambda: compiled.run_at([x.data_ptr()], [y.data_ptr()])


def modules(calls: int, turns: int) -> None:
    """A call of a tiny network by each backend."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)), torch.randn(4, 8)
    times: dict[str, list[float]] = {}
    print(f"{'':28}{'evaluation':>11}{'forward':>10}{'and backward':>14}   microseconds")
    for name in ("eager", "inductor", "einsmith"):
        torch._dynamo.reset()
        own = copy.deepcopy(model)
        call = own if name == "eager" else torch.compile(own, backend=name)

        def evaluate(call: Callable = call) -> None:
            with torch.no_grad():
                call(x)

        def train(call: Callable = call) -> None:
            call(x).sum().backward()

        for _ in range(2):
            evaluate()
            train()
        times[name] = [microseconds(f, calls, turns) for f in (evaluate, lambda call=call: call(x), train)]
        a, b, c = times[name]
        print(f"{name:28}{a:11.1f}{b:10.1f}{c:14.1f}")
    a, b, c = (ours / theirs for ours, theirs in zip(times["einsmith"], times["inductor"], strict=True))
    print(f"{'einsmith / inductor':28}{a:11.2f}{b:10.2f}{c:14.2f}")


def operators(options: argparse.Namespace) -> None:
    f = operator(es.op("y[i] = 2*x[i]"))
    x, g = torch.randn(ELEMENTS), torch.randn(ELEMENTS)
    wanted = x.clone().requires_grad_()
    rows: list[tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = [
        ("Einsmith", f),
        ("custom operator, no work", empty_operator()),
        ("torch's x * 2", lambda x: x * 2),
    ]
    print(f"{'':28}{'forward':>10}{'recorded':>10}{'and backward':>14}   microseconds")
    for name, call in rows:
        cases = (
            lambda call=call: call(x),
            lambda call=call: call(wanted),
            lambda call=call: torch.autograd.grad(call(wanted), wanted, g),
        )
        for case in cases:
            case()
        a, b, c = (microseconds(case, options.calls, options.turns) for case in cases)
        print(f"{name:28}{a:10.1f}{b:10.1f}{c:14.1f}")
    print(f"{'the program alone':28}{microseconds(program_alone(f, x), options.calls, options.turns):10.1f}")


def main() -> int:
    """Measure the parts that are asked for; return the exit status."""
    known = ("operator", "module", "between")
    parser = Parser(
        __doc__, known, calls=(500, "calls in a turn"), turns=(9, "turns, of which the best counts"),
        rounds=(beside_torch.ROUNDS, "rounds of `between`"), json=(str, "where `between` writes its figures"),
        workers=(False, "`between` without PyTorch's threads; it ought to fail"),
    )  # fmt: skip
    args = parser.read()
    parts = args.names or known
    if "operator" in parts:
        operators(args)
    if "module" in parts:
        modules(args.calls, args.turns)
    passes = "between" not in parts or beside_torch.compare(args.rounds, args.workers, args.json)
    print(f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors, torch {torch.__version__}")
    return int(not passes)


if __name__ == "__main__":
    sys.exit(main())
