"""Print the functions of loop nests."""

from __future__ import annotations

from einsmith.codegen.loopnest.nest import I64, Function
from einsmith.codegen.ssa_text import show_body


def show(f: Function) -> str:
    """Return a function as text, one instruction a line; constants stand where they are used."""
    head = f"function {f.name}({', '.join(map(str, f.buffers))}, scratch {f.scratch}, task {f.task})"
    return show_body(head, f.body, I64)
