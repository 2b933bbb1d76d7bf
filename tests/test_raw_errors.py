"""Bad arguments of every public callable end in Einsmith's errors, which name the argument, never in a raw one of
Python's, NumPy's or another library's.

Each argument in turn is replaced by values of wrong kinds, shapes and sizes. What is public is found, not listed, so
that a new function is tried as well. What the user's own functions raise is theirs: none that is passed here does.
"""

from __future__ import annotations

import inspect
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith.optim import lr_scheduler
from tests.base.test_arguments import required

F, nn = es.functional, es.nn
X = np.ones((2, 3, 4, 4), np.float32)
M = np.ones((2, 4), np.float32)
Y = np.ones((2, 2), np.float32)
I = np.array([0, 1])  # noqa: E741


def closed() -> Any:
    file = Path(__file__).open()
    file.close()
    return file


BAD: dict[str, Callable[[], Any]] = {
    "None": lambda: None, "a string": lambda: "abc", "bytes": lambda: b"x", "unequal rows": lambda: [[1.0], []],
    "an object": object, "Python objects": lambda: np.array([None, 1]), "strings": lambda: np.array(["a"]),
    "no elements": lambda: np.zeros(0), "no rows": lambda: np.zeros((0, 3)), "8 dimensions": lambda: np.ones((1,) * 8),
    "NaN": lambda: float("nan"), "infinity": lambda: float("inf"), "-1": lambda: -1, "0": lambda: 0,
    "a wide number": lambda: 2**70, "the least int64": lambda: -(2**63), "a number of 400 digits": lambda: 10**400,
    "1.5": lambda: 1.5, "True": lambda: True, "()": tuple, "[]": list, "{}": dict, "a mapping": lambda: {"a": 1},
    "a set": lambda: {1}, "a generator": lambda: (x for x in [1]), "a class": lambda: nn.Linear,
    "complex numbers": lambda: np.ones(3, np.complex64), "a complex number": lambda: 1j, "0-d": lambda: np.array(3),
    "truth values": lambda: np.ones(3, bool), "negative indices": lambda: np.array([-1, 5]), "a closed file": closed,
    "...": lambda: Ellipsis, "a slice": lambda: slice(1), "strings in a list": lambda: ["a", None],
    "a module": nn.ReLU, "not finite": lambda: np.full((2, 4), np.nan), "dates": lambda: np.array(["2020"], "M8[D]"),
    "records": lambda: np.zeros(2, [("a", "f4")]), "masked": lambda: np.ma.array([1.0], mask=[1]),
    "long doubles": lambda: np.ones(2, np.longdouble),
}  # fmt: skip
KNOWN = {
    "int": 1, "Ints": 1, "Amounts": 1, "Sizes": 1, "Count": 1, "Size": 1, "float": 0.5, "Share": 0.5, "Magnitude": 0.5,
    "str": "mean", "bool": False, "Sequence[int]": (0,),
}  # fmt: skip
BY_NAME = {
    "target": I, "index": I, "indices": I, "x": M, "y": I, "size": 1, "tokens": np.arange(50), "steps": 3, "batch": 2,
    "text": "a b c", "unit": "word",
}  # fmt: skip

Case = tuple[str, Callable[..., Any], Mapping[str, Any]]


def good(f: Callable, **given: Any) -> dict[str, Any]:
    """Something for each of a callable's arguments but those of any number."""
    out = {}
    for p in inspect.signature(f).parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        kind = str(p.annotation).split(" | ")[0]
        default = KNOWN.get(kind, X) if p.default is p.empty else p.default
        out[p.name] = given.get(p.name, BY_NAME.get(p.name, default) if p.default is p.empty else default)
    return out


def public(module: Any) -> Iterator[tuple[str, Callable]]:
    for name in module.__all__:
        f = getattr(module, name)
        if callable(f) and not name.startswith("_"):
            yield name, f


def functions() -> Iterator[Case]:
    for name, f in public(F):
        if all(p.kind is not p.VAR_POSITIONAL for p in inspect.signature(f).parameters.values()):
            yield f"functional.{name}", f, good(f)


def layers() -> Iterator[Case]:
    for name, kind in public(nn):
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)) or kind is nn.Module:
            continue
        try:
            layer = kind(**required(kind))
        except es.EinsmithError:  # one whose sizes depend on each other
            continue
        yield f"nn.{name}", lambda kind=kind, **given: kind(**given), required(kind)
        if all(p.kind is not p.VAR_POSITIONAL for p in inspect.signature(layer.forward).parameters.values()):
            yield f"nn.{name}()", layer, good(layer.forward)
    for name in ("uniform_", "normal_", "constant_", "zeros_", "ones_", "kaiming_uniform_", "xavier_normal_"):
        f = getattr(nn.init, name)
        yield f"nn.init.{name}", f, good(f, tensor=nn.Parameter(M), nonlinearity="relu", mode="fan_in")


def methods() -> Iterator[Case]:
    """Of modules and parameters."""

    def on(make: Callable[[], Any], method: str, /, **given: Any) -> Case:
        return f"{type(make()).__name__}.{method}", lambda **k: getattr(make(), method)(**k), given

    def linear() -> nn.Linear:
        return nn.Linear(4, 2)

    yield on(linear, "load_state_dict", state_dict=linear().state_dict(), strict=True)
    yield on(linear, "register_buffer", name="b", tensor=M)
    yield on(linear, "register_parameter", name="p", param=nn.Parameter(M))
    yield on(linear, "add_module", name="m", module=nn.ReLU())
    yield on(linear, "requires_grad_", requires_grad=True)
    yield on(linear, "train", mode=True)
    yield on(linear, "named_parameters", prefix="", recurse=True, remove_duplicate=True)
    yield on(linear, "named_buffers", prefix="", recurse=True, remove_duplicate=True)
    yield on(linear, "named_modules", prefix="")
    yield "Linear.predict", lambda x, n: linear().predict(x, batch_size=n), {"x": M, "n": 2}
    yield "Linear.to", lambda dtype: linear().to(dtype), {"dtype": "float32"}
    yield "nn.Parameter", nn.Parameter, {"data": M, "requires_grad": True}
    yield "nn.Buffer", nn.Buffer, {"data": M}
    yield "Parameter.data", lambda v: setattr(nn.Parameter(M), "data", v), {"v": M}
    yield "Parameter.store_as", lambda v: nn.Parameter(M).store_as(v), {"v": None}
    yield "Parameter.convert", lambda v: nn.Parameter(M).convert(v), {"v": "float32"}
    yield "Parameter.requires_grad", lambda v: setattr(nn.Parameter(M), "requires_grad", v), {"v": True}
    yield "models.get", es.models.get, {"name": "lenet5"}
    yield "models.maker", es.models.maker, {"name": "lenet5"}


def transformations() -> Iterator[Case]:
    def square(x):
        return es.sum(F.mul(x, x))

    formula = es.op("y[i,j] = sum[k](x[i,k] * w[k,j]) * s + E[ids[i]]")
    inputs = {"x": M, "w": np.ones((4, 2)), "E": np.ones(3), "ids": I, "s": 2.0}
    shapes = {n: np.shape(v) for n, v in inputs.items() if n != "s"}
    yield "op", es.op, {"text": "y[i] = x[i]", "extents": {}, "name": "a", "checkpoint": 0, "inputs": "x"}
    yield "op()", formula, inputs
    yield "op.gradient", lambda wrt, **k: formula.gradient(wrt, **k), {"wrt": "x", **shapes, "s": 2.0}
    static = es.op("y[i] = x[n*i+m]", extents={"i": 2})
    yield "op() static", static, {"x": np.ones(9), "n": 2, "m": 1}
    yield "op extents", lambda v: es.op("y[i] = 1.0", extents={"i": v})(), {"v": 3}
    yield "jit", es.jit, {"f": square, "static_argnames": (), "winograd": False, "max_stored": "1MB"}
    named = es.jit(lambda x, n: F.mul(x, F.reshape(x, n)), static_argnames="n")
    yield "jit()", named, {"x": M, "n": (2, 4)}
    for name in ("grad", "value_and_grad"):
        f = getattr(es, name)
        yield name, f, {"f": square, "argnums": 0, "has_aux": False}
        yield f"{name}()", lambda x, f=f: f(square)(x), {"x": M}
        yield f"{name} argnums", lambda v, f=f: f(square, v)(M), {"v": 0}
    yield "vjp", lambda x: es.vjp(square, x), {"x": M}
    pullback = es.vjp(lambda x: {"a": x * 2, "b": (x,)}, M)[1]
    yield "pullback", lambda a: pullback({"a": a, "b": (a,)}), {"a": M}
    yield "pullback structure", lambda c: pullback(c), {"c": {"a": M, "b": (M,)}}
    yield "jvp", lambda p, t: es.jvp(square, (p,), (t,)), {"p": M, "t": M}
    yield "jvp structure", lambda t: es.jvp(square, (M,), t), {"t": (M,)}
    yield "interpret", lambda x: es.interpret(square)(x), {"x": M}
    yield "vmap", lambda x, i, o: es.vmap(lambda v: F.mul(v, 2), in_axes=i, out_axes=o)(x), {"x": M, "i": 0, "o": 0}
    yield "hessian", lambda x, n: es.hessian(square, n)(x), {"x": np.ones(3), "n": 0}
    checks = {"order": 1, "seed": 0, "eps": 1e-5, "tol": 1e-5}
    yield "check_gradients", lambda x, **k: es.check_gradients(square, x, **k), {"x": M, **checks}
    yield "compute", lambda shape: es.jit(lambda: es.compute(shape, lambda *i: 1.0))(), {"shape": (2,)}
    yield "compute fn", lambda fn: es.jit(lambda: es.compute((2, 3), fn))(), {"fn": lambda i, j: 1.0}
    yield "axes", lambda n: es.axes(n, 2), {"n": 3}
    for name in ("exp", "log", "abs", "relu", "sigmoid", "sqrt", "sum", "mean", "max", "argmax", "stop_gradient"):
        f = getattr(es, name)
        yield f"es.{name}", lambda v, f=f: es.jit(lambda x: f(v))(M), {"v": M}
    for name in ("sum", "mean", "max", "argmax"):
        f = getattr(es, name)
        yield f"es.{name} axis", lambda axis, keepdims, f=f: es.jit(
            lambda x: f(x, axis=axis, keepdims=keepdims))(M), {"axis": 0, "keepdims": False}  # fmt: skip
        yield f"es.{name} over", lambda over, f=f: es.jit(
            lambda x: es.compute((2,), lambda i: f(x[i, 0], over=over)))(M), {"over": es.axes(3)}  # fmt: skip
    for name, call, a in (
        ("reshape", lambda v, a: v.reshape(a), (4, 2)), ("transpose", lambda v, a: v.transpose(a), (1, 0)),
        ("astype", lambda v, a: v.astype(a), "float64"), ("sum", lambda v, a: v.sum(a), 0),
        ("[]", lambda v, a: v[a], 0),
        ("[,0]", lambda v, a: v[a, 0], 0), ("[a:]", lambda v, a: v[a:], 1), ("[::a]", lambda v, a: v[::a], -1),
        ("permute", lambda v, a: v.permute(a), (1, 0)), ("view", lambda v, a: v.view(a), (8,)),
        ("expand", lambda v, a: v.expand(a), (3, 2, 4)), ("split", lambda v, a: v.split(a), 1),
        ("softmax", lambda v, a: v.softmax(a), 0), ("masked_fill mask", lambda v, a: v.masked_fill(a, 0), M > 0),
        ("masked_fill value", lambda v, a: v.masked_fill(v > 0, a), 2), ("squeeze", lambda v, a: v.squeeze(a), 0),
        ("flatten", lambda v, a: v.flatten(a), 0), ("[i,a]", lambda v, a: es.compute((2,), lambda i: v[i, a]), 0),
        ("result", lambda v, a: a, 0),
    ):  # fmt: skip
        yield f"traced {name}", lambda a, call=call: es.jit(lambda v: call(v, a))(M), {"a": a}


def step(**settings: Any) -> es.TrainStep:
    return es.TrainStep(nn.Linear(4, 2), F.mse_loss, es.optim.SGD(lr=0.1), **settings)


SETTINGS = {
    "mode": "static", "seed": 0, "threads": None, "winograd": False, "clip_grad_norm": 1.0, "norm_type": 2.0,
    "clip_grad_value": None, "accumulate": 1, "ema": None, "trained": "first", "memory_limit": None, "tune": 0.0,
    "max_stored": 0,
}  # fmt: skip


def training(folder: Path) -> Iterator[Case]:
    one = step()
    yield "TrainStep", es.TrainStep, {"model": one.model, "loss": F.mse_loss, "optimizer": one.optimizer, **SETTINGS}
    for name, value in SETTINGS.items():
        yield f"step.{name} = ", lambda v, name=name: setattr(step(), name, v), {"v": value}
    yield "step.change", lambda v: step().change(accumulate=v), {"v": 1}
    yield "step()", lambda x, y: one(x, y), {"x": M, "y": Y}
    yield "step.compile", lambda x, y: one.compile(x, y), {"x": M, "y": Y}
    yield "step.profile", lambda x, y, n: one.profile(x, y, repeats=n), {"x": M, "y": Y, "n": 1}
    yield "step.fit", lambda **k: step().fit(**k), {"batches": [(M, Y)], "epochs": 1, "progress": False,
        "validation": None, "metrics": None, "callbacks": ()}  # fmt: skip
    yield "step.fit batch", lambda b: step().fit([b], 1, progress=False), {"b": (M, Y)}
    yield "step.evaluate", one.evaluate, {"batches": [(M, Y)], "metrics": None, "averaged": False}
    yield "step.evaluate batch", lambda x, y: one.evaluate([(x, y)]), {"x": M, "y": Y}
    yield "step.evaluate metric", lambda v: one.evaluate([(M, Y)], metrics={"a": lambda o, t: v}), {"v": 1.0}
    for name, value in {"optimizer": one.optimizer, "loss": F.mse_loss, "model": one.model}.items():

        def replaced(v: Any, name: str = name) -> None:
            other = step()
            setattr(other, name, v)
            other(M, Y)

        yield f"step.{name} = ", replaced, {"v": value}
    yield "save", lambda s, p: es.save(s, p), {"s": one, "p": folder / "one"}
    es.save(one, folder / "kept")
    yield "load", es.load, good(es.load, path=folder / "kept") | {"model": nn.Linear(4, 2), "loss": F.mse_loss}
    for name, f in (*es.optim.STANDARD.items(), ("Rule", partial(es.optim.Rule, "p[i] = p[i] - lr*g[i]"))):
        yield f"optim.{name}", f, {"lr": 0.1} if name == "Rule" else good(f)
    yield "optim.Rule text", lambda t: es.optim.Rule(t, lr=0.1), {"t": "p[i] = p[i] - lr*g[i]"}
    yield "optim.restore", es.optim.restore, {"description": {"name": "SGD"}}
    for name, kind in lr_scheduler.SCHEDULES.items():
        needed = {"lr": 0.1, "max_lr": 0.1, "milestones": (2,), "schedules": [lr_scheduler.StepLR(0.1, 3)] * 2}
        given = {n: needed.get(n, 10 if v is X else v) for n, v in good(kind).items()}
        yield f"lr_scheduler.{name}", kind, given
        if not isinstance(made := kind(**given), lr_scheduler.ReduceLROnPlateau):
            yield f"lr_scheduler.{name}()", lambda step, made=made: made(step), {"step": 1}
    for name in ("mean_absolute_error", "mean_squared_error"):
        yield f"metrics.{name}", getattr(es.metrics, name), {"output": Y, "target": Y}
    for make, target in ((partial(es.metrics.top_k, 1), I), (es.metrics.f1, I), (es.metrics.r2, Y)):

        def updated(output: Any, target: Any, make: Callable = make) -> None:
            metric = make()
            metric.reset()
            metric.update(output, target)
            metric.compute()

        yield f"metrics {make}", updated, {"output": Y, "target": target}
    for name in ("EarlyStopping", "CSVLog", "Save"):
        kind = getattr(es.callbacks, name)
        yield f"callbacks.{name}", kind, good(kind, folder=folder / "a", path=folder / "a.csv")


def data(folder: Path) -> Iterator[Case]:
    def first(f: Callable, **given: Any) -> None:
        made = f(**given)
        if not isinstance(made, (tuple, str, np.ndarray)) and hasattr(made, "__iter__"):
            next(iter(made), None)

    for name, f in public(es.data):
        if name not in ("mnist", "fashion_mnist", "cifar10", "cifar100", "text", "ImageFolder"):
            own = {"tokens": ["a", "b"]} if name == "Vocabulary" else {}
            yield f"data.{name}", partial(first, f), good(f, folder=folder, path=folder, split="train", **own)
    batches = es.data.batches(M, I, 1, seed=1)
    yield "batches.epoch", batches.epoch, {"n": 0, "start": 0}
    yield "batches.order", batches.order, {"epoch": 0}


def doors(folder: Path) -> Iterator[Case]:
    yield "export", lambda **k: es.export(k.pop("what"), folder / "e", k.pop("x"), **k, link=False, overwrite=True), {
        "what": nn.Linear(4, 2), "x": M, "name": "a", "target": "host", "threads": None, "schedule": None}  # fmt: skip
    yield "load_library", es.load_library, {"folder": folder / "none", "weights": None, "threads": 0}
    yield "Library", es.Library, {"folder": folder / "none"}


GROUPS: dict[str, Callable[..., Iterator[Case]]] = {
    "functions": functions, "layers": layers, "methods": methods, "transformations": transformations,
    "training": training, "data": data, "doors": doors,
}  # fmt: skip


def raw(name: str, call: Callable[[], Any]) -> str | None:
    """What a call raises that is none of Einsmith's errors, in words."""
    try:
        made = call()
        if isinstance(made, Iterator):
            next(made, None)
    except es.EinsmithError:
        return None
    except Exception as e:
        return f"{name}: {type(e).__name__}: {str(e).partition(chr(10))[0][:100]}"
    return None


def refused(name: str, call: Callable[[], Any]) -> str | None:
    """Why a call with good arguments raises, which then tries nothing."""
    try:
        call()
    except es.EinsmithError as e:
        return None if name in REFUSED else f"{name}: {e}"
    return None


REFUSED = (
    "optim.restore", "load_library", "Library", "data.columns", "data.idx_folder", "data.image_folder",
    "data.mnist_rows", "data.text_folder",
)  # fmt: skip
"""Cases whose good arguments would be files."""


def found(cases: Sequence[Case], most: int) -> list[str]:
    """Raw errors of calls in which one argument is bad: at most so many bad values for each, others for others."""
    out = []
    for name, f, given in cases:
        for argument in given:
            start = zlib.crc32(f"{name} {argument}".encode())
            for k in range(min(most, len(BAD))):
                kind = list(BAD)[(start + 7 * k) % len(BAD)]
                told = raw(f"{name}({argument}: {kind})", partial(f, **{**given, argument: BAD[kind]()}))
                out += [told] if told is not None else []
    return out


def tried(group: str, folder: Path, most: int) -> list[str]:
    make = GROUPS[group]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        cases = list(make(folder) if "folder" in inspect.signature(make).parameters else make())
        assert len(cases) > 2
        if group not in ("functions", "layers"):  # whose arguments are found, and may not fit each other
            wrong = [told for name, f, given in cases if (told := refused(name, partial(f, **given))) is not None]
            assert not wrong, wrong
        return found(cases, most)


@pytest.mark.thinned(8)
@pytest.mark.parametrize("group", GROUPS)
def test_some_bad_values_of_every_argument(group, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a bad path may be a relative one
    most = 1 if group == "functions" else 4  # functions are many, and each argument has other values
    assert not (told := tried(group, tmp_path, most)), "\n".join(told)


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_all_bad_values_of_every_argument(group, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not (told := tried(group, tmp_path, len(BAD))), "\n".join(told)


@pytest.mark.parametrize("most", [10, pytest.param(len(BAD), marks=pytest.mark.slow)])
def test_front_ends(torch, most):
    from einsmith.frontends import torch as own

    formula = own.operator(es.op("y[i] = x[i] * s"))
    module, made = torch.nn.Linear(2, 2), nn.Linear(2, 2)
    cases = [
        ("operator", own.operator, {"f": es.op("y[i] = x[i]")}),
        ("operator()", lambda x, s: formula(x, s=s), {"x": torch.ones(3), "s": 2.0}),
        ("to_torch", own.to_torch, {"model": made, "module": module}),
        ("from_torch", lambda m, x: own.from_torch(m, x), {"m": module, "x": np.ones((3, 2), np.float32)}),
    ]
    for _, f, given in cases:
        f(**given)
    assert not (told := found(cases, most)), "\n".join(told)


def test_files_of_onnx():
    pytest.importorskip("onnx")
    from einsmith.frontends import onnx

    assert not (told := found([("load", onnx.load, {"file": "none.onnx"})], len(BAD))), "\n".join(told)


def test_a_raw_error_is_found():
    """The search sees what it is made for."""
    cases = [("f", lambda x: x + 1, {"x": 1}), ("g", lambda x: F.relu(x), {"x": M})]
    told = found(cases, len(BAD))
    assert any("f(x: None): TypeError" in line for line in told) and not any(line.startswith("g") for line in told)
