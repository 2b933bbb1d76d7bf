"""Showpieces as calls that give values and all gradients, in Einsmith and in the libraries of their peers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import einsmith as es
from benchmarks.showpieces.case import Peer, Showpiece, Sizes
from einsmith.runtime import buffers

Arrays = dict[str, np.ndarray]
Call = Callable[[], list[np.ndarray]]
"""Returns the values, then the gradient of each input that has one."""

NOISE = 1e-6
"""A tensor whose elements are smaller, relative to the largest of all tensors, is compared with that: a gradient that
is zero by mathematics consists of rounding errors."""


def as_tuple(y: Any) -> tuple[Any, ...]:
    """Return several results, or the only one, as a tuple."""
    return tuple(y) if isinstance(y, (tuple, list)) else (y,)


def draw(piece: Showpiece, sizes: Sizes, dtype: Any, seed: int = 0) -> Arrays:
    """Return the inputs. Those of float64 hold numbers that float32 has, so that both types have the same results."""
    arrays = piece.arrays(np.random.default_rng(seed), **sizes)
    return {n: a.astype(np.float32).astype(dtype) if a.dtype.kind == "f" else a for n, a in arrays.items()}


def places(piece: Showpiece, arrays: Arrays) -> list[int]:
    """Return the positions of the inputs that have gradients."""
    fixed = piece.constant + piece.known
    return [n for n, (name, a) in enumerate(arrays.items()) if a.dtype.kind == "f" and name not in fixed]


def arguments(piece: Showpiece, arrays: Arrays) -> tuple[Any, ...]:
    """Return the inputs as Einsmith gets them."""
    return tuple(es.constant(a) if name in piece.known else a for name, a in arrays.items())


def cotangents(shapes: Sequence[Sequence[int]], dtype: Any, seed: int = 1) -> list[np.ndarray]:
    """Return what gradients of results of these shapes begin with; float64 holds numbers that float32 has."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32).astype(dtype) for shape in shapes]


def apart(results: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    """Return the largest difference of any tensor, relative to its largest element; infinity where a difference is no
    number. Raises ValueError where shapes differ."""
    worst, least = 0.0, NOISE * max(float(np.abs(b).max(initial=0.0)) for b in wanted)
    for n, (a, b) in enumerate(zip(results, wanted, strict=True)):
        if np.shape(a) != np.shape(b):
            raise ValueError(f"result {n} has shape {np.shape(a)} instead of {np.shape(b)}")
        difference = np.abs(np.asarray(a, np.float64) - b).max(initial=0.0)
        error = float(difference / max(np.abs(b).max(initial=0.0), least, 1e-30))
        worst = max(worst, error if np.isfinite(error) else np.inf)
    return worst


def values(piece: Showpiece, sizes: Sizes, arrays: Arrays) -> tuple[np.ndarray, ...]:
    """Return the values alone."""
    return as_tuple(es.jit(piece.operator(sizes), **piece.settings)(*arguments(piece, arrays)))


def _of_inputs(f: Callable[..., Any], inputs: Sequence[Any], at: Sequence[int]) -> Callable[..., Any]:
    """Return a function of the inputs at some positions, the others being fixed."""

    def of(*chosen: Any) -> Any:
        whole = list(inputs)
        for n, x in zip(at, chosen, strict=True):
            whole[n] = x
        return f(*whole)

    return of


class OfEinsmith:
    """A showpiece in Einsmith: the call of one program of values and gradients."""

    def __init__(self, piece: Showpiece, sizes: Sizes, arrays: Arrays, seeds: Sequence[np.ndarray]):
        op, at = piece.operator(sizes), places(piece, arrays)

        def both(c: Any, x: Any) -> Any:
            y, pull_back = es.vjp(_of_inputs(op, x, at), *(x[n] for n in at))
            return y, pull_back(c)

        self.program = es.jit(both, **piece.settings)
        self._arguments = seeds[0] if len(seeds) == 1 else tuple(seeds), arguments(piece, arrays)

    def __call__(self) -> list[np.ndarray]:
        y, gradients = self.program(*self._arguments)
        return [*as_tuple(y), *gradients]

    @property
    def held(self) -> int:
        """Bytes that the program holds between calls, with those that it keeps for results."""
        kept = sum(size * len(blocks) for size, blocks in buffers._blocks.items())
        return self.program._arena.block.nbytes + kept


def of_torch(f: Callable[..., Any], arrays: Arrays, seeds: Sequence[np.ndarray], at: Sequence[int]) -> Call:
    """Return a peer of PyTorch; f: its function, perhaps compiled."""
    import torch

    inputs = [torch.tensor(a, requires_grad=n in at) for n, a in enumerate(arrays.values())]
    start, chosen = [torch.tensor(c) for c in seeds], [inputs[n] for n in at]

    def run() -> list[np.ndarray]:
        y = as_tuple(f(*inputs))
        gradients = torch.autograd.grad(y, chosen, start, materialize_grads=True)
        return [x.detach().numpy() for x in (*y, *gradients)]

    return run


def of_jax(f: Callable[..., Any], arrays: Arrays, seeds: Sequence[np.ndarray], at: Sequence[int]) -> Call:
    """Return a peer of JAX under jax.jit."""
    import jax
    import jax.numpy as jnp

    inputs, start = [jnp.asarray(a) for a in arrays.values()], tuple(jnp.asarray(c) for c in seeds)

    @jax.jit
    def both(c: Any, x: Any) -> Any:
        y, pull_back = jax.vjp(lambda *chosen: as_tuple(_of_inputs(f, x, at)(*chosen)), *(x[n] for n in at))
        return y, pull_back(c)

    def run() -> list[np.ndarray]:
        y, gradients = both(start, inputs)
        return [np.asarray(x) for x in (*y, *gradients)]

    return run


def of_peer(piece: Showpiece, peer: Peer, arrays: Arrays, seeds: Sequence[np.ndarray], compiles: bool = False) -> Call:
    """Return a peer's call. compiles: by torch.compile."""
    at = places(piece, arrays)
    if peer.library == "jax":
        return of_jax(peer.f, arrays, seeds, at)
    if not compiles:
        return of_torch(peer.f, arrays, seeds, at)
    import torch

    return of_torch(torch.compile(peer.f, dynamic=False), arrays, seeds, at)


def directions(piece: Showpiece, arrays: Arrays) -> list[np.ndarray]:
    """Return a random direction for each input that has a gradient."""
    numbers = list(arrays.values())
    return cotangents([numbers[n].shape for n in places(piece, arrays)], np.float64, 2)


def second_order(piece: Showpiece, sizes: Sizes, arrays: Arrays, seeds: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the gradients of the gradients' product with `directions`."""
    at, op = places(piece, arrays), piece.operator(sizes)

    def second(c: Any, v: Any, x: Any) -> Any:
        def along(*chosen: Any) -> Any:
            _, pull_back = es.vjp(_of_inputs(op, x, at), *chosen)
            return sum(((g * d).sum() for g, d in zip(pull_back(c), v, strict=True)), start=0.0)

        return es.grad(along, tuple(range(len(at))))(*(x[n] for n in at))

    c = seeds[0] if len(seeds) == 1 else tuple(seeds)
    return list(es.jit(second, **piece.settings)(c, tuple(directions(piece, arrays)), arguments(piece, arrays)))


def second_order_of_torch(
    piece: Showpiece, peer: Peer, arrays: Arrays, seeds: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Return what `second_order` does, of a peer. Raises RuntimeError where PyTorch has no second derivative."""
    import torch

    at = places(piece, arrays)
    inputs = [torch.tensor(a, requires_grad=n in at) for n, a in enumerate(arrays.values())]
    chosen, start = [inputs[n] for n in at], [torch.tensor(c) for c in seeds]
    y = as_tuple(peer.f(*inputs))
    gradients = torch.autograd.grad(y, chosen, start, create_graph=True, materialize_grads=True)
    along = zip(gradients, directions(piece, arrays), strict=True)
    scalar = torch.stack([(g * torch.tensor(d)).sum() for g, d in along]).sum()
    return [x.numpy() for x in torch.autograd.grad(scalar, chosen, materialize_grads=True)]


def middle(piece: Showpiece) -> Mapping[str, int]:
    """Return the middle one of the small sizes."""
    return {n: x[1] for n, x in piece.small.items()}
