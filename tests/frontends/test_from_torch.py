"""Modules of PyTorch as modules of Einsmith: they train alike, their weights go both ways, and what is not built is an
error that names the user's line."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import einsmith as es
from einsmith.base.errors import ArgumentError, DtypeError, ShapeError, TraceError, UnknownNameError

torch = pytest.importorskip("torch", reason="modules of PyTorch are taken apart")
from torch import nn  # noqa: E402

from einsmith.frontends import torch_export  # noqa: E402
from einsmith.frontends.torch import from_torch, operator, to_torch  # noqa: E402
from tests.models import twins  # noqa: E402
from tests.models.twin import OPTIMIZERS, close, gradients_agree, numbers, outputs, spread, torch_losses  # noqa: E402

STEPS = 3
if not torch_export.TELLS_GUARDS:
    pytest.skip(f"from_torch needs a newer PyTorch than {torch.__version__}", allow_module_level=True)


def trains_alike(theirs, batches: list[tuple], loss: str = "mse_loss", optimizer: str = "sgd") -> es.nn.Module:
    """Imported, a module gives PyTorch's losses, gradients and state; evaluation agrees, and weights go back."""
    theirs.double()
    spread(theirs, 0)
    given = [torch.tensor(x) for x in batches[0][:-1]]
    ours = from_torch(theirs, *given)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    start = numbers(theirs)
    wanted, gradients, after = torch_losses(
        optimizer, theirs, start, batches, getattr(nn.functional, loss), torch.float64
    )
    step = es.TrainStep(ours, getattr(es.functional, loss), OPTIMIZERS[optimizer][1](), threads=1)
    for number, (batch, want) in enumerate(zip(batches, wanted, strict=True), 1):
        mine = step(*batch)
        assert abs(mine - want) <= 1e-8 * abs(want), f"step {number}: {mine}, PyTorch {want}"
        if number == 1:
            zero = gradients_agree(optimizer, step, gradients)
    for path, value in ours.state_dict().items():
        counts = ~zero.get(path, np.zeros(value.shape, bool))
        close(value[counts], after[path][counts], path, 1e-7)
    copy = to_torch(ours, theirs)
    assert copy is theirs
    ours.eval(), theirs.eval()
    with torch.no_grad():
        for a, b in zip(outputs(ours(*batches[0][:-1])), outputs(theirs(*given)), strict=True):
            close(a, b, "evaluation")
    return ours


def ids(rng, *shape: int, below: int = 50) -> np.ndarray:
    return rng.integers(0, below, shape)


SMALL = {"vocabulary": 50, "width": 8, "layers": 1, "heads": 2, "positions": 12, "inner": 12, "dropout": 0.0}
BLOCKS = ((1, 4, 1, 1), (2, 8, 2, 2))
IMAGES = {
    "resnet18": ({"depths": (1, 1), "width": 3, "classes": 5}, 17, True),
    "resnet50": ({"depths": (1, 1), "width": 2, "classes": 5}, 17, True),
    "mobilenet_v1": ({"width": 0.25, "classes": 5, "blocks": ((16, 1), (32, 2)), "dropout": 0.0}, 17, True),
    "mobilenet_v2": ({"width": 0.25, "classes": 5, "blocks": BLOCKS, "dropout": 0.0, "last": 16}, 17, True),
    "shufflenet_v1": ({"classes": 5, "groups": 3, "stages": ((24, 2), (48, 2)), "stem": 6}, 33, True),
    "squeezenet": ({"classes": 5, "width": 0.125, "fires": 3, "dropout": 0.0}, 33, True),
    "efficientnet_lite0": ({"classes": 5, "blocks": ((1, 4, 1, 1, 3), (2, 6, 2, 2, 5)), "stem": 4, "last": 8}, 9, True),
    "vit_small": ({"classes": 5, "width": 8, "layers": 1, "heads": 2, "inner": 12, "size": 16, "patch": 8}, 16, True),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if slow else n for n, (*_, slow) in IMAGES.items()]
)
def test_networks_of_images_train_as_in_torch(name, rng):
    arguments, size, _ = IMAGES[name]
    batches = [(rng.standard_normal((3, 3, size, size)), rng.integers(0, 5, 3)) for _ in range(STEPS)]
    trains_alike(twins.get(name, **arguments), batches, "cross_entropy")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt_small", pytest.param("bert_base", marks=pytest.mark.slow)])
def test_transformers_train_as_in_torch(name, rng):
    more = {"pooler": False} if name == "bert_base" else {}
    width = 50 if name == "gpt_small" else 8
    batches = [(ids(rng, 3, 7), rng.standard_normal((3, 7, width))) for _ in range(STEPS)]
    ours = trains_alike(twins.get(name, **SMALL, **more), batches, optimizer="adamw")
    assert ours(batches[0][0][:1]).shape == (1, 7, width)  # of another batch size


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 3, batch_first=True)
        self.gru = nn.GRU(3, 2, bidirectional=True, bias=False, batch_first=True)

    def forward(self, x):
        y, (h, c) = self.lstm(x)
        z, g = self.gru(y)
        return z.sum(1)[:, :3] + h[0] * c[0] + g[1, :, :1]


def test_recurrent_networks_are_recurrences(rng):
    batches = [(rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 3))) for _ in range(STEPS)]
    ours = trains_alike(Recurrent(), batches)
    assert {"lstm.input", "gru.input"} <= {n.operator for n in ours._graphs[True].nodes}


class Gaussian(nn.Module):
    """The logarithm of a density, by factorizations of the covariance."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.randn(3, 3))

    def forward(self, x):
        covariance = self.factor @ self.factor.T + torch.eye(3, dtype=x.dtype)
        root = torch.linalg.cholesky(covariance)
        scaled = torch.linalg.solve_triangular(root, x.T, upper=False).square().sum(0)
        return torch.stack([scaled, (x * torch.linalg.solve(covariance, x.T).T).sum(1)], 1) + torch.logdet(covariance)


@pytest.mark.slow
def test_factorizations_train_as_in_torch(rng):
    trains_alike(Gaussian(), [(rng.standard_normal((4, 3)), rng.standard_normal((4, 2))) for _ in range(STEPS)])


@pytest.mark.slow
def test_the_other_twins_train_as_in_torch(rng):
    batches = [(rng.standard_normal((2, 1, 28, 28)), rng.integers(0, 10, 2)) for _ in range(STEPS)]
    for name in ("lenet5", "mlp3", "capsulenet"):
        trains_alike(twins.get(name), batches, "cross_entropy")


# ------------------------------------------------------------------------------------------------------------- state


class Parts(nn.Module):
    """Shared weights and modules, a frozen parameter, buffers that are saved or not, a constant, a part in evaluation
    mode."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6, dtype=torch.float64)
        self.again = self.first
        self.last = nn.Linear(6, 6, bias=False, dtype=torch.float64)
        self.last.weight = self.first.weight
        self.scale = nn.Parameter(torch.rand(6, dtype=torch.float64), requires_grad=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.tensor([1.0, 0, 1, 1, 0, 1], dtype=torch.float64), persistent=False)
        self.norm = nn.BatchNorm1d(6, dtype=torch.float64)
        self.table = torch.arange(6.0, dtype=torch.float64)

    def forward(self, x):
        self.count += 1
        y = self.norm(self.again(self.first(x)) * self.scale)
        return {"out": [self.last(y * self.mask), None], "more": (y + self.table,)}


def test_sharing_freezing_and_buffers_are_kept(rng):
    theirs = Parts()
    theirs.norm.eval()
    ours = from_torch(theirs, torch.rand(4, 6, dtype=torch.float64))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    assert ours.first.weight is ours.last.weight and not ours.scale.requires_grad
    assert [m.training for m in theirs.modules()] == [True, True, True, False]
    x = rng.standard_normal((5, 6))
    ours.train()
    got, want = ours(x), theirs(torch.tensor(x))
    close(got["out"][0], want["out"][0].detach(), "out")
    close(got["more"][0], want["more"][0].detach(), "more")
    assert got["out"][1] is None and int(ours.count.data) == 1 == int(theirs.count)
    close(ours.norm.running_mean.data, theirs.norm.running_mean, "statistics of a part in evaluation mode")
    again = pickle.loads(pickle.dumps(ours))
    close(again(x)["out"][0], got["out"][0], "a copy")


def test_weights_go_back_by_name():
    theirs = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    ours = from_torch(theirs, torch.rand(4, 3))
    ours.get_parameter("0.weight").data = np.ones((2, 3), np.float32)
    ours.get_buffer("1.running_mean").data = np.full(2, 7.0, np.float32)
    to_torch(ours, theirs.double())
    assert theirs[0].weight.eq(1).all() and theirs[1].running_mean.eq(7).all()
    assert theirs[0].weight.dtype is torch.float64 and theirs[0].weight.requires_grad
    with pytest.raises(UnknownNameError, match="1.running_mean"):
        to_torch(ours, nn.Sequential(nn.Linear(3, 2)))
    with pytest.raises(ShapeError, match="0.weight"):
        to_torch(ours, nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))


def test_dropout_is_that_of_layers_with_its_path(rng):
    """Masks come from the layer's path and the step, so that a network of the same names drops the same elements."""
    theirs = nn.Sequential(nn.Linear(5, 40), nn.Dropout(0.3), nn.Linear(40, 2)).double()
    layers = [es.nn.Linear(5, 40, dtype="float64"), es.nn.Dropout(0.3), es.nn.Linear(40, 2, dtype="float64")]
    same = es.nn.Sequential(*layers)
    same.load_state_dict(theirs.state_dict())
    ours = from_torch(theirs, torch.rand(4, 5, dtype=torch.float64))
    steps = [es.TrainStep(m, es.functional.mse_loss, es.optim.SGD(lr=0.1), seed=3) for m in (ours, same)]
    seen = set()
    for _ in range(3):
        x, y = rng.standard_normal((4, 5)), rng.standard_normal((4, 2))
        a, b = (step(x, y) for step in steps)
        assert abs(a - b) <= 1e-12 * abs(b)
        seen.add(a)
    ours.eval()
    x = rng.standard_normal((4, 5))
    with torch.no_grad():
        close(ours(x), to_torch(ours, theirs).eval()(torch.tensor(x)), "without dropout")


def test_formulas_inside_a_module_are_formulas_again(rng):
    centred = operator(es.op("y[b,k] = x[b,k] - scale*mean[j](x[b,j])\nreturn y"), scale=0.5)
    twice = operator(lambda x: (es.sin(x), 2 * x))

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            a, b = twice(centred(self.linear(x)))
            return a * b

    batches = [(rng.standard_normal((3, 4)), rng.standard_normal((3, 4))) for _ in range(STEPS)]
    trains_alike(Own(), batches)


# ------------------------------------------------------------------------------------------- sizes and gradients


class Told(nn.Module):
    """A forward that is given."""

    def __init__(self, forward):
        super().__init__()
        self.linear, self.run = nn.Linear(6, 4, dtype=torch.float64), forward

    def forward(self, *x):
        return self.run(self.linear(x[0]), *x)


def _detached(y, x):
    with torch.no_grad():
        z = y * 2
    return y * y.detach() + z * y + z


def test_detached_tensors_are_constants(rng):
    theirs = Told(_detached)
    x = rng.standard_normal((3, 6))
    ours = from_torch(theirs, torch.tensor(x))
    theirs(torch.tensor(x)).square().sum().backward()

    def loss(w):
        return (es.nn.functional_call(ours, {"linear.weight": w}, x) ** 2).sum()

    close(es.grad(loss)(ours.linear.weight.data), theirs.linear.weight.grad, "gradient")


def test_the_batch_may_differ_where_nothing_fixes_it(rng):
    x = torch.rand(8, 6, dtype=torch.float64)
    free = from_torch(Told(lambda y, x: y.view(y.shape[0], 2, 2).sum(1)), x)
    for n in (1, 3, 17):
        assert free(rng.standard_normal((n, 6))).shape == (n, 2)
    quarters = from_torch(Told(lambda y, x: y.view(-1, 4, 4).sum(1)), x)
    assert quarters(rng.standard_normal((12, 6))).shape == (3, 4)
    with pytest.raises(ShapeError, match=r"% 16\) == 0.*\(6, 6\)"):
        quarters(rng.standard_normal((6, 6)))
    branch = from_torch(Told(lambda y, x: y if x.shape[0] > 4 else 2 * y), x)
    with pytest.raises(ShapeError, match="> 4"):
        branch(rng.standard_normal((4, 6)))
    fixed = from_torch(Told(lambda y, x: y + torch.rand(8, 1)), x)
    with pytest.raises(ShapeError, match="== 8"):
        fixed(rng.standard_normal((9, 6)))
    with pytest.raises(ShapeError, match="made for 6"):
        free(rng.standard_normal((8, 5)))
    with pytest.raises(DtypeError, match="input 0 is f32; the module was exported for f64"):
        free(rng.standard_normal((8, 6)).astype(np.float32))
    with pytest.raises(ArgumentError, match="1 inputs"):
        free(rng.standard_normal((8, 6)), 3)
    free.to("float32")
    with pytest.raises(DtypeError, match="linear.weight"):
        free(rng.standard_normal((8, 6)))


class Nearest(nn.Module):
    """Features [B, K] -> logits [B, classes], with a formula of its own."""

    def __init__(self, formula, rows=4):
        super().__init__()
        self.formula, self.point = formula, nn.Parameter(torch.randn(rows, 6, dtype=torch.float64))

    def forward(self, x):
        return self.formula(x, self.point)


def test_the_batch_of_a_formula_may_differ(rng, tmp_path):
    network = Nearest(operator(es.op("D[b,c] = sum[k](abs(s*x[b,k] - z[c,k]))", s=2.0)))
    ours = from_torch(network, torch.tensor(rng.standard_normal((16, 6))))
    for n in (1, 5, 33):
        x = rng.standard_normal((n, 6))
        close(ours.predict(x, batch_size=8), network(torch.tensor(x)).detach().numpy(), f"batch {n}")
    step = es.TrainStep(ours, es.functional.mse_loss, es.optim.SGD(lr=0.0))
    x, y = rng.standard_normal((21, 6)), rng.standard_normal((21, 4))
    with torch.no_grad():
        want = nn.functional.mse_loss(network(torch.tensor(x)), torch.tensor(y)).item()
    assert abs(step.evaluate(es.data.batches(x, y, 16))["loss"] - want) < 1e-9
    ort = pytest.importorskip("onnxruntime", reason="runs the file")
    from einsmith.frontends import onnx

    onnx.export(ours, np.zeros((16, 6)), tmp_path / "net.onnx", dynamic_batch=True)
    session = ort.InferenceSession(tmp_path / "net.onnx")
    (got,) = session.run(None, {session.get_inputs()[0].name: x})
    close(got, network(torch.tensor(x)).detach().numpy(), "onnxruntime")


class Called(nn.Module):
    """A module that is one call of an operator."""

    def __init__(self, text, **extents):
        super().__init__()
        self.formula = operator(es.op(text, extents=extents))

    def forward(self, *x):
        return self.formula(*x)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "text",
    [
        "s[b,t,k] = where(t < len[b], x[b,t,k], 0)",
        "s[b,t,k] = where(t < len[b], x[b,t,k] + where(t > 0, s[b,t-1,k], 0), 0)\nreturn s",
        "s[b,t,k] = x[b,t,k] + where(t > 0, s[b,t-1,k], 0)\ny[b,k] = s[b,x.shape[1]-1,k] + len[b]",
        "y[b,k] = x[b,len[b]-1,k]",
    ],
)
def test_the_batch_stays_free_under_conditions_and_sizes(text, rng):
    network = Called(text)
    lengths, x = torch.tensor([1, 5, 3, 4, 2, 5]), torch.tensor(rng.standard_normal((6, 5, 2)))
    arguments = (lengths, x) if network.formula._inputs[0] == "len" else (x, lengths)
    ours = from_torch(network, *arguments)
    for n in (1, 3, 6):
        given = [v[:n] for v in arguments]
        close(ours.predict(*given), network(*given).numpy(), f"batch {n}")


def test_sizes_that_are_fixed_are_named_with_the_part_of_the_formula(rng):
    x = torch.tensor(rng.standard_normal((8, 6)))
    last = from_torch(Called("last[k] = x[x.shape[0]-1,k]"), x)
    with pytest.raises(ShapeError, match=r"last .* fixes sizes \(x.shape\[0\] = 8 by x\[x.shape\[0\] - 1, k\]\)"):
        last(rng.standard_normal((9, 6)))
    padded = from_torch(Called("padded[t,k] = where(t < x.shape[0], x[t,k], 0)*z[t]"), x, torch.ones(5))
    assert padded(x, torch.ones(5)).shape == (5, 6)
    with pytest.raises(ShapeError, match=r"x.shape\[0\] = 8 by one axis for x.shape\[0\] and z.shape\[0\]"):
        padded(rng.standard_normal((9, 6)), torch.ones(5))


def test_operators_that_fix_a_size_are_named(rng):
    x = torch.tensor(rng.standard_normal((8, 6)))
    shifted = from_torch(Nearest(operator(es.op("late[t,c] = sum[k](x[t+1,k]*z[c,k])"))), x)
    assert shifted(x).shape == (7, 4)
    with pytest.raises(ShapeError, match="== 8.*The operator late .* fixes sizes.*es.nn.Module which calls the es.op"):
        shifted(rng.standard_normal((9, 6)))
    tied = from_torch(Nearest(operator(es.op("s[b] = sum[k](x[b,k]*z[b,k])")), rows=8), x)
    assert tied(x).shape == (8,)
    with pytest.raises(ShapeError, match="8"):
        tied(rng.standard_normal((9, 6)))

    def product(x, z):
        return x @ z.T

    function = from_torch(Nearest(operator(product)), x)
    with pytest.raises(ShapeError, match="The operator product .* calls the es.op or function itself"):
        function(rng.standard_normal((9, 6)))
    with pytest.raises(TraceError, match="^The operator product .*fixes sizes"):
        from_torch(Nearest(operator(product)), x, dynamic_shapes=({0: torch.export.Dim("batch")},))


def test_inputs_come_in_order_or_by_name(rng):
    class Two(nn.Module):
        def forward(self, x, scale, bias=None):
            return x * scale if bias is None else x * scale + bias

    x, scale = rng.standard_normal((3, 2)), rng.standard_normal(2)
    ours = from_torch(Two(), torch.tensor(x), torch.tensor(scale))
    close(ours(x, scale=scale), x * scale, "by name")
    with pytest.raises(ArgumentError, match="bias"):
        ours(x, bias=scale)
    with pytest.raises(ArgumentError, match="Two takes 2 inputs"):
        ours(x)


class Mixture(nn.Module):
    def forward(self, left, right, *more):
        return left + 2 * right + sum(more)


@pytest.mark.slow
def test_exports_have_torchs_names(tmp_path):
    x = torch.zeros(3, 2)
    ours = from_torch(Mixture(), x, x, x)
    assert ours.argument_names == ("left", "right")
    es.export(ours, tmp_path / "library", x, x, x, link=False)
    header = (tmp_path / "library" / "mixture.h").read_text()
    assert "left: float32[3, 2]" in header and "right: float32[3, 2]" in header
    nearest = Nearest(operator(es.op("n[b,c] = sum[k](x[b,k]*z[c,k])")))
    network = from_torch(nearest, torch.zeros(3, 6, dtype=torch.float64))
    step = es.TrainStep(network, es.functional.mse_loss, es.optim.SGD(lr=0.1))
    es.export(step, tmp_path / "step", np.zeros((3, 6)), np.zeros((3, 4)), link=False)
    assert "x: float64[3, 6]" in (tmp_path / "step" / "nearest.h").read_text()
    onnx = pytest.importorskip("onnx", reason="reads the file")
    from einsmith.frontends.onnx import export

    export(ours, (x, x, x), tmp_path / "mixture.onnx")
    graph = onnx.load(tmp_path / "mixture.onnx").graph
    assert graph.name == "Mixture" and [i.name for i in graph.input] == ["left", "right", "input_2"]


def test_settings_are_fixed(rng):
    theirs = Told(lambda y, x, n, flag: y * n if flag else y)
    x = torch.rand(3, 6, dtype=torch.float64)
    ours = from_torch(theirs, x, 3, True)
    close(ours(x.numpy(), 3, True), theirs(x, 3, True).detach(), "with settings")
    close(ours(x.numpy()), theirs(x, 3, True).detach(), "settings left out")
    with pytest.raises(ArgumentError, match="input 1 must be 3"):
        ours(x.numpy(), 4, True)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 7 * g


def _own_line(y, x):
    return torch.fft.rfft(y).abs()  # the line that messages name


WRONG = {
    "an operator that is not there": (_own_line, r"(?s)aten\._fft_r2c.*complex.*test_from_torch\.py:\d+ in forward"),
    "an operator left to PyTorch": (
        lambda y, x: torch.special.zeta(y, 2.0),
        r"(?s)special_zeta.*test_from_torch\.py:\d+ in",
    ),
    "a mask": (lambda y, x: y[y > 0], "indexed by a mask depends on values"),
    "a number of a tensor": (lambda y, x: y * y.sum().item(), "a Python number of a tensor"),
    "a branch on values": (lambda y, x: y if y.sum() > 0 else -y, "torch.export cannot export Told"),
    "a backward of one's own": (lambda y, x: Square.apply(y), "Square is an autograd.Function"),
    "an input changed in place": (lambda y, x: x.add_(1) + y.sum(), "in place"),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("what", WRONG)
def test_unsupported_modules_are_rejected_before_any_run(what):
    forward, message = WRONG[what]
    theirs = Told(forward)
    with pytest.raises((TraceError, ArgumentError), match=message) as caught:
        from_torch(theirs, torch.rand(3, 6, dtype=torch.float64))
    if what == "a mask":
        assert any("test_from_torch.py" in note for note in caught.value.__notes__)
    assert theirs.training


def test_only_modules_are_taken():
    with pytest.raises(ArgumentError, match="torch.nn.Module"):
        from_torch(torch.relu, torch.rand(3))


def test_a_version_whose_export_tells_no_guards_is_named(monkeypatch):
    monkeypatch.setattr(torch_export, "TELLS_GUARDS", False)
    with pytest.raises(TraceError, match=f"needs a newer PyTorch than {torch.__version__.replace('+', '.')}"):
        from_torch(nn.Linear(2, 3), torch.zeros(1, 2))


class _BySize(nn.Module):
    """What it computes depends on the root of its batch, which torch.export writes with functions of its own."""

    def forward(self, x):
        y = x * 2 if int(x.shape[0] ** 0.5) >= 3 else x
        return y + 3 if x.shape[0] / 3 > 1.5 else y


def test_conditions_with_functions_of_sizes():
    theirs = _BySize()
    ours = from_torch(theirs, torch.rand(12, 2))
    for n in (9, 10, 15):
        x = torch.rand(n, 2)
        np.testing.assert_array_equal(es.jit(ours)(x.numpy()), theirs(x).numpy())
    with pytest.raises(ShapeError, match=r"_BySize was exported for sizes where .*the inputs' shapes are \(16, 2\)"):
        es.jit(ours)(np.zeros((16, 2), np.float32))


class Shifted(nn.Module):
    """Takes two arguments, or one tuple of them."""

    def __init__(self, pair: bool):
        super().__init__()
        self.pair = pair
        self.linear = nn.Linear(3, 2)
        self.forward = self.of_pair if pair else self.of_two  # type: ignore[method-assign]

    def of_two(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + n

    def of_pair(self, both: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return self.linear(both[0]) + both[1]


def test_a_tuple_of_all_arguments_is_the_example():
    x, n = torch.rand(4, 3), torch.rand(4, 2)
    for pair, examples in ((False, [(x, n), ((x, n),)]), (True, [((x, n),)])):
        theirs = Shifted(pair)
        for example in examples:
            ours = from_torch(theirs, *example)
            given = (x.numpy(), n.numpy())
            found = ours(given) if pair else ours(*given)
            expected = theirs((x, n)) if pair else theirs(x, n)
            np.testing.assert_allclose(found, expected.detach().numpy(), 1e-5, 1e-6)
    with pytest.raises(ArgumentError, match="does not take the example"):
        from_torch(Shifted(False), (x,))
