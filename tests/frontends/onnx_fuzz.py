"""Change the standard's cases of nodes at random: what is not a model any more has to be an error of Einsmith.

python -m tests.frontends.onnx_fuzz --seed 3 --count 2000 [--run] [words of the cases' names]
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto as A
from onnx import helper, numpy_helper

from einsmith.base.errors import EinsmithError
from einsmith.frontends.onnx import load
from einsmith.frontends.onnx.types import ELEMENTS
from einsmith.ir.nodes import leaf
from einsmith.tracing.builder import Value
from einsmith.tracing.trace import Trace, tracing
from tests.frontends.onnx_cases import _sets, cases

INTS = (-(2**63), -(2**31), -7, -2, -1, 0, 1, 2, 3, 7, 100, 2**20, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, float("inf"), -float("inf"), float("nan"))
TEXTS = ("", "EVIL", "\x1b[31m", "linear", "nearest", "constant", "none", "SAME_UPPER", "i,j->", "ij,jk->ik", "tanh")
SECONDS = 40
"""Most seconds of one case."""


class Endless(Exception):
    """Raised in a case that takes too long."""


def pick(rng: np.random.Generator, options: Sequence[Any]) -> Any:
    return options[int(rng.integers(len(options)))]


def odd_list(rng: np.random.Generator, values: list[Any], options: Sequence[Any]) -> list[Any]:
    """A list with an element changed, added or removed, empty, or of another length."""
    values = list(values)
    how = rng.integers(5)
    if how == 0 and values:
        values[int(rng.integers(len(values)))] = pick(rng, options)
    elif how == 1:
        values.append(pick(rng, options))
    elif how == 2:
        values = values[:-1]
    elif how == 3:
        values = [pick(rng, options) for _ in values]
    else:
        values = [pick(rng, options)] * int(pick(rng, (0, 1, 2, 5, 70)))
    return values


def change_attribute(rng: np.random.Generator, node: onnx.NodeProto) -> None:
    """Change, remove or add an attribute of a node."""
    names = [a.name for a in node.attribute]
    if onnx.defs.has(node.op_type, node.domain):
        names += list(onnx.defs.get_schema(node.op_type, node.domain).attributes)
    name = pick(rng, names) if names and rng.random() < 0.97 else "made_up"
    known = next((a for a in node.attribute if a.name == name), None)
    how = rng.random()
    if known is not None and how < 0.1:
        node.attribute.remove(known)
        return
    if known is None:
        kind = A.INT
        if onnx.defs.has(node.op_type, node.domain):
            schema = onnx.defs.get_schema(node.op_type, node.domain).attributes
            kind = schema[name].type.value if name in schema else A.INT
    else:
        kind = known.type
    if how < 0.2:
        kind = pick(rng, (A.INT, A.FLOAT, A.STRING, A.INTS, A.FLOATS, A.STRINGS))
    values = {
        A.INT: lambda: pick(rng, INTS),
        A.FLOAT: lambda: pick(rng, FLOATS),
        A.STRING: lambda: pick(rng, TEXTS),
        A.INTS: lambda: odd_list(rng, list(known.ints) if known is not None else [], INTS),
        A.FLOATS: lambda: odd_list(rng, list(known.floats) if known is not None else [], FLOATS),
        A.STRINGS: lambda: odd_list(rng, ["Tanh", "Relu"], TEXTS),
    }
    if kind not in values:
        return
    made = helper.make_attribute(name, values[kind](), attr_type=kind)
    if known is not None:
        node.attribute.remove(known)
    node.attribute.append(made)


def change_array(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """Change the values, the type or the shape of an array."""
    how = rng.integers(6)
    if how <= 2 and array.size and array.dtype.kind in "iuf":
        array = array.copy()
        info = np.iinfo(array.dtype) if array.dtype.kind in "iu" else None
        options = [n for n in INTS if info.min <= n <= info.max] if info else FLOATS
        array.reshape(-1)[int(rng.integers(array.size))] = pick(rng, options)
        return array
    if how == 3:
        return array.reshape((*array.shape, 1)) if rng.random() < 0.5 else array.reshape(-1)
    if how == 4:
        return array.reshape(-1)[: int(rng.integers(0, 3))]
    return array.astype(pick(rng, (np.int32, np.int64, np.float32, np.bool_))) if array.dtype.kind in "iufb" else array


def change_node(rng: np.random.Generator, node: onnx.NodeProto) -> None:
    """Change the operands or results of a node."""
    how = rng.integers(5)
    if how == 0 and node.input:
        del node.input[int(rng.integers(len(node.input)))]
    elif how == 1 and node.input:
        node.input[int(rng.integers(len(node.input)))] = ""
    elif how == 2 and node.input:
        node.input.append(pick(rng, node.input))
    elif how == 3 and node.input:
        node.input[int(rng.integers(len(node.input)))] = pick(rng, node.input)
    else:
        node.output.append("more")


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for a in node.attribute:
            yield from nodes_of(a.g)


def changed(rng: np.random.Generator, case: Any) -> tuple[onnx.ModelProto, list[Any]]:
    """A changed copy of a case's model, some of its inputs constants now, and values of the other inputs."""
    known = case.model or onnx.load(Path(case.model_dir) / "model.onnx")
    model = onnx.ModelProto()
    model.CopyFrom(known)
    inputs, _ = next(_sets(case, known))
    arrays = [numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x for x in inputs]
    rest, values = [], []
    for value, x in zip(model.graph.input, arrays, strict=False):
        plain = isinstance(x, np.ndarray) and x.dtype.kind in "iufb" and x.size < 1000
        if plain and rng.random() < 0.6:
            made = numpy_helper.from_array(change_array(rng, x) if rng.random() < 0.5 else x, value.name)
            if rng.random() < 0.03 and made.dims:
                made.dims[0] = pick(rng, INTS)
            model.graph.initializer.append(made)
        else:
            rest.append(value)
            values.append(x)
    copies = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in rest]
    del model.graph.input[:]
    model.graph.input.extend(copies)
    for _ in range(int(rng.integers(1, 3))):
        node = pick(rng, list(nodes_of(model.graph)))
        (change_attribute if rng.random() < 0.75 else change_node)(rng, node)
    return model, values


def try_model(model: onnx.ModelProto, values: list[Any], run: bool) -> None:
    """Load and trace a model, and run it if asked to. Raises what they raise."""
    net = load(model.SerializeToString())
    if run:
        net(*values)
        return
    symbols = []
    for i, x in zip(net.inputs, values, strict=True):
        if any(i.name == s.name for s in net.static) or not isinstance(x, np.ndarray) or i.type not in ELEMENTS:
            return
        symbols.append(Value(leaf(x.shape, ELEMENTS[i.type].dtype)))
    with tracing(Trace()):
        net.forward(*symbols)


def try_changes(chosen: dict[str, Any], seed: int, count: int, run: bool) -> list[str]:
    """Try `count` changed cases; return what is wrong with some: errors that are not Einsmith's, too much time."""
    rng, wrong, names = np.random.default_rng(seed), [], sorted(chosen)

    def end(*_: Any) -> None:
        raise Endless

    before = signal.signal(signal.SIGALRM, end)
    try:
        for number in range(count):
            name, place = pick(rng, names), np.random.default_rng([seed, number])
            model, values = changed(place, chosen[name])
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    try_model(model, values, run)
            except EinsmithError as e:
                text = str(e) + "".join(getattr(e, "__notes__", ()))
                if "\x1b" in text:
                    wrong.append(f"{name} {number}: prints an escape sequence: {text[:200]!r}")
                if (
                    isinstance(e.__cause__, (AssertionError, AttributeError, KeyError, RecursionError))
                    and "-v" in sys.argv
                ):
                    wrong.append(f"{name} {number}: {text[:300]}")
            except Exception as e:
                at = [f"{f.filename.split('einsmith/')[-1]}:{f.lineno}" for f in traceback.extract_tb(e.__traceback__)][
                    -4:
                ]
                nodes = ", ".join(str(n).replace("\n", " ")[:300] for n in model.graph.node)
                wrong.append(f"{name} {number}: {type(e).__name__}: {str(e)[:150]} at {at}: {nodes}")
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--run", action="store_true", help="compile and run the models")
    parser.add_argument("-v", action="store_true", help="show errors that only the safety net catches")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (24 << 30, 24 << 30))
    chosen = {n: c for n, c in cases().items() if not given.words or any(w in n for w in given.words)}
    wrong = try_changes(chosen, given.seed, given.count, given.run)
    print(*wrong, f"{len(wrong)} of {given.count} are wrong", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    np.seterr(all="ignore")
    sys.exit(main())
