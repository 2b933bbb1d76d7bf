"""Write a fault to a folder of its own: what is wrong, and all that is needed to reproduce it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

from einsmith.base import environment, files, npz, private
from einsmith.base.errors import CheckError
from einsmith.checking import kernel_check, others
from einsmith.checking.expected import written_buffers
from einsmith.checking.kernel_check import BufferState, CheckedKernel, KernelFault, KernelSource
from einsmith.codegen.cache import native
from einsmith.cost.facts import Target, target_of
from einsmith.ir.interned import Node
from einsmith.ir.nodes import Graph
from einsmith.ir.printer import show
from einsmith.kernels import autoconfig
from einsmith.schedule.kernel import Kernel
from einsmith.schedule.serial import from_data, to_data

_KERNEL = '''"""Shows a fault of generated code again: python {name}

The kernel is compiled from kernel.ll, the text in which the fault was found; with --anew from kernel.json, by the
Einsmith that is installed, which shows whether the fault is still there.
"""

import sys
from pathlib import Path

from einsmith.checking.report import replay

replay(Path(__file__).parent, anew="--anew" in sys.argv[1:])
print("no fault")
'''

_GRAPH = '''"""Shows a fault of a compiled program again: python {name}"""

import os
from pathlib import Path

os.environ["EINSMITH_CHECK"] = "2"

from einsmith.base.numerics import Numerics
from einsmith.checking.report import graph_of
from einsmith.driver.executable import Executable

graph, inputs, facts = graph_of(Path(__file__).parent)
bind = dict(list(zip(graph.inputs, inputs))[: facts["bound"]])
run = Executable(graph, bind, facts["threads"], numerics=Numerics(**facts["numerics"]))
run([x for leaf, x in zip(graph.inputs, inputs) if leaf not in bind])
print("no fault")
'''


def folder() -> Path:
    """Create a folder for a fault, in the cache directory or, where that cannot be written, in the working
    directory."""
    for root in (environment.cache_dir() / "faults", Path.cwd() / "einsmith-faults"):
        try:
            private.make_folders(root)
            return Path(tempfile.mkdtemp(prefix="fault-", dir=root))
        except OSError:
            continue
    raise CheckError(f"the folder of a fault can be made neither below {environment.cache_dir()} nor in {Path.cwd()}")


def describe(subject: CheckedKernel, label: str = "") -> str:
    """Describe a kernel in words: how it is built, and its formulas."""
    lines = [f"kernel {label or subject.kernel.digest.hex()[:12]}, {subject.pattern} [{subject.config}]"]
    lines += ["  " + show(stage.template).replace("\n", "\n  ") for stage in subject.kernel.stages]
    return "\n".join(lines)


def kernel_fault(
    subject: CheckedKernel, states: Sequence[BufferState], fault: KernelFault, label: str = ""
) -> CheckError:
    """Write the folder of a kernel's fault; return the error to raise."""
    text = describe(subject, label)
    message = fault.text if fault.buffer is None else f"buffer {fault.buffer}: {fault.text}"
    where = folder()
    source = subject.source()
    arrays: dict[str, np.ndarray] = {}
    for n, (h, b) in enumerate(zip(states, subject.kernel.buffers, strict=True)):
        arrays[f"buffer{n}"] = h.values.view(b.dtype.numpy).reshape(b.shape)
        if h.known is not None:
            arrays[f"known{n}"] = h.known
    facts = {
        "kernel": to_data(subject.kernel),
        "launches": source.launches,
        "scratch": source.scratch,
        "workspace": source.workspace,
        "pattern": subject.pattern,
        "config": subject.config,
        "threads": subject.threads,
        "target": _machine(subject.target),
        "addresses": [h.address for h in states],
    }
    _write(where, facts, arrays, f"{message}\n\n{text}\n", _KERNEL)
    files.write(where / "kernel.ll", source.text)
    return CheckError(f"{text}\n{message}\nto see it again: python {where / 'reproduce.py'}")


def graph_fault(
    message: str, graph: Graph, bound: int, inputs: Sequence[np.ndarray], facts: Mapping[str, object]
) -> CheckError:
    """Write the folder of a program's fault; return the error to raise. `bound`: how many inputs, counted from the
    first, live as long as the program."""
    where = folder()
    arrays = {f"input{n}": x for n, x in enumerate(inputs)}
    try:
        data = to_data(graph)
    except Exception as e:  # the folder then lacks the graph, but has the message
        data, message = [], f"{message}\n(the graph has no form in a file: {e})"
    _write(where, {"graph": data, "bound": bound, **facts}, arrays, f"{message}\n\n{show(graph)}\n", _GRAPH)
    return CheckError(f"{message}\nto see it again: python {where / 'reproduce.py'}")


def _machine(target: Target) -> dict[str, object]:
    cpu, features, triple = native.jit.resolve(target)[:3]
    return {**asdict(target), "cpu": cpu, "features": features, "triple": triple}


def _write(where: Path, facts: object, arrays: Mapping[str, np.ndarray], text: str, script: str) -> None:
    files.write(where / "facts.json", json.dumps(facts))
    npz.write_arrays(where / "arrays.npz", arrays)
    files.write(where / "fault.txt", text)
    files.write(where / "reproduce.py", script.replace("{name}", "reproduce.py"))


def _read(where: Path) -> tuple[dict, dict[str, np.ndarray]]:
    facts = json.loads(files.read_bytes(where / "facts.json"))
    return facts, npz.read_arrays(where / "arrays.npz")


def replay(where: Path | str, anew: bool = False) -> None:
    """Run the kernel of a folder again. Raises CheckError if it is still wrong. `anew`: lower the kernel again."""
    facts, arrays = _read(Path(where))
    kernel: Kernel = from_data(facts["kernel"])
    target = target_of(facts["target"])
    if anew:
        source = others.source_of(partial(autoconfig.choose, kernel, target))
    else:
        launches = tuple((name, tasks) for name, tasks in facts["launches"])
        text = files.read_text(Path(where) / "kernel.ll")
        source = KernelSource(text, launches, facts["scratch"], facts["workspace"])
    empty = CheckedKernel(kernel, target, (), 0, 0, facts["pattern"], facts["config"], lambda: source, facts["threads"])
    subject = others.compile_subject(empty, source, target, native.jit.OPT, facts["config"])
    states = [
        BufferState(
            facts["addresses"][n],
            np.ascontiguousarray(arrays[f"buffer{n}"]).reshape(-1).view(np.uint8),
            arrays.get(f"known{n}"),
        )
        for n in range(len(kernel.buffers))
    ]
    try:
        check_thoroughly(subject, states)
    except KernelFault as e:
        message = e.text if e.buffer is None else f"buffer {e.buffer}: {e.text}"
        raise CheckError(f"{describe(subject)}\n{message}") from None


def check_thoroughly(
    subject: CheckedKernel,
    states: Sequence[BufferState],
    work: np.ndarray | None = None,
    turn: int = 0,
    compares_builds: bool = True,
) -> kernel_check.Outcome:
    """Run a kernel in all modes and compare it with the evaluator; return its results. Where the evaluation is not
    affordable, compare the kernel with other machine code instead. Raises KernelFault where two results differ."""
    outcome = kernel_check.check(subject, states, work, True, turn)
    is_evaluated = kernel_check.evaluate(subject, states, outcome, turn)
    if compares_builds and not is_evaluated and work is None:
        others.compare(subject, states, outcome, written_buffers(subject.kernel))
    return outcome


def graph_of(where: Path | str) -> tuple[Graph, list[np.ndarray], dict]:
    """Read a folder that a failed check wrote; return its graph, the inputs' values, and all recorded facts by name."""
    facts, arrays = _read(Path(where))
    graph: Node = from_data(facts["graph"])
    assert isinstance(graph, Graph)
    return graph, [arrays[f"input{n}"] for n in range(len(arrays))], facts
