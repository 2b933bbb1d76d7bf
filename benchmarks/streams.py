"""Compare batches of which no two have one size with PyTorch: `python -m benchmarks.streams`.

Each size is run once on both sides in turns, and results are compared. What counts is the time of all, compilation
included; the time of the later half tells what a size costs when programs are there. Names choose cases.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

import einsmith as es
import einsmith.frontends.torch
from benchmarks.driver import KEPT, Parser, Results, table
from einsmith.driver import executable

MESSAGES = """
r[e] = sqrt(sum[a]((x[s[e],a] - x[t[e],a])**2) + 1e-12)
w[e,k] = sum[m](exp(-(r[e] - u[m])**2)*F[m,k])
y[t[e],k] += w[e,k]*h[s[e],k]
return y
"""
"""A layer of message passing with continuous filters (Schuett et al. 2017, SchNet, eq. 2)."""

Run = Callable[[], list[torch.Tensor]]
Sized = tuple[str, Run, Run]
"""(size, run with Einsmith, run with eager PyTorch); results are compared."""


def graphs(count: int) -> Iterator[Sized]:
    """Yield molecules of 10 to 120 atoms with 10 to 20 edges an atom: forces, and the gradient of their squares."""
    layer = einsmith.frontends.torch.operator(es.op(MESSAGES, extents={"y.shape[0]": "x.shape[0]"}))

    def reference(x: Any, s: Any, t: Any, u: Any, F: Any, h: Any) -> torch.Tensor:
        r = ((x[s] - x[t]).square().sum(1) + 1e-12).sqrt()
        return torch.zeros_like(h).index_add(0, t, (torch.exp(-((r[:, None] - u) ** 2)) @ F) * h[s])

    u, F = torch.rand(16), torch.rand(16, 32, requires_grad=True)
    for _ in range(count):
        atoms = int(torch.randint(10, 121, ()))
        edges = int(torch.randint(10 * atoms, 20 * atoms + 1, ()))
        x, h = torch.rand(atoms, 3, requires_grad=True), torch.rand(atoms, 32)
        s, t = torch.randint(atoms, (2, edges))
        s, t = s[s != t], t[s != t]

        def run(f: Callable, x: Any, h: Any, s: Any, t: Any) -> list[torch.Tensor]:
            (force,) = torch.autograd.grad(f(x=x, s=s, t=t, u=u, F=F, h=h).sum(), x, create_graph=True)
            return [force.detach(), *torch.autograd.grad((force**2).sum(), F)]

        yield f"{atoms} atoms, {len(s)} edges", partial(run, layer, x, h, s, t), partial(run, reference, x, h, s, t)


CELLS = """
h[0,b,i] = 0.0
h[t+1,b,i] = tanh(sum[j](x[t,b,j]*V[i,j]) + sum[j](h[t,b,j]*W[i,j]) + c[i])
return h
"""


def cells(count: int) -> Iterator[Sized]:
    """Yield training steps of a recurrent layer on 4 sequences of 20 to 300 steps: the last state, and gradients."""
    layer = einsmith.frontends.torch.operator(es.op(CELLS))
    module = torch.nn.RNN(64, 64)
    module.bias_hh_l0.requires_grad_(False).zero_()
    weights = module.weight_ih_l0, module.weight_hh_l0, module.bias_ih_l0
    for _ in range(count):
        x = torch.randn(int(torch.randint(20, 301, ())), 4, 64)

        def run(f: Callable, x: Any) -> list[torch.Tensor]:
            y = f(x)[-1]
            return [y.detach(), *torch.autograd.grad((y**2).sum(), weights)]

        ours = partial(run, lambda x: layer(x=x, V=weights[0], W=weights[1], c=weights[2]), x)
        yield f"{len(x)} steps", ours, partial(run, lambda x: module(x)[0], x)


ALIGNED = """
p[t,u,b] = where(t > 0, a[t-1,u,b] + k[t-1,u,b], -1e30)
q[t,u,b] = where(u > 0, a[t,u-1,b] + e[t,u-1,b], where(t == 0, 0, -1e30))
a[t,u,b] = max(p[t,u,b], q[t,u,b]) + log1p(exp(-abs(p[t,u,b] - q[t,u,b])))
y[b] = -a[k.shape[0]-1,k.shape[1]-1,b] - k[k.shape[0]-1,k.shape[1]-1,b]
return y
"""
"""The loss of a transducer: `k`, `e`: log-probabilities of a blank and of the next label, [T, U+1, B] and [T, U, B]
(Graves 2012, section 2.4)."""


def align(k: Any, e: Any) -> torch.Tensor:
    """Return what ALIGNED computes, in PyTorch."""
    row = torch.cat((torch.zeros_like(e[0, :1]), e[0].cumsum(0)))
    for t in range(1, len(k)):
        sums = torch.cat((torch.zeros_like(e[t, :1]), e[t].cumsum(0)))
        row = sums + torch.logcumsumexp(row + k[t - 1] - sums, 0)
    return -row[-1] - k[-1, -1]


def transducers(count: int) -> Iterator[Sized]:
    """Yield losses of a transducer, 4 sequences of 20 to 150 frames and 5 to 40 labels, and their gradients."""
    loss = einsmith.frontends.torch.operator(es.op(ALIGNED))

    for _ in range(count):
        frames, labels = int(torch.randint(20, 151, ())), int(torch.randint(5, 41, ()))
        scores = torch.log_softmax(torch.randn(2, frames, labels + 1, 4), 0)
        k, e = scores[0].clone().requires_grad_(), scores[1, :, :-1].clone().requires_grad_()

        def run(f: Callable, k: Any, e: Any) -> list[torch.Tensor]:
            y = f(k=k, e=e)
            return [y.detach(), *torch.autograd.grad(y.sum(), (k, e))]

        yield f"{frames} frames, {labels} labels", partial(run, loss, k, e), partial(run, align, k, e)


def _language_model(layers: int = 2) -> Any:
    """Return a Llama of small layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=4, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def prompts(count: int) -> Iterator[Sized]:
    """Yield training steps of a causal language model on 2 prompts of 20 to 300 tokens: loss and a gradient."""
    model = _language_model()
    model.config.use_cache = False
    compiled = torch.compile(model, backend="einsmith")
    for _ in range(count):
        tokens = torch.randint(512, (2, int(torch.randint(20, 301, ()))))

        def run(f: Callable, tokens: Any) -> list[torch.Tensor]:
            model.zero_grad()
            loss = f(tokens, labels=tokens).loss
            loss.backward()
            return [loss.detach(), model.lm_head.weight.grad.clone()]

        yield f"{tokens.shape[1]} tokens", partial(run, compiled, tokens), partial(run, model, tokens)


def keys(count: int) -> Iterator[Sized]:
    """Yield steps of attention over a cache that grows by one key each."""

    def attend(q: Any, k: Any, v: Any) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    def run(f: Callable, k: Any, v: Any) -> list[torch.Tensor]:
        return [f(q, k, v)]

    compiled = torch.compile(attend, backend="einsmith", dynamic=True)
    q, cache = torch.randn(1, 8, 1, 64), torch.randn(2, 1, 8, count + 8, 64)
    for n in range(8, count + 8):
        k, v = (x[:, :, :n].contiguous() for x in cache)
        yield f"{n} keys", partial(run, compiled, k, v), partial(run, attend, k, v)


def decoding(count: int) -> Iterator[Sized]:
    """Yield decoding steps of a causal language model, whose cache grows by one token each."""
    from transformers import DynamicCache

    model = _language_model().eval().requires_grad_(False)
    compiled = torch.compile(model, backend="einsmith", dynamic=True)
    caches = DynamicCache(), DynamicCache()
    tokens = torch.randint(512, (1, 8))
    for cache in caches:
        model(tokens, past_key_values=cache)
    for n in range(8, count + 8):
        token = torch.randint(512, (1, 1))

        def run(f: Callable, cache: Any, token: Any) -> list[torch.Tensor]:
            return [f(token, past_key_values=cache).logits]

        yield f"{n} tokens", partial(run, compiled, caches[0], token), partial(run, model, caches[1], token)


CASES: dict[str, Callable[[int], Iterator[Sized]]] = {
    "graphs": graphs,
    "cells": cells,
    "transducers": transducers,
    "prompts": prompts,
    "decoding": decoding,
    "keys": keys,
}


def measure(make: Callable[[int], Iterator[Sized]], count: int) -> dict[str, Any]:
    """Return the seconds of each size on both sides, and the compilations."""
    torch.manual_seed(1)
    compile_graph, programs = executable.compile_graph, 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal programs
        programs += 1
        return compile_graph(*args, **kwargs)

    executable.compile_graph = counted
    ours, theirs, built = [], [], []
    try:
        for size, run, reference in make(count):
            begun = time.perf_counter()
            results = run()
            between = time.perf_counter()
            expected = reference()
            ours.append(between - begun)
            theirs.append(time.perf_counter() - between)
            built.append(programs)
            for a, b in zip(results, expected, strict=True):
                scale = float(b.abs().max())
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * scale, msg=f"results differ at {size}")
    finally:
        executable.compile_graph = compile_graph
    return {"einsmith": ours, "pytorch": theirs, "programs": built}


def show(results: Results, cells: dict[str, Any]) -> None:
    """Print a table."""
    rows = []
    for name, cell in cells.items():
        half = len(cell["einsmith"]) // 2
        late = [1e3 * sum(cell[side][half:]) / max(1, len(cell[side]) - half) for side in ("einsmith", "pytorch")]
        total = [f"{sum(cell[side]):.2f}" for side in ("einsmith", "pytorch")]
        rows.append([name, 2 * half, *total, *(f"{x:.2f}" for x in late), cell["programs"][half], cell["programs"][-1]])
    names = "case", "sizes", "all, s", "PyTorch, s", "later half, ms", "PyTorch, ms", "programs at half", "at the end"
    results.console.print(table("batches of which no two have one size", names, rows, ("case",)))


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark."""
    args = Parser(__doc__, CASES, count=(200, "sizes of each case"), threads=(2, "threads"), json=KEPT).read(
        argv, count=4
    )
    torch.set_num_threads(args.threads)
    results = Results(args.json)
    chosen = {name: CASES[name] for name in args.names or CASES}
    show(results, results.fill((name, partial(measure, make, args.count)) for name, make in chosen.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
