"""Compute tensor contractions (matmul, einsum), under torch's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith.base.errors import FormulaError, ShapeError
from einsmith.ops.common import tensor
from einsmith.ops.operator import operator
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@operator()
def matmul(input: Any, other: Any) -> Value:
    """Return the matrix product of the last two dimensions, the others broadcast; a vector's dimension is dropped."""
    return tensor(input, "matmul", "input") @ tensor(other, "matmul", "other")


@operator()
def einsum(equation: Any, *operands: Any) -> Value:
    """Compute Einstein's summation, `einsum("bij,bjk->bik", A, B)`: letters absent after `->` are summed.

    A letter repeated in one operand takes its diagonal; `...` denotes dimensions that broadcast; without `->` the
    result has the letters that occur once, in alphabetical order. More than two operands are multiplied in the order of
    the least work. Torch's other form is `einsum(A, [0, 1], B, [1, 2], [0, 2])`, with ... for an ellipsis.
    """
    if not isinstance(equation, str):
        equation, operands = _from_lists((equation, *operands))
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    values = [tensor(x, "einsum", f"operands[{n}]") for n, x in enumerate(operands)]
    terms, out, extents = _parse(equation, values)
    return _contract(values, terms, out, extents)


def _from_lists(arguments: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """Translate einsum's arguments (operand, axes, operand, axes, ..., [result axes]) to (equation, operands).

    `axes` is a list of axis numbers, one for each dimension; Ellipsis means broadcast dimensions. Raises
    FormulaError where a list is missing or a number has no letter.
    """

    def term(numbers: Any) -> str:
        if not isinstance(numbers, (list, tuple)):
            raise FormulaError(
                "einsum: the first argument must be an equation, or an operand that a list of numbers follows"
            )
        letters = []
        for n in numbers:
            if n is not Ellipsis and (not isinstance(n, int) or not 0 <= n < len(_LETTERS)):
                raise FormulaError(
                    f"einsum: {n!r} in a list of numbers must be an integer from 0 to {len(_LETTERS) - 1}"
                )
            letters.append("..." if n is Ellipsis else _LETTERS[n])
        return "".join(letters)

    terms = [term(numbers) for numbers in arguments[1::2]]
    result = ""
    if len(arguments) % 2:
        result = "->" + term(arguments[-1])
    return ",".join(terms) + result, arguments[: len(arguments) - len(arguments) % 2 : 2]


def _matrices(name: str, rank: int, **operands: Any) -> list[Value]:
    values = [tensor(x, name, n, rank=rank) for n, x in operands.items()]
    if any(a.shape[:-2] != values[0].shape[:-2] for a in values):
        raise ShapeError(f"{name}: the first extents of {' and '.join(str(v.shape) for v in values)} differ")
    return values


@operator(aten="mm.default")
def mm(input: Any, mat2: Any) -> Value:
    """Return the product of two matrices."""
    a, b = _matrices("mm", 2, input=input, mat2=mat2)
    return a @ b


@operator(aten="bmm.default")
def bmm(input: Any, mat2: Any) -> Value:
    """Return the products of matrices, [B, N, K] and [B, K, M] -> [B, N, M]."""
    a, b = _matrices("bmm", 3, input=input, mat2=mat2)
    return a @ b


@operator(aten="mv.default")
def mv(input: Any, vec: Any) -> Value:
    """Return the product of a matrix and a vector."""
    return tensor(input, "mv", "input", rank=2) @ tensor(vec, "mv", "vec", rank=1)


@operator(aten="dot.default vdot.default")
def dot(input: Any, tensor: Any) -> Value:
    """Return the sum of the products of two vectors' elements."""
    return _tensor(input, "dot", "input", rank=1) @ _tensor(tensor, "dot", "tensor", rank=1)


_tensor = tensor


@operator()
def outer(input: Any, vec2: Any) -> Value:
    """Return the outer product of two vectors: [N], [M] -> [N, M]."""
    a, b = tensor(input, "outer", "input", rank=1), tensor(vec2, "outer", "vec2", rank=1)
    return builder.compute((*a.shape, *b.shape), lambda n, m: a[n] * b[m])


@operator()
def addmm(input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Value:
    """Return beta*input + alpha*(mat1 @ mat2); the input broadcasts."""
    return _scale("addmm", input, mm(mat1, mat2), beta, alpha)


@operator()
def baddbmm(input: Any, batch1: Any, batch2: Any, *, beta: float = 1, alpha: float = 1) -> Value:
    """Return beta*input + alpha*(batch1 @ batch2), of stacks of matrices; the input broadcasts."""
    return _scale("baddbmm", input, bmm(batch1, batch2), beta, alpha)


def _scale(name: str, input: Any, product: Value, beta: float, alpha: float) -> Value:
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product
    x = tensor(input, name, "input")
    return (x if beta == 1 else x * beta) + product


def _labels(term: str, rank: int, what: str, equation: str) -> tuple[str, ...]:
    """Return a label for each dimension; those under `...` are numbered from the last one backward."""
    before, dots, after = term.partition("...")
    if any(c not in _LETTERS for c in before + after):
        raise FormulaError(f"einsum: {equation!r} may contain letters, commas, '->' and '...' only")
    hidden = rank - len(before) - len(after)
    if hidden < 0 or (hidden and not dots):
        raise ShapeError(f"einsum: {what} has {rank} dimensions, which {term!r} in {equation!r} does not describe")
    return (*before, *(f".{n}" for n in reversed(range(hidden))), *after)


def _parse(equation: str, values: Sequence[Value]) -> tuple[list[tuple[str, ...]], tuple[str, ...], dict[str, int]]:
    """Return (labels of each operand, labels of the result, extent of each label), checked."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(values):
        raise ShapeError(f"einsum: {equation!r} describes {len(parts)} operands, got {len(values)}")
    terms = [_labels(t, v.ndim, f"operands[{n}]", equation) for n, (t, v) in enumerate(zip(parts, values, strict=True))]
    extents: dict[str, int] = {}
    for n, (t, v) in enumerate(zip(terms, values, strict=True)):
        for c, e in zip(t, v.shape, strict=True):
            if extents.setdefault(c, e) == 1:
                extents[c] = e
            if e not in (1, extents[c]):
                raise ShapeError(
                    f"einsum: {c!r} in {equation!r} has extent {e} in operands[{n}], but {extents[c]} before"
                )
    hidden = sorted((c for c in extents if c[0] == "."), key=lambda c: -int(c[1:]))
    if arrow:
        if right.count("...") > 1:
            raise FormulaError(f"einsum: {equation!r} has '...' twice in its result")
        out = _labels(right, len(right.replace("...", "")) + ("..." in right) * len(hidden), "the result", equation)
    else:
        letters = left.replace("...", "").replace(",", "")
        out = (*hidden, *sorted(c for c in set(letters) if letters.count(c) == 1))
    if len(set(out)) != len(out) or any(c not in extents for c in out):
        raise FormulaError(f"einsum: the result of {equation!r} repeats a letter or has one that no operand has")
    return terms, out, extents


def _contract(
    values: Sequence[Value], terms: Sequence[tuple[str, ...]], out: tuple[str, ...], extents: dict[str, int]
) -> Value:
    """Return the product of the values, summed over the labels that `out` lacks."""
    summed = tuple(dict.fromkeys(c for t in terms for c in t if c not in out))
    over = dict(zip(summed, builder.axes(*(extents[c] for c in summed)), strict=True))

    def body(*i: Any) -> Any:
        place = {**over, **dict(zip(out, i, strict=True))}
        product: Any = None
        for v, t in zip(values, terms, strict=True):
            index = tuple(0 if n == 1 else place[c] for c, n in zip(t, v.shape, strict=True))
            element = _element(v, index)
            product = element if product is None else product * element
        return builder.sum(product, over=tuple(over.values())) if over else product

    return builder.compute(tuple(extents[c] for c in out), body)


def _element(v: Value, index: tuple[Any, ...]) -> Any:
    """Return v[index] as an element of a formula, where every index may be a plain number."""
    return v[index] if index else v
