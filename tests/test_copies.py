"""copy.copy, copy.deepcopy and pickle of every public object: equal behaviour, state of its own, or a remedy."""

from __future__ import annotations

import copy
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import einsmith as es
from einsmith import nn
from einsmith.ir.nodes import leaf
from einsmith.optim import lr_scheduler
from einsmith.tracing.builder import Value
from tests.data import tokenizer_files
from tests.nn.layer_table import TABLE, draws


def unpickled(x: Any) -> Any:
    return pickle.loads(pickle.dumps(x))


ALL = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": unpickled}
APART = {name: f for name, f in ALL.items() if name != "copy"}
X = np.arange(1.0, 6.0)


def scaled(x: Any, w: Any = 3.0) -> Any:
    return (w * x * x).sum()


@es.jit
def jitted(x: Any) -> Any:
    return 2 * x


@es.value_and_grad
def slope(x: Any) -> Any:
    return (x * x).sum()


@es.interpret
def interpreted(x: Any) -> Any:
    return 3 * x


class Closed(nn.Module):
    """A module that keeps functions of itself, which close over its parameter."""

    def __init__(self) -> None:
        self.w = nn.Parameter(np.full(5, 3.0))
        self.functions = {
            "jit": es.jit(self.loss), "grad": es.grad(self.loss), "value_and_grad": es.value_and_grad(self.loss),
            "interpret": es.interpret(self.loss), "vmap": es.vmap(self.loss), "hessian": es.hessian(self.loss),
        }  # fmt: skip

    def loss(self, x: Any) -> Any:
        return (self.w * x * x).sum()

    def forward(self, x: Any) -> Any:
        return self.w * x


class Tied(nn.Module):
    def __init__(self) -> None:
        self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 5)
        self.b.weight = self.a.weight
        self.register_buffer("seen", np.zeros((), np.float32))

    def forward(self, x: Any) -> Any:
        return self.b(self.a(x))


class Scale(nn.Parameter):
    """A parameter with an attribute."""


class Case(NamedTuple):
    """make: the object; look: what is compared of it; change: what must not reach the object from its copy."""

    make: Callable[[], Any]
    look: Callable[[Any], Any] = repr
    change: Callable[[Any], Any] | None = None


def put(name: str, value: Any) -> Callable[[Any], None]:
    return lambda x: setattr(x, name, value)


def updated(rule: Any) -> list[Any]:
    """Parameters after two steps of an optimizer."""
    es.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(i, o, bias=False, dtype="float64") for i, o in ((5, 4), (4, 3))))
    for _, p in net.named_parameters():
        p.data[...] = np.linspace(-1, 1, p.size).reshape(p.shape)
    step = es.TrainStep(net, es.functional.mse_loss, rule)
    losses = [step(np.ones((2, 5)), np.ones((2, 3))) for _ in range(2)]
    return [*losses, *(p.data.tolist() for p in net.parameters())]


def metric(m: Any) -> Any:
    out = np.eye(3)[[0, 1, 2, 0]]
    y = np.array([0, 1, 1, 0])
    m.reset(), m.update(*(out, y) if not isinstance(m, es.metrics.r2) else (X, X[::-1].copy()))
    return m.compute()


def stacked(batches: Any) -> list[Any]:
    return [[a.tolist() for a in batch] for batch in batches.epoch(3)]


def augmented(f: Any) -> list[Any]:
    images = np.linspace(0, 1, 2 * 3 * 4 * 4).reshape(2, 3, 4, 4)
    return [a.tolist() for a in f(np.random.default_rng(1), images, np.arange(2))]


def rates(schedule: Any) -> list[float]:
    return [schedule(n) for n in range(1, 8)]


def made(x: Any) -> Any:
    return lambda: x


def kept_weight() -> nn.KeptWeight:
    layer = nn.freeze(nn.Linear(2, 3), "weight", keep="int8")
    layer.weight.data = np.arange(6.0).reshape(3, 2)
    return layer.weight


def token_rows() -> Any:
    documents = [es.data.Document(np.arange(n, n + 3, dtype=np.int32)) for n in range(5)]
    return es.data.rows(documents, 2, 8, seed=1)


def tokenizer() -> Any:
    pytest.importorskip("tokenizers")
    with tempfile.TemporaryDirectory() as folder:
        tokenizer_files.write(Path(folder))
        return es.data.Tokenizer(folder)


def pullback() -> Any:
    return es.vjp(scaled, X)[1]


SCHEDULES = {
    "ConstantLR": (0.5,), "LinearLR": (0.5,), "StepLR": (0.5, 2), "MultiStepLR": (0.5, [2, 3]),
    "ExponentialLR": (0.5, 0.9), "PolynomialLR": (0.5,), "CosineAnnealingLR": (0.5, 4),
    "CosineAnnealingWarmRestarts": (0.5, 2), "OneCycleLR": (0.5, 6), "OneCycleMomentum": (0.5, 6),
    "SequentialLR": ([lr_scheduler.ConstantLR(0.5), lr_scheduler.StepLR(0.5, 2)], [3]), "ReduceLROnPlateau": (0.5,),
}  # fmt: skip
CHANGED = {"SequentialLR": ("milestones", [4]), "OneCycleLR": ("max_lr", 0.25),
           "OneCycleMomentum": ("max_momentum", 0.9)}  # fmt: skip
MIXED = es.data.augment.mixup(0.5, 7)
COUNTED = es.data.batches(np.arange(14.0).reshape(7, 2), np.arange(7), 3, seed=1, transform=MIXED)
CASES = {
    "op": Case(made(es.op("Y[i] = a*X[i]", a=2.0)), lambda f: (f.signature, f(X).tolist())),
    "FormulaText": Case(lambda: es.op("Y[i] = X[i]*X[i]").gradient("X", X=(5,)), lambda t: (t, t.extents)),
    "UpdateSettings": Case(lambda: es.UpdateSettings(accumulate=3, clip_grad_norm=0.5)),
    "CompileSettings": Case(lambda: es.CompileSettings(precision="bf16", max_stored="1MB")),
    "TuningSettings": Case(lambda: es.TuningSettings("dynamic", 7)),
    "jit": Case(made(es.jit(scaled)), lambda f: f(X).tolist()),
    "jit of a name": Case(made(jitted), lambda f: f(X).tolist()),
    "grad": Case(made(es.grad(scaled, argnums=(0, 1))), lambda f: [g.tolist() for g in f(X, 2.0)]),
    "value_and_grad of a name": Case(made(slope), lambda f: f(X)[1].tolist()),
    "interpret of a name": Case(made(interpreted), lambda f: f(X).tolist()),
    "interpret": Case(made(es.interpret(scaled)), lambda f: f(X).tolist()),
    "vmap": Case(made(es.vmap(es.grad(scaled))), lambda f: f(np.stack([X, 2 * X])).tolist()),
    "hessian": Case(made(es.hessian(scaled)), lambda f: f(X).tolist()),
    "vjp": Case(pullback, lambda f: f(2.0)[0].tolist()),
    "Parameter": Case(lambda: nn.Parameter(X, requires_grad=False), lambda p: (p.data.tolist(), p.requires_grad),
                      lambda p: p.data.fill(9)),
    "own Parameter": Case(lambda: Scale(X), lambda p: (p.data.tolist(), getattr(p, "unit", None)), put("unit", "m")),
    "Buffer": Case(lambda: nn.BatchNorm1d(3).running_mean, lambda b: b.data.tolist(), lambda b: b.data.fill(9)),
    "KeptWeight": Case(kept_weight, lambda w: w.numpy().tolist(), put("data", np.ones((3, 2)))),
    "Module": Case(Tied, lambda m: [v.tolist() for v in m.state_dict().values()] + [m(np.ones((2, 5), "f")).tolist()],
                   lambda m: m.a.weight.data.fill(2)),
    "modes": Case(Tied, lambda m: m.b.training, lambda m: m.eval()),
    "Group": Case(lambda: es.optim.Group("*.bias", lr=0.1), lambda g: (g.which, g.changes)),
    "Groups": Case(lambda: es.optim.Groups(es.optim.SGD(lr=0.5, momentum=0.5), b=es.optim.Group("1.weight", lr=0.1)),
                   updated, lambda g: setattr(g["rest"], "lr", 0.25)),
    "Rule": Case(lambda: es.optim.Rule("p[i] = p[i] - lr*m[i]\nm[i] = g[i] + m[i]", lr=0.5, init=1.0), updated,
                 put("lr", 0.25)),
    "schedule in a rule": Case(lambda: es.optim.SGD(lr=lr_scheduler.ReduceLROnPlateau(0.5)), lambda r: r.lr.lr),
    "batches": Case(lambda: copy.copy(COUNTED), lambda b: (stacked(b), b.next_epoch), put("next_epoch", 5)),
    "stream": Case(lambda: es.data.stream(np.arange(50), 3, 4), stacked, put("steps", 2)),
    "Vocabulary": Case(lambda: es.data.Vocabulary.of("a b a"), lambda v: v.encode("b a c").tolist()),
    "Document": Case(lambda: es.data.Document(np.arange(4, dtype=np.int32), 1), lambda d: (list(d.tokens), d.prompt)),
    "TokenRows": Case(token_rows, stacked),
    "Tokenizer": Case(tokenizer, lambda t: t.encode("It was a bright day")),
    "EarlyStopping": Case(es.callbacks.EarlyStopping, vars, put("patience", 9)),
    "Save": Case(lambda: es.callbacks.Save("folder"), vars, put("mode", "max")),
    "CSVLog": Case(lambda: es.callbacks.CSVLog("log.csv"), vars, put("path", "other")),
    "Callback": Case(es.callbacks.Callback, vars),
    "r2": Case(es.metrics.r2, metric),
    "top_k": Case(lambda: es.metrics.top_k(3), metric, put("k", 1)),
    **{m.__name__: Case(m, metric) for m in (es.metrics.precision, es.metrics.recall, es.metrics.f1)},
    **{name: Case(lambda c=c: c(lr=0.5), updated, put("lr", 0.25)) for name, c in es.optim.STANDARD.items()},
    **{name: Case(lambda n=name, a=a: lr_scheduler.SCHEDULES[n](*a), rates,
                  put(*CHANGED.get(name, ("lr", 0.25)))) for name, a in SCHEDULES.items()},
    **{f"augment {n}": Case(made(f), augmented) for n, f in enumerate((
        es.data.augment.random_crop(2), es.data.augment.random_flip(), es.data.augment.color_jitter(0.5),
        es.data.augment.normalize([0.5] * 3, [0.5] * 3), es.data.augment.compose(es.data.augment.random_flip())))},
    "FormulaError": Case(lambda: es.FormulaError("wrong", "Y[i] = X[j", 5, "close it"),
                         lambda e: (str(e), e.message, e.source, e.offset, e.hint)),
    "NonFiniteError": Case(lambda: es.NonFiniteError("no number", 3, np.inf), lambda e: (str(e), e.step, e.value)),
    "LibraryError": Case(lambda: es.LibraryError("no", 4), lambda e: (str(e), e.code)),
}  # fmt: skip


@pytest.mark.thinned(6)
@pytest.mark.parametrize("how", ALL)
@pytest.mark.parametrize("name", CASES)
def test_a_copy_behaves_as_the_original(name: str, how: str) -> None:
    case = CASES[name]
    original = case.make()
    before = case.look(original)
    other = ALL[how](original)
    assert type(other) is type(original) and case.look(other) == before
    again = ALL[how](original)  # after it was used, with all that it then keeps
    assert case.look(again) == before
    if case.change is not None and (how != "copy" or not isinstance(original, nn.Module)):
        case.change(again)
        assert case.look(again) != before and case.look(original) == before == case.look(other)


def one_of(name: str) -> nn.Module:
    layer = next((x for x in TABLE if x.name == name), None)
    kind = getattr(nn, name)
    if layer is not None:
        draw = draws(layer)[0]
        return kind(*draw.args, **draw.kwargs)
    small = nn.TransformerEncoderLayer(4, 2, 8)
    arguments = {
        "MultiheadAttention": (4, 2), "TransformerEncoderLayer": (4, 2, 8), "TransformerDecoderLayer": (4, 2, 8),
        "TransformerEncoder": (small, 2), "TransformerDecoder": (nn.TransformerDecoderLayer(4, 2, 8), 2),
        "Transformer": (4, 2, 1, 1, 8), "ModuleList": ([nn.Linear(3, 2), nn.ReLU()],), "ParameterList": ([X, 2 * X],),
        "Sequential": (nn.Linear(3, 2), nn.ReLU()), "ModuleDict": ({"a": nn.Linear(3, 2)},),
        "ParameterDict": ({"a": X},), "LLTM": (3, 2), "MILSTM": (3, 2), "SCRN": (3, 2, 2), "SubLSTM": (3, 2),
        "SyncBatchNorm": (3,), "RNN": (3, 2), "GRU": (3, 2), "LSTM": (3, 2), "Bilinear": (3, 2, 4),
        "Embedding": (5, 3, 1), "EmbeddingBag": (5, 3), "Linear": (3, 2), "Threshold": (0.5, 0.1),
        "Unflatten": (1, (2, 3)), "RNNCell": (3, 2), "GRUCell": (3, 2), "LSTMCell": (3, 2),
        "AdaptiveLogSoftmaxWithLoss": (16, 9, [3, 5]), "LinearCrossEntropyLoss": (3, 2),
        "FractionalMaxPool2d": (2, 3), "FractionalMaxPool3d": (2, 3),
        "GatedDeltaNet": (4, 2, 3), "KimiDeltaAttention": (4, 2, 3), "Mamba2": (4, 3, 2), "MLSTM": (4, 2),
        **{f"MaxUnpool{n}d": (2,) for n in (1, 2, 3)},
    }  # fmt: skip
    return kind(*arguments.get(name, ()))


LAYERS = [n for n in nn.__all__ if isinstance(getattr(nn, n), type) and issubclass(getattr(nn, n), nn.Module)]


@pytest.mark.thinned(4)
@pytest.mark.parametrize("how", ALL)
def test_layers(how: str) -> None:
    for name in LAYERS:
        layer = one_of(name)
        other = ALL[how](layer)
        assert type(other) is type(layer) and repr(other) == repr(layer) and other.training == layer.training, name
        settings = [m.trace_key()[3] for _, m in layer.named_modules()]
        assert [m.trace_key()[3] for _, m in other.named_modules()] == settings, name
        for (n, v), (_, w) in zip(layer._persistent_state(), other._persistent_state(), strict=True):
            assert v.data.tolist() == w.data.tolist() and v.requires_grad == w.requires_grad, (name, n)
            assert (v is w) == (how == "copy") == np.may_share_memory(v.data, w.data), (name, n)


def test_every_public_class_has_a_case() -> None:
    """What is missing here is a class that nobody has looked at."""
    spaces = es, es.nn, es.optim, es.data, es.callbacks, es.metrics
    public = {n: getattr(s, n) for s in spaces for n in getattr(s, "__all__", dir(s)) if not n.startswith("_")}
    classes = {n for n, c in public.items() if isinstance(c, type) and c.__module__.startswith("einsmith")}
    kinds = {type(c.make()).__name__ for c in CASES.values()} | set(LAYERS)
    errors = {n for n in classes if issubclass(public[n], (es.EinsmithError, es.EinsmithWarning))}
    elsewhere = {"TrainStep", "Library", "TensorBoard", "ImageFolder"}  # each in a test of its own
    elsewhere |= {"Shown"}  # a base class
    assert classes - kinds - errors - elsewhere == set()
    for n in sorted(errors):
        for f in ALL.values():
            assert str(f(public[n]("told so"))) == str(public[n]("told so"))


@pytest.mark.parametrize("how", APART)
def test_functions_of_a_model_go_with_its_copy(how: str) -> None:
    model = Closed()
    x = X
    look = {
        "jit": lambda f: f(x).tolist(), "grad": lambda f: f(x).tolist(), "value_and_grad": lambda f: f(x)[1].tolist(),
        "interpret": lambda f: f(x).tolist(), "vmap": lambda f: f(np.stack([x, x])).tolist(),
        "hessian": lambda f: f(x).tolist(),
    }  # fmt: skip
    before = {n: look[n](f) for n, f in model.functions.items()}
    other = APART[how](model)
    other.w.data[...] *= 2
    for n, f in other.functions.items():
        assert look[n](f) == (2 * np.array(before[n])).tolist(), n
    assert {n: look[n](f) for n, f in model.functions.items()} == before
    for n, f in model.functions.items():  # from the function's side
        assert look[n](APART[how](f)) == before[n], n
    pull = es.vjp(model.loss, x)[1]
    held, back = APART[how]((model, pull))
    held.w.data[...] *= 2
    np.testing.assert_array_equal(back(1.0)[0], 2 * pull(1.0)[0])


@pytest.mark.parametrize("how", APART)
def test_a_copied_model_trains_apart(how: str, rng: np.random.Generator) -> None:
    model = Tied()
    x, y = rng.normal(size=(4, 5)).astype("f"), rng.normal(size=(4, 5)).astype("f")
    optimizer = es.optim.Adam(lr=0.1)
    step = es.TrainStep(model, es.functional.mse_loss, optimizer)
    step(x, y)
    other = APART[how](model)
    assert other.b.weight is other.a.weight is not model.a.weight
    before = model.state_dict()
    second = es.TrainStep(other, es.functional.mse_loss, APART[how](optimizer))
    second(x, y)
    assert all(np.array_equal(v, before[n]) for n, v in model.state_dict().items())
    assert not np.array_equal(other.a.weight.data, before["a.weight"])
    assert other.b.weight.data is other.a.weight.data


def test_a_shallow_copy_has_attributes_of_its_own() -> None:
    model = Tied()
    model.register_forward_hook(lambda m, args, out: 2 * out)
    other = copy.copy(model)
    assert other.a is model.a and other.seen is model.seen
    other.a, other.extra = nn.Linear(5, 5), nn.Parameter(X)
    other.register_forward_hook(lambda m, args, out: 3 * out)
    other.register_buffer("more", X, persistent=False)
    x = np.ones((1, 5), "f")
    assert model.a is not other.a and "extra" not in dict(model.named_parameters()) and not hasattr(model, "more")
    np.testing.assert_allclose(model(x), 2 * model.b(model.a(x)), rtol=1e-6)
    np.testing.assert_allclose(other(x), 6 * other.b(other.a(x)), rtol=1e-6)


def test_names_that_a_rule_does_not_have() -> None:
    for rule in (es.optim.Adam(lr=0.1), es.optim.SGD.__new__(es.optim.SGD)):
        for name in ("__wrapped__", "_nothing", "eta"):
            with pytest.raises(AttributeError, match=name):
                getattr(rule, name)


@pytest.mark.parametrize("how", ALL)
def test_a_training_step_says_how_it_is_kept(how: str, rng: np.random.Generator, tmp_path: Any) -> None:
    step = es.TrainStep(nn.Linear(5, 3), es.functional.mse_loss, es.optim.SGD(lr=0.1))
    with pytest.raises(es.KindError, match=r"neither copied nor pickled; write it with es\.save\(step, folder\)"):
        ALL[how](step)
    step(rng.normal(size=(2, 5)).astype("f"), rng.normal(size=(2, 3)).astype("f"))
    es.save(step, tmp_path / "run")  # which is the remedy
    other = es.load(tmp_path / "run", model=nn.Linear(5, 3))
    assert other.steps == 1 and np.array_equal(other.model.weight.data, step.model.weight.data)


def test_axes_stay_themselves() -> None:
    def total(x: Any, copied: Callable) -> Any:
        (k,) = es.axes(5)
        return es.compute((2,), lambda i: es.sum(copied(i + 1) * x[copied(k)], over=k))

    for f in (copy.copy, copy.deepcopy):
        np.testing.assert_array_equal(es.jit(lambda x, f=f: total(x, f))(X), [15, 30])
        traced = Value(leaf((5,), es.nn.Parameter(X).dtype))
        assert f(traced).tensor is traced.tensor


class Writer:
    def __init__(self, folder: str):
        self.folder, self.open = folder, open  # as real ones do, it keeps what cannot be pickled
        self.lock = __import__("threading").Lock()

    def close(self) -> None:
        pass


@pytest.mark.parametrize("how", ALL)
def test_a_log_for_tensorboard(how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr("einsmith.callbacks._writer_class", lambda: Writer)
    log = es.callbacks.TensorBoard(tmp_path, every_steps=7)
    log.on_begin(es.TrainStep(nn.Linear(5, 3), es.functional.mse_loss, es.optim.SGD(lr=0.1)))
    other = ALL[how](log)
    assert other.every_steps == 7 and other.folder == log.folder and other._writer is None
    assert log._writer is not None


@pytest.mark.parametrize("how", ALL)
def test_a_folder_of_images(how: str, tmp_path: Any) -> None:
    image = pytest.importorskip("PIL.Image")
    for k, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        image.fromarray(np.full((4, 4, 3), 40 + k, np.uint8)).save(tmp_path / name / "0.png")
    images = es.data.image_folder(tmp_path, size=4)
    other = ALL[how](images)
    assert other.classes == images.classes and other.y.tolist() == images.y.tolist()
    np.testing.assert_array_equal(other.x[[0, 1]], images.x[[0, 1]])


@pytest.mark.thinned(4)
@pytest.mark.parametrize("how", ALL)
def test_models_and_operators_with_torch(how: str, torch: Any, rng: np.random.Generator) -> None:
    from einsmith.frontends.torch import from_torch, operator

    x = torch.randn(2, 5)
    model = from_torch(torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3)), x).eval()
    other = ALL[how](model)
    before = model(x)
    np.testing.assert_array_equal(other(x), before)
    if how != "copy":
        for p in other.parameters():
            p.data[...] += 1
        assert np.abs(other(x) - before).max() > 0.1
        np.testing.assert_array_equal(model(x), before)
    double = operator(es.op("Y[i] = a*X[i]", a=2.0))
    assert ALL[how](double)(x[0]).tolist() == (2 * x[0]).tolist()
