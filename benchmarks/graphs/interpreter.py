"""Run an exported network in any library: a table of PyTorch's operations over a few functions of that library."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.graphs.graph import GraphNode, NetworkGraph, ValueRef
from benchmarks.graphs.layout import Laid, beside, in_order, plain, reshaped

IMAGE = (0, 2, 3, 1)
"""Images with their channels last."""
FILTER = (2, 3, 1, 0)
"""[height, width, in, out] of PyTorch's [out, in, height, width]."""


Library = Any
"""A library's functions of arrays as they lie in memory; arithmetic and slices are the arrays' own. Images have their
channels last, [B, H, W, C], and filters are [H, W, in / groups, out], unless the library's `images` and `filters` name
other orders of PyTorch's axes; `padding` is (before, after) of height and width.

reshape(a, shape), transpose(a, axes), concat(parts, axis), broadcast(a, shape), einsum(spec, a, b), sqrt(a), relu(a),
clip(a, low, high), softmax(a, axis), one_hot(a, classes), gather(table, ids): as in NumPy
sum(a, axes, keep), mean(a, axes, keep): over axes
dense(x, w, turned): x times w [in, out], or w [out, in] if `turned`
gelu(a, tanh): GELU, or its approximation by a tanh
layer_norm(x, scale, shift, eps): over the last axis
batch_norm(x, scale, shift, eps): over all axes but the channels; the result, the mean, and the variance times n/(n - 1)
normalize(x, scale, shift, mean, variance, eps): batch norm by given statistics, where a library has its own
conv(x, w, stride, padding, dilation, groups)
conv_transpose(x, w): a transposed convolution whose stride is the extent of its filters [in, out, H, W]
max_pool(x, size, stride, padding), average_pool(x, size, stride, padding): of windows
attention(q, k, v, causal): of queries, keys and values [B, T, heads, width]
cross_entropy(logits, labels): the mean, of logits [N, classes]
"""


class Env(NamedTuple):
    """The context of an operation: the library, the new values of the state by name of the input, and the node."""

    lib: Library
    updates: dict[str, Any]
    node: GraphNode


OPS: dict[str, Callable[..., Any]] = {}


def op(*names: str) -> Callable[[Callable], Callable]:
    """Return a decorator that enters a function in OPS under the names of operations."""

    def enter(f: Callable) -> Callable:
        OPS.update(dict.fromkeys(names, f))
        return f

    return enter


def image_order(lib: Library) -> tuple[int, ...]:
    """Return the order in which the axes of a library's images lie in memory."""
    return getattr(lib, "images", IMAGE)


def filter_order(lib: Library) -> tuple[int, ...]:
    """Return the order in which the axes of a library's filters lie in memory."""
    return getattr(lib, "filters", FILTER)


def orders(graph: NetworkGraph, lib: Library = None) -> dict[str, tuple[int, ...]]:
    """Return the order of the axes in memory of parameters and inputs, by name; others lie as in PyTorch.

    Filters and images as the library has them, weights of linear layers [in, out], each unless another operation reads
    them too.
    """
    out: dict[str, tuple[int, ...]] = {}
    for value, name in graph.inputs:
        users = {(node.op, k) for node, k in graph.users(value)}
        if users == {("conv2d", 1)}:
            out[name] = filter_order(lib)
        elif users == {("linear", 1)}:
            out[name] = (1, 0)
        elif ("conv2d", 0) in users:
            out[name] = image_order(lib)
    return out


def held_arrays(arrays: Mapping[str, np.ndarray], held: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return a problem's arrays as they are to lie in memory: integers of 32 bits, and no counts of batches."""
    out = {}
    for name, a in arrays.items():
        if a.dtype.kind == "f":
            out[name] = np.ascontiguousarray(a.transpose(held[name]) if name in held else a)
        elif name in ("x", "y"):
            out[name] = a.astype(np.int32)
    return out


def told_arrays(arrays: Mapping[str, np.ndarray], held: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return arrays that lie in memory as `held_arrays` lays them in PyTorch's order again."""
    return {n: a.transpose(np.argsort(held[n])) if n in held else a for n, a in arrays.items()}


def loss(
    graph: NetworkGraph, lib: Library, given: Mapping[str, Any], held: Mapping[str, tuple[int, ...]]
) -> tuple[Any, dict[str, Any]]:
    """Return the loss, or what else the graph gives, and the new values of running statistics by name, for arrays that
    lie in memory as `held` says.

    Raises NotImplementedError, which names an operation that OPS lacks.
    """
    names = dict(graph.inputs)
    values: dict[str, Any] = {}
    updates: dict[str, Any] = {}
    for value, name in graph.inputs:
        if name in given:
            array = given[name]
            values[value] = Laid(array, held[name]) if name in held else plain(array)
    for node in graph.nodes:
        if any(r not in values for r in node.refs()):
            continue  # a count of batches, which no library needs
        if node.op not in OPS:
            raise NotImplementedError(f"{node.op} of PyTorch is not among the operations of benchmarks.graphs")
        changed: dict[str, Any] = {}
        result = OPS[node.op](Env(lib, changed, node), *_resolved(node.args, values))
        updates |= {names[ref]: v for ref, v in changed.items()}
        values[node.name] = result
        if node.op.partition(".")[0].endswith("_"):  # in place: what reads the operand later reads the result
            values[node.args[0].name] = result
    result = values[graph.result]
    return in_order(lib, result, range(len(result.order))).array, updates


def _resolved(a: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(a, ValueRef):
        return values[a.name]
    return tuple(_resolved(x, values) for x in a) if isinstance(a, tuple) else a


# ------------------------------------------------------------------------------------------------------------ pointwise


def _binary(f: Callable[[Any, Any], Any]) -> Callable[..., Laid]:
    def apply(env: Env, a: Any, b: Any, alpha: float = 1, *_: Any) -> Laid:
        if alpha not in (1, None):
            raise NotImplementedError(f"{env.node.op} with a factor of {alpha}")
        if not isinstance(b, Laid):
            return Laid(f(a.array, b), a.order)
        if not isinstance(a, Laid):
            return Laid(f(a, b.array), b.order)
        order = max((a, b), key=lambda x: (len(x.order), math.prod(x.shape))).order
        return Laid(f(beside(env.lib, a, order), beside(env.lib, b, order)), order)

    return apply


OPS["add.Tensor"] = OPS["add_.Tensor"] = _binary(lambda a, b: a + b)
OPS["sub.Tensor"] = _binary(lambda a, b: a - b)
OPS["mul.Tensor"] = _binary(lambda a, b: a * b)
OPS["div.Tensor"] = _binary(lambda a, b: a / b)
OPS["rsub.Scalar"] = _binary(lambda a, b: b - a)


@op("alias", "contiguous", "dropout", "broadcast_tensors", "_assert_tensor_metadata")
def _same(env: Env, x: Any, *args: Any) -> Any:
    if env.node.op == "dropout" and args[0]:
        raise NotImplementedError("dropout, whose random numbers differ between libraries")
    return x


@op("to.dtype")
def _to(env: Env, x: Laid, dtype: str, *_: Any) -> Laid:
    return x  # one_hot gives floats already


@op("<built-in function getitem>")
def _item(env: Env, x: Sequence[Any], n: int) -> Any:
    return x[n]


@op("relu", "relu_")
def _relu(env: Env, x: Laid) -> Laid:
    return Laid(env.lib.relu(x.array), x.order)


@op("hardtanh", "hardtanh_")
def _clip(env: Env, x: Laid, low: float, high: float) -> Laid:
    return Laid(env.lib.clip(x.array, low, high), x.order)


@op("gelu")
def _gelu(env: Env, x: Laid, approximate: str) -> Laid:
    return Laid(env.lib.gelu(x.array, approximate == "tanh"), x.order)


@op("pow.Tensor_Scalar")
def _power(env: Env, x: Laid, exponent: float) -> Laid:
    if exponent != 2:
        raise NotImplementedError(f"powers of {exponent}")
    return Laid(x.array * x.array, x.order)


# ----------------------------------------------------------------------------------------------------------- reductions


def _reduce(x: Laid, dims: Sequence[int], keep: bool, f: Callable[[Any, Sequence[int], bool], Any]) -> Laid:
    array = f(x.array, sorted(x.at(d) for d in dims), keep)
    return Laid(array, x.order) if keep else x.without(dims, array)


@op("sum.dim_IntList", "mean.dim")
def _total(env: Env, x: Laid, dims: Sequence[int], keep: bool, *_: Any) -> Laid:
    return _reduce(x, dims, keep, env.lib.sum if env.node.op.startswith("sum") else env.lib.mean)


@op("mean")
def _mean(env: Env, x: Laid, *_: Any) -> Laid:
    return _reduce(x, range(len(x.order)), False, env.lib.mean)


@op("linalg_vector_norm")
def _norm(env: Env, x: Laid, order: float, dims: Sequence[int], keep: bool, *_: Any) -> Laid:
    if order != 2:
        raise NotImplementedError(f"norms of order {order}")
    return _reduce(x, dims, keep, lambda a, axes, k: env.lib.sqrt(env.lib.sum(a * a, axes, k)))


@op("softmax.int")
def _softmax(env: Env, x: Laid, dim: int, *_: Any) -> Laid:
    return Laid(env.lib.softmax(x.array, x.at(dim)), x.order)


@op("mse_loss")
def _mse(env: Env, x: Laid, y: Laid, *_: Any) -> Laid:
    off = x.array - beside(env.lib, y, x.order)
    return _mean(env, Laid(off * off, x.order))


@op("cross_entropy_loss")
def _cross_entropy(env: Env, x: Laid, y: Laid, *_: Any) -> Laid:
    rank = len(x.order)
    held = in_order(env.lib, x, [0, *range(2, rank), 1]).array
    rows = env.lib.reshape(held, [-1, held.shape[-1]])
    labels = env.lib.reshape(in_order(env.lib, y, range(rank - 1)).array, [-1])
    return plain(env.lib.cross_entropy(rows, labels))


# --------------------------------------------------------------------------------------------------------------- shapes


@op("view", "reshape")
def _reshape(env: Env, x: Laid, shape: Sequence[int]) -> Laid:
    return reshaped(env.lib, x, shape)


@op("flatten.using_ints", "unflatten.int", "squeeze.dim", "unsqueeze")
def _as_told(env: Env, x: Laid, *_: Any) -> Laid:
    return reshaped(env.lib, x, env.node.shape)


@op("transpose.int")
def _transpose(env: Env, x: Laid, a: int, b: int) -> Laid:
    axes = list(range(len(x.order)))
    axes[a], axes[b] = axes[b], axes[a]
    return x.permuted(axes)


@op("permute")
def _permute(env: Env, x: Laid, axes: Sequence[int]) -> Laid:
    return x.permuted(axes)


@op("expand")
def _expand(env: Env, x: Laid, shape: Sequence[int], *_: Any) -> Laid:
    order = x.order if len(shape) == len(x.order) else tuple(range(len(shape)))
    return Laid(env.lib.broadcast(beside(env.lib, x, order), [env.node.shape[k] for k in order]), order)


@op("channel_shuffle")
def _shuffle(env: Env, x: Laid, groups: int) -> Laid:
    b, c, *image = x.shape
    parts = reshaped(env.lib, x, [b, groups, c // groups, *image])
    return reshaped(env.lib, parts.permuted([0, 2, 1, 3, 4]), x.shape)


def _cut(x: Laid, dim: int, at: Any) -> Any:
    return x.array[tuple([slice(None)] * x.at(dim) + [at])]


@op("select.int")
def _select(env: Env, x: Laid, dim: int, n: int) -> Laid:
    return x.without([dim], _cut(x, dim, n % x.shape[dim]))


@op("slice.Tensor")
def _slice(env: Env, x: Laid, dim: int, start: int | None, stop: int | None, step: int) -> Laid:
    extent = x.shape[dim]
    return Laid(_cut(x, dim, slice(*slice(start, stop, step).indices(extent))), x.order)


@op("chunk")
def _chunk(env: Env, x: Laid, parts: int, dim: int) -> list[Laid]:
    size = -(-x.shape[dim] // parts)
    return [Laid(_cut(x, dim, slice(k * size, (k + 1) * size)), x.order) for k in range(parts)]


@op("cat")
def _cat(env: Env, parts: Sequence[Laid], dim: int) -> Laid:
    order = parts[0].order
    arrays = [in_order(env.lib, p, order).array for p in parts]
    return Laid(env.lib.concat(arrays, parts[0].at(dim)), order)


@op("one_hot")
def _one_hot(env: Env, x: Laid, classes: int) -> Laid:
    return plain(env.lib.one_hot(x.array, classes))


@op("embedding")
def _embedding(env: Env, table: Laid, ids: Laid, *_: Any) -> Laid:
    return plain(env.lib.gather(in_order(env.lib, table, (0, 1)).array, ids.array))


# ------------------------------------------------------------------------------------------------------------- products


def _contract(env: Env, a: Laid, b: Laid, left: str, right: str, out: str) -> Laid:
    """Contract two arrays; the result lies as the product gives it: common axes, those of a, those of b."""
    held = ["".join(s[k] for k in x.order) for x, s in ((a, left), (b, right))]
    given = [c for c in held[0] if c in held[1] and c in out]
    given += [c for c in held[0] if c not in held[1]] + [c for c in held[1] if c not in held[0]]
    array = env.lib.einsum(f"{held[0]},{held[1]}->{''.join(given)}", a.array, b.array)
    return Laid(array, tuple(out.index(c) for c in given))


@op("einsum")
def _einsum(env: Env, spec: str, arrays: Sequence[Laid], *_: Any) -> Laid:
    (left, right), out = spec.partition("->")[0].split(","), spec.partition("->")[2]
    a, b = arrays
    return _contract(env, a, b, left, right, out)


@op("matmul")
def _matmul(env: Env, a: Laid, b: Laid) -> Laid:
    if a.shape[:-2] != b.shape[:-2]:
        raise NotImplementedError(f"products of {a.shape} and {b.shape}")
    lead = "abcdefgh"[: len(a.order) - 2]
    return _contract(env, a, b, f"{lead}xy", f"{lead}yz", f"{lead}xz")


def _dense(env: Env, x: Laid, w: Laid, bias: Laid | None, out_axis: int) -> Laid:
    """x times w, whose axis `out_axis` is that of the outputs; rows of x are all its other axes."""
    last = len(x.order) - 1
    x = in_order(env.lib, x, [*(k for k in x.order if k != last), last])
    *rows, inner = x.array.shape
    turned = w.order[0] == out_axis  # it lies as [out, in]
    y = env.lib.dense(env.lib.reshape(x.array, [-1, inner]), w.array, turned)
    if bias is not None:
        y = y + bias.array
    return Laid(env.lib.reshape(y, [*rows, w.shape[out_axis]]), x.order)


@op("linear")
def _linear(env: Env, x: Laid, w: Laid, bias: Laid | None) -> Laid:
    return _dense(env, x, w, bias, 0)


@op("addmm")
def _addmm(env: Env, bias: Laid, x: Laid, w: Laid, *_: Any) -> Laid:
    return _dense(env, x, w, bias, 1)


@op("scaled_dot_product_attention")
def _attention(env: Env, q: Laid, k: Laid, v: Laid, mask: Any, p: float, causal: bool, scale: Any, *_: Any) -> Laid:
    if mask is not None or p or scale is not None:
        raise NotImplementedError("attention with a mask, dropout or a scale")
    order = (0, 2, 1, 3)
    queries, keys, values = (in_order(env.lib, x, order).array for x in (q, k, v))
    return Laid(env.lib.attention(queries, keys, values, causal), order)


# ----------------------------------------------------------------------------------------------------- norms and images


@op("layer_norm")
def _layer_norm(env: Env, x: Laid, shape: Sequence[int], scale: Laid, shift: Laid, eps: float, *_: Any) -> Laid:
    if len(shape) != 1:
        raise NotImplementedError(f"layer norms over {len(shape)} axes")
    last = len(x.order) - 1
    x = in_order(env.lib, x, [*(k for k in x.order if k != last), last])
    return Laid(env.lib.layer_norm(x.array, scale.array, shift.array, eps), x.order)


@op("batch_norm")
def _batch_norm(
    env: Env, x: Laid, scale: Laid, shift: Laid, mean: Laid, var: Laid, training: bool, momentum: float, eps: float,
    *_: Any,
) -> Laid:  # fmt: skip
    if not training:
        return _scale(env, x, scale, shift, mean, var, eps)
    x = in_order(env.lib, x, image_order(env.lib))
    y, m, v = env.lib.batch_norm(x.array, scale.array, shift.array, eps)
    for k, old, new in ((3, mean, m), (4, var, v)):
        env.updates[env.node.args[k].name] = (1 - momentum) * old.array + momentum * new
    return Laid(y, x.order)


def _biased(env: Env, y: Any, bias: Laid | None) -> Laid:
    """Return images in the library's order plus a bias of their channels."""
    image = Laid(y, image_order(env.lib))
    if bias is None:
        return image
    at = image.at(1)
    held = bias.array if at == 3 else env.lib.reshape(bias.array, [*bias.shape, *[1] * (3 - at)])
    return Laid(y + held, image.order)


def _scale(env: Env, x: Laid, scale: Laid, shift: Laid, mean: Laid, var: Laid, eps: float) -> Laid:
    """Normalize by running statistics: by the library's own operation where it has one."""
    own = getattr(env.lib, "normalize", None)
    if own is not None:
        x = in_order(env.lib, x, image_order(env.lib))
        return Laid(own(x.array, scale.array, shift.array, mean.array, var.array, eps), x.order)
    factor = scale.array / env.lib.sqrt(var.array + eps)
    by, plus = (
        beside(env.lib, reshaped(env.lib, plain(a), [-1, 1, 1]), x.order)
        for a in (factor, shift.array - mean.array * factor)
    )
    return Laid(x.array * by + plus, x.order)


@op("conv2d")
def _conv(env: Env, x: Laid, w: Laid, bias: Laid | None, stride: Any, padding: Any, dilation: Any, groups: int) -> Laid:
    pads = [(n, n) for n in _pair(padding)]
    x, w = in_order(env.lib, x, image_order(env.lib)), in_order(env.lib, w, filter_order(env.lib))
    y = env.lib.conv(x.array, w.array, _pair(stride), pads, _pair(dilation), groups)
    return _biased(env, y, bias)


@op("conv_transpose2d.input")
def _conv_transpose(env: Env, x: Laid, w: Laid, bias: Laid | None, stride: Any, padding: Any, more: Any, groups: int,
                    dilation: Any) -> Laid:  # fmt: skip
    if _pair(stride) != w.shape[2:] or any(_pair(padding) + _pair(more)) or groups != 1 or _pair(dilation) != (1, 1):
        raise NotImplementedError("transposed convolutions whose windows overlap")
    y = env.lib.conv_transpose(in_order(env.lib, x, image_order(env.lib)).array, in_order(env.lib, w, range(4)).array)
    return _biased(env, y, bias)


def _pair(n: Any) -> tuple[int, int]:
    n = (n,) if isinstance(n, int) else tuple(n)
    return n * 2 if len(n) == 1 else n


def _pool(env: Env, pool: Callable[..., Any], x: Laid, size: Any, stride: Any, padding: Any) -> Laid:
    """Pool an image, padded (before, after) so that windows fill the output, which a ceiling may have enlarged."""
    size = _pair(size)
    stride = _pair(stride or size)
    sides = zip(x.shape[2:], size, stride, _pair(padding), env.node.shape[2:], strict=True)
    pads = [(p, max(0, (length - 1) * s + k - n - p)) for n, k, s, p, length in sides]
    held = in_order(env.lib, x, image_order(env.lib))
    return Laid(pool(held.array, size, stride, pads), held.order)


@op("max_pool2d")
def _max_pool(env: Env, x: Laid, size: Any, stride: Any, padding: Any, dilation: Any, *_: Any) -> Laid:
    if _pair(dilation) != (1, 1):
        raise NotImplementedError("pooling with dilation")
    return _pool(env, env.lib.max_pool, x, size, stride, padding)


@op("avg_pool2d")
def _average_pool(env: Env, x: Laid, size: Any, stride: Any, padding: Any, ceil: bool, borders: bool, *_: Any) -> Laid:
    if ceil or not borders:
        raise NotImplementedError("average pooling that does not count its border")
    return _pool(env, env.lib.average_pool, x, size, stride, padding)


@op("adaptive_avg_pool2d")
def _adaptive(env: Env, x: Laid, size: Any) -> Laid:
    if _pair(size) != (1, 1):
        raise NotImplementedError("adaptive pooling to more than one place")
    return _reduce(x, (2, 3), True, env.lib.mean)
