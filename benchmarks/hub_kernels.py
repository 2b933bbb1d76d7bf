"""Training steps of models of transformers with its own functions and with Einsmith's: python -m benchmarks.hub_kernels

Models from a configuration, with random weights, in float32: values and gradients of all parameters, eager, and by
torch.compile with `--compile`. Losses and gradients are compared before anything is timed, in turns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import einsmith as es
from benchmarks.driver import FRESH, KEPT, Parser, Results, in_turns, table

RUNS = 5
TOLERANCE = 5e-3
"""Most that a gradient may be apart, relative to the largest element of all gradients of its parameter: those by decays
lose digits in transformers' own functions."""


def _qwen3_next() -> Any:
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    widths: dict[str, Any] = {"linear_num_value_heads": 8, "linear_num_key_heads": 4, "linear_key_head_dim": 64}
    kinds = ["linear_attention"] * 3 + ["full_attention"]
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    config = Qwen3NextConfig(
        vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=4, layer_types=kinds,
        linear_value_head_dim=64, num_experts=0, mlp_only_layers=[0, 1, 2, 3], **heads, **widths,
    )  # fmt: skip
    return Qwen3NextForCausalLM(config)


def _mamba2() -> Any:
    from transformers import Mamba2Config, Mamba2ForCausalLM

    config = Mamba2Config(
        vocab_size=1000, hidden_size=256, num_hidden_layers=4, num_heads=8, head_dim=64, state_size=64, n_groups=1,
        chunk_size=64,
    )  # fmt: skip
    return Mamba2ForCausalLM(config)


MODELS: dict[str, Callable[[], Any]] = {"Qwen3-Next": _qwen3_next, "Mamba-2": _mamba2}


def measure(name: str, batch: int, length: int, threads: int, compiles: bool) -> dict[str, Any]:
    """Return the seconds of a step of each form, and how far gradients are apart."""
    import torch

    from einsmith.frontends import transformers as kernels

    torch.manual_seed(0)
    torch.set_num_threads(threads)
    es.set_threads(threads)
    model, tokens = MODELS[name]().train(), torch.randint(0, 1000, (batch, length))

    def step(f: Callable, is_enabled: bool) -> list[np.ndarray]:
        (kernels.enable if is_enabled else kernels.disable)()
        model.zero_grad()
        loss = f(input_ids=tokens, labels=tokens).loss
        loss.backward()
        return [loss.detach().numpy(), *(p.grad.numpy().copy() for p in model.parameters() if p.grad is not None)]

    calls: dict[str, Callable[[], list[np.ndarray]]] = {
        "own": partial(step, model, False), "einsmith": partial(step, model, True)
    }  # fmt: skip
    if compiles:
        compiled = torch.compile(model)
        calls["compiled"] = partial(step, compiled, False)
    wanted = calls["own"]()
    apart = {
        n: max(float(np.abs(a - b).max() / (np.abs(a).max() + 1e-9)) for a, b in zip(wanted, call(), strict=True))
        for n, call in calls.items()
    }
    if max(apart.values()) > TOLERANCE:
        raise ValueError(f"{name}: gradients are {apart} apart")
    return {"seconds": {n: min(x) for n, x in in_turns(calls, RUNS).items()}, "apart": apart}


def main() -> int:
    """Print milliseconds of steps; return the exit status."""
    options: dict[str, Any] = {
        "batch": (1, "sequences"),
        "length": (512, "tokens of a sequence"),
        "threads": (2, "of both"),
    }
    options |= {"compile": (False, "torch.compile with transformers' own functions, too"), "json": KEPT, "fresh": FRESH}
    args = Parser(__doc__, MODELS, **options).read(threads=2)
    results = Results(args.json)
    sizes = args.batch, args.length, args.threads, args.compile
    cases = [(f"{n}/{'/'.join(map(str, sizes))}", partial(measure, n, *sizes)) for n in args.names or MODELS]
    rows = []
    for key, cell in results.fill(cases, args.fresh).items():
        seconds = cell["seconds"]
        times = [f"{seconds[n] * 1e3:.0f}" if n in seconds else "" for n in ("own", "compiled", "einsmith")]
        best = min(s for n, s in seconds.items() if n != "einsmith")
        rows.append(
            (key.split("/")[0], *times, f"{best / seconds['einsmith']:.2f}", f"{cell['apart']['einsmith']:.0e}")
        )
    columns = ("", "own, ms", "torch.compile, ms", "with Einsmith's, ms", "times the best", "apart")
    results.console.print(table("training steps", columns, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
