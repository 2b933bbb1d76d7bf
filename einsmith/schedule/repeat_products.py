"""Compute large results of products again for the backward pass, so that neither pass stores them.

before: S[i,j] = sum[d](Q[i,d]*K[j,d]);  O = f(S);  dQ = g(S, ...)      S is kept for the backward pass
after:  S[i,j] = ...;  O = f(S);  T[i,j] = sum[d](Q[i,d]*K[j,d]);  dQ = g(T, ...)

A result that reductions alone read is never stored if its maker and its readers become one kernel
(`schedule.row_clusters`), which a reader in the other pass prevents. Attention then takes memory for its operands alone
(Dao et al. 2022, "FlashAttention", section 3.1). A result is repeated, with the large ones that it is computed from, if
the plan stores none of them then, and if they exceed a bound or the plan takes less time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

from einsmith.ir.nodes import Compute, Graph, Piece, Read, Reduce, Template, Tensor, nbytes, postorder, size
from einsmith.ir.rebuild import exchanged, map_reads, with_args
from einsmith.ir.views import is_view, storage
from einsmith.schedule.plan import Plan, Refusal
from einsmith.schedule.row_clusters import MAX_STORED_BYTES, longest_time
from einsmith.schedule.row_forms import reads_of

_MAX_OPERAND_RATIO = 0.5
"""Largest ratio of the bytes of the operands of a repetition to those of its result; larger operands are repeated
too."""
_MAX_WORK = 128
"""Most points of the products of a chain for each element of its result. 128 multiply-adds take 8 times as long as
storing a float and reading it again (a core of a Zen 4, probed: 2.3 ns and 0.28 ns); heads of attention are no wider. A
first convolution of 7 x 7 x 3 points, repeated for a step of 440 ms, cost 20 ms and saved 73 of 380 MB (SqueezeNet)."""
_MAX_REPEATED = 8
"""Most tensors that are repeated for one result."""


def repeat_products(
    graph: Graph,
    fuse: Callable[[Graph, bool], Plan],
    seconds: Callable[[Plan], float],
    smallest: int,
    most: int = MAX_STORED_BYTES,
) -> Plan:
    """Return the plan of a graph, or of the graph with products repeated in the backward pass, whichever is better.

    Args:
        graph: the graph.
        fuse: returns the plan of a graph with the same results. Its second argument: whether the graph repeats
            products.
        seconds: predicted seconds of a plan.
        smallest: bytes of the smallest result that is considered.
        most: most bytes of a result that is kept although it need not be stored, because that takes less time.
    """
    plan = fuse(graph, False)
    chains = _chains(graph, smallest, _MAX_WORK if most else inf)
    refusals: dict[Tensor, Refusal] = {}
    while chains:
        repeated, repetitions = _repeat(graph, chains)
        trial = fuse(repeated, True)
        stored = trial.stored
        kept = {t for t, again in repetitions.items() if not stored.isdisjoint((t, again))}
        failed = {t for t, chain in chains.items() if not kept.isdisjoint(chain)}
        if not failed:
            repeating, storing = seconds(trial), seconds(plan)
            saved = plan.stored.intersection(chains)
            if repeating < storing * longest_time(map(nbytes, saved), most, 1.0):
                plan = trial
            else:
                reason = "a step that computes it again for the backward pass is predicted to be slower"
                refusals |= {x: Refusal(reason, repeating, storing) for chain in chains.values() for x in chain}
            break
        for t in (t for t in repetitions if t in failed):
            tried = [x for x in repetitions if x in chains[t] & kept]
            reasons = [trial.refusals[y] for x in tried for y in (repetitions[x], x) if y in trial.refusals]
            if reasons:
                reason = f"computed again for the backward pass: {reasons[0].reason}"
                refusals |= dict.fromkeys(chains[t], reasons[0]._replace(reason=reason))
        chains = {t: chain for t, chain in chains.items() if t not in failed}
    stored = plan.stored
    own = {t: refusals.get(t, refusal) for t, refusal in plan.refusals.items()}
    return replace(plan, refusals=own | {t: refusal for t, refusal in refusals.items() if t in stored})


def _chains(graph: Graph, smallest: int, most_work: float) -> dict[Compute, frozenset[Compute]]:
    """Return the large results of the forward pass that the backward pass reads, each with the tensors that have to be
    repeated for it: itself and its large operands, down to products of small ones, whose points are at most `most_work`
    times the result's elements."""
    if not graph.gradients and not graph.updates:  # no node is late
        return {}
    nodes = list(postorder(graph.roots))
    role, roots = graph.role, {storage(t) for t in graph.roots}
    late = {storage(a) for n in nodes if role[n] != "forward" for a in n.args}
    out = {}
    for t in late - roots:
        if role.get(t) != "forward" or not isinstance(t, Compute) or len(t.template.dtypes) > 1:
            continue
        if nbytes(t) < smallest:
            continue
        chain: set[Compute] = set()
        todo: list[Tensor] = [t]
        while todo and len(chain) <= _MAX_REPEATED:
            x = todo.pop()
            if x in chain or nbytes(x) <= _MAX_OPERAND_RATIO * nbytes(t):
                continue
            if not isinstance(x, Compute) or len(x.template.dtypes) > 1 or x in roots:
                break
            chain.add(x)
            todo += map(storage, x.args)
        else:
            operands = {s for x in chain for s in map(storage, x.args)} - chain
            small = sum(map(nbytes, operands)) <= _MAX_OPERAND_RATIO * nbytes(t)
            work = sum(size(p.domain) for x in chain if _is_product(x.template) for p in x.template.parts)
            if not todo and small and 0 < work <= most_work * size(t.shape):
                out[t] = frozenset(chain)
    return out


def _is_product(t: Template) -> bool:
    body = t.parts[0].body if len(t.parts) == 1 and isinstance(t.parts[0], Piece) else None
    return isinstance(body, Reduce) and body.combiner == "sum"


def _distinct(t: Compute) -> Compute:
    """Return another node that computes the same as a tensor: its arguments are in reverse order, each with a slot for
    every read of it."""
    order = reads_of(t.template)[::-1]
    slots = {e: n for n, e in enumerate(order)}
    params = [t.template.params[e.slot] for e in order]
    new = map_reads(t.template, lambda e: Read(slots[e], e.index, e.dtype) if e in slots else None, params)
    return Compute(new, tuple(t.args[e.slot] for e in order))


def _repeat(graph: Graph, chains: dict[Compute, frozenset[Compute]]) -> tuple[Graph, dict[Compute, Tensor]]:
    """Return (the graph in which all nodes after the forward pass read repetitions of the chains' results, the
    repetition of each tensor of the chains)."""
    role = graph.role
    repeated = {x for chain in chains.values() for x in chain}
    repetitions: dict[Compute, Tensor] = {}

    def late(a: Tensor) -> Tensor:
        """Return what a node after the forward pass reads in the place of `a`."""
        if isinstance(a, Compute) and a in repeated:
            return repetitions[a]
        if isinstance(a, Compute) and is_view(a.template) and storage(a) in repeated:
            return with_args(a, (late(a.args[0]),))
        return a

    memo: dict[Tensor, Tensor] = {}
    for node in postorder(graph.roots):
        if isinstance(node, Compute) and node in repeated:
            again = with_args(node, tuple(map(late, node.args)))
            repetitions[node] = _distinct(node) if again is node else again
        if role[node] == "forward" or not node.args:
            memo[node] = node
            continue
        memo[node] = with_args(node, tuple(memo[a] if role[a] != "forward" else late(a) for a in node.args))
    return exchanged(graph, memo), repetitions
