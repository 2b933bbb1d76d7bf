"""Make the LLVM text of the native entry for each system (`make native`): einsmith/codegen/entry/text/*.ll.

The compiler is clang of the Python package ziglang, whose exact version stands among the development dependencies:
another version gives other text.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from einsmith.codegen.entry import entry_program
from einsmith.cost.facts import LINE, MAX_THREADS

SYSTEMS = {
    "x86_64-linux": "x86_64-linux-gnu", "aarch64-linux": "aarch64-linux-gnu", "riscv64-linux": "riscv64-linux-gnu",
    "x86_64-macos": "x86_64-macos", "aarch64-macos": "aarch64-macos",
    "x86_64-windows": "x86_64-windows-gnu", "aarch64-windows": "aarch64-windows-gnu",
    "x86_64-freebsd": "x86_64-freebsd", "wasm32": "wasm32-freestanding",
}  # fmt: skip
"""Texts, and the targets of zig that they are made for."""
OPTIONS = (
    "-std=c11 -O2 -g0 -S -emit-llvm -ffreestanding -fno-builtin -fno-vectorize -fno-slp-vectorize -fno-unroll-loops "
    "-fno-strict-aliasing -fno-stack-protector -fno-unwind-tables -fno-asynchronous-unwind-tables -fno-sanitize=all "
    "-fno-ident -fdiscard-value-names -fomit-frame-pointer -Wall -Wextra -Werror -Wno-unused-command-line-argument"
).split()
DEFINITIONS = [f"-DMAX_THREADS={MAX_THREADS}", f"-DLINE={LINE}"]


def strip(text: str) -> str:
    """Return the text without what ties it to a processor or to new versions of LLVM: its target, attributes but
    `nounwind`, module flags, metadata of loops; and without comments."""
    text = re.sub(r"^(; ModuleID|source_filename|target |!llvm\.[a-z.]+ = |; Function Attrs).*\n", "", text, flags=re.M)
    text = re.sub(r",? !llvm\.loop !\d+", "", text)
    text = re.sub(r" +; preds = .*", "", text)
    text = re.sub(r"\bdso_local ", "", text)
    text = re.sub(r"\bdllimport ", "", text)
    used = set(re.findall(r"metadata (!\d+)", text))
    text = "\n".join(x for x in text.split("\n") if not re.match(r"!\d+ = ", x) or x.split(" ")[0] in used)
    text = re.sub(r"^attributes #\d+ = .*\n", "", text, flags=re.M)
    text = re.sub(
        r"(^define .*\)(?: local_unnamed_addr| unnamed_addr)*)(?: #\d+)? \{", r"\1 nounwind {", text, flags=re.M
    )
    text = re.sub(r" #\d+$", "", text, flags=re.M)
    text = re.sub(r" (captures|range|memory|initializes)\([^()]*(\([^()]*\))?[^()]*\)", "", text)
    text = re.sub(r" (?:samesign|disjoint|nneg|noundef|local_unnamed_addr|unnamed_addr)\b", "", text)
    text = re.sub(r"\binbounds nuw\b", "inbounds", text)
    text = re.sub(r"\bgetelementptr nuw\b", "getelementptr", text)
    return re.sub(r"\n{2,}", "\n", text).strip() + "\n"


def make_text(name: str) -> str:
    """Return the text for a system. Raises subprocess.CalledProcessError where the compiler fails."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "entry.ll"
        pic = [] if name == "wasm32" or name.endswith("windows") else ["-fPIC"]
        command = [sys.executable, "-m", "ziglang", "cc", "-target", SYSTEMS[name], *OPTIONS, *pic, *DEFINITIONS]
        done = subprocess.run(
            [*command, "entry.c", "-o", str(out)], cwd=entry_program.HERE, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        return strip(out.read_text())


def main() -> None:
    """Write the text of each system."""
    entry_program.TEXTS.mkdir(exist_ok=True)
    for name in SYSTEMS:
        (entry_program.TEXTS / f"{name}.ll").write_text(make_text(name))


if __name__ == "__main__":
    main()
