"""Compile LLVM IR text to object code in a process of its own, which is started by its path and imports only llvmlite.

It reads a line of JSON (cpu, features, triple) and then texts, each after its length in 8 bytes; it answers each with
b"+" or b"-", the length in 8 bytes, and the object code or the error's message.
"""

from __future__ import annotations

import json
import signal
import sys

import llvmlite.binding as llvm


def serve() -> None:
    """Answer requests until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets the signal too, and closes the input
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    facts = json.loads(source.readline())
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(facts["triple"]).create_target_machine(
        cpu=facts["cpu"], features=facts["features"], opt=facts["opt"], reloc="pic", codemodel="small"
    )
    while header := source.read(8):
        text = source.read(int.from_bytes(header, "little")).decode()
        try:
            mark, data = b"+", machine.emit_object(llvm.parse_assembly(text))
        except RuntimeError as e:
            mark, data = b"-", str(e).encode()
        sink.write(mark + len(data).to_bytes(8, "little") + data)
        sink.flush()


if __name__ == "__main__":
    serve()
