"""What a call of an operator inside PyTorch costs beside its arithmetic: python -m benchmarks.torch_overhead

An elementwise formula on 8 numbers, forward and with its gradient, beside torch's own operator, a custom operator of
torch that computes nothing, and the compiled program alone. Microseconds, the best of several turns.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import torch

import einsmith as es
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
    compiled = next(iter(f._definition._compiled.values()))
    y = torch.empty_like(x)
    return lambda: compiled.run_at([x.data_ptr()], [y.data_ptr()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calls", type=int, default=500, help="calls in a turn")
    parser.add_argument("--turns", type=int, default=9, help="turns, of which the best counts")
    options = parser.parse_args()

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
    print(f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors, torch {torch.__version__}")


if __name__ == "__main__":
    main()
