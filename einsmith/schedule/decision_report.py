"""Report which graph decisions a plan follows, and why it does not follow others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from einsmith.ir.nodes import Tensor
from einsmith.schedule.fusion import passes_on
from einsmith.schedule.graph_decisions import CUT, ORDER, WITHOUT, TensorNames, parse_order
from einsmith.schedule.layout.dimension_orders import row_major_order
from einsmith.schedule.plan import LoopCall, Plan
from einsmith.schedule.printer import namer


class ReportedDecision(NamedTuple):
    """A decision, the tensors that it names, as plans are printed, and why it is not followed; empty if it is."""

    decision: str
    tensors: tuple[str, ...]
    ignored: str

    def __str__(self) -> str:
        return f"{self.decision} ({', '.join(self.tensors)})" if self.tensors else self.decision


class _Place(NamedTuple):
    """A tensor, or a node that computes several, in one of the plans of a program."""

    plan: Plan
    node: Any
    name: Callable[[Any], str]


def report_decisions(plan: Plan, decisions: Collection[str]) -> list[ReportedDecision]:
    """Return what became of decisions in the plan of a program."""
    wanted = {words[1] for x in decisions if (words := x.split())[0] != WITHOUT}
    places: dict[str, list[_Place]] = {}
    for each in all_plans(plan) if wanted else ():
        names, name = TensorNames(each.graph), namer(each)
        for node in dict.fromkeys((*names.nodes(), *each.originals, *each.orders)):
            if (own := names.of(node)) in wanted:
                places.setdefault(own, []).append(_Place(each, node, name))
    return [_report(x, places) for x in sorted(decisions)]


def all_plans(plan: Plan) -> Iterator[Plan]:
    """Yield a plan and the plans of its loops' steps."""
    yield plan
    for call in plan.calls:
        for step in call.plans if isinstance(call, LoopCall) else ():
            yield from all_plans(step)


def _report(decision: str, places: dict[str, list[_Place]]) -> ReportedDecision:
    word, name, *order = decision.split()
    if word == WITHOUT:
        return ReportedDecision(decision, (), "")
    named = [p for p in places.get(name, []) if word != ORDER or isinstance(p.node, Tensor)]  # loops have no order
    shown = tuple(dict.fromkeys(p.name(p.node) for p in named))
    if not named:
        return ReportedDecision(decision, shown, "it names no tensor of the program")
    if word == CUT:
        reason = "kernels that pass it on are joined" if any(map(_is_passed_on, named)) else ""
        return ReportedDecision(decision, shown, reason)
    stored = {_order_of(p) for p in named}
    return ReportedDecision(decision, shown, "" if stored == {parse_order(order[0])} else "it has another order")


def _is_passed_on(p: _Place) -> bool:
    return any(passes_on(call.nodes, call.nodes, [p.node]) for call in p.plan.calls)


def _order_of(p: _Place) -> Any:
    return p.plan.orders[p.node].order if p.node in p.plan.orders else row_major_order(p.node.shape)


def decision_lines(reported: Sequence[ReportedDecision]) -> list[str]:
    """Return reported decisions as text: those that are followed in one line, then the others."""
    followed = ", ".join(str(x) for x in reported if not x.ignored)
    lines = [f"{followed}, which tuning has found to be faster"] if followed else []
    return lines + [f"{x}, which tuning has found to be faster, is ignored: {x.ignored}" for x in reported if x.ignored]
