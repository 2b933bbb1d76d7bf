"""Modules, parameters, state dictionaries: names, shapes, distributions and errors as in torch.nn."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest

import einsmith as es
from einsmith import functional as F
from einsmith import models, nn
from einsmith.base.dtypes import f32, f64
from einsmith.base.errors import (
    ArgumentError,
    DtypeError,
    ShapeError,
    TraceError,
    UnknownNameError,
    UnknownOptionError,
)
from einsmith.tracing.trace import Trace, tracing


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 4)
        self.b = nn.Sequential(nn.ReLU(), nn.Linear(4, 2, bias=False))
        self.register_buffer("count", np.zeros(2, np.float32))
        self.register_buffer("scratch", np.zeros(1), persistent=False)

    def forward(self, x):
        y = self.b(self.a(x))
        self.count = self.count + y.sum(axis=0)
        return y


@pytest.mark.parametrize("name", ["lenet5", "mlp3"])
def test_models_equal_torch(run, torch, rng, name) -> None:
    from tests.models import twins

    ours, theirs = models.get(name), twins.get(name)
    assert [(n, p.shape) for n, p in ours.named_parameters()] == [
        (n, tuple(p.shape)) for n, p in theirs.named_parameters()
    ]
    ours.load_state_dict(theirs.state_dict())
    ours.double()
    x = rng.normal(size=(3, 1, 28, 28))
    wanted = theirs.double()(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(run(ours, x), wanted, rtol=1e-10, atol=1e-12)
    if name == "mlp3":
        np.testing.assert_allclose(run(ours, x.reshape(3, 784)), wanted, rtol=1e-10, atol=1e-12)


def test_weights_go_to_torch_by_name(torch) -> None:
    from tests.models import twins

    ours, theirs = models.lenet5(), twins.get("lenet5")
    theirs.load_state_dict({n: torch.tensor(v) for n, v in ours.state_dict().items()})
    np.testing.assert_array_equal(theirs.conv2.weight.detach().numpy(), ours.conv2.weight.data)


def test_unknown_models_are_named() -> None:
    with pytest.raises(KeyError, match="lenet5"):
        models.get("lenet")
    assert models.get("mlp3", classes=3).spec == {"name": "mlp3", "arguments": {"classes": 3}}


@pytest.mark.parametrize("seed", [0, 7])
def test_the_seed_decides_the_weights(seed) -> None:
    states = []
    for s in (seed, seed, seed + 1):
        nn.manual_seed(s)
        states.append(models.lenet5().state_dict())
    assert all(np.array_equal(states[0][n], states[1][n]) for n in states[0])
    assert not np.array_equal(states[0]["fc1.weight"], states[2]["fc1.weight"])


@pytest.mark.parametrize(
    "name, args, options",
    [
        ("Linear", (200, 300), {}),
        ("Conv1d", (30, 200, 7), {}),
        ("Conv2d", (8, 64, 5), {"groups": 2}),
        ("Conv3d", (6, 64, (3, 2, 4)), {"padding_mode": "circular"}),
        ("ConvTranspose1d", (200, 30, 7), {}),
        ("ConvTranspose2d", (64, 80, 5), {"groups": 4, "stride": 2}),
        ("ConvTranspose3d", (64, 50, 2), {"bias": True}),
    ],
)
def test_initial_distributions(torch, name, args, options) -> None:
    """Uniform in +-1/sqrt(fan in), the fan of torch: mean, deviation, kurtosis and range."""
    layer, theirs = getattr(nn, name)(*args, **options), getattr(torch.nn, name)(*args, **options)
    fan_in = layer.weight.data[0].size
    for a, b in ((layer.weight.data, theirs.weight), (layer.bias.data, theirs.bias)):
        b = b.detach().numpy()
        assert a.shape == b.shape
        assert abs(a.mean()) < 4 * b.std() / np.sqrt(a.size)
        assert abs(a.std() * np.sqrt(3 * fan_in) - 1) < 6 / np.sqrt(a.size)
        assert abs(a.std() / b.std() - 1) < 8 / np.sqrt(a.size)
        assert abs((a**4).mean() * fan_in**2 * 5 - 1) < 12 / np.sqrt(a.size)
        assert np.abs(a).max() <= 1 / np.sqrt(fan_in)
    before = layer.weight.numpy()
    layer.reset_parameters()
    assert not np.array_equal(before, layer.weight.data)


@pytest.mark.parametrize(
    "name, args",
    [("BatchNorm2d", (5,)), ("InstanceNorm1d", (5, 1e-5, 0.1, True, True)), ("LayerNorm", ((3, 5),)),
     ("RMSNorm", (5,)), ("GroupNorm", (2, 6))],
)  # fmt: skip
def test_normalization_begins_as_the_identity(torch, name, args) -> None:
    layer, theirs = getattr(nn, name)(*args), getattr(torch.nn, name)(*args)
    for (key, a), (other, b) in zip(layer.state_dict().items(), theirs.state_dict().items(), strict=True):
        assert key == other and a.dtype == b.numpy().dtype
        np.testing.assert_array_equal(a, b.numpy())


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: nn.Conv1d(3, 4, 3, groups=2), "Conv1d: groups=2 must divide in_channels=3 and out_channels=4"),
        (lambda: nn.Conv2d(3, 4, (3, 3, 3)), r"Conv2d: kernel_size=\(3, 3, 3\) must be an int or 2 ints"),
        (lambda: nn.Conv2d(3, 4, 3, stride=0), "Conv2d: stride=0 must be an integer of at least 1 or"),
        (lambda: nn.Conv2d(3, 4, 3, padding=-1), "padding=-1"),
        (lambda: nn.Conv2d(3, 4, 3, padding="full"), "padding='full'"),
        (lambda: nn.Conv2d(3, 4, 3, stride=2, padding="same"), "padding='same' needs stride 1"),
        (lambda: nn.Conv3d(3, 4, 3, padding_mode="mirror"), "padding_mode='mirror' is none of 'zeros', 'reflect'"),
        (lambda: nn.ConvTranspose2d(3, 4, 3, padding_mode="reflect"), "padding_mode='reflect' is none of 'zeros'"),
        (lambda: nn.ConvTranspose2d(3, 4, 3, padding="same"), "padding='same' must be an int"),
        (lambda: nn.ConvTranspose1d(4, 3, 3, groups=2), "groups=2 must divide"),
        (lambda: nn.Conv2d(0, 4, 3), "in_channels=0"),
    ],
)
def test_options_of_convolutions_are_checked(make, message) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("size", [(9, 7), (10, 8), (11, 8), (2, 5, 9, 8)])
def test_output_size_decides_the_output_padding(torch, rng, size) -> None:
    theirs = torch.nn.ConvTranspose2d(3, 5, 3, (3, 2), padding=(0, 0), dilation=(1, 1)).double()
    ours = nn.ConvTranspose2d(3, 5, 3, (3, 2)).double()
    ours.load_state_dict(theirs.state_dict())
    x = rng.normal(size=(2, 3, 3, 3))
    wanted = theirs(torch.tensor(x), output_size=list(size)).detach().numpy()
    np.testing.assert_allclose(ours(x, output_size=size), wanted, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(ours(x, size), ours(x, output_size=size))
    for wrong in ((8, 7), (12, 7), (9, 9), (9,)):
        with pytest.raises(ShapeError, match="output_size"):
            ours(x, output_size=wrong)
    with pytest.raises(ShapeError, match="output_padding=3 must be below"):
        F.conv_transpose2d(x, ours.weight, stride=(3, 2), output_padding=3)


def test_registration_and_traversal() -> None:
    m = Small()
    assert [n for n, _ in m.named_parameters()] == ["a.weight", "a.bias", "b.1.weight"]
    assert [n for n, _ in m.named_buffers()] == ["count", "scratch"]
    assert list(m.state_dict()) == ["count", "a.weight", "a.bias", "b.1.weight"]
    assert [n for n, _ in m.named_modules()] == ["", "a", "b", "b.0", "b.1"]
    assert m.b[1].bias is None and m.b[-1] is m.b[1] and len(m.b) == 2
    assert m.train().b[0].training and not m.eval().b[0].training
    m.requires_grad_(False)
    assert not any(p.requires_grad for p in m.parameters())
    m.a = None
    assert [n for n, _ in m.named_parameters()] == ["b.1.weight"]
    with pytest.raises(TypeError, match="takes a Module"):
        m.a = 3
    with pytest.raises(AttributeError, match="absent"):
        m.absent  # noqa: B018


def test_shared_parameters_count_once() -> None:
    class Tied(nn.Module):
        def __init__(self):
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
            self.b.weight = self.a.weight

    m = Tied()
    assert len(list(m.parameters())) == 3
    assert list(m.state_dict()) == ["a.weight", "a.bias", "b.weight", "b.bias"]


def test_containers() -> None:
    m = nn.ModuleList([nn.ReLU()])
    m.append(nn.Tanh()).extend([nn.Sigmoid()])
    m.insert(1, nn.GELU())
    assert [type(x).__name__ for x in m] == ["ReLU", "GELU", "Tanh", "Sigmoid"]
    assert [type(x).__name__ for x in m[1:3]] == ["GELU", "Tanh"]
    d = nn.ModuleDict({"x": nn.Linear(2, 3)})
    d["y"] = nn.Identity()
    assert list(d) == ["x", "y"] and "x" in d and list(d.state_dict()) == ["x.weight", "x.bias"]
    with pytest.raises(TypeError, match="takes modules"):
        nn.Sequential(abs)


def test_repr_is_a_tree(torch) -> None:
    ours = nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(1, 6, 5, padding=2),
        torch.nn.ReLU(),
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)),
    )
    assert repr(ours) == repr(theirs)


def test_memory_is_aligned_and_stays() -> None:
    m = Small()
    addresses = {n: p.data.ctypes.data for n, p in m.named_parameters()}
    assert all(a % 64 == 0 for a in addresses.values())
    state = {n: np.asfortranarray(v + 1) for n, v in m.state_dict().items()}
    m.load_state_dict(state)
    m.a.weight.data = np.zeros((4, 3))
    assert {n: p.data.ctypes.data for n, p in m.named_parameters()} == addresses
    assert all(p.data.flags.c_contiguous for p in m.parameters())
    other = copy.deepcopy(m)
    other.a.weight.data[...] = 5
    assert m.a.weight.data.max() == 0 and other.a.weight.data.ctypes.data % 64 == 0


def test_state_is_a_copy() -> None:
    m = Small()
    state = m.state_dict()
    state["a.bias"][...] = 99
    assert m.a.bias.data.max() < 99


class Unreadable:
    def __array__(self, *args, **kwargs):
        raise TypeError("it lies elsewhere")


def test_loading_checks_before_it_changes() -> None:
    m = Small()
    before = m.state_dict()
    good = {n: v + 1 for n, v in before.items()}
    with pytest.raises(KeyError, match=r"missing: a\.bias.*unexpected: c"):
        m.load_state_dict({**{n: v for n, v in good.items() if n != "a.bias"}, "c": np.zeros(1)})
    with pytest.raises(ShapeError, match=r"b\.1\.weight.*\(2, 4\).*\(4, 2\)"):
        m.load_state_dict({**good, "b.1.weight": np.zeros((4, 2))})
    with pytest.raises(DtypeError, match="a.bias"):
        m.load_state_dict({**good, "a.bias": np.zeros(4, complex)})
    several = {n: v for n, v in good.items() if n != "a.bias"} | {
        "c": np.zeros(1), "b.1.weight": np.zeros((4, 2)), "count": np.array(["a", "b"]),
    }  # fmt: skip
    with pytest.raises(UnknownNameError, match=r"missing: a\.bias; unexpected: c; shapes: b\.1.*types: count: is f32"):
        m.load_state_dict(several)
    for given, said in ((list(good), "a list"), ({**good, "a.bias": Unreadable()}, "a.bias: cannot be read")):
        with pytest.raises(DtypeError, match=said):
            m.load_state_dict(given)
    assert all(np.array_equal(v, before[n]) for n, v in m.state_dict().items())
    result = m.load_state_dict({"a.bias": good["a.bias"], "c": np.zeros(1)}, strict=False)
    assert result.missing_keys == ["count", "a.weight", "b.1.weight"] and result.unexpected_keys == ["c"]
    assert np.array_equal(m.a.bias.data, good["a.bias"])


def test_weights_in_bfloat16_load() -> None:
    torch = pytest.importorskip("torch", reason="its bfloat16 has no like in NumPy")
    theirs = torch.nn.Linear(3, 4).bfloat16()
    ours = nn.Linear(3, 4)
    ours.load_state_dict(theirs.state_dict())
    np.testing.assert_array_equal(ours.weight.data, theirs.weight.detach().float().numpy())


@pytest.mark.parametrize(
    "make, error, said",
    [
        (lambda: nn.Conv2d(3, 4, 3, paddding=1), TypeError, "Conv2d has no option 'paddding'; did you mean 'padding'"),
        (lambda: nn.Linear(3, 4, device="cpu"), UnknownOptionError, "are in_features, out_features, bias, dtype"),
        (lambda: nn.Linear(3.5, 4), ArgumentError, "in_features=3.5 must be an integer of at least 0"),
        (lambda: nn.Linear(3, -1), ArgumentError, "at least 0"),
        (lambda: nn.Linear(3, 4, dtype="int32"), DtypeError, "i32 has no gradient"),
        (lambda: nn.Conv2d(3.0, 4, 1), ArgumentError, "in_channels=3.0"),
        (lambda: nn.BatchNorm2d(3, momentum="x"), ArgumentError, "momentum='x'"),
        (lambda: nn.BatchNorm2d(3, eps=-1), ArgumentError, "eps=-1"),
        (lambda: nn.ModuleList([nn.ReLU]), TypeError, "'0' of ModuleList takes a Module"),
        (lambda: nn.Module().register_parameter("w", np.zeros(3)), TypeError, "'w' of Module takes a Parameter"),
    ],
)  # fmt: skip
def test_wrong_options_are_named(make, error, said) -> None:
    with pytest.raises(error, match=said):
        make()


def test_types_change_together() -> None:
    m = Small()
    assert {p.dtype for p in m.double().parameters()} == {f64}
    assert m.count.dtype is f64
    assert {p.dtype for p in m.float().parameters()} == {f32}
    with pytest.raises(DtypeError, match="i32"):
        m.to("int32")
    assert nn.Conv2d(1, 2, 3, dtype="float64").weight.dtype is f64


def test_buffers_are_updated_by_a_trace(run) -> None:
    m = Small()
    trace = Trace()
    with tracing(trace):
        m(F.arange(6.0).reshape(2, 3))
        after = m.count.__einsmith_value__().tensor
    assert [(o, t) for o, t in trace.updates.values()] == [(m.get_buffer("count"), after)]
    m.count = np.array([3, 4])
    np.testing.assert_array_equal(m.count.data, [3, 4])
    with pytest.raises(ShapeError, match="shape"):
        m.count = np.zeros(3)


def test_parameters_act_as_tensors_in_a_trace(run, rng) -> None:
    p = nn.Parameter(rng.normal(size=(3, 4)))
    x = rng.normal(size=(2, 3))
    values = p.numpy()
    np.testing.assert_allclose(
        run(lambda x: x @ p + 2 * p[0] - p.sum() / p.T.shape[0] + abs(-p).max(), x),
        x @ values + 2 * values[0] - values.sum() / 4 + np.abs(values).max(),
    )
    np.testing.assert_allclose(run(lambda x: x * (p.T[:, 0] > 0)[:3].astype("float64"), x), x * (values[0, :3] > 0))
    with pytest.raises(TraceError, match=r"\.data"):
        p + 1
    with pytest.raises(TraceError, match="NumPy"):
        run(lambda x: x + np.asarray(p).sum(), x)
    assert np.asarray(p) is not p.data and np.array_equal(np.asarray(p), values)


def test_a_parameter_is_captured_once() -> None:
    p = nn.Parameter(np.zeros(3))
    with tracing(Trace()) as trace:
        _ = p + p * p
    assert len(trace.captured) == 1


def test_functional_call(run, rng) -> None:
    m = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = rng.normal(size=(5, 3))
    new = rng.normal(size=(2, 4))
    found = run(lambda w, x: nn.functional_call(m, {"2.weight": w}, x), new, x)
    hidden = np.tanh(x @ m[0].weight.data.T + m[0].bias.data)
    np.testing.assert_allclose(found, hidden @ new.T + m[2].bias.data)
    with pytest.raises(KeyError, match="9.weight"):
        run(lambda w, x: nn.functional_call(m, {"9.weight": w}, x), new, x)
    with pytest.raises(ShapeError, match="2.weight"):
        run(lambda w, x: nn.functional_call(m, {"2.weight": w}, x), new.T, x)


class Counted(nn.Module):
    def __init__(self):
        self.register_buffer("small", np.zeros(3, np.int8))
        self.register_buffer("count", np.zeros((), np.int32))


@pytest.mark.parametrize(
    "name, given, words",
    [("small", np.array([1, 200, 3], np.int64), "the value 200"), ("small", np.array([1, 2, -129]), "the value -129"),
     ("small", np.full(3, 128, np.uint8), "the value 128"), ("count", np.array(2**31), "the value 2147483648"),
     ("count", np.array(1.5), "float64"), ("count", np.array(1j), "complex128")],
)  # fmt: skip
def test_values_that_an_element_type_does_not_hold_are_refused(name, given, words):
    m = Counted()
    with pytest.raises(es.DtypeError, match=f"{name}: is i.*, given {words}"):
        m.load_state_dict({name: given}, strict=False)
    with pytest.raises(es.DtypeError, match=f"data is i.* cannot take {words}"):
        getattr(m, name).data = given
    assert not m.small.data.any() and not m.count.data.any()
    top = np.array([-128, 0, 127], np.int64)
    m.load_state_dict({"small": top, "count": np.array(-(2**31))})
    assert np.array_equal(m.small.data, top) and m.count.data == -(2**31)


def test_values_without_a_copy_are_refused_by_name(rng):
    p = nn.Parameter(rng.standard_normal((3, 5)))
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":  # which has the argument
        with pytest.raises(es.ArgumentError, match=r"leave out copy=False, or take the memory itself, `\.data`"):
            np.asarray(p, copy=False)
    for taken in (np.asarray(p), np.array(p), np.array(p, dtype=np.float32)):
        assert not np.may_share_memory(taken, p.data) and np.allclose(taken, p.data)


class Scaled(nn.Module):
    """Multiplies by a setting, which `of` reads."""

    def __init__(self, setting, of):
        self.weight = nn.Parameter(np.ones(3))
        self.setting, self._private = setting, setting
        self.of = of

    def forward(self, x):
        return x * self.weight * self.of(self.setting) + self.of(self._private)


@pytest.mark.parametrize(
    "before, after, of",
    [([2.0, 5.0], [3.0, 5.0], lambda v: v[0]), ({"a": [2.0]}, {"a": [3.0]}, lambda v: v["a"][0]),
     ({2.0: 1}, {3.0: 1}, lambda v: next(iter(v))), ({2.0}, {3.0}, lambda v: next(iter(v))), ((2.0,), (3.0,), sum),
     (np.float64(2), np.float64(3), float), (np.full(3, 2.0), np.full(3, 3.0), lambda v: v),
     ([np.full(3, 2.0), "x"], [np.full(3, 3.0), "x"], lambda v: v[0]), (2.0, 3.0, float),
     ([lambda: 2.0], [lambda: 3.0], lambda v: v[0]())],
)  # fmt: skip
def test_a_setting_that_is_assigned_anew_counts(rng, before, after, of):
    x = rng.standard_normal((5, 3))
    m = Scaled(before, of)
    np.testing.assert_allclose(m(x), 2 * x + 2)
    m.setting = after
    np.testing.assert_allclose(m(x), 3 * x + 2)
    m._private = after
    np.testing.assert_allclose(m(x), 3 * x + 3)
    step = es.TrainStep(m, lambda out, y: F.mean(out - y), es.optim.SGD(lr=0.0))
    zeros = np.zeros_like(x)
    np.testing.assert_allclose(step(x, zeros), (3 * x + 3).mean())
    m.setting = before
    np.testing.assert_allclose(step(x, zeros), (2 * x + 3).mean())


def test_equal_settings_keep_a_trace(rng):
    traced = []

    def of(v):
        traced.append(v)
        return v[0]

    m, x = Scaled([2.0, [1, "a"]], of), rng.standard_normal((5, 3))
    for _ in range(3):
        m.setting = [2.0, [1, "a"]]
        m.train(), m.eval()
        m(x)
    assert len(traced) == 2, "one trace, of two settings"
    around: list = []
    around.append(around)
    m.other = around  # holds itself: no setting
    np.testing.assert_allclose(m(x), 2 * x + 2)


def test_a_module_is_moved_to_the_cpu_alone() -> None:
    layer = nn.Linear(2, 3)
    assert layer.to("cpu") is layer and layer.to(es.device("cpu")) is layer and layer.weight.dtype.name == "f32"
    with pytest.raises(ArgumentError, match="to: device='cuda:0' must be 'cpu'"):
        layer.to("cuda:0")


def dropped(extent=64):
    """A network whose result tells whether dropout is at work, and its input."""
    return nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5))), np.ones(
        (extent, 3), np.float32
    )


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_has_modes_of_its_own(copied):
    model, x = dropped()
    want = model.predict(x)
    other = copied(model)
    np.testing.assert_array_equal(other.predict(x), want)
    assert not np.array_equal(other(x), want) and not np.array_equal(model(x), want)


def test_modes_follow_the_network():
    """A part that comes between two predictions is in evaluation mode, too."""
    model, x = dropped()
    want = model.predict(x)
    model[2].append(nn.Dropout(0.5))
    np.testing.assert_array_equal(model.predict(x), want)
    with model.in_mode(training=True):
        assert not np.array_equal(model(x), want)
    np.testing.assert_array_equal(model.predict(x), want)


def test_a_mode_that_is_set_within_a_context_stays_there():
    """Other threads, which share the kept modes of the network, do not see it."""
    model, x = dropped()
    want, seen = model.predict(x), []
    with model.in_mode(training=False):
        model[1].training = True
        thread = threading.Thread(target=lambda: seen.append(model.predict(x)))
        thread.start()
        thread.join()
        assert model[1].training and not model[0].training and not np.array_equal(model(x), want)
    np.testing.assert_array_equal(seen[0], want)
    np.testing.assert_array_equal(model.predict(x), want)
    assert model[1].training and model.training
