"""Partition a graph of PyTorch's operators into regions that Einsmith compiles and operators that PyTorch runs.

Every operator has a level, even if Einsmith computes it, odd if PyTorch runs it: the lowest level of its parity that is
not below the levels of its operands. A level therefore depends on itself and earlier levels only. The operators of one
even level are one region. Operators that PyTorch runs keep their order where they change memory or draw random numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from inspect import signature
from itertools import cycle
from typing import Any

import torch
from torch.fx import Node as FxNode

from einsmith.base.errors import TraceError
from einsmith.base.numerics import Numerics
from einsmith.driver.sizes import PRIMES
from einsmith.frontends.aten import TABLE
from einsmith.frontends.torch_compile import frozen, layout
from einsmith.frontends.torch_compile.options import Options
from einsmith.frontends.torch_compile.reasons import COPY, FLEX, is_view, reason
from einsmith.frontends.torch_compile.region import OperatorRefusedError, Region, Result
from einsmith.frontends.torch_nodes import TYPES, line_of, node_of, operator_name, subgraph_of


def split(gm: torch.fx.GraphModule, options: Options) -> Callable[..., Any]:
    """Return `gm` as a function that computes in programs what it can. It demands of its inputs only what `gm` demands.

    An operator that the compiler refuses runs in PyTorch: the split is repeated without it.
    """
    for n in [n for n in gm.graph.nodes if n.target in FLEX]:
        # The tables of a block mask list the blocks in which its function, the last entry, holds: they are not needed.
        place = FLEX[n.target][1]
        blocks = n.args[place]
        n.update_arg(place, (*blocks[:2], *(None if isinstance(x, FxNode) else x for x in blocks[2:-1]), blocks[-1]))
    gm.graph.eliminate_dead_code(_dead)
    refused: dict[FxNode, str] = {}
    while True:
        parts = _Parts(gm, refused, options)
        try:
            return parts.build()
        except _Refused as e:
            refused |= {n: e.why for n in e.nodes}


class _Refused(Exception):
    def __init__(self, nodes: Iterable[FxNode], why: str):
        self.nodes, self.why = tuple(nodes), why


def _dead(node: FxNode) -> bool:
    """Return whether a node must stay though nothing reads it. Unread random numbers are not drawn."""
    return node.op in ("placeholder", "output") or _impure(node)


_RANDOM_IS_PURE = {"impure_random": False} if "impure_random" in signature(FxNode.is_impure).parameters else {}
"""Arguments by which `FxNode.is_impure` does not count drawing random numbers; PyTorch 2.6 has none."""


def _impure(node: FxNode) -> bool:
    """Return whether a node has side effects; drawing random numbers is none."""
    return node.is_impure(**_RANDOM_IS_PURE)


class _Parts:
    """An attempt at a split, given the operators refused by earlier attempts, with the reasons."""

    def __init__(self, gm: torch.fx.GraphModule, refused: dict[FxNode, str], options: Options):
        self.gm, self.options = gm, options
        self.why = {n: refused.get(n) or reason(n, options) for n in gm.graph.nodes}
        parts = [n for n in gm.graph.nodes if n.target is operator.getitem and isinstance(n.args[0], FxNode)]
        for n in parts:
            if self.why[n] and not self.why[n.args[0]]:
                self.why[n.args[0]] = self.why[n]
        for n in parts:  # elements of a tuple that PyTorch computes
            if self.why[n.args[0]]:
                self.why[n] = "-"
        self.level = self._levels()
        self.out = torch.fx.Graph()
        self.known: dict[FxNode, FxNode] = {}
        self.stored: set[FxNode] = set()
        """Copies into inputs that regions perform themselves."""
        self.regions = 0
        self.module = torch.nn.Module()

    def _ours(self, n: FxNode) -> bool:
        return not self.why[n]

    def _levels(self) -> dict[FxNode, int]:
        level: dict[FxNode, int] = {}
        floor = top = drawn = 0
        for n in self.gm.graph.nodes:
            if n.op in ("placeholder", "get_attr"):
                level[n] = -1
                continue
            if n.op == "output":
                continue
            ours = self._ours(n)
            least = max([floor, *(level[a] for a in n.all_input_nodes)])
            fixed = not ours and n.target is not operator.getitem and _impure(n)
            random = not ours and isinstance(n.target, torch._ops.OpOverload) and _draws(n.target)
            if fixed:
                least = max(least, top)
            if random:
                least = max(least, drawn)
            at = least if least % 2 == (0 if ours else 1) else least + 1
            level[n] = at
            top = max(top, at)
            floor = at if fixed else floor
            drawn = at if random else drawn
        return level

    def build(self) -> Callable[..., Any]:
        """Return the module that calls the regions and runs the other operators. Raises _Refused."""
        nodes = list(self.gm.graph.nodes)
        levels: dict[int, list[FxNode]] = {}
        for n in nodes:
            if n in self.level:
                levels.setdefault(self.level[n], []).append(n)
        output = nodes[-1]
        wanted = self._stored_results(nodes, output)
        for n in levels.pop(-1, []):
            self.known[n] = self.out.node_copy(n, self._outer)
        left_out: list[FxNode] = []
        for at in sorted(levels):
            if at % 2:
                copies: list[FxNode] = []
                for n in levels[at]:
                    if n in self.stored:
                        continue
                    if n.target is COPY and self._can_wait(n, copies):
                        copies.append(n)
                        continue
                    self._copies(copies)
                    self.known[n] = self.out.node_copy(n, self._outer)
                    if self.why[n] != "-":
                        left_out.append(n)
                self._copies(copies)
            else:
                self._region(levels[at], wanted)
        self.out.output(torch.fx.map_arg(output.args[0], self._outer))
        for n in left_out:
            self.options.say(_spoken(n), self.why[n], line_of(n))
        for name, part in self.gm.named_children():
            self.module.add_module(name, part)
        for name, tensor in (*self.gm.named_buffers(recurse=False), *self.gm.named_parameters(recurse=False)):
            setattr(self.module, name, tensor)
        for n in self.out.nodes:
            if n.op == "get_attr" and not hasattr(self.module, str(n.target)):
                setattr(self.module, str(n.target), getattr(self.gm, str(n.target)))
        return torch.fx.GraphModule(self.module, self.out)

    def _stored_results(self, nodes: Sequence[FxNode], output: FxNode) -> set[FxNode]:
        """Return the operators of Einsmith whose results are stored: PyTorch, an output or another level reads them."""
        wanted: set[FxNode] = set()

        def need(n: FxNode) -> None:
            while self._ours(n) and is_view(n):
                n = n.all_input_nodes[0]
            if n in self.level and self._ours(n):
                wanted.add(n)

        for n in nodes:
            if n is output or (n in self.level and not self._ours(n)):
                for a in n.all_input_nodes:
                    need(a)
            elif n in self.level:
                for a in n.all_input_nodes:
                    if self.level.get(a) != self.level[n]:
                        need(a)
        return wanted

    def _outer(self, n: FxNode) -> FxNode:
        """Return the outer graph's node for `n`. PyTorch takes views of stored tensors."""
        if n not in self.known:
            assert is_view(n), n
            args, kwargs = torch.fx.map_arg(n.args, self._outer), torch.fx.map_arg(n.kwargs, self._outer)
            copy = self.out.create_node("call_function", n.target, args, kwargs, n.name)
            copy.meta = dict(n.meta)
            self.known[n] = copy
        return self.known[n]

    def _can_wait(self, n: FxNode, before: Sequence[FxNode]) -> bool:
        """Return whether a copy into an input can join the pending copies `before` it in one call."""
        into, what = n.args[:2]
        return _is_plain(n) and all(into is not c.args[0] and what is not c.args[0] for c in before)

    def _copied_into(self, roots: Sequence[FxNode], own: set[FxNode], args: Sequence[FxNode]) -> dict[FxNode, FxNode]:
        """Return, by result, the copies of a region's results into its inputs that the region can perform itself.

        Nothing else outside the region reads the result, and nothing after the region reads the input's old elements.
        """
        copies: dict[FxNode, FxNode] = {}
        taken: set[FxNode] = set()
        for n in roots:
            outside = [u for u in n.users if u not in own or is_view(u)]
            if len(outside) != 1 or outside[0].target is not COPY or not _is_plain(outside[0]):
                continue
            (copy,) = outside
            into = copy.args[0]
            if into in args and into not in taken and self._read_before(into, copy, own, self.level[n]):
                copies[n] = copy
                taken.add(into)
        return copies

    def _read_before(self, n: FxNode, copy: FxNode, own: set[FxNode], level: int) -> bool:
        """Return whether all reads of `n`, and of views of it, precede the copy into it: they are in the region `own`,
        at a lower level, or are `copy` itself."""
        return all(
            u is copy
            or u in own
            and not is_view(u)
            or is_view(u)
            and self._read_before(u, copy, own, level)
            or (u in self.level and self.level[u] < level and not is_view(u))
            for u in n.users
        )

    def _copies(self, nodes: list[FxNode]) -> None:
        """Emit one call for the pending copies into inputs, and empty the list."""
        if len(nodes) == 1:
            self.known[nodes[0]] = self.out.node_copy(nodes[0], self._outer)
        elif nodes:
            into, what = ([self._outer(n.args[k]) for n in nodes] for k in (0, 1))
            self.out.call_function(torch.ops.aten._foreach_copy_.default, (into, what))
        nodes.clear()

    def _region(self, level: Sequence[FxNode], wanted: set[FxNode]) -> None:
        """Emit a call of one region for the `wanted` operators of a level and what they need from it."""
        roots = [n for n in level if n in wanted]
        if not roots:
            return
        own: set[FxNode] = set()
        inputs: dict[FxNode, None] = {}
        members, todo = set(level), list(roots)
        while todo:
            n = todo.pop()
            if n in own or n in inputs:
                continue
            if n in members or (n in self.level and self._ours(n) and is_view(n)):
                own.add(n)
                todo += n.all_input_nodes
            elif subgraph_of(n) is None:
                inputs[n] = None
        order = [n for n in self.gm.graph.nodes if n in own]
        args = [n for n in self.gm.graph.nodes if n in inputs]
        copied = self._copied_into(roots, own, args)
        self.stored.update(copied.values())
        into = {roots.index(n): args.index(c.args[0]) for n, c in copied.items()}
        region = self._compile(order, args, roots, into)
        name = f"region_{self.regions}"
        self.regions += 1
        called = self.out.create_node("call_function", region, tuple(self._outer(n) for n in args), name=name)
        for k, n in enumerate(roots):
            self.known[n] = self.out.call_function(operator.getitem, (called, k))
            self.known[n].meta = dict(n.meta)

    def _compile(
        self, order: Sequence[FxNode], args: Sequence[FxNode], roots: Sequence[FxNode], into: dict[int, int]
    ) -> Region:
        nodes = [node_of(n, n.meta.get("val")) for n in order]
        random = any(TABLE[n.operator].family == "randomness" for n in nodes)

        def failed(e: Exception) -> None:
            named = [n for n in order if isinstance(e, OperatorRefusedError) and n.name == e.node]
            what = _spoken(named[0]) if named else f"a part of {len(order)} operators"
            self.options.say(what, _message(e), line_of((named or order)[-1]))

        region = Region(
            nodes,
            [n.name for n in args],
            [_result(n) for n in roots],
            random,
            _fallback(self.gm, order, args, roots),
            failed,
            Numerics(self.options.winograd, separate_exponentials=self.options.separate_exponentials),
            into,
            self.options.sizes,
            self.options.device,
            {k: weight for k, n in enumerate(args) if (weight := frozen.weight_at(n)) is not None},
            self.options.frozen,
        )
        try:
            region.prepare([_hint(n) for n in args], [_hint(n, _other) for n in args])
        except OperatorRefusedError as e:
            raise _Refused([n for n in order if n.name == e.node], str(e)) from e
        except Exception as e:
            raise _Refused([n for n in order if not is_view(n)], _message(e)) from e
        return region


def _is_plain(n: FxNode) -> bool:
    """Return whether a copy is unread and its source has the shape, type and device of the input it overwrites."""
    into, what = n.args[:2]
    if n.kwargs or len(n.args) != 2 or not (isinstance(into, FxNode) and isinstance(what, FxNode)):
        return False
    if n.users or into.op != "placeholder":
        return False
    a, b = into.meta["val"], what.meta["val"]
    return a.shape == b.shape and a.dtype is b.dtype and a.device == b.device


def _draws(target: torch._ops.OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in target.tags


def _message(e: Exception) -> str:
    return f"{type(e).__name__}: {str(e).strip()}"


def _spoken(n: FxNode) -> str:
    name = operator_name(n.target)
    return name if "::" in name or not isinstance(n.target, torch._ops.OpOverload) else f"aten.{name}"


def _example(n: Any) -> Any:
    """Return a number, or the example's value of a symbolic one. Raises TraceError if it has none."""
    if isinstance(n, (int, float)):
        return n
    hint = n.node.hint if hasattr(n.node, "hint") else None
    if hint is None:
        raise TraceError(f"the size {n} is not known")
    return hint


def _other(n: Any) -> Any:
    """Return a number, or the value that a symbolic one has for sizes other than the example's."""
    example = _example(n)
    if n is example or not isinstance(n, torch.SymInt):
        return example
    expr, hints = n.node.expr, n.node.shape_env.backed_var_to_val
    if not all(x in hints for x in expr.free_symbols):
        return example
    apart = dict(zip(hints, cycle(PRIMES)))
    values = {x: int(hints[x]) for x in expr.free_symbols}
    return int(expr.xreplace({x: v - apart[x] if v - apart[x] > 1 else v + apart[x] for x, v in values.items()}))


def _hint(n: FxNode, example: Callable[[Any], Any] = _example) -> Any:
    """Return what a region is given for a node; example: tells the value of a number that may be symbolic."""
    value = n.meta["val"]
    if not isinstance(value, torch.Tensor):
        return example(value)
    shape, steps = (tuple(map(example, x)) for x in (value.shape, value.stride()))
    placed = layout.memory_order(shape, steps, TYPES[value.dtype])
    weight = frozen.weight_at(n)
    return placed if weight is None else replace(placed, weight=weight)


def _result(n: FxNode) -> Result:
    value = n.meta["val"]
    shape, steps = (tuple(map(_example, x)) for x in (value.shape, value.stride()))
    order = layout.order_of(shape, steps)
    static = all(isinstance(x, int) for x in (*value.shape, *value.stride()))
    exact = static and layout.fills(shape, steps, order)
    return Result(n.name, order, steps if exact else None)


def _fallback(
    gm: torch.fx.GraphModule, order: Sequence[FxNode], args: Sequence[FxNode], roots: Sequence[FxNode]
) -> Callable[..., Any]:
    """Return the operators of a region as a module that PyTorch runs."""
    graph = torch.fx.Graph()
    known: dict[FxNode, FxNode] = {n: graph.placeholder(n.name) for n in args}
    for n in order:
        known |= {a: graph.node_copy(a) for a in n.all_input_nodes if a not in known and subgraph_of(a) is not None}
        known[n] = graph.node_copy(n, known.__getitem__)
    graph.output([known[n] for n in roots])
    return torch.fx.GraphModule(gm, graph)
