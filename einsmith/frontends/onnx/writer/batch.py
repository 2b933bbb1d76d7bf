"""Make a graph hold for every batch size: compare the graphs of two sizes, and compute from the input's shape what
differs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from einsmith.base.errors import FormulaError
from einsmith.frontends.onnx.protos import walk_nodes

SIZES = 191, 193
"""Batch sizes for which the graph is written: primes, which no other extent is likely to be."""
NAME = "batch"
"""Name of the first extent of the inputs."""


def join_sizes(
    first: onnx.GraphProto,
    second: onnx.GraphProto,
    functions: Sequence[Sequence[onnx.FunctionProto]],
    written: Mapping[str, str],
    sized_input: str,
    size: str,
) -> onnx.GraphProto:
    """Return one graph for the graphs of the two `SIZES`.

    Args:
        first: the graph for the smaller size
        second: the graph for the larger size
        functions: the functions that each of the two calls
        written: formulas by the names of the initializers that were made for them
        sized_input: name of an input whose first extent is the batch size
        size: a name for the tensor that holds the batch size

    Raises FormulaError, which shows the formula, where the graphs differ in more than integers that are multiples of
    the batch size, and tables of multiples of the position in the batch.
    """
    _check_nodes(first, second, functions)
    graph = onnx.GraphProto()
    graph.CopyFrom(first)
    _join_infos(graph, second)
    others = {t.name: t for t in second.initializer}
    as_shape = _shapes(first.node)
    for f in functions[0]:
        shapes = _shapes(f.node)
        places = [p for p, x in enumerate(f.input) if x in shapes]
        as_shape |= {n.input[p] for n in first.node if (n.domain, n.op_type) == (f.domain, f.name) for p in places}
    computed: list[onnx.NodeProto] = []
    del graph.initializer[:]
    for t in first.initializer:
        other = others[t.name]
        if t.SerializeToString() != other.SerializeToString():
            values, factors = numpy_helper.to_array(t), _factors(t, other)
            if factors is None:
                table = _positions(graph, t, other, size)
                if not table:
                    raise _error(written.get(t.name, t.name), _difference(t, other))
                computed += table
                continue
            if t.name in as_shape and (factors != 0).sum() == 1:
                t = numpy_helper.from_array(np.where(factors != 0, -1, values), t.name)
            else:
                computed += _integers(graph, t.name, values, factors, size)
                continue
        graph.initializer.append(t)
    if computed:
        nodes = [helper.make_node("Shape", [sized_input], [size], name=size, start=0, end=1), *computed, *graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
    return graph


def _error(formula: str, what: str) -> FormulaError:
    return FormulaError(
        f"the file would hold for one batch size alone: the batch size determines {what}",
        formula,
        0,
        "export it for one size: dynamic_batch=False (`einsmith export --batch N`)",
    )


def _difference(a: onnx.TensorProto, b: onnx.TensorProto) -> str:
    """Say in which respect an initializer differs between the two sizes."""
    x, y = numpy_helper.to_array(a), numpy_helper.to_array(b)
    if x.shape != y.shape:
        shapes = " and ".join(str(v.shape) for v in (x, y))
        return f"a table of this formula's values or positions (its shapes at {SIZES[0]} and {SIZES[1]} are {shapes})"
    place = np.nonzero(np.atleast_1d(x != y))
    pair = " and ".join(str(np.atleast_1d(v)[place][0]) for v in (x, y))
    return f"a number of this formula that is no multiple of it (at {SIZES[0]} and {SIZES[1]}: {pair})"


def _shapes(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """Return the names of the shapes of Reshape nodes."""
    return {n.input[1] for n in walk_nodes(nodes) if n.op_type == "Reshape"}


def _check_nodes(
    first: onnx.GraphProto, second: onnx.GraphProto, functions: Sequence[Sequence[onnx.FunctionProto]]
) -> None:
    """Raise FormulaError where two graphs, or the functions that they call, differ in their nodes."""
    a, b = (
        [n for g in (*fs, graph) for n in walk_nodes(g.node)]
        for graph, fs in zip((first, second), functions, strict=True)
    )
    for x, y in zip(a, b, strict=False):
        mine, others = (
            [p.SerializeToString() for p in n.attribute if p.type != onnx.AttributeProto.GRAPH] for n in (x, y)
        )
        if (x.op_type, x.input, x.output, mine) != (y.op_type, y.input, y.output, others):
            raise _error(x.doc_string or y.doc_string or x.name, "by which operators this formula is written")
    if len(a) != len(b) or {t.name for t in first.initializer} != {t.name for t in second.initializer}:
        raise _error(a[-1].doc_string if a else "", "how many operators the network has")


def _join_infos(graph: onnx.GraphProto, second: onnx.GraphProto) -> None:
    """Name the extents of inputs and outputs that differ."""
    for x, y in zip((*graph.input, *graph.output), (*second.input, *second.output), strict=True):
        for d, e in zip(x.type.tensor_type.shape.dim, y.type.tensor_type.shape.dim, strict=True):
            if d.dim_value != e.dim_value:
                times = d.dim_value // SIZES[0]
                exact = (d.dim_value, e.dim_value) == (times * SIZES[0], times * SIZES[1])
                d.Clear()
                if exact:
                    d.dim_param = NAME if times == 1 else f"{times}*{NAME}"


def _factors(a: onnx.TensorProto, b: onnx.TensorProto) -> np.ndarray | None:
    """Return for each of some integers by which factor it is a multiple of the batch size, 0 for those that do not
    depend on it; None where the tensors are no integers [] or [N] of this kind."""
    x, y = numpy_helper.to_array(a), numpy_helper.to_array(b)
    if x.dtype not in (np.int32, np.int64) or x.ndim > 1 or x.shape != y.shape:
        return None
    factors = np.where(x == y, 0, x // SIZES[0])
    return factors if ((x == y) | ((x == factors * SIZES[0]) & (y == factors * SIZES[1]))).all() else None


def _positions(graph: onnx.GraphProto, a: onnx.TensorProto, b: onnx.TensorProto, size: str) -> list[onnx.NodeProto]:
    """Return nodes that compute a table [batch] of multiples of the position in the batch; none for other tables."""
    x, y = numpy_helper.to_array(a), numpy_helper.to_array(b)
    if x.dtype not in (np.int32, np.int64) or (x.shape, y.shape) != ((SIZES[0],), (SIZES[1],)):
        return []
    step = x[1]
    if step == 0 or any((v != step * np.arange(len(v))).any() for v in (x, y)):
        return []
    count, end, start, by = (f"{a.name}.{n}" for n in ("count", "end", "start", "step"))
    graph.initializer.extend(numpy_helper.from_array(np.array(v, x.dtype), n) for n, v in ((start, 0), (by, step)))
    nodes = _number(count, size, a.data_type)
    nodes.append(helper.make_node("Mul", [count, by], [end], name=end))
    return [*nodes, helper.make_node("Range", [start, end, by], [a.name], name=a.name)]


def _number(name: str, vector: str, data_type: int) -> list[onnx.NodeProto]:
    """Return nodes that make a number [] of a vector of one int64."""
    first = f"{name}.squeezed"
    return [
        helper.make_node("Squeeze", [vector], [first], name=first),
        helper.make_node("Cast", [first], [name], name=name, to=data_type),
    ]


def _integers(
    graph: onnx.GraphProto, name: str, values: np.ndarray, factors: np.ndarray, size: str
) -> list[onnx.NodeProto]:
    """Return nodes that compute integers [] or [N] from the batch size."""
    nodes, parts = [], []
    for n, (value, factor) in enumerate(zip(values.reshape(-1), factors.reshape(-1), strict=True)):
        if factor == 1:
            parts.append(size)
            continue
        part = f"{name}.{n}"
        parts.append(part)
        constant = f"{part}.factor" if factor else part
        graph.initializer.append(numpy_helper.from_array(np.array([factor or value], np.int64), constant))
        if factor:
            nodes.append(helper.make_node("Mul", [size, constant], [part], name=part))
    if not values.ndim:
        return [*nodes, *_number(name, parts[0], helper.np_dtype_to_tensor_dtype(values.dtype))]
    whole = name if values.dtype == np.int64 else f"{name}.int64"
    operator, options = ("Concat", {"axis": 0}) if len(parts) > 1 else ("Identity", {})
    nodes.append(helper.make_node(operator, parts, [whole], name=whole, **options))
    return (
        nodes
        if whole == name
        else [*nodes, helper.make_node("Cast", [whole], [name], name=name, to=onnx.TensorProto.INT32)]
    )
