"""Compare the derived gradients of a training step with central differences, in float64 (EINSMITH_CHECK=gradients).

The reference evaluator computes the loss at parameters that are moved along a random direction. Along it the difference
of the losses must be the sum of the derived gradients' products with the direction. The direction of each parameter has
the length that makes its product about 1, so that no parameter hides behind another one.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.random import default_rng

from einsmith.base.errors import EinsmithError, EinsmithWarning, GradientError
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Apply, Compute, Const, Graph, Item, Leaf, Recurrence, Tensor, apply, leaf, postorder
from einsmith.ir.rebuild import map_bodies, rebuild, substitute, with_args
from einsmith.tracing import trace
from einsmith.training import step_graph
from einsmith.training.definition import StepDefinition
from einsmith.training.state import StepParts

SAMPLES = 4
"""Samples of the batch on which gradients are checked: the evaluator takes a thousand times as long as a program."""
RELATIVE_STEP = 1e-5
"""Largest part of a parameter's magnitude by which it is moved to either side."""
STEPS = (1.0, 1 / 8, 1 / 64)
"""Parts of that step that are tried: a kink of the loss, as of a ReLU at 0, may lie within a step."""
MOVES = (0.0, 1e-3, 1e-2)
"""Parts of the parameters' magnitudes by which they are moved at random before they are compared again: the given point
may lie on a kink, where the derived gradient is one of several."""
TOLERANCE = 1e-4
"""Largest difference, relative to the products."""
LEAST_SHARE = 1e-3
"""Least norm of a gradient from which the length of its direction follows, as a part of the largest one."""
_DERIVED_APART = ("stop_gradient", "differentiate_as")


class _Comparison(NamedTuple):
    """The derived product of a gradient and a direction, the central difference, and their largest distance."""

    derived: float
    difference: float
    most: float

    @property
    def agrees(self) -> bool:
        """True if the two are equal up to rounding and the error of the finite step."""
        return abs(self.derived - self.difference) <= self.most


def check_gradients(parts: StepParts, arrays: Sequence[np.ndarray], number: int) -> None:
    """Compare the gradients of a step's loss with central differences, on the first samples of a batch.

    The caller holds the guard of the parameters. number: the step's, for messages. Raises GradientError, which names
    the parameters whose gradients differ. Warns where a difference may come from a `stop_gradient` in a recurrence.
    """
    definition = parts.definition
    with trace.compiling(), definition.model.in_mode(training=True):
        try:
            traced = step_graph.build_loss(parts, _first_samples(arrays, definition))
        except EinsmithError:  # the model or the loss takes whole batches only
            traced = step_graph.build_loss(parts, arrays)
    check = _Check(traced)
    wrong, right = check.compare()
    if not wrong:
        return
    message = _describe(definition.model, wrong, right, number)
    if check.is_uncertain:
        warnings.warn(
            f"{message}. A recurrence has a stop_gradient, of which central differences know nothing, and so this may "
            "be no fault",
            EinsmithWarning,
            stacklevel=2,
        )
        return
    raise GradientError(message)


def _first_samples(arrays: Sequence[np.ndarray], definition: StepDefinition) -> list[np.ndarray]:
    samples = definition.count_samples(arrays)
    if any(a.ndim == 0 or len(a) != samples for a in arrays):
        return list(arrays)
    return [a[:SAMPLES] for a in arrays]


def _describe(model: Any, wrong: Mapping[str, _Comparison], right: Sequence[str], number: int) -> str:
    def place(name: str) -> str:
        path = name.rpartition(".")[0]
        return f"{name} ({type(model.get_submodule(path)).__name__}{f' at {path!r}' if path else ''})"

    last = list(wrong)[-1]  # the nearest to the loss: the gradients of those before it follow from the fault too
    nearest = wrong[last]
    text = (
        f"EINSMITH_CHECK=gradients, step {number}: the derived gradient of the loss by {place(last)} is "
        f"{nearest.derived:.6g} along a direction in which central differences give {nearest.difference:.6g}"
    )
    others = [n for n in wrong if n != last]
    text += f"; those by {', '.join(others)} differ too" if others else ""
    return text + (f"; those by {', '.join(right)} agree" if right else "")


class _Check:
    """The comparison of one traced loss.

    is_uncertain: whether a recurrence has an expression whose derivative is defined apart from its value."""

    def __init__(self, traced: step_graph.LossGraph):
        self.names, self.leaves = list(traced.parameters), list(traced.parameters.values())
        self.values, self.rng, self.is_uncertain = traced.values, default_rng(0), False
        known = list(traced.values)
        self.gradients = Graph(tuple(known), (traced.shared, *traced.gradients), (), ())
        self.moved = {x: leaf(x.shape, x.dtype) for x in self.leaves}
        difference = self._freeze(traced.loss)
        self.loss = Graph((*known, *self.moved.values()), (difference,), (), ())

    def _freeze(self, loss: Tensor) -> Tensor:
        """Return the loss as a function of moved parameters that agrees with its derivative.

        Operands of `stop_gradient` keep their values at the original parameters. The value of a `differentiate_as`
        changes as the expression that is differentiated in its place.
        """
        moved: dict[Any, Any] = dict(self.moved)
        for node in postorder([loss]):
            if node in moved or isinstance(node, Leaf):
                moved.setdefault(node, node)
            elif isinstance(node, Item):
                moved[node] = Item(moved[node.node], node.member)
            elif isinstance(node, Compute) and _is_derived_apart(node.template):
                moved[node] = _hold(node, tuple(moved[a] for a in node.args))
            else:
                self.is_uncertain |= isinstance(node, Recurrence) and any(map(_is_derived_apart, node.members))
                moved[node] = with_args(node, tuple(moved[a] for a in node.args))
        return moved[loss]

    def compare(self) -> tuple[dict[str, _Comparison], list[str]]:
        """Return the comparisons of the parameters whose gradients differ at every point and step, in order, and the
        names of the others; nothing differs where the sum over all parameters agrees at some point and step."""
        base = {x: self.values[x].astype(np.float64) for x in self.leaves}
        point, gradients, directions = base, [np.zeros(0)], [np.zeros(0)]
        for move in MOVES:
            scale = {x: move * self._magnitude(a) for x, a in base.items()}
            point = {x: a + scale[x] * self.rng.standard_normal(a.shape) for x, a in base.items()}
            _, *gradients = evaluate(self.gradients, [point.get(x, a) for x, a in self.values.items()])[0]
            directions = self._draw(gradients)
            if self._agrees(point, gradients, directions, range(len(self.leaves))):
                return {}, []
        agrees = {n: self._agrees(point, gradients, directions, [k]) for k, n in enumerate(self.names)}
        wrong = {
            n: self._compare(point, gradients, directions, [k], 1.0) for k, n in enumerate(self.names) if not agrees[n]
        }
        return wrong, [n for n in self.names if n not in wrong]

    @staticmethod
    def _magnitude(a: np.ndarray) -> float:
        """Return the root mean square of a parameter; that of a small random one for zeros."""
        return float(np.sqrt(np.mean(np.square(a)))) if a.size and a.any() else 1e-2

    def _draw(self, gradients: Sequence[np.ndarray]) -> list[np.ndarray]:
        norms = [float(np.linalg.norm(g)) for g in gradients]
        least = LEAST_SHARE * max(norms) or 1.0
        return [self.rng.standard_normal(g.shape) / max(n, least) for g, n in zip(gradients, norms, strict=True)]

    def _agrees(
        self, point: Mapping[Leaf, np.ndarray], gradients: Sequence[np.ndarray], directions: Sequence[np.ndarray],
        chosen: Sequence[int],
    ) -> bool:  # fmt: skip
        return any(self._compare(point, gradients, directions, chosen, part).agrees for part in STEPS)

    def _compare(
        self, point: Mapping[Leaf, np.ndarray], gradients: Sequence[np.ndarray], directions: Sequence[np.ndarray],
        chosen: Sequence[int], part: float,
    ) -> _Comparison:  # fmt: skip
        """Compare along the directions of some of the parameters. part: of the largest step (STEPS)."""
        leaves = [self.leaves[k] for k in chosen]
        reach = max(
            float(np.abs(directions[k]).max(initial=0)) / self._magnitude(point[x])
            for k, x in zip(chosen, leaves, strict=True)
        )
        step = part * RELATIVE_STEP / max(reach, 1e-30)
        products = [float(np.sum(gradients[k] * directions[k])) for k in chosen]
        losses = []
        for sign in (1, -1):
            moved = dict(point)
            for k, x in zip(chosen, leaves, strict=True):
                moved[x] = point[x] + sign * step * directions[k]
            constants = [point.get(x, a) for x, a in self.values.items()]
            losses.append(float(evaluate(self.loss, [*constants, *(moved[x] for x in self.leaves)])[0][0]))
        difference = (losses[0] - losses[1]) / (2 * step)
        roundings = 100 * np.finfo(np.float64).eps * max(map(abs, losses)) / step
        most = TOLERANCE * (abs(difference) + float(np.sqrt(np.sum(np.square(products))))) + roundings
        return _Comparison(sum(products), difference, float(most))


def _is_derived_apart(t: Any) -> bool:
    """Return whether a template has an expression whose derivative is not that of its value."""
    return t.memo(
        "derived apart",
        lambda t: any(
            isinstance(e, Apply) and e.fn in _DERIVED_APART for part in t.parts for e in postorder(part.bodies)
        ),
    )


def _hold(node: Compute, moved: tuple[Tensor, ...]) -> Compute:
    """Return a node at moved arguments, whose own arguments give the values that are held."""
    count = len(node.args)
    held = {s: s + count for s in range(count)} | {s: s for s in range(count, 2 * count)}

    def rule(e: Any) -> Any:
        if not isinstance(e, Apply) or e.fn not in _DERIVED_APART:
            return None
        before = [substitute(a, {}, held) for a in e.args]
        if e.fn == "stop_gradient":
            return before[0]
        change = apply("sub", e.args[1], before[1])
        finite = apply("lt", apply("abs", change), Const(np.inf, change.dtype))
        return apply("add", before[0], apply("where", finite, change, apply("sub", e.args[0], before[0])))

    params = (*node.template.params, *node.template.params)
    template = map_bodies(node.template, lambda b: rebuild([b], rule)[0], params)
    return Compute(template, (*moved, *node.args))
