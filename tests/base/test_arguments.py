"""Wrong arguments of layers, functions, optimizers and data sets: each a KindError that names the argument.

Every public constructor and function is called with each of its arguments in turn replaced by values of a wrong kind,
as the annotations say. What depends on shapes is in tests/nn, tests/training and tests/data.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, get_type_hints

import numpy as np
import pytest

import einsmith as es
from einsmith.base.arguments import Count, Magnitude, Share, check_arguments
from einsmith.optim import lr_scheduler

F, nn = es.functional, es.nn
X = np.ones((2, 4), np.float32)

NEVER = {
    "int": [None, "abc", 1.5, True, [1], {}, 2**70, X, float("nan")],
    "float": [None, "abc", True, [1.0], {}, X, object()],
    "bool": [None, "abc", 0, 1.0, []],
    "str": [None, 1, [], True],
    "Count": [0, -1, None, 1.0, "1"],
    "Size": [-1, None, 1.0, "1"],
    "Share": [-0.1, 1.5, float("nan"), None, "1"],
    "Magnitude": [-1, float("nan"), None, "1"],
    "Ints": [None, "ab", 1.5, {}, [1, "a"], [1.5, 2], np.zeros(0)],
    "Amounts": [None, "ab", 1.5, {}, [1, "a"], -1],
}
"""By an annotation, some of what it does not allow."""


def public() -> list[tuple[str, Callable]]:
    layers = [(n, getattr(nn, n)) for n in nn.__all__ if isinstance(getattr(nn, n), type)]
    layers = [(n, k) for n, k in layers if issubclass(k, nn.Module) and k is not nn.Module]
    models = [(k.__name__, k) for k in map(es.models.__dict__.get, es.models.__all__) if isinstance(k, type)]
    functions = [(n, getattr(F, n)) for n in F.__all__]
    rules = list(es.optim.STANDARD.items())
    data = [(n, getattr(es.data, n)) for n in ("batches", "stream", "windows", "image_folder", "mnist", "text")]
    augment = [(n, getattr(es.data.augment, n)) for n in ("random_crop", "random_flip", "color_jitter", "mixup")]
    return layers + models + functions + rules + list(lr_scheduler.SCHEDULES.items()) + data + augment


def required(function: Callable) -> dict[str, Any]:
    """Something for each argument that has no default."""
    known = {
        "Ints": 1, "Amounts": 1, "Sizes": 1, "int": 1, "Count": 1, "Size": 1, "float": 0.5, "Share": 0.5,
        "Magnitude": 0.5, "str": "a", "bool": True, "Sequence[int]": (1,), "Sequence[Size]": (1,),
        "Sequence[Any]": [X], "Module": nn.ReLU(), "Sequence[Schedule]": [],
    }  # fmt: skip
    found = {}
    for p in inspect.signature(function).parameters.values():
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            found[p.name] = known.get(p.annotation.split(" | ")[0], X)
    return found


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name,function", public())
def test_each_argument(name, function):
    tried = 0
    for p in inspect.signature(function).parameters.values():
        allowed = p.annotation.split(" | ")
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) or any(a not in NEVER and a != "None" for a in allowed):
            continue
        bad = [v for v in NEVER[allowed[0]] if not any(_fits(a, v) for a in allowed[1:])]
        for value in bad:
            with pytest.raises(es.KindError) as e:
                function(**{**required(function), p.name: value})
            assert f"{p.name}=" in str(e.value) and str(e.value).startswith(f"{name}: "), str(e.value)
            tried += 1
    if not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values()):
        with pytest.raises(es.UnknownOptionError, match="no option 'no_such_option'"):
            function(**required(function), no_such_option=1)
    assert tried or not any(p.annotation in NEVER for p in inspect.signature(function).parameters.values())


def _fits(annotation: str, value: Any) -> bool:
    if annotation == "None":
        return value is None
    return not any(value is v for v in NEVER[annotation]) and not isinstance(value, (np.ndarray, dict, list))


def test_annotations_can_be_read():
    for _, function in public():
        get_type_hints(function.__init__ if isinstance(function, type) else function, include_extras=True)


@check_arguments
def sample(
    n: Count = 1, share: Share = 0.5, size: float | int | bool = 0, many: int | Sequence[int] = 1,
    pair: tuple[float, float] = (0.0, 1.0), at: Magnitude | None = None, call: Callable[[int], float] | str = "a",
) -> Any:  # fmt: skip
    return n, share, size, many, pair, at, call


def test_numbers_become_pythons():
    pair = [1, np.float64(2)]
    found = sample(np.int64(3), np.float32(0.5), np.bool_(True), np.array([1, 2]), pair, np.array(2.5), len)
    assert found == (3, 0.5, True, (1, 2), (1, 2.0), 2.5, len)
    assert [type(x) for x in found[:4]] == [int, float, bool, tuple] and type(found[3][0]) is int
    assert sample(size=2**80)[2] == 2.0**80 and type(sample(size=7)[2]) is int
    layer = nn.Conv2d(np.int64(3), np.int32(4), (np.int64(3), 1), stride=np.int64(2), dtype=None)
    assert layer.weight.shape == (4, 3, 3, 1) and layer.weight.dtype.name == "f32"
    assert (layer.in_channels, layer.stride) == (3, (2, 2)) and type(layer.in_channels) is int


@pytest.mark.parametrize(
    "given,words",
    [
        ({"n": 0}, "n=0 must be an integer of at least 1"),
        ({"share": 2}, r"share=2 must be a number in \[0, 1\]"),
        ({"many": "ab"}, "many='ab' must be an integer or a sequence of integers"),
        ({"many": X}, r"many=<ndarray of shape \(2, 4\)> must be"),
        ({"pair": (1, 2, 3)}, r"pair=\(1, 2, 3\) must be 2 numbers"),
        ({"at": -1}, "at=-1 must be a number of at least 0 or None"),
        ({"call": 3}, "call=3 must be a callable or a string"),
        ({"many": list(range(99))[:-1] + ["a"]}, "many=<list> must be"),
        ({"sher": 1}, "sample has no option 'sher'; did you mean 'share'"),
    ],
)
def test_words(given, words):
    with pytest.raises(es.ArgumentError, match=words) as e:
        sample(**given)
    assert isinstance(e.value, TypeError)


def test_static_and_traced_numbers_are_distinguished():
    with pytest.raises(es.KindError, match="leaky_relu: negative_slope=.*static_argnames"):
        es.jit(lambda x, s: F.leaky_relu(x, s))(X, 0.1)
    with pytest.raises(es.KindError, match="topk: k=.*integer"):
        F.topk(X, np.ones(2))


@pytest.mark.parametrize(
    "call,error,words",
    [
        (lambda: F.relu(None), es.TraceError, "relu: 'input': NoneType is neither"),
        (lambda: F.linear(X, "w"), es.TraceError, "linear: 'weight': str is neither"),
        (lambda: F.add(X, None), es.TraceError, "add: 'other'"),
        (lambda: F.clamp(X, "a"), es.TraceError, "clamp: 'min'"),
        (lambda: F.linear(X, np.array(["w"])), es.DtypeError, "linear: 'weight' is an array of strings"),
        (lambda: F.cat([X, np.array([None])]), es.DtypeError, "cat: 'tensors' is an array of Python objects"),
        (lambda: F.conv2d(X, X, stride={1, 2}), es.ArgumentError, "conv2d: 'stride'.*cannot be hashed"),
        (lambda: F.zeros(2, "a"), es.ArgumentError, r"zeros: size=\(2, 'a'\) must be integers"),
        (lambda: F.full((-1, 2), 1.0), es.ArgumentError, r"full: size=\(-1, 2\)"),
        (lambda: F.arange(float("nan")), es.ArgumentError, "arange: .*end=nan"),
        (lambda: F.roll(X, (1, 2)), es.ShapeError, r"roll: shifts=\(1, 2\) must be one number"),
        (lambda: nn.Bilinear(2, 3, -1), es.KindError, "out_features=-1 must be an integer of at least 0"),
        (lambda: nn.Linear(2**40, 2**40), es.OutOfMemoryError, "GiB"),
        (lambda: nn.Linear(3, 4, dtype="abc"), es.DtypeError, "'abc' is not supported; give one of"),
        (lambda: nn.Linear(3, 4).to(None), es.DtypeError, "None is not an element type"),
        (lambda: nn.CrossEntropyLoss("abc"), es.DtypeError, "'weight' of CrossEntropyLoss"),
        (lambda: nn.ModuleDict({"a": nn.ReLU()})["b"], es.UnknownNameError, "no module 'b', only a"),
        (lambda: es.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1), es.KindError, "by name.*TrainStep"),
        (lambda: es.optim.SGD(lr=None), es.KindError, "SGD: lr=None must be a number or a callable"),
        (lambda: es.optim.Adam(momentum=0.9), es.UnknownOptionError, "Adam has no option 'momentum'"),
        (lambda: es.optim.Adafactor(eps=(1, 2, 3)), es.KindError, "eps=.* must be 2 numbers"),
        (lambda: es.jit(3), es.KindError, "f=3 must be a callable"),
        (lambda: es.nn.init.uniform_(nn.Parameter(X), 1, 0), es.ArgumentError, "a=1 must not be above b=0"),
        (lambda: es.TrainStep(nn.Linear(4, 2), nn.MSELoss, es.optim.SGD()), es.ArgumentError, r"MSELoss\(\)"),
        (lambda: es.data.batches(X, X, 1, transform=lambda rng, *a: None).epoch(0).__next__(), es.ArgumentError,
         "transform returned None"),
    ],
)  # fmt: skip
def test_messages(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_a_module_is_no_part_of_itself():
    outer = nn.Sequential(nn.Sequential(nn.ReLU()))
    with pytest.raises(es.ArgumentError, match="'again' of Sequential would make the module a part of itself"):
        outer[0].again = outer
    assert len(list(outer.modules())) == 3


@pytest.mark.parametrize("value,error", [(None, es.KindError), ("a", es.KindError), (float("nan"), es.ArgumentError)])
def test_results_of_callables_are_checked(value, error):
    rule = es.optim.SGD(lr=lambda step: 0.1 if step < 2 else value)
    assert rule.values(1) == {"lr": 0.1}
    with pytest.raises(error, match="lr=.* at step 2"):
        rule.values(2)


def test_others_annotate_as_they_like():
    class Mine(nn.Module):
        def __init__(self, width: int, name: str = "a"):
            self.width = width

    assert Mine("wide").width == "wide"
    with pytest.raises(es.UnknownOptionError, match="Mine has no option 'widht'; did you mean 'width'"):
        Mine(widht=3)


def test_an_empty_array_is_no_list_of_numbers():
    """It is data that has got lost, where an empty list is a shape: that of a number."""
    assert F.full([], 2.0).shape == F.full((), 2.0).shape == ()
    for empty in (np.zeros(0), np.zeros(0, np.int64)):
        with pytest.raises(es.KindError, match=r"full: size=<.* of shape \(0,\)> must be a sequence of integers"):
            F.full(empty, 2.0)
        with pytest.raises(es.KindError, match=r"normalized_shape=<ndarray of shape \(0,\)> must be an integer or"):
            nn.LayerNorm(empty)


@pytest.mark.parametrize("layer,argument", [
    (nn.AdaptiveAvgPool2d, "output_size"), (nn.AdaptiveMaxPool3d, "output_size"), (nn.Fold, "output_size"),
    (nn.Fold, "stride"), (nn.Unfold, "kernel_size"), (nn.Unfold, "padding"), (nn.Upsample, "size"),
    (nn.Upsample, "scale_factor"), (nn.Unflatten, "unflattened_size"), (nn.Conv2d, "stride"), (nn.MaxPool1d, "padding"),
    (nn.ZeroPad2d, "padding"),
])  # fmt: skip
@pytest.mark.parametrize("many", [(), (1,) * 7])
def test_sizes_are_as_many_as_dimensions(layer, argument, many):
    """When the layer is made, not when it is called."""
    if many and layer in (nn.Upsample, nn.Unflatten):
        return
    with pytest.raises(es.ArgumentError, match=f"{layer.__name__}: .*{argument}"):
        layer(**{**required(layer), argument: many})


class Branches(nn.Module):
    def __init__(self):
        self.ways = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.MultiheadAttention(4, 2)])

    def forward(self, x, way="linear", *, twice=False):
        if twice:
            return self.ways[0](x, x)
        return self.ways[0][0](x, scale=2) if way == "linear" else self.ways[1](x)


@pytest.mark.parametrize("call,words", [
    (lambda m: m(), r"Branches takes \(x, way='linear', \*, twice=False\): missing a required argument: 'x'"),
    (lambda m: m(X, 'linear', 1), r"Branches takes .*: too many positional arguments"),
    (lambda m: m(X, wya=1), "Branches takes .*: got an unexpected keyword argument 'wya'"),
    (lambda m: m(X), "Linear at 'ways.0.0' in Branches takes .input.: got an unexpected keyword argument 'scale'"),
    (lambda m: m(X, twice=True), "Sequential at 'ways.0' in Branches takes .*: too many positional arguments"),
    (lambda m: es.jit(lambda x: m(x, 'attention'))(X), "MultiheadAttention at 'ways.1' in Branches takes .query"),
    (lambda m: es.TrainStep(m, F.mse_loss, es.optim.SGD(lr=0.1))(X, X, X, X, X), "Branches takes .*: too many"),
    (lambda m: m.predict(), "predict needs inputs"),
    (lambda m: nn.MaxUnpool2d(2)(X), "MaxUnpool2d takes .input, indices, output_size=None.: missing .* 'indices'"),
])  # fmt: skip
def test_a_module_that_is_called_wrongly_says_where_it_is_and_what_it_takes(call, words):
    with pytest.raises(es.EinsmithError, match=words):
        call(Branches())


def test_a_hook_that_makes_a_wrong_call_of_it():
    layer = nn.Linear(4, 4)
    layer.register_forward_pre_hook(lambda module, args: (args[0], args[0]))
    with pytest.raises(es.KindError, match=r"Linear takes \(input\): too many positional arguments"):
        layer(X)


STEP = es.TrainStep(nn.Linear(4, 4), F.mse_loss, es.optim.SGD(lr=0.1))


@pytest.mark.parametrize("call,words", [
    (lambda: es.TrainStep(nn.Linear(4, 4), F.mse_loss), r"TrainStep takes \(model, loss, .*: missing .* 'optimizer'"),
    (lambda: es.TrainStep(nn.Linear(4, 4), F.mse_loss, es.optim.SGD(lr=0.1), "static"), "too many positional"),
    (lambda: es.TrainStep(nn.Linear(4, 4), F.mse_loss, es.optim.SGD(lr=0.1), tun=5), "TrainStep has no option 'tun'"),
    (lambda: es.TrainStep(nn.Linear(4, 4), F.mse_loss, es.optim.SGD(lr=0.1), mode="eager"),
     "mode='eager' is not available; use 'static' or 'dynamic'"),
    (lambda: nn.Conv2d(3), r"Conv2d takes \(in_channels, .*: missing a required argument: 'out_channels'"),
    (lambda: F.relu(), r"relu takes \(input, inplace=False\): missing a required argument: 'input'"),
    (lambda: F.relu(X, input=X), r"relu takes .*: multiple values for argument 'input'"),
    (lambda: F.softmax(X, 1, X, X, X), r"softmax takes .*: too many positional arguments"),
    (lambda: es.grad(), r"grad takes \(f, argnums=0, has_aux=False\): missing a required argument: 'f'"),
    (lambda: es.jvp(F.relu, (X,)), "jvp takes .*: missing a required argument: 'tangents'"),
    (lambda: es.op(), "op takes .*: missing a required argument: 'text'"),
    (lambda: es.load("nowhere", modell=1), "load has no option 'modell'; did you mean 'model'"),
    (lambda: es.save(STEP), "save takes .step, path.: missing a required argument: 'path'"),
    (lambda: es.set_threads(), "set_threads takes .n.: missing a required argument: 'n'"),
    (lambda: STEP.evaluate(), "evaluate takes .batches, .*: missing a required argument: 'batches'"),
    (lambda: es.data.batches(X), "batches takes .x, y, size, .*: missing a required argument: 'y'"),
])  # fmt: skip
def test_missing_and_unknown_arguments_are_named(call, words):
    with pytest.raises(es.KindError if "available" not in words and "no option" not in words else es.ArgumentError,
                       match=words):  # fmt: skip
        call()
