"""The printed stages of `docs/architecture.md`: one layer of a network, all the way from its formula to LLVM IR.

Nothing here asks the machine that it runs on: the target is a named one, and no code is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import wrap

import einsmith as es
from einsmith.api.tracing import trace_shapes
from einsmith.base.dtypes import f32
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.codegen.loopnest import nest_text
from einsmith.cost.facts import Target
from einsmith.ir.nodes import Compute, Graph, nbytes, postorder
from einsmith.ir.printer import show, show_graph
from einsmith.ir.views import storage
from einsmith.kernels import autoconfig
from einsmith.kernels.pattern import Lowered
from einsmith.passes.context import PassContext
from einsmith.passes.pipeline import PASSES
from einsmith.runtime.assemble import Assembler, PointerTarget, layout, show_steps
from einsmith.schedule.compiled_kernel import CompiledKernel
from einsmith.schedule.plan import Plan
from einsmith.schedule.planner import fuse
from einsmith.schedule.printer import namer, show_arena, show_plan
from einsmith.tuning.kernels.decisions import explain, lower_choice

PATH = Path(__file__).parents[2] / "docs" / "architecture.md"
FORMULA = "C[i,j] = relu(sum[k](A[i,k]*B[k,j]) + b[j])"
LOSS = "L[] = sum[i,j]((C[i,j] - Y[i,j])**2)"
SHAPES = {"A": (96, 64), "B": (64, 48), "b": (48,)}
TARGET = Target(cpu="x86-64-v3", features="", triple="x86_64-unknown-linux-gnu", cores=2)
"""AVX2: vectors of 32 bytes in 16 registers; the sizes and coefficients are the static ones of `Target`."""

WIDTH = 116
"""Characters of a line of the page: those of a line of code, less what a block is set in by."""


def text_of(lines: Sequence[str]) -> str:
    """Lines with those that are too long gone on with in the next one, further in."""
    out: list[str] = []
    for line in lines:
        pad = " " * (len(line) - len(line.lstrip()))
        out += wrap(line.lstrip(), WIDTH, initial_indent=pad, subsequent_indent=pad + "        ") or [""]
    return "\n".join(out)


def traced() -> Graph:
    """The layer, the loss behind it and the gradients: what a training step traces."""
    layer, loss = es.op(FORMULA), es.op(LOSS)

    def step(a, weights, bias, y):
        return es.value_and_grad(lambda *args: loss(layer(*args), y), argnums=(0, 1, 2))(a, weights, bias)

    return trace_shapes(step, [(s, f32) for s in (*SHAPES.values(), (96, 48))]).graph


def passed(graph: Graph) -> tuple[Graph, list[str]]:
    """The graph after the passes, and a line for each that makes or removes tensors."""
    lines = []
    for step in PASSES:
        before, graph = graph, step.run(graph, PassContext())
        if _tensors(graph) != _tensors(before):
            lines.append(f"{step.name}: {_tensors(before)} tensors, then {_tensors(graph)}")
    return graph, lines


def _tensors(graph: Graph) -> int:
    return sum(isinstance(n, Compute) for n in postorder(graph.roots))


def nest_excerpt(text: str, count: int) -> list[str]:
    """The head, the headers of the loops around the first one that carries values, and as many lines of that one."""
    head, *lines = text.splitlines()
    at = next(n for n, x in enumerate(lines) if re.match(r" +for .*\), ", x))
    depth = len(lines[at]) - len(lines[at].lstrip())
    outer = []
    for x in reversed(lines[:at]):
        indent = len(x) - len(x.lstrip())
        if indent < depth and x.lstrip().startswith("for "):
            outer.insert(0, x)
            depth = indent
    inner = " " * (len(lines[at]) - len(lines[at].lstrip()) + 2)
    return [head, "  ...", *outer, f"{inner[2:]}...", *lines[at : at + count], f"{inner}..."]


def llvm_excerpt(text: str, phis: int, count: int) -> list[str]:
    """The head, and of the first block that carries vectors so many phis and so many lines after them."""
    lines = text.splitlines()
    head = next(x for x in lines if x.startswith("define"))
    blocks = re.split(r"\n(?=\w+:\n)", text)
    label, *block = next(x for x in blocks if "= phi <" in x).splitlines()
    first = [x for x in block if " phi " in x]
    rest = block[len(first) :]
    return [head, "  ...", label, *first[:phis], "  ...", *rest[:count], "  ..."]


def native_of(lowered: Lowered, choice: autoconfig.Choice) -> CompiledKernel:
    """What compiling would give, at addresses that nothing calls."""
    launches = tuple((0, x.tasks, x.loop_invariant) for x in lowered.launches)
    scratch = max(x.function.scratch_bytes for x in lowered.launches)
    return CompiledKernel(launches, scratch, lowered.workspace, choice.pattern.name, "", choice.cost.seconds, 0)


def program_of(plan: Plan, lowered: dict) -> str:
    native = {k: native_of(x, autoconfig.choose(k, TARGET)) for k, x in lowered.items()}
    outside = {*plan.graph.inputs, *plan.graph.outputs}
    places = layout(plan, outside, native)
    made = Assembler(native, 0)

    def pointer(t, at, offset):
        made.places[at] = PointerTarget(storage(t), offset, nbytes(t))
        return 0

    made.add_plan(plan, places, 0, pointer)
    memory = show_arena(plan, outside, places.offsets, places.nbytes)
    return text_of([*memory.splitlines(), "", *show_steps(made, namer(plan)).splitlines()])


def stages() -> Iterator[tuple[str, str]]:
    """(name, printed form) of every stage of the page."""
    layer = es.op(FORMULA)
    yield "formula", f"{FORMULA}\n\n{layer.signature}"
    graph = traced()
    nodes = [n for n in postorder(graph.roots) if isinstance(n, Compute)]
    yield "templates", text_of([x for n in nodes[:2] for x in (*show(n.template).splitlines(), "")]).rstrip()
    gradients = [str(layer.gradient(name, **SHAPES)) for name in SHAPES]
    yield "gradients", text_of("\n\n".join(gradients).splitlines())
    yield "graph", text_of(show_graph(graph).splitlines())
    graph, done = passed(graph)
    yield "passes", text_of([*done, "", *show_graph(graph).splitlines()])
    plan = fuse(graph, None, TARGET)
    yield "plan", text_of(show_plan(plan).splitlines())
    kernels = [call.kernel for _, call, _ in plan.kernel_calls()]
    yield "choice", text_of([x for k in (kernels[0], kernels[-1]) for x in explain(k, TARGET).splitlines()[:4]])
    made = {k: lower_choice(autoconfig.choose(k, TARGET)) for k in kernels}
    function = made[kernels[0]].launches[0].function
    yield "nest", text_of(nest_excerpt(nest_text.show(function), 24))
    yield "llvm", text_of(llvm_excerpt(emit_module([function], TARGET), 3, 18))
    yield "program", program_of(plan, made)


BLOCK = re.compile(r"(<!-- stage: (\w+) -->\n```\n)(.*?)(```\n<!-- end -->)", re.S)


def printed(page: str) -> dict[str, str]:
    """The stages that stand in a page, by name."""
    return {name: text.removesuffix("\n") for _, name, text, _ in BLOCK.findall(page)}


def updated(page: str) -> str:
    """The page with its stages printed anew. Raises KeyError for one that is not made."""
    made = dict(stages())
    return BLOCK.sub(lambda m: f"{m[1]}{made[m[2]]}\n{m[4]}", page)
