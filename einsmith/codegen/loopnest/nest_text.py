"""Print the functions of loop nests."""

from __future__ import annotations

from einsmith.codegen.loopnest.nest import I64, Function
from einsmith.codegen.ssa import If, Loop, Op, SSAValue


def show(f: Function) -> str:
    """Return a function as text, one instruction a line; constants stand where they are used."""
    literals: dict[SSAValue, str] = {}
    lines = [f"function {f.name}({', '.join(map(str, f.buffers))}, scratch {f.scratch}, task {f.task})"]

    def name(v: SSAValue | None) -> str:
        return "None" if v is None else literals.get(v, str(v))

    def line(x: Op) -> str:
        assigned = f"{x.result}: {x.result.type} = " if x.results else ""
        args = list(x.args)
        while args and args[-1] is None:  # omitted arguments at the end: no mask, no other value
            args.pop()
        return f"{assigned}{x.name}({', '.join(map(name, args))}){f' {list(x.attrs)}' if x.attrs else ''}"

    def walk(block: list, depth: int) -> None:
        pad = "  " * depth
        for x in block:
            if isinstance(x, Loop):
                carry = "".join(f", {c}={name(i)}" for c, i in zip(x.carried, x.init, strict=True))
                lines.append(f"{pad}for {x.var} in range({name(x.lo)}, {name(x.hi)}, {x.step}){carry}:")
                walk(x.body, depth + 1)
                if x.next:
                    lines.append(f"{pad}  yield {', '.join(map(name, x.next))} -> {', '.join(map(str, x.results))}")
            elif isinstance(x, If):
                lines.append(f"{pad}if {name(x.cond)}:")
                walk(x.body, depth + 1)
            elif x.name == "const":
                kind = x.result.type
                literals[x.result] = str(x.attrs[0]) if kind == I64 else f"{kind}({x.attrs[0]})"
            else:
                lines.append(pad + line(x))

    walk(f.body, 1)
    return "\n".join(lines)
