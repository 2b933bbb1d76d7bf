"""Split bodies of many factors into chained tensors before they are differentiated.

before: y[i] = a[i]*b[i]*c[i]*d[i]*...*z[i]
after:  s[i] = a[i]*...*h[i];  t[i] = s[i]*i[i]*...*p[i];  ...;  y[i] = v[i]*x[i]*y[i]*z[i]

The derivative by one factor is the product of the others, so separate formulas for the derivatives by all n factors
have n*(n-1) factors in all. In a chain every derivative reads the adjoint and the value of its own link, as in reverse
accumulation over single operations (Griewank and Walther, Evaluating Derivatives, 2008, section 3.2), and links of
equal form share one template and one plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from einsmith.base.dtypes import DType
from einsmith.base.symbolic import hint
from einsmith.ir.analysis.guarded import contexts
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Expr,
    Piece,
    Read,
    Reduce,
    Template,
    Tensor,
    apply,
    axes_of,
    postorder,
    size,
    template,
)
from einsmith.ir.rebuild import guarded, map_bodies, substitute, with_args
from einsmith.ir.rewrite.simplify import canonical

MAX_WHOLE_READS = 16
"""Most distinct reads of a body that stays whole: the derivatives by at most this many reads are always small."""
MAX_LINK_READS = 8
"""Most distinct reads of a link of the chain. A link is a stored tensor, and its derivatives have MAX_LINK_READS**2
factors."""
MAX_GROWTH = 8
"""A body is split if the derivatives by its reads are together larger than the body by more than this factor. That
holds for a product of MAX_WHOLE_READS factors; it does not for a sum of any number of terms, which stays whole."""


class Link(NamedTuple):
    """A tensor of the chain. template: its formula. sources: the tensors that its slots read, numbered with arguments
    first, then steps."""

    template: Template
    sources: tuple[int, ...]


def split_body(node: Tensor) -> Tensor | None:
    """Return the tensor as the end of a chain; None if its body stays whole."""
    if not isinstance(node, Compute):
        return None
    steps = node.template.memo("split_body", _steps)
    if not steps:
        return None
    tensors: list[Tensor] = [*node.args]
    for step in steps:
        tensors.append(canonical(step.template, [tensors[s] for s in step.sources]))
    return tensors[-1]


def _steps(t: Template) -> tuple[Link, ...]:
    if t.is_scatter:
        return ()
    chain = _Chain(t)
    parts = []
    for part in t.parts:
        assert isinstance(part, Piece)
        bodies = chain.split(part) if _is_large(part) else part.bodies
        body = Reduce(part.body.combiner, part.body.extents, bodies) if isinstance(part.body, Reduce) else bodies[0]
        parts.append(Piece(part.offset, part.step, part.extents, body))
    if not chain.steps:
        return ()
    chain.add(Template(t.shape, (), tuple(parts)))
    return tuple(chain.steps)


def _is_large(part: Piece) -> bool:
    """Return whether the derivatives by the reads of a body are many, and together much larger than the body."""
    order = list(postorder(part.bodies))
    if len(order) <= MAX_WHOLE_READS + MAX_WHOLE_READS // 2:  # no function has more than three operands
        return False
    reads = [e for e in order if isinstance(e, Read) and e.dtype.is_float]
    if len(reads) <= MAX_WHOLE_READS:
        return False
    below: dict[Expr, int] = {}  # nodes, as a tree, which is enough to tell a sum from a product
    for e in order:
        below[e] = min(len(order), 1 + sum(below[a] for a in e.args))
    # The derivative of a product over an axis by one of its factors holds that factor: it is the whole without it.
    is_product = isinstance(part.body, Reduce) and part.body.combiner == "prod"
    adjoint = {b: below[b] if is_product else 1 for b in part.bodies}
    for e in reversed(order):
        own = adjoint.get(e)
        if own is None or not isinstance(e, Apply) or not e.dtype.is_float:
            continue
        for a in e.args:
            if a.dtype.is_float:
                adjoint[a] = min(len(order), max(adjoint.get(a, 0), own + _factor(e, a, below)))
    return sum(adjoint.get(r, 0) for r in reads) > MAX_GROWTH * len(order)


def _factor(e: Apply, a: Expr, below: dict[Expr, int]) -> int:
    """Return the number of nodes by which the derivative by an argument is larger than the derivative by the result."""
    if e.fn in ("add", "sub", "neg", "cast", "differentiate_as", "stop_gradient", "full_precision"):
        return 0
    if e.fn == "where":
        return below[e.args[0]]
    return sum(below[x] for x in e.args) - below[a] if e.fn == "mul" else below[e]


class _Chain:
    """The steps of a template under construction."""

    def __init__(self, t: Template):
        self.args = t.params
        self.steps: list[Link] = []
        self.room = max(hint(size(t.shape)), hint(sum(size(shape) for _, shape in t.params)))

    def params(self, source: int) -> tuple[DType, tuple[int, ...]]:
        """Return the type and the shape of an argument or a step."""
        if source < len(self.args):
            return self.args[source]
        t = self.steps[source - len(self.args)].template
        return t.dtypes[0], t.shape

    def add(self, t: Template) -> int:
        """Add a tensor whose bodies read arguments and steps by number; return its number."""
        slots: dict[int, int] = {}
        for e in postorder([b for p in t.parts for b in p.bodies]):
            if isinstance(e, Read):
                slots.setdefault(e.slot, len(slots))
        params = tuple(self.params(s) for s in slots)
        self.steps.append(Link(map_bodies(t, lambda b: substitute(b, {}, slots), params), tuple(slots)))
        return len(self.args) + len(self.steps) - 1

    def split(self, part: Piece) -> tuple[Expr, ...]:
        """Return the bodies of a piece with reads of links in place of the expressions that the links compute."""
        order = list(postorder(part.bodies))
        places = contexts(part.bodies)
        new: dict[Expr, Expr] = {}
        reads: dict[Expr, frozenset[Expr]] = {}  # of each node's present replacement

        def is_cut(e: Expr) -> bool:
            context = places[e]
            guards = None if context is None else [new[c] if truth else apply("not", new[c]) for c, truth in context]
            link = None if guards is None else self._link(new[e], guards, part.domain)
            if link is None:
                return False
            new[e], reads[e] = link, frozenset({link})
            return True

        for e in order:
            if e.args and not isinstance(e, Read):
                whole = frozenset[Expr]().union(*(reads[a] for a in e.args))
                for a in sorted(set(e.args), key=lambda a: -len(reads[a])):
                    if len(whole) > MAX_LINK_READS and len(reads[a]) > 1 and is_cut(a):
                        whole = frozenset[Expr]().union(*(reads[a] for a in e.args))
                new[e], reads[e] = with_args(e, tuple(new[a] for a in e.args)), whole
            else:
                new[e] = e
                reads[e] = frozenset({e}) if isinstance(e, Read) else frozenset()
        return tuple(new[b] for b in part.bodies)

    def _link(self, e: Expr, guards: Sequence[Expr], domain: tuple[int, ...]) -> Read | None:
        """Return a read of a new tensor that holds an expression where its guards hold, and 0 elsewhere; None if the
        tensor would take more memory than the operands and the result together."""
        if not e.dtype.is_float or not isinstance(e, Apply):
            return None
        body = guarded(guards, e)
        used = sorted(axes_of(body))
        shape = tuple(domain[a] for a in used)
        if hint(prod(shape)) > self.room:
            return None
        number = self.add(template(shape, (), substitute(body, {a: Axis(n) for n, a in enumerate(used)})))
        return Read(number, tuple(Axis(a) for a in used), e.dtype)
