"""PyTorch's operator samples through `torch.compile`'s backend: values, strides, derivatives, and what ran where.

python -m tests.frontends.compile_samples --dtype float64 --samples 3 --part 0/1
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch._dynamo.backends.registry import lookup_backend
from torch.utils._pytree import tree_flatten, tree_unflatten

import einsmith.frontends.torch  # noqa: F401 - registers the backend
from tests.caches import forget
from tests.nn.twin import torch_testing

TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
EMPTY = {
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",  # memory as it lies
}  # fmt: skip
DRAWS = {"rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "bernoulli", "multinomial", "cauchy",
         "exponential", "geometric", "log_normal", "normal", "uniform", "nn.functional.rrelu", "svd_lowrank",
         "pca_lowrank"}  # fmt: skip
"""Others are seen to draw random numbers by what two runs give; what these give is the same by chance, or their samples
set the seed."""
TIES = {"kthvalue", "topk", "mode", "sort", "argsort", "msort"}
"""Where the element of several equal ones is left open; of integers there are many."""


class Call(torch.nn.Module):
    """An operator of tensors, as a module that AOTAutograd takes."""

    def __init__(self, f: Callable):
        super().__init__()
        self.f = f

    def forward(self, *tensors: torch.Tensor) -> list:
        return [x for x in tree_flatten(self.f(*tensors))[0] if isinstance(x, torch.Tensor)]


class Differs(AssertionError):
    """Ours and PyTorch's results differ."""


def taken_apart(op: Any, sample: Any) -> tuple[Callable, list[torch.Tensor]]:
    """(a function of the tensors of a sample, the tensors)."""
    leaves, structure = tree_flatten((sample.input, sample.args, sample.kwargs))
    at = [n for n, x in enumerate(leaves) if isinstance(x, torch.Tensor)]

    def call(*tensors: Any) -> Any:
        given = dict(zip(at, tensors, strict=True))
        x, args, kwargs = tree_unflatten([given.get(n, x) for n, x in enumerate(leaves)], structure)
        return op.op(x, *args, **kwargs)

    return call, [leaves[n] for n in at]


def _as_given(x: torch.Tensor) -> torch.Tensor:
    """A tensor of the same elements and strides that can ask for a gradient."""
    if x.layout is not torch.strided:
        return x.detach().clone().requires_grad_(x.requires_grad)
    if not x.numel() or 0 in x.stride():  # elements that share memory
        return x.detach().requires_grad_(x.requires_grad)
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x.detach()).requires_grad_(x.requires_grad)


def run(f: Callable, tensors: list[torch.Tensor], gradients: bool) -> tuple[list, list, list]:
    """(results, derivatives of their weighted sum, what the tensors are afterwards)."""
    own = [_as_given(x) for x in tensors]
    out = f(*own)
    moving = [x for x in own if x.requires_grad]
    paths = [x for x in out if x.requires_grad and x.numel()]
    total: list[torch.Tensor | None] = [None for _ in moving] if gradients else []
    if total and paths:
        weights = [torch.cos(torch.arange(x.numel(), dtype=torch.float64)).reshape(x.shape).to(x.dtype) for x in paths]
        total = list(torch.autograd.grad(paths, moving, weights, allow_unused=True))
    return [x.detach() for x in out], total, [x.detach() for x in own]


def same(a: torch.Tensor | None, b: torch.Tensor | None, what: str, rtol: float | None) -> None:
    if a is None and b is None:
        return
    a = torch.zeros_like(b) if a is None else a  # a derivative that is None is 0
    b = torch.zeros_like(a) if b is None else b
    if a.shape != b.shape or a.dtype != b.dtype:
        raise Differs(f"{what}: {a.shape} {a.dtype}, PyTorch {b.shape} {b.dtype}")
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    if not a.is_floating_point() and not a.is_complex():
        if not torch.equal(a, b):
            raise Differs(f"{what}: {a}, PyTorch {b}")
        return
    tolerance = rtol or TOLERANCE.get(a.dtype, 1e-4)
    finite = b[torch.isfinite(b)]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    if not torch.allclose(a, b, rtol=tolerance, atol=tolerance * max(scale, 1e-3) * 1e-1, equal_nan=True):
        raise Differs(f"{what}: {a}, PyTorch {b}")


def compare(f: Callable, tensors: list[torch.Tensor], gradients: bool = True, rtol: float | None = None) -> list[str]:
    """Raises Differs where the backend's results are not PyTorch's; the operators that ran in PyTorch."""
    module = Call(f)
    wanted = run(module, tensors, gradients)
    if not wanted[0]:
        return ["nothing"]
    found, told, draws = _compiled(module, tensors, gradients)
    try:
        same_runs(found, wanted, rtol)
    except Differs:
        if draws:  # the same seed draws other numbers; with PyTorch's, all is to be the same
            same_runs(_compiled(module, tensors, gradients, fallback_random=True)[0], wanted, rtol)
            return [DRAWN]
        if not as_exact(found, wanted, module, tensors, gradients):
            raise
    for a, b in zip(found[0], wanted[0], strict=True):
        if a.layout is torch.strided and a.stride() != b.stride() and b.numel() > 1:
            kept = [(s, t) for s, t, k in zip(a.stride(), b.stride(), b.shape, strict=True) if k > 1]
            if any(s != t for s, t in kept):
                told.append(f"strides {a.stride()}, PyTorch {b.stride()}")
    return told


DRAWN = "random"
"""What `compare` says of what draws random numbers."""
SEED = 42
"""What PyTorch's samples of operators set in a call; where it is traced, that is long past when the program runs."""
Run = tuple[list, list, list]


def _compiled(
    module: Call, tensors: list[torch.Tensor], gradients: bool, **options: Any
) -> tuple[Run, list[str], bool]:
    """(`run` by the backend, what it said, whether it draws random numbers of its own)."""
    from einsmith.frontends.torch_compile import region

    forget("operators that run in PyTorch")
    made: list[region.Region] = []
    prepare = region.Region.prepare

    def noted(self: region.Region, *inputs: Any) -> None:
        made.append(self)
        prepare(self, *inputs)

    with warnings.catch_warnings(record=True) as found, mock.patch.object(region.Region, "prepare", noted):
        warnings.simplefilter("always")
        given = [x.detach().requires_grad_(x.requires_grad) for x in tensors]
        f = lookup_backend("einsmith")(module, given, options=options)
        torch.manual_seed(SEED)
        done = run(f, tensors, gradients)
    told = [str(w.message) for w in found if str(w.message).startswith("einsmith")]
    return done, told, any(r.random for r in made)


def same_runs(found: Run, wanted: Run, rtol: float | None) -> None:
    for what, ours, theirs in zip(("output", "derivative", "input afterwards"), found, wanted, strict=True):
        for n, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            if what == "derivative" and a is not None and b is not None and b.is_floating_point():
                a = torch.where(torch.isfinite(b), a, b)  # where PyTorch has no number, ours may be one
            same(a, b, f"{what} {n}", rtol)


def as_exact(found: Run, wanted: Run, module: Call, tensors: list[torch.Tensor], gradients: bool) -> bool:
    """Whether the results of narrow floats are as near to those in float64 as PyTorch's are, which may be mere rounding
    where terms cancel."""
    if not any(x.dtype in TOLERANCE and x.dtype is not torch.float64 for x in tensors):
        return False
    wide = [x.detach().double().requires_grad_(x.requires_grad) if x.dtype in TOLERANCE else x for x in tensors]
    try:
        exact = run(module, wide, gradients)
    except Exception:
        return False
    for ours, theirs, best in zip(found, wanted, exact, strict=True):
        for a, b, c in zip(ours, theirs, best, strict=True):
            if a is None or b is None or c is None or a.shape != c.shape or not c.is_floating_point():
                if (a is None) != (b is None) or (a is not None and not torch.equal(a, b)):
                    return False
                continue
            off, bound = (float((x.double() - c).abs().max()) if c.numel() else 0.0 for x in (a, b))
            if not off <= 4 * bound + 1e-30:
                return False
    return True


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two runs gave the same: else random numbers are drawn, and ours are others."""
    if a.layout is not torch.strided or a.is_complex():
        return True
    return torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))


def traced(f: Callable, tensors: list[torch.Tensor]) -> bool:
    """Whether PyTorch's own backend that only traces takes the call."""
    try:
        given = [x.detach().requires_grad_(x.requires_grad) for x in tensors]
        run(lookup_backend("aot_eager")(Call(f), given), tensors, True)
    except Exception:
        return False
    return True


def counted(tally: Counter, call: Callable, tensors: list[torch.Tensor]) -> tuple[list[str], list[str]]:
    """(what ran in PyTorch, strides that are others) of a sample, which is counted, too. Raises Differs, and what the
    backend raises where PyTorch traces the call."""
    try:
        first, again = run(Call(call), tensors, False)[0], run(Call(call), tensors, True)[0]
    except Exception:
        tally["not in eager"] += 1
        return [], []
    if not all(map(_equal, first, again)):
        tally["random"] += 1
        return [], []
    try:
        found = compare(call, tensors)
    except Differs:
        raise
    except Exception:
        if traced(call, tensors):
            raise
        tally["not traced by PyTorch"] += 1
        return [], []
    if found == [DRAWN]:
        tally["random"] += 1
        return [], []
    told, strides = ([t for t in found if t.startswith("strides") is others] for others in (False, True))
    if told and any(x.is_complex() or x.layout is not torch.strided for x in (*tensors, *first)):
        tally["complex or sparse, in PyTorch"] += 1
        return [], []
    tally["in PyTorch" if told else "ours"] += 1
    return told, strides


def derived(f: Callable) -> Callable:
    """The derivatives of f's weighted results, which can be derived once more."""

    def call(*tensors: torch.Tensor) -> list:
        paths = [x for x in Call(f)(*tensors) if x.requires_grad and x.numel()]
        moving = [x for x in tensors if x.requires_grad]
        if not paths:
            return [x.clone() for x in moving]
        weights = [torch.sin(torch.arange(x.numel(), dtype=torch.float64) + 1).reshape(x.shape).to(x) for x in paths]
        found = torch.autograd.grad(paths, moving, weights, create_graph=True, allow_unused=True)
        return [x for x in found if x is not None]

    return call


def samples(op: Any, dtype: torch.dtype, count: int, seed: int) -> Iterator[Any]:
    """Some of an operator's samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        moving = dtype.is_floating_point and op.supports_autograd
        found = list(islice(op.sample_inputs("cpu", dtype, requires_grad=moving), 200))
    found = [s for s in found if sum(x.numel() for x in tree_flatten((s.input, s.args, s.kwargs))[0]
                                      if isinstance(x, torch.Tensor)) <= 5000]  # fmt: skip
    yield from found if count <= 0 or len(found) <= count else random.Random(seed).sample(found, count)


def operators(dtype: torch.dtype) -> list[Any]:
    found = []
    for op in torch_testing("common_methods_invocations").op_db:
        name = f"{op.name}.{op.variant_test_name}".rstrip(".")
        if op.name in EMPTY or op.name in DRAWS or dtype not in op.supported_dtypes("cpu"):
            continue
        if op.name in {*TIES, "sinc"} and not dtype.is_floating_point:  # zeros of sinc are a rounding error there
            continue
        if op.name.startswith("jiterator") or name in LEFT_OUT:
            continue
        found.append(op)
    return found


LEFT_OUT = {
    "as_strided.partial_views",  # reads past what a copy holds
}  # fmt: skip


def sweep(
    dtype: torch.dtype, count: int, seed: int, chosen: list[Any], say: Callable[[str], None], second: bool = False
) -> Counter:  # fmt: skip
    """Compares samples of operators; how many ran wholly on programs, partly in PyTorch, or could not be asked.
    second: samples of their derivatives instead, with what these are derived to."""
    tally: Counter = Counter()
    reasons: Counter = Counter()
    left: Counter = Counter()
    for op in chosen:
        name = f"{op.name}.{op.variant_test_name}".rstrip(".")
        try:
            given = list(samples(op, dtype, count, seed))
        except Exception as e:  # PyTorch's own samples fail where something is not installed
            say(f"{name}: no samples: {str(e)[:80]}")
            continue
        for sample in given:
            call, tensors = taken_apart(op, sample)
            if not tensors:
                continue
            if any("dropout" in k and v for k, v in sample.kwargs.items()):
                tally["random"] += 1
                continue
            call = derived(call) if second else call
            torch.manual_seed(0), np.random.seed(0)
            try:
                told, strides = counted(tally, call, tensors)
            except Differs as e:
                tally["wrong"] += 1
                say(f"WRONG {name} {sample.summary() if hasattr(sample, 'summary') else ''}: {str(e)[:600]}")
                continue
            except Exception as e:
                tally["error"] += 1
                say(f"ERROR {name}: {type(e).__name__}: {str(e)[:300]}")
                continue
            if strides:
                tally["other strides"] += 1
                say(f"STRIDES {name}: {told + strides}")
            left[name] += bool(told)
            reasons.update({t.partition("\n")[0][10:160].replace(" runs in PyTorch", "") for t in told})
    for why, n in reasons.most_common():
        say(f"reason {n:4} {why}")
    say("in PyTorch: " + ", ".join(f"{name} {n}" for name, n in left.most_common() if n))
    return tally


def module_samples(info: Any, dtype: torch.dtype, training: bool, count: int) -> Iterator[tuple[str, Callable, list]]:
    """(name, a function of inputs, parameters and buffers, these) for some of the ways in which a module is made."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(info.module_inputs_func(info, "cpu", dtype, dtype.is_floating_point, training))
    for sample in found[:: max(1, len(found) // count)]:
        torch.manual_seed(0)
        made, given = sample.constructor_input, sample.forward_input
        if given is None:
            continue
        module = info.module_cls(*made.args, **made.kwargs).to(dtype).train(training)
        leaves, structure = tree_flatten((given.args, given.kwargs))
        at = [n for n, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}

        def call(*tensors: Any, m: Any = module, at: Any = at, names: Any = tuple(state), leaves: Any = leaves,
                 structure: Any = structure) -> Any:  # fmt: skip
            own = dict(zip(at, tensors[: len(at)], strict=True))
            args, kwargs = tree_unflatten([own.get(n, x) for n, x in enumerate(leaves)], structure)
            return torch.func.functional_call(m, dict(zip(names, tensors[len(at) :], strict=True)), args, kwargs)

        yield info.name, call, [*(leaves[n] for n in at), *state.values()]


def sweep_modules(dtype: torch.dtype, count: int, chosen: list[Any], say: Callable[[str], None]) -> Counter:
    """`sweep` of PyTorch's modules, training and in evaluation."""
    tally: Counter = Counter()
    for info in chosen:
        for training in (True, False):
            try:
                given = list(module_samples(info, dtype, training, count))
            except Exception:  # a type or a shape that the module does not take
                tally["not in eager"] += 1
                continue
            for name, call, tensors in given:
                try:
                    told, _ = counted(tally, call, tensors)
                except Exception as e:
                    tally["wrong"] += 1
                    say(f"WRONG {name}: {type(e).__name__}: {str(e)[:400]}")
                    continue
                for t in {t.partition("\n")[0] for t in told}:
                    say(f"{name}: {t}")
    return tally


def modules() -> list[Any]:
    return list(torch_testing("common_modules").module_db)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--samples", type=int, default=2, help="of each operator; 0: all")
    parser.add_argument("--part", default="0/1", help="which of how many parts of the operators")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--second", action="store_true", help="their derivatives, derived once more, instead")
    parser.add_argument("--modules", action="store_true", help="those of module_db instead")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    k, n = map(int, options.part.split("/"))
    if options.modules:
        infos = [m for m in modules() if not options.only or m.name in options.only.split(",")][k::n]
        tally = sweep_modules(dtype, options.samples, infos, lambda text: print(text, flush=True))
        print(dict(tally))
        sys.exit(1 if tally["wrong"] else 0)
    chosen = [op for op in operators(dtype) if not options.only or op.name in options.only.split(",")][k::n]
    if options.second:
        chosen = [op for op in chosen if op.supports_gradgrad]
    tally = sweep(dtype, options.samples, options.seed, chosen, lambda text: print(text, flush=True), options.second)
    share = tally["ours"] / max(tally["ours"] + tally["in PyTorch"], 1)
    print(dict(tally), f"{share:.1%} of those that neither take nor give complex or sparse tensors")
    sys.exit(1 if tally["wrong"] or tally["error"] else 0)


if __name__ == "__main__":
    main()
