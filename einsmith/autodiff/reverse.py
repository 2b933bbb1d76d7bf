"""Differentiate a graph of tensors in reverse mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from einsmith.autodiff.adjoint.node import chooses, plan_adjoint
from einsmith.autodiff.plan import constant_value
from einsmith.autodiff.recurrence.absorb import absorb_reductions
from einsmith.autodiff.recurrence.derivatives import pull_back
from einsmith.autodiff.recurrence.recompute import checkpoint_of, differentiate_with_recomputation
from einsmith.autodiff.split_bodies import split_body
from einsmith.autodiff.totals import add, convert, zeros
from einsmith.base.errors import GradientError
from einsmith.ir import labels
from einsmith.ir.nodes import Compute, GroupSum, Item, Leaf, Recurrence, Tensor, postorder
from einsmith.ir.rebuild import exchange, rebuild
from einsmith.ir.recurrence.chunks.choice import choose_length
from einsmith.ir.recurrence.chunks.readers import ChunkSearch
from einsmith.ir.rewrite.contraction_order import order_contraction
from einsmith.ir.rewrite.named_operands import name_operands
from einsmith.ir.rewrite.narrow import narrow
from einsmith.ir.rewrite.postponed_gathers import postpone_gathers
from einsmith.ir.rewrite.sampled import sampled
from einsmith.ir.rewrite.separate_exponentials import separate


def gradients(
    outputs: Sequence[Tensor], cotangents: Sequence[Tensor | None], wrt: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Compute vector-Jacobian products: for each tensor of `wrt`, the sum over outputs of cotangent * d output / d
    tensor.

    `cotangents[k]` has the shape and type of `outputs[k]`, or is None for zero. Returns (outputs, gradients). The
    outputs have the same values, rewritten so that the backward sweep shares nodes with them (a max becomes a max with
    its position). A gradient has its tensor's shape and type; it is zeros for integers, and for a tensor that no output
    depends on. Accepts its own results. Raises GradientError naming the read that has no adjoint, or if cotangents do
    not match the outputs.
    """
    if len(cotangents) != len(outputs):
        raise GradientError(f"{len(outputs)} outputs need as many cotangents, got {len(cotangents)}")
    for n, (out, g) in enumerate(zip(outputs, cotangents, strict=True)):
        if g is not None and out.dtype.is_float and (g.shape != out.shape or g.dtype is not out.dtype):
            raise GradientError(
                f"output {n} is {out.dtype.name}{list(out.shape)}, its cotangent {g.dtype.name}{list(g.shape)}"
            )
    cotangents = [g and convert(g, out.dtype.arithmetic) for out, g in zip(outputs, cotangents, strict=True)]
    outputs, targets = absorb_reductions(*in_steps(outputs, wrt))
    rewritten, results = _sweep(outputs, cotangents, targets)
    return rewritten, [convert(g, t.dtype) for g, t in zip(results, wrt, strict=True)]


def in_steps(outputs: Sequence[Tensor], others: Sequence[Tensor] = ()) -> tuple[list[Tensor], list[Tensor]]:
    """Rewrite tensors into several smaller ones of equal values, so that their gradients share intermediate results.

    Long products become chains of products, operands of products become tensors of their own, linear recurrences are
    computed in chunks of steps, reductions are narrowed to windows, and sums come before gathers.

    others: tensors on which they depend. Returns (the rewritten tensors, what `others` become).
    """
    search = ChunkSearch(partial(choose_length, is_differentiated=True))
    at_reads = sampled([*outputs, *others], others)
    roots = [at_reads[t] for t in (*outputs, *others)]
    gathered = postpone_gathers(roots, roots[len(outputs) :])
    chunked = search.replace_all(narrow(gathered, gathered[len(outputs) :]))
    steps: dict = {}
    rewritten = rebuild(chunked[: len(outputs)], _in_steps, steps)
    labels.carry(steps)
    targets = [steps.get(t, t) for t in chunked[len(outputs) :]]
    rewritten = postpone_gathers([*rewritten, *targets], targets)  # of the steps
    return rewritten[: len(outputs)], rewritten[len(outputs) :]


def _in_steps(node: Any) -> Any:
    """Split a tensor into several: separate exponentials, operands that it computes, intermediate products in the order
    of least cost, and links of a chain of many factors. None if it stays as it is."""
    separated: Any = separate(node)
    node = separated or node
    named: Any = name_operands(node) or separated
    if isinstance(node, Recurrence):
        return named
    node = named or node
    ordered = order_contraction(node) or named
    return split_body(ordered or node) or ordered


def _sweep(
    outputs: Sequence[Tensor], cotangents: Sequence[Tensor | None], wrt: Sequence[Tensor], sums_of_chosen: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """Compute `gradients` with cotangents and results of the types that are computed in; float16 tensors are rounded
    only where cotangents are given and gradients are returned. sums_of_chosen: the contributions of the points that a
    max or min chose are added up by sums, not by scatters."""
    seeds: dict[Tensor, list[Tensor]] = {}
    for out, g in zip(outputs, cotangents, strict=True):
        if g is not None and out.dtype.is_float:
            seeds.setdefault(out, []).append(g)

    targets = set(wrt)
    order = list(postorder(seeds))
    needed: set = set()
    for node in order:
        if node in targets or any(a in needed for a in node.args):
            needed.add(node)
    pending = {t: list(gs) for t, gs in seeds.items() if t in needed}
    members: dict[Compute | Recurrence, dict[int, Tensor]] = {}
    gradients_of: dict[Tensor, Tensor] = {}
    replaced: dict[Tensor, Tensor] = {}
    for node in reversed(order):
        if node not in needed:
            continue
        if isinstance(node, Compute) and node in members:
            _pull_back_node(node, members.pop(node), needed, pending, replaced, sums_of_chosen)
            continue
        if isinstance(node, Recurrence):
            contributions, again = _pull_back_recurrence(
                node, members.pop(node, {}), needed, order, targets, sums_of_chosen
            )
            replaced |= again
            _label([g for _, g in contributions], node, node.args)
            for a, g in contributions:
                pending.setdefault(a, []).append(g)
            continue
        if node not in pending:
            continue
        terms = pending.pop(node)
        g = add(terms)
        _label([g], node, terms)
        if node in targets:
            gradients_of[node] = g
        if isinstance(node, Item):
            if node.node in needed:
                members.setdefault(node.node, {})[node.member] = g
        elif isinstance(node, Compute):
            _pull_back_node(node, {0: g}, needed, pending, replaced, sums_of_chosen)
        elif isinstance(node, GroupSum) and not node.is_cotangent:
            pending.setdefault(node.tensor, []).append(GroupSum(g, True))  # type: ignore[arg-type]
        elif not isinstance(node, Leaf):
            raise GradientError(f"{type(node).__name__} has no gradient")
    results = [gradients_of[t] if t in gradients_of else zeros(t.shape, t.dtype.arithmetic) for t in wrt]
    rewritten = exchange([*outputs, *results], replaced)
    return rewritten[: len(outputs)], rewritten[len(outputs) :]


def _pull_back_recurrence(
    node: Recurrence,
    cotangents: dict[int, Tensor],
    needed: set,
    order: Sequence[Tensor],
    targets: set[Tensor],
    sums_of_chosen: bool,
) -> tuple[list[tuple[Tensor, Tensor]], dict[Tensor, Tensor]]:
    """Return (the contributions to the cotangents of a recurrence's arguments, replacements of its members).

    Raises:
        GradientError: the user has states recomputed (`checkpoint=`), which the recurrence does not permit.
    """
    size = checkpoint_of(node, cotangents)
    if size:
        single_reader = _find_single_reader_tensors(order, targets)
        try:
            return differentiate_with_recomputation(node, size, cotangents, needed, single_reader, _sweep)
        except GradientError:
            if node.options.checkpoint:
                raise
    return pull_back(node, cotangents, needed, sums_of_chosen), {}


def _find_single_reader_tensors(order: Sequence[Tensor], targets: set[Tensor]) -> set[Tensor]:
    """Return the tensors that have one reader and are not in `targets`."""
    readers = Counter(a for node in order for a in dict.fromkeys(node.args))
    return {t for t, n in readers.items() if n == 1 and t not in targets}


def _pull_back_node(
    node: Compute,
    results: dict[int, Tensor],
    needed: set,
    pending: dict[Tensor, list[Tensor]],
    replaced: dict,
    sums_of_chosen: bool,
) -> None:
    """Add the contributions of the cotangents of a node's results to the pending cotangents of its arguments."""
    t = node.template
    needed_slots = frozenset(s for s, a in enumerate(node.args) if a in needed and a.dtype.is_float)
    if not needed_slots:
        return
    cotangents = [results.get(m) for m in range(len(t.dtypes))]
    sums = needed_slots if sums_of_chosen and chooses(t) else frozenset[int]()
    plan = plan_adjoint(t, needed_slots, tuple(False if g is None else constant_value(g) for g in cotangents), sums)
    if not any(plan.contributions.values()):
        return  # all behind stop_gradient: the node is unchanged
    tensors = plan.tensors(node, cotangents)
    _label([x for x in tensors if x is not None], node, [*node.args, *(g for g in cotangents if g is not None)])
    for slot, numbers in plan.contributions.items():
        for number in numbers:
            tensor = tensors[number]
            assert tensor is not None
            pending.setdefault(node.args[slot], []).append(tensor)
    for member, number in plan.replaced.items():
        whole = Item(node, member) if len(t.dtypes) > 1 else node
        tensor = tensors[number]
        assert isinstance(tensor, Item)
        replaced[whole] = tensor


def _label(tensors: Sequence[Tensor], node: Any, known: Sequence[Tensor]) -> None:
    """Give the nodes that differentiation of a node creates the label of that node. known: tensors that were made
    before."""
    label = labels.label_of(node)
    if label is not None:
        labels.note(tensors, label, known)
