"""Random small networks through `torch.compile`'s backend: operators with broadcasting, views, strides of inputs.

python -m tests.frontends.compile_fuzz --count 2000 --seed 1
python -m tests.frontends.compile_fuzz --count 500 --sizes    the same networks at several sizes, in guarded memory
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch.nn import functional as tf

from einsmith.driver.sizes import Sizes
from tests.frontends.compile_samples import Call, Differs, as_exact, compare, run, same_runs
from tests.fuzz import sizes

SIZES = (1, 2, 3, 5, 7, 8, 9, 16, 17)


def strided(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    """The same elements, or some of them, at other strides."""
    way = rng.randrange(7)
    if way == 0 and x.ndim > 1:
        dims = rng.sample(range(x.ndim), x.ndim)
        back = [dims.index(d) for d in range(x.ndim)]
        return x.permute(dims).contiguous().permute(back)
    if way == 1 and x.ndim:
        d = rng.randrange(x.ndim)
        wide = torch.repeat_interleave(x, 2, d)
        return wide[tuple(slice(None, None, 2) if k == d else slice(None) for k in range(x.ndim))]
    if way == 2 and x.ndim:
        d = rng.randrange(x.ndim)
        return x.narrow(d, 0, 1).expand(x.shape)
    if way == 3 and x.ndim and x.numel():  # windows that overlap
        n = x.shape[-1]
        flat = torch.randn(x.numel() // n + n, dtype=x.dtype)
        return flat.as_strided((*x.shape[:-1], n), (*([0] * (x.ndim - 2)), 1, 1)[-x.ndim :] if x.ndim > 1 else (1,))
    if way == 4:
        return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)  # off the alignment
    return x


def _same_shape(rng: random.Random, x: torch.Tensor) -> Callable:
    return rng.choice([
        torch.sin, torch.tanh, torch.relu, torch.abs, torch.sigmoid, tf.gelu, tf.silu, lambda v: v * v,
        lambda v: v + 1.5,
        lambda v: 2 / (1 + v * v), lambda v: v.clamp(-0.5, 0.7), lambda v: torch.exp(-v.abs()), tf.softplus,
        lambda v: torch.where(v > 0.1, v, -v * 3), lambda v: v.clone().mul_(2), lambda v: v.clamp_min(0.0),
        lambda v: torch.log1p(v.abs()), lambda v: v.detach() * 2 + v, lambda v: v.double().to(v.dtype),
        lambda v: tf.leaky_relu(v, 0.2), lambda v: v.flip(0) if v.ndim else v, lambda v: v.roll(1, -1) if v.ndim else v,
    ])  # fmt: skip


def _along(rng: random.Random, x: torch.Tensor) -> Callable:
    d, keep = rng.randrange(x.ndim), rng.random() < 0.5
    n = x.shape[d]
    k = rng.randrange(n)
    return rng.choice([
        lambda v: v.sum(d, keepdim=keep), lambda v: v.mean(d, keepdim=keep), lambda v: v.amax(d, keepdim=keep),
        lambda v: v.max(d, keepdim=keep)[0], lambda v: v.logsumexp(d, keepdim=keep), lambda v: v.cumsum(d),
        lambda v: torch.softmax(v, d), lambda v: torch.log_softmax(v, d),
        lambda v: v.var(d, correction=0, keepdim=keep),
        lambda v: v.select(d, k), lambda v: v.narrow(d, k, n - k), lambda v: v.unsqueeze(d), lambda v: v.flip(d),
        lambda v: v[(slice(None),) * d + (slice(None, None, 2),)], lambda v: torch.cat([v, v * 2], d),
        lambda v: torch.stack([v, v.sin()], d), lambda v: v.transpose(d, 0), lambda v: v.transpose(d, -1) * 2,
        lambda v: v.index_select(d, torch.tensor([k, 0, k])),
        lambda v: torch.gather(v, d, torch.zeros_like(v, dtype=torch.int64)),
        lambda v: sum(v.chunk(2, d)[:1]), lambda v: v.unfold(d, 1, 1).squeeze(-1), lambda v: tf.normalize(v, dim=d),
        lambda v: v.reshape(-1), lambda v: tf.pad(v, (1, 2)), lambda v: tf.layer_norm(v, v.shape[-1:]),
        lambda v: v.sum(),
        lambda v: v.movedim(d, 0).contiguous(), lambda v: tf.glu(torch.cat([v, v.cos()], d), d),
        lambda v: v.expand(2, *v.shape), lambda v: v.repeat(2, *[1] * (v.ndim - 1)), lambda v: v.sort(d)[0],
    ])  # fmt: skip


Step = tuple[Callable, tuple[int, ...]]
"""A function, and the numbers of the earlier tensors that it takes."""


def network(seed: int) -> tuple[Callable, list[torch.Tensor]]:
    """(a function of tensors that gives some, the tensors). The same for the same seed."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    dtype = rng.choice([torch.float64, torch.float64, torch.float64, torch.float32])
    shape = [rng.choice(SIZES) for _ in range(rng.randrange(1, 5))]
    while torch.Size(shape).numel() > 4000:
        shape[rng.randrange(len(shape))] = 1
    inputs = []
    for k in range(rng.randrange(1, 4)):
        own = [1 if k and rng.random() < 0.3 else n for n in shape[rng.randrange(len(shape)) if k else 0 :]]
        x = strided(rng, torch.randn(own, dtype=dtype))
        inputs.append(x.requires_grad_(rng.random() < 0.8))
    steps = _steps(rng, inputs)
    results = len(inputs) + len(steps) - 1, rng.randrange(len(inputs) + len(steps))

    def f(*given: torch.Tensor) -> list:
        made = [x.sin() for x in given]
        for step, at in steps:
            made.append(step(*(made[k] for k in at)))
        return [*(made[k] for k in results), *([given[0].t()] if given[0].ndim == 2 else [])]

    return f, inputs


def _steps(rng: random.Random, inputs: list[torch.Tensor]) -> list[Step]:
    """Steps that can follow one another from the inputs."""
    steps: list[Step] = []
    made = [x.detach().sin() for x in inputs]
    for _ in range(rng.randrange(2, 9)):
        k = rng.randrange(max(0, len(made) - 3), len(made))
        x, way = made[k], rng.random()
        if way < 0.35 and x.ndim:
            step: Step = _along(rng, x), (k,)
        elif way < 0.65:
            step = _same_shape(rng, x), (k,)
        elif rng.random() < 0.2 and x.ndim > 1:
            step = (lambda v: v @ v.transpose(-1, -2)), (k,)
        else:
            j = rng.randrange(len(made))
            g = rng.choice([torch.add, torch.mul, torch.sub, torch.maximum, torch.minimum])
            try:
                torch.broadcast_shapes(x.shape, made[j].shape)
                step = g, (k, j)
            except RuntimeError:
                step = (lambda v, w, g=g: g(v, w.mean())), (k, j)
        y = step[0](*(made[k] for k in step[1]))
        if 0 < y.numel() <= 20000:
            made.append(y)
            steps.append(step)
    return steps


# ------------------------------------------------------------------------------------------------------ sizes that vary


def of_size(seed: int, n: int) -> tuple[Callable, list[torch.Tensor], list[tuple[int, int]]]:
    """(the function of `network`, tensors in which the first one's longest extents are n, (tensor, dimension) of
    these)."""
    f, inputs = network(seed)
    longest = max(inputs[0].shape, default=1)
    at = [(k, d) for k, x in enumerate(inputs) for d, m in enumerate(x.shape) if m == longest > 1]
    torch.manual_seed(seed + n)
    shapes = [[n if (k, d) in at else m for d, m in enumerate(x.shape)] for k, x in enumerate(inputs)]
    return (
        f,
        [torch.randn(s, dtype=x.dtype).requires_grad_(x.requires_grad) for s, x in zip(shapes, inputs, strict=False)],
        at,
    )


def counted(tally: Counter) -> Callable:
    """`Sizes._fitted`, of which the calls are counted."""
    fitted = Sizes._fitted

    def count(*args: Any) -> Any:
        tally["programs that sizes share"] += 1
        return fitted(*args)

    return count


def compare_sizes(seed: int, tally: Counter) -> None:
    """Compare a network at several sizes, of which Dynamo makes graphs of symbolic sizes, with PyTorch. Raises Differs
    and what the backend raises."""
    torch._dynamo.reset()
    f, inputs, at = of_size(seed, 7)
    if not at or not any(x.requires_grad for x in inputs):
        tally["of one size"] += 1
        return
    g = torch.compile(f, backend="einsmith", dynamic=True)
    rng = random.Random(seed)
    for n in rng.sample([2, 3, 5, 8, 13, 17, 23, 40, 41], 5):
        tensors = of_size(seed, n)[1]
        try:
            wanted = run(Call(f), tensors, True)
        except Exception:  # indices of the steps are those of another size
            tally["not at this size"] += 1
            continue
        with sizes.guarded_memory() as guards, mock.patch.object(Sizes, "_fitted", counted(tally)):
            guards.poison = sizes.POISON[n % 2]
            found = run(Call(g), tensors, True)
        try:
            same_runs(found, wanted, None)
        except Differs as e:
            if not as_exact(found, wanted, Call(f), tensors, True):
                raise Differs(f"at {n}: {e}") from None
        tally["compared"] += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sizes", action="store_true", help="at several sizes, which share programs")
    options = parser.parse_args()
    wrong = told = 0
    tally: Counter = Counter()
    for seed in range(options.seed * 10**6, options.seed * 10**6 + options.count):
        try:
            found = compare_sizes(seed, tally) if options.sizes else compare(*network(seed))
            told += bool(found)
            if found:
                print(seed, found, flush=True)
        except Differs as e:
            wrong += 1
            print(f"WRONG {seed}: {str(e)[:300]}", flush=True)
        except Exception as e:
            wrong += 1
            print(f"ERROR {seed}: {type(e).__name__} {str(e)[:300]}", flush=True)
    print(f"{options.count} networks, {wrong} wrong, {told} partly in PyTorch or at other strides", dict(tally))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
