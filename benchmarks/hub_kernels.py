"""Training steps of models of transformers with its own functions and with Einsmith's: python -m benchmarks.hub_kernels

Models from a configuration, with random weights, in float32: values and gradients of all parameters, eager, and with
`--compile` also by torch.compile: transformers' own functions by inductor, Einsmith's by the backend "einsmith". Losses
and gradients are compared before anything is timed, in turns.
"""

from __future__ import annotations

import sys
from collections import defaultdict
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


def _mamba() -> Any:
    from transformers import MambaConfig, MambaForCausalLM

    return MambaForCausalLM(MambaConfig(vocab_size=1000, hidden_size=256, num_hidden_layers=4, state_size=16))


MODELS: dict[str, Callable[[], Any]] = {"Qwen3-Next": _qwen3_next, "Mamba-2": _mamba2, "Mamba": _mamba}


def measure(label: str, batch: int, length: int, threads: int, compiles: bool) -> dict[str, Any]:
    """Return the seconds of a step of each form, and how far gradients are apart."""
    import torch

    from einsmith.frontends import transformers as kernels

    torch.manual_seed(0)
    torch.set_num_threads(threads)
    es.set_threads(threads)
    model, tokens = MODELS[label]().train(), torch.randint(0, 1000, (batch, length))

    def step(f: Callable) -> Any:
        model.zero_grad()
        loss = f(input_ids=tokens, labels=tokens).loss
        loss.backward()
        return loss

    def results(f: Callable) -> list[np.ndarray]:
        loss = step(f).detach().numpy()
        return [loss, *(p.grad.numpy().copy() for p in model.parameters() if p.grad is not None)]

    forms: dict[str, tuple[Callable, bool]] = {"own": (model, False), "einsmith": (model, True)}
    if compiles:
        forms |= {
            "inductor": (torch.compile(model), False), "backend": (torch.compile(model, backend="einsmith"), True)
        }  # fmt: skip
    wanted: list[np.ndarray] = []
    apart: dict[str, float] = {}
    seconds: dict[str, list[float]] = defaultdict(list)
    for turn in range(RUNS + 1):
        for name, (f, is_enabled) in forms.items():
            (kernels.enable if is_enabled else kernels.disable)()  # outside of what is timed
            if turn:
                seconds[name] += in_turns({name: partial(step, f)}, 1)[name]
                continue
            found = results(f)
            wanted = wanted or found
            apart[name] = max(
                float(np.abs(a - b).max() / (np.abs(a).max() + 1e-9)) for a, b in zip(wanted, found, strict=True)
            )
    kernels.disable()
    if max(apart.values()) > TOLERANCE:
        raise ValueError(f"{label}: gradients are {apart} apart")
    return {"seconds": {n: min(x) for n, x in seconds.items()}, "apart": apart}


def main() -> int:
    """Print milliseconds of steps; return the exit status."""
    options: dict[str, Any] = {
        "batch": (1, "sequences"),
        "length": (512, "tokens of a sequence"),
        "threads": (2, "of both"),
    }
    options |= {"compile": (False, "torch.compile, too, by inductor and by Einsmith"), "json": KEPT, "fresh": FRESH}
    args = Parser(__doc__, MODELS, **options).read(threads=1, batch=1, length=2)
    results = Results(args.json)
    sizes = args.batch, args.length, args.threads, args.compile
    cases = [(f"{n}/{'/'.join(map(str, sizes))}", partial(measure, n, *sizes)) for n in args.names or MODELS]
    rows = []
    for key, cell in results.fill(cases, args.fresh).items():
        seconds = cell["seconds"]
        times = [f"{seconds[n] * 1e3:.0f}" if n in seconds else "" for n in ("own", "inductor", "einsmith", "backend")]
        best = [
            min(seconds[n] for n in pair if n in seconds) for pair in (("own", "inductor"), ("einsmith", "backend"))
        ]
        rows.append((key.split("/")[0], *times, f"{best[0] / best[1]:.2f}", f"{max(cell['apart'].values()):.0e}"))
    columns = ("", "own, ms", "by inductor", "Einsmith's", 'by backend="einsmith"', "times the best own", "apart")
    results.console.print(table("training steps", columns, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
