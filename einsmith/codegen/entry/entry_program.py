"""Provide the native entry that runs a program, and its fork-join pool, as LLVM IR text.

The entry is C (entry.c and what it includes, in this folder). `make native` makes text of it for each system, in the
folder text; so users need no C compiler. Functions: `einsmith_run` executes a table of steps (launches, checks, loops)
that a record describes; `einsmith_worker` is the main loop of a worker thread; `einsmith_stop` ends all workers;
`einsmith_run_team` runs on the threads of an OpenMP runtime; `einsmith_look` checks for signals. What records have in
each word, and what the numbers of steps mean, is stated in records.h, from which this module takes them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from einsmith.base import files
from einsmith.base.errors import CompileError
from einsmith.cost.facts import LINE, MAX_THREADS

HERE = Path(__file__).parent
TEXTS = HERE / "text"
_HEADER = re.sub(r"/\*.*?\*/", "", files.read_text(HERE / "records.h") + files.read_text(HERE / "pool.h"), flags=re.S)
"""The headers without comments."""


def _inside(kind: str) -> list[str]:
    """Return the names declared in a struct or an enum of records.h, in order."""
    inside = re.search(rf"^{kind} \{{(.*?)^\}}", _HEADER, re.S | re.M)
    assert inside is not None
    return re.findall(r"(\w+)(?:\[\w+\])?(?=\s*(?:[,;]|\Z))", inside[1])


def _number(name: str) -> int:
    text = re.search(rf"^#define {name} (-?\d+)", _HEADER, re.M)
    assert text is not None
    return int(text[1])


RUN_WORDS, WATCH_WORDS = tuple(_inside("struct run")), tuple(_inside("struct watch"))
STEP_WORDS, MOVE_WORDS = len(_inside("struct step")), len(_inside("struct move"))
LAUNCH, CHECK_ZERO, CHECK_F32, CHECK_F64, LOOP, LOOP_END, LOOP_DOWN, TOGETHER, NOTIFY, AWAIT, APART = map(
    _inside("enum kind").index,
    ("LAUNCH", "CHECK_ZERO", "CHECK_F32", "CHECK_F64", "LOOP", "LOOP_END", "LOOP_DOWN", "TOGETHER", "NOTIFY", "AWAIT",
     "APART"),
)  # fmt: skip
INTERRUPTED, INTERVAL = _number("INTERRUPTED"), _number("INTERVAL")

_LINES = _inside("struct pool")
WORDS = {name: n * LINE for n, name in enumerate(_LINES)}
"""Bytes of the pool's state at which its parts begin: each has a line of its own, each thread's share one."""
WORDS["places"] = WORDS["shares"] + MAX_THREADS * LINE
STATE_BYTES = WORDS["places"] + MAX_THREADS * 4

LOOK, WATCH = "einsmith_look", "einsmith_watch"
"""The function that kernels call to check for signals, and the words that it reads (struct watch)."""
FLUSH = ("einsmith_fp_enter", "einsmith_fp_leave")
"""Functions that flush denormal numbers to zero in this thread, and restore its control register."""
NAMES = ("einsmith_run", "einsmith_worker", "einsmith_stop", "einsmith_run_team", LOOK, *FLUSH)


def text_name(triple: str) -> str:
    """Return the name of the text for a triple such as x86_64-unknown-linux-gnu. Raises CompileError where there is
    none."""
    arch = triple.split("-")[0].replace("arm64", "aarch64")
    systems = {"linux": "linux", "darwin": "macos", "macos": "macos", "windows": "windows", "freebsd": "freebsd"}
    system = next((name for part, name in systems.items() if part in triple), "")
    name = arch if arch.startswith("wasm") else f"{arch}-{system}"
    known = sorted(p.stem for p in TEXTS.glob("*.ll"))
    if name not in known:
        raise CompileError(f"programs do not run on {triple}: the native run time exists for {', '.join(known)}")
    return name


@lru_cache(maxsize=16)
def _text(name: str) -> str:
    return files.read_text(TEXTS / f"{name}.ll")


def emit_entry(triple: str, own: bool = False) -> str:
    """Return the text for a triple such as x86_64-unknown-linux-gnu. own: define the words that watch for signals in
    the text, where no code outside can reach them, instead of referring to a definition elsewhere. Raises CompileError
    for systems without a text."""
    text = f'target triple = "{triple}"\n' + _text(text_name(triple))
    if own:
        text, count = re.subn(
            rf"^(@{WATCH} = )external (.*)global (%struct\.watch),", r"\1internal \2global \3 zeroinitializer,",
            text, flags=re.M,
        )  # fmt: skip
        assert count == 1
    return text
