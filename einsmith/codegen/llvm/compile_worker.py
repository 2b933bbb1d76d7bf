"""Compile LLVM IR text to object code in a process of its own.

The process is given this file by its path and imports only llvmlite, so that it starts fast.
"""

from __future__ import annotations

import llvmlite.binding as llvm


class Compiler:
    """The server (`base.servers`) that compiles for one machine."""

    def begin(self, cpu: str, features: str, triple: str, opt: int) -> None:
        """Set the machine and the level of code generation."""
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        self.machine = llvm.Target.from_triple(triple).create_target_machine(
            cpu=cpu, features=features, opt=opt, reloc="pic", codemodel="small"
        )

    def compile(self, text: str) -> bytes:
        """Return the object code of a module. Raises RuntimeError where LLVM rejects the text."""
        return self.machine.emit_object(llvm.parse_assembly(text))
