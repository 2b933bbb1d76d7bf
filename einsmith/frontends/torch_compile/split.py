"""Partition a graph of PyTorch's operators into regions that Einsmith compiles and operators that PyTorch runs.

Every operator has a level, even if Einsmith computes it, odd if PyTorch runs it: the lowest level of its parity that is
not below the levels of its operands. A level therefore depends on itself and earlier levels only. The operators of one
even level are one region. Operators that PyTorch runs keep their order where they change memory or draw random numbers.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch
from torch._higher_order_ops.effects import with_effects
from torch.fx import Node as FxNode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from einsmith.base.caches import Once
from einsmith.base.errors import EinsmithWarning, TraceError
from einsmith.base.numerics import Numerics
from einsmith.cost.facts import CPU
from einsmith.frontends import torch_device
from einsmith.frontends.aten import REFUSED, TABLE
from einsmith.frontends.torch_compile import layout
from einsmith.frontends.torch_compile.region import OperatorRefusedError, Region, Result
from einsmith.frontends.torch_compile.validation import is_checked
from einsmith.frontends.torch_nodes import TYPES, addresses_memory, line_of, node_of, operator_name, subgraph_of

COPY = torch.ops.aten.copy_.default
_FLEX = {torch.ops.higher_order.flex_attention: (3, 4), torch.ops.higher_order.flex_attention_backward: (7, 9)}
"""Operators that take functions of scalars -> places of score_mod and of the block mask, which ends with mask_mod."""
_SCALAR_FAMILIES = {"pointwise", "integers", "numbers"}
"""Families of operators that act on each element, so a function of scalars that uses them acts on tensors of them."""
_SAID = Once("operators that run in PyTorch")


@dataclass(frozen=True)
class Options:
    """Options of the backend.

    fallback: "warn" or "error", for operators that run in PyTorch; fallback_random: whether PyTorch draws random
    numbers; winograd: as in `es.jit`; sizes: "each", where a graph of dynamic sizes has a program for each combination,
    or "shared", where it has one for sizes up to a capacity; None: as EINSMITH_SIZES says. `device`: where programs run
    (`torch_device.device_of`).
    """

    fallback: str = "warn"
    fallback_random: bool = False
    winograd: bool = False
    sizes: str | None = None
    device: str = field(default=CPU, init=False)

    def on(self, device: str) -> Options:
        """Return these options for programs that run on a device."""
        out = copy(self)
        object.__setattr__(out, "device", device)
        return out

    def say(self, what: str, why: str, line: str) -> None:
        """Warn, once for each `what` and `line`, that it runs in PyTorch; raise TraceError if fallback is "error"."""
        text = f"{what} runs in PyTorch: {why}" + (f"\n    {line}" if line else "")
        if self.fallback == "error":
            raise TraceError(text)
        if _SAID((what, line)):
            warnings.warn(f"einsmith: {text}", EinsmithWarning, stacklevel=2)


def split(gm: torch.fx.GraphModule, options: Options) -> Callable[..., Any]:
    """Return `gm` as a function that computes in programs what it can. It demands of its inputs only what `gm` demands.

    An operator that the compiler refuses runs in PyTorch: the split is repeated without it.
    """
    for n in [n for n in gm.graph.nodes if n.target in _FLEX]:
        # The tables of a block mask list the blocks in which its function, the last entry, holds: they are not needed.
        place = _FLEX[n.target][1]
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


def is_view(node: FxNode) -> bool:
    """Return whether the node's result aliases its first argument, or is an element of an aliasing result."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return isinstance(node.args[0], FxNode) and is_view(node.args[0])
    target = node.target
    unsafe = target is torch.ops.aten._unsafe_view.default
    return isinstance(target, torch._ops.OpOverload) and (target.is_view or unsafe)


def is_number(node: FxNode) -> bool:
    """Return whether a node's value is a number or a symbolic number instead of a tensor."""
    value = node.meta.get("val")
    return isinstance(value, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, (list, tuple)):
        return [x for v in value for x in _tensors(v)]
    return [value] if isinstance(value, torch.Tensor) else []


def _tensor_problem(x: torch.Tensor, device: str) -> str:
    """Return why a program on a device cannot handle a tensor, "" if it can."""
    if torch_device.device_of(x) != device:
        return f"a tensor lies on the device {x.device}"
    if x.layout is not torch.strided:
        return f"a tensor has the layout {x.layout}"
    if x.dtype not in TYPES:
        return f"a tensor has the type {str(x.dtype).removeprefix('torch.')}, which Einsmith does not support"
    if free_unbacked_symbols(x):
        return "the number of elements depends on values"
    return ""


def reason(node: FxNode, options: Options) -> str:
    """Return why an operator runs in PyTorch: "" if it need not, "-" if it does so without a warning."""
    if node.op != "call_function" or is_number(node) or node.target is COPY:
        return "-"
    target = node.target
    if target is operator.getitem:
        source = node.args[0]
        return "-" if not isinstance(source, FxNode) or reason(source, options) else ""
    checked = node.args[1] if target is with_effects else target
    if isinstance(checked, torch._ops.OpOverload) and _checks(checked):
        return "-"
    if target in _FLEX:
        if why := next(filter(None, map(_function_problem, _subgraphs(node))), ""):
            return why
    elif not isinstance(target, torch._ops.OpOverload):
        return "it is a higher-order operator"
    elif is_checked(target, *torch.fx.map_arg((node.args, node.kwargs), lambda a: a.meta.get("val"))):
        return "-"
    name = operator_name(target)
    if name not in TABLE:
        return REFUSED.get(name, "no formula is in the table for it")
    if target not in _FLEX and target._schema.is_mutable:
        return "it changes a tensor in place"
    if TABLE[name].family == "randomness" and options.fallback_random:
        return "-"
    if addresses_memory(node):
        return "it reads by places in memory, and its tensor is not contiguous"
    if "val" not in node.meta:
        return "the type of its result is not known"
    for x in (*_tensors(node.meta["val"]), *(t for a in node.all_input_nodes for t in _tensors(a.meta.get("val")))):
        if why := _tensor_problem(x, options.device):
            return why
    for a in node.all_input_nodes:
        value = a.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) and free_unbacked_symbols(value):
            return "a size depends on values"
    return ""


def _subgraphs(node: FxNode) -> list[torch.fx.GraphModule]:
    """Return score_mod and mask_mod of an operator that takes them."""
    score, blocks = _FLEX[node.target]
    found = [subgraph_of(node.args[score]), subgraph_of(node.args[blocks][-1])]
    return [part for part in found if part is not None]


def _function_problem(part: torch.fx.GraphModule) -> str:
    """Return why a function of scalars and captured tensors cannot be applied to all positions at once, "" if it can.

    Operators on captured tensors alone may be any; the others are elementwise or read one by scalars.
    """
    varying: set[FxNode] = set()
    for n in part.graph.nodes:
        if n.op == "placeholder":
            # Captured numbers and 0-d tensors count as scalars, too.
            if not getattr(n.meta.get("val"), "shape", ()):
                varying.add(n)
            continue
        if n.op == "output":
            continue
        name = operator_name(n.target)
        if n.op != "call_function" or not isinstance(n.target, torch._ops.OpOverload) or name not in TABLE:
            return f"score_mod or mask_mod uses {name}: {REFUSED.get(name, 'no formula is in the table for it')}"
        if not any(a in varying for a in n.all_input_nodes):
            continue
        varying.add(n)
        scalar = isinstance(n.meta.get("val"), torch.Tensor) and not n.meta["val"].shape
        reads = name == "index.Tensor" and n.args[0] not in varying
        if not scalar or not (reads or TABLE[name].family in _SCALAR_FAMILIES):
            return f"score_mod or mask_mod uses aten.{name}, which is not elementwise, on the score or an index"
    return ""


def _checks(target: torch._ops.OpOverload) -> bool:
    """Return whether an operator is an assertion, without results or mutation. PyTorch runs it on computed values."""
    return not target._schema.returns and not target._schema.is_mutable


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
        told: list[FxNode] = []
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
                        told.append(n)
                self._copies(copies)
            else:
                self._region(levels[at], wanted)
        self.out.output(torch.fx.map_arg(output.args[0], self._outer))
        for n in told:
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
            made = self.out.create_node("call_function", n.target, args, kwargs, n.name)
            made.meta = dict(n.meta)
            self.known[n] = made
        return self.known[n]

    def _can_wait(self, n: FxNode, before: Sequence[FxNode]) -> bool:
        """Return whether a copy into an input can join the pending copies `before` it in one call."""
        into, what = n.args[:2]
        return _is_plain(n) and all(into is not c.args[0] and what is not c.args[0] for c in before)

    def _copied_into(self, roots: Sequence[FxNode], own: set[FxNode], given: Sequence[FxNode]) -> dict[FxNode, FxNode]:
        """Return, by result, the copies of a region's results into its inputs that the region can perform itself.

        Nothing else outside the region reads the result, and nothing after the region reads the input's old elements.
        """
        found: dict[FxNode, FxNode] = {}
        taken: set[FxNode] = set()
        for n in roots:
            outside = [u for u in n.users if u not in own or is_view(u)]
            if len(outside) != 1 or outside[0].target is not COPY or not _is_plain(outside[0]):
                continue
            (copy,) = outside
            into = copy.args[0]
            if into in given and into not in taken and self._read_before(into, copy, own, self.level[n]):
                found[n] = copy
                taken.add(into)
        return found

    def _read_before(self, n: FxNode, copy: FxNode, own: set[FxNode], level: int) -> bool:
        """Return whether `copy` and readers in the region `own` or at lower levels alone read `n` or a view of it."""
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
        given = [n for n in self.gm.graph.nodes if n in inputs]
        copied = self._copied_into(roots, own, given)
        self.stored.update(copied.values())
        into = {roots.index(n): given.index(c.args[0]) for n, c in copied.items()}
        region = self._compile(order, given, roots, into)
        name = f"region_{self.regions}"
        self.regions += 1
        called = self.out.create_node("call_function", region, tuple(self._outer(n) for n in given), name=name)
        for k, n in enumerate(roots):
            self.known[n] = self.out.call_function(operator.getitem, (called, k))
            self.known[n].meta = dict(n.meta)

    def _compile(
        self, order: Sequence[FxNode], given: Sequence[FxNode], roots: Sequence[FxNode], into: dict[int, int]
    ) -> Region:
        nodes = [node_of(n, n.meta.get("val")) for n in order]
        random = any(TABLE[n.operator].family == "randomness" for n in nodes)

        def failed(e: Exception) -> None:
            named = [n for n in order if isinstance(e, OperatorRefusedError) and n.name == e.node]
            what = _spoken(named[0]) if named else f"a part of {len(order)} operators"
            self.options.say(what, _message(e), line_of((named or order)[-1]))

        region = Region(
            nodes,
            [n.name for n in given],
            [_result(n) for n in roots],
            random,
            _fallback(self.gm, order, given, roots),
            failed,
            Numerics(self.options.winograd),
            into,
            self.options.sizes,
            self.options.device,
        )
        try:
            hints = [_hint(n) for n in given]
            region.prepare(hints)
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


def _hint(n: FxNode) -> Any:
    value = n.meta["val"]
    if not isinstance(value, torch.Tensor):
        return _example(value)
    shape, steps = (tuple(map(_example, x)) for x in (value.shape, value.stride()))
    return layout.memory_order(shape, steps, TYPES[value.dtype])


def _result(n: FxNode) -> Result:
    value = n.meta["val"]
    shape, steps = (tuple(map(_example, x)) for x in (value.shape, value.stride()))
    order = layout.order_of(shape, steps)
    static = all(isinstance(x, int) for x in (*value.shape, *value.stride()))
    exact = static and layout.fills(shape, steps, order)
    return Result(n.name, order, steps if exact else None)


def _fallback(
    gm: torch.fx.GraphModule, order: Sequence[FxNode], given: Sequence[FxNode], roots: Sequence[FxNode]
) -> Callable[..., Any]:
    """Return the operators of a region as a module that PyTorch runs."""
    graph = torch.fx.Graph()
    known: dict[FxNode, FxNode] = {n: graph.placeholder(n.name) for n in given}
    for n in order:
        known |= {a: graph.node_copy(a) for a in n.all_input_nodes if a not in known and subgraph_of(a) is not None}
        known[n] = graph.node_copy(n, known.__getitem__)
    graph.output([known[n] for n in roots])
    return torch.fx.GraphModule(gm, graph)
