"""Print bodies in static single assignment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith.codegen.ssa import If, Loop, Op, SSAValue, Type


def show_body(head: str, body: Sequence[Any], plain: Type) -> str:
    """Return a function as text, one instruction a line after the line `head`. Constants stand where they are used,
    those of the type `plain` as bare numbers."""
    literals: dict[SSAValue, str] = {}
    lines = [head]

    def name(v: SSAValue | None) -> str:
        return "None" if v is None else literals.get(v, str(v))

    def line(x: Op) -> str:
        assigned = ", ".join(f"{r}: {r.type}" for r in x.results) + " = " * bool(x.results)
        args = list(x.args)
        while args and args[-1] is None:  # omitted arguments at the end: no mask, no other value
            args.pop()
        memory = [] if x.memory is None else [f"p{x.memory}"]
        return f"{assigned}{x.name}({', '.join((*memory, *map(name, args)))}){f' {list(x.attrs)}' if x.attrs else ''}"

    def walk(block: Sequence[Any], depth: int) -> None:
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
                literals[x.result] = str(x.attrs[0]) if kind is plain else f"{kind}({x.attrs[0]})"
            else:
                lines.append(pad + line(x))

    walk(body, 1)
    return "\n".join(lines)
