"""torch.compile(model, backend="einsmith"): the numbers, memory and side effects of PyTorch, and what is said where an
operator has no formula."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="its backend is tested")
from torch import nn  # noqa: E402
from torch.nn import functional as tf  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import einsmith.frontends.torch  # noqa: E402, F401 - registers the backend
from benchmarks import twins  # noqa: E402
from einsmith.errors import EinsmithError  # noqa: E402
from einsmith.frontends.torch_compile import aot, memory, region, saved, split  # noqa: E402

ROOT = Path(__file__).parents[2]
STEPS = 5


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    split._SAID.clear()


def compiled(f, **options):
    """f by the backend, where nothing may run in PyTorch."""
    return torch.compile(f, backend="einsmith", options={"fallback": "error", **options})


def randn(*shape, grad=False):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)


def agree(a, b, rtol=1e-9):
    torch.testing.assert_close(a, b, rtol=rtol, atol=rtol, check_stride=True)


def trains_alike(model, batches, loss, optimizer, rtol=1e-8):
    """Losses, parameters and buffers of five steps are those of eager execution, by the same optimizer."""
    model = model.double()
    states = []
    for run in (model, copy.deepcopy(model)):
        made = compiled(run) if states else run
        step = optimizer(run.parameters())
        losses = []
        for *inputs, target in batches:
            step.zero_grad()
            value = loss(made(*inputs), target)
            value.backward()
            step.step()
            losses.append(value.detach())
        run.eval()
        with torch.no_grad():
            out = made(*batches[0][:-1])
        states.append((losses, run.state_dict(), out))
    (losses, want, out), (got_losses, got, got_out) = states
    agree(got_losses, losses, rtol)
    agree(dict(got), dict(want), rtol)
    agree(got_out, out, rtol)


class Images(nn.Module):
    """What image networks are made of."""

    def __init__(self):
        super().__init__()
        conv = nn.Conv2d(3, 6, 3, 2, 1, bias=False)
        self.stem = nn.Sequential(conv, nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.depthwise = nn.Sequential(nn.Conv2d(6, 6, 3, 1, 1, groups=6), nn.BatchNorm2d(6), nn.Hardswish())
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.depthwise(x)
        return self.head(tf.adaptive_avg_pool2d(x, 1).flatten(1))


SMALL = {"vocabulary": 50, "width": 8, "layers": 1, "heads": 2, "positions": 12, "inner": 12, "dropout": 0.0}


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.05, momentum=0.9, weight_decay=1e-3)


def adamw(parameters):
    return torch.optim.AdamW(parameters, 1e-2)


def test_images_train_as_in_eager():
    batches = [(randn(3, 3, 13, 17), torch.randint(0, 5, (3,))) for _ in range(STEPS)]
    trains_alike(Images(), batches, tf.cross_entropy, sgd)


def test_a_transformer_trains_as_in_eager():
    batches = [(torch.randint(0, 50, (3, 7)), torch.randint(0, 50, (3, 7))) for _ in range(STEPS)]
    trains_alike(
        twins.get("gpt_small", **SMALL), batches, lambda out, y: tf.cross_entropy(out.flatten(0, 1), y.flatten()), adamw
    )


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 3, batch_first=True)
        self.gru = nn.GRU(3, 2, batch_first=True)

    def forward(self, x):
        return self.gru(self.lstm(x)[0])[0].sum(1)


def test_recurrent_layers_train_as_in_eager():
    batches = [(randn(2, 4, 4), randn(2, 2)) for _ in range(STEPS)]
    trains_alike(Recurrent(), batches, tf.mse_loss, sgd)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "mobilenet_v2", "shufflenet_v1", "squeezenet", "unet"])
def test_networks_train_as_in_eager(name):
    arguments = {
        "resnet18": {"depths": (1, 1), "width": 3, "classes": 5},
        "resnet50": {"depths": (1, 1), "width": 2, "classes": 5},
        "mobilenet_v2": {
            "width": 0.25, "classes": 5, "blocks": ((1, 4, 1, 1), (2, 8, 2, 2)), "dropout": 0.0, "last": 16
        },
        "shufflenet_v1": {"classes": 5, "groups": 3, "stages": ((24, 2), (48, 2)), "stem": 6},
        "squeezenet": {"classes": 5, "width": 0.125, "fires": 3, "dropout": 0.0},
    }  # fmt: skip
    if name == "unet":
        model, shape = twins.get(name), (1, 1, 32, 32)
        batches = [(randn(*shape), randn(*model(torch.zeros(shape)).shape)) for _ in range(2)]
        return trains_alike(model, batches, tf.mse_loss, sgd, 1e-6)
    batches = [(randn(3, 3, 33, 33), torch.randint(0, 5, (3,))) for _ in range(STEPS)]
    return trains_alike(twins.get(name, **arguments[name]), batches, tf.cross_entropy, sgd, 1e-7)


# ------------------------------------------------------------------------------------------------- values and memory


def test_whole_powers_above_what_float32_holds():
    x, e = torch.tensor([9, -9, 3, 2, 1, -1, 7]), torch.tensor([9, 9, 17, 62, -3, -3, -2])
    assert torch.equal(compiled(torch.pow)(x, e), x**e)


def test_channels_last_stays():
    conv = nn.Conv2d(3, 4, 3).double()
    x = randn(2, 3, 6, 5).to(memory_format=torch.channels_last)
    out = compiled(lambda v: tf.relu(conv(v)) + 1)(x)
    assert out.is_contiguous(memory_format=torch.channels_last)
    agree(out, tf.relu(conv(x)) + 1)


def test_outputs_alias_as_in_eager():
    def f(x, y):
        z = x * 2
        return z, z[1:], y.t(), y, z.view(-1)

    x, y = randn(3, 4), randn(2, 5)
    z, part, t, same, flat = compiled(f)(x, y)
    assert same.data_ptr() == t.data_ptr() == y.data_ptr()
    z[1, 0] = 7.0
    assert part[0, 0] == flat[4] == 7.0


def test_what_is_changed_in_place_is_changed():
    def f(x, y):
        x.add_(1)
        y[:, 1:] *= x.sum()
        return x * y[0, 0]

    given = [(randn(3, 2), randn(2, 3)) for _ in range(2)]
    given.append(tuple(v.clone() for v in given[0]))
    run = compiled(f)
    agree(run(*given[0]), f(*given[2]))
    agree(given[0], given[2])
    wide = randn(4, 6)
    other = wide.clone()
    run(wide[:3, ::3], given[1][1])
    f(other[:3, ::3], given[1][1].clone())
    agree(wide, other)


def test_inputs_that_overlap():
    x = randn(20)
    views = x.as_strided((4, 5), (2, 1)), x.as_strided((3, 7), (0, 1)), x[3:].unfold(0, 4, 1)
    for v in views:
        agree(compiled(lambda v: v.sum(0) * v)(v), v.sum(0) * v)


def test_memory_of_results_is_not_shared():
    n = memory.FROM // 8 + 3
    f = compiled(lambda x: x + 1)
    first = f(torch.zeros(n, dtype=torch.float64))
    second = f(torch.ones(n, dtype=torch.float64))
    assert (first == 1).all() and (second == 2).all()
    at, view = first.data_ptr(), first[5:]
    del first
    third = f(torch.zeros(n, dtype=torch.float64))
    assert third.data_ptr() != at and (view == 1).all()
    del view
    kept = memory.free_bytes()
    assert kept >= 8 * n
    fourth = f(torch.full((n,), 3.0, dtype=torch.float64))
    assert fourth.data_ptr() == at and (fourth == 4).all() and (third == 1).all() and memory.free_bytes() < kept


# ------------------------------------------------------------------------------------------------------ random numbers


def test_dropout_is_that_of_the_seed():
    x = torch.ones(40, 50, dtype=torch.float64, requires_grad=True)
    f = compiled(lambda v: tf.dropout(v, 0.3) + torch.rand_like(v))

    def draw():
        y = f(x)
        return y.detach(), torch.autograd.grad(y.sum(), x)[0]

    torch.manual_seed(3)
    a, da = draw()
    b, _ = draw()
    torch.manual_seed(3)
    again, d_again = draw()
    assert torch.equal(a, again) and torch.equal(da, d_again) and not torch.equal(a, b)
    kept = a > 1.2
    assert torch.equal(kept, da > 0) and 0.6 < kept.double().mean() < 0.8
    agree(da[kept], torch.full_like(da[kept], 1 / 0.7))


def test_pytorch_draws_where_it_is_to():
    x = randn(30, 20)
    f = torch.compile(lambda v: tf.dropout(v.sin(), 0.4) * 2, backend="einsmith", options={"fallback_random": True})
    torch.manual_seed(5)
    want = tf.dropout(x.sin(), 0.4) * 2
    torch.manual_seed(5)
    agree(f(x), want)


def test_checkpointed_parts():
    layer = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 6)).double()
    x = randn(4, 6, grad=True)

    def f(v, dropped):
        layer[2].p = dropped
        return checkpoint(layer, v, use_reentrant=False).sin()

    def grads(run, p):
        y = run(x, p)
        return [y.detach(), *torch.autograd.grad(y.sum(), [x, *layer.parameters()])]

    agree(grads(torch.compile(f, backend="einsmith"), 0.0), grads(f, 0.0))
    # With dropout, the forward that is computed again has the masks of the first one.
    y, dx, *_ = grads(torch.compile(f, backend="einsmith"), 0.5)
    hidden = torch.tanh(layer[0](x))
    assert torch.isfinite(dx).all() and not torch.equal(y, layer[3](hidden).sin())


# --------------------------------------------------------------------------------------------------------- sizes, modes


def test_a_dynamic_batch_is_one_graph():
    graphs = []
    model = Images().double()

    def count(gm, inputs, **options):
        graphs.append(gm)
        from einsmith.frontends.torch_compile import backend

        return backend(gm, inputs, options={"fallback": "error"})

    f = torch.compile(model, backend=count)
    for n in (4, 3, 7, 5, 4):
        x = randn(n, 3, 9, 11)
        torch._dynamo.mark_dynamic(x, 0)
        before = copy.deepcopy(model)
        want = before(x)
        wanted = torch.autograd.grad(want.sum(), list(before.parameters()))
        got = f(x)
        agree(got, want)
        agree(torch.autograd.grad(got.sum(), list(model.parameters())), wanted, 1e-8)
    assert len(graphs) == 1


def test_evaluation_frozen_parameters_and_no_grad():
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)).double()
    twin = copy.deepcopy(model)
    model[0].requires_grad_(False), twin[0].requires_grad_(False)
    f, x = compiled(model), randn(6, 5)
    f(x).sum().backward(), twin(x).sum().backward()
    assert model[0].weight.grad is None
    agree(model[3].weight.grad, twin[3].weight.grad)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            out = f(x)
            assert not out.requires_grad
            agree(out, twin(x))
    model.eval(), twin.eval()
    agree(f(x).detach(), twin(x).detach())
    agree(dict(model.state_dict()), dict(twin.state_dict()))


def test_a_graph_is_kept_for_a_second_backward():
    x = randn(4, 3, grad=True)
    y = compiled(lambda v: (v.exp() * v).sum())(x)
    (first,) = torch.autograd.grad(y, x, retain_graph=True)
    agree(torch.autograd.grad(y, x)[0], first)


def test_a_compiled_optimizer():
    models = [nn.Linear(5, 3).double() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    x, steps = randn(4, 5), []
    for m, name in zip(models, ("aot_eager", "einsmith"), strict=True):
        optimizer = torch.optim.Adam(m.parameters(), 0.1)
        steps.append((m, optimizer, torch.compile(optimizer.step, backend=name)))
    for _ in range(3):
        for m, optimizer, step in steps:
            optimizer.zero_grad()
            m(x).square().sum().backward()
            step()
    agree(dict(models[1].state_dict()), dict(models[0].state_dict()))


def test_autocast():
    model, x = nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 8)), torch.randn(9, 40)
    outs = []
    for f in (model, torch.compile(model, backend="einsmith")):
        with torch.autocast("cpu", torch.bfloat16):
            out = f(x)
        grads = torch.autograd.grad(out.float().sum(), list(model.parameters()))
        outs.append([out, *grads])
    for a, b in zip(*outs, strict=True):
        assert a.dtype is b.dtype
        torch.testing.assert_close(b.float(), a.float(), rtol=3e-2, atol=3e-2)


# ------------------------------------------------------------------------------------------------------------ fallback


def _solved(a, x):
    y = torch.linalg.solve(a @ a.T + torch.eye(3, dtype=a.dtype), x.sin())
    return y.cos() * 2


def test_what_has_no_formula_runs_in_pytorch_and_is_said_once():
    a, x = randn(3, 3, grad=True), randn(3, 2, grad=True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            torch._dynamo.reset()
            got = torch.compile(_solved, backend="einsmith")(a, x)
    texts = [str(w.message) for w in said if "linalg_solve_ex" in str(w.message)]
    assert len(texts) == 1 and "torch.linalg.solve(a @ a.T" in texts[0] and "test_torch_compile.py" in texts[0]
    agree(got.detach(), _solved(a, x).detach())
    agree(torch.autograd.grad(got.sum(), (a, x)), torch.autograd.grad(_solved(a, x).sum(), (a, x)))


def test_the_fallback_can_be_an_error():
    with pytest.raises(Exception, match=r"linalg_solve_ex.*runs in PyTorch"):
        compiled(_solved)(randn(3, 3), randn(3, 2))


@pytest.mark.parametrize("options", [{"fallbak": "error"}, {"fallback": "never"}])
def test_unknown_options_are_errors(options):
    with pytest.raises(Exception, match="fallback"):
        torch.compile(torch.sin, backend="einsmith", options=options)(randn(3))


def test_graph_breaks_and_shapes_that_depend_on_data():
    def f(x):
        y = x.sin() + 1
        if y.sum() > 0:  # Dynamo breaks the graph here
            y = y * 2
        places = torch.nonzero(y > 1.5)
        return y[y > 2].sum() + places.double().sum(), torch.unique((y * 4).long())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(3):
            torch.manual_seed(seed)
            x = randn(4, 5)
            agree(torch.compile(f, backend="einsmith")(x), f(x))
            agree(torch.compile(f, backend="einsmith", dynamic=True)(x), f(x))


def test_a_part_that_does_not_compile_runs_in_pytorch(monkeypatch):
    def broken(*args, **kwargs):
        raise ValueError("no such machine")

    monkeypatch.setattr(region, "Executable", broken)
    x = randn(4, 3, grad=True)
    with pytest.warns(UserWarning, match="no such machine"):
        y = torch.compile(lambda v: v.sin() * 2 + v.t().contiguous().t(), backend="einsmith")(x)
    agree(y.detach(), (x.sin() * 2 + x).detach())
    with pytest.raises(Exception, match="no such machine"):
        compiled(lambda v: v.sin() * 3)(x)


@pytest.mark.parametrize("broken", ["choose", "split"])
def test_graphs_like_none_before_are_pytorchs(broken, monkeypatch):
    def failing(*args, **kwargs):
        raise KeyError("unheard of")

    monkeypatch.setattr(saved if broken == "choose" else aot, broken, failing)
    x = randn(4, 3, grad=True)
    with pytest.warns(UserWarning, match="unheard of"):
        y = torch.compile(lambda v: (v.sin() * v).sum(), backend="einsmith")(x)
        agree(torch.autograd.grad(y, x)[0], x.cos() * x + x.sin())


def test_less_is_saved_than_is_computed():
    """Of a chain of operators of elements, its beginning; the sums of batch norm; no copy of a weight."""
    kept = []
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Conv2d(4, 2, 1)).double()
    f, x = compiled(model), randn(5, 3, 9, 8)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = f(x)
    given = {t.data_ptr() for t in (x, *model.parameters(), *model.buffers())}
    made = sum(t.numel() for t in kept if t.data_ptr() not in given)
    assert 5 * 4 * 7 * 6 <= made <= 5 * 4 * 7 * 6 + 40
    y.sum().backward()


def test_control_flow_inside_a_graph():
    def f(x):
        return torch.cond(x.sum() > 0, lambda v: v.sin(), lambda v: v.cos() * 2, (x * 2,)) + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x in (torch.ones(3), -torch.ones(3)):
            agree(torch.compile(f, backend="einsmith")(x), f(x), 1e-6)


def test_indices_out_of_range_are_errors():
    table = randn(5, 3)
    f = compiled(lambda i: table[i] * 2)
    agree(f(torch.tensor([4, -5, 0])), table[[4, -5, 0]] * 2)
    with pytest.raises((IndexError, RuntimeError)):
        f(torch.tensor([4, 5, 0]))


def test_other_types_and_layouts():
    x = torch.randn(3, 4, dtype=torch.complex64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f = torch.compile(lambda v: (v * 2).real + 1, backend="einsmith")
        agree(f(x), (x * 2).real + 1, 1e-6)
        g = torch.compile(lambda v: v.imag * 2, backend="einsmith")
        agree(g(x.conj()), x.conj().imag * 2, 1e-6)  # kept as others with a sign to be put on


# --------------------------------------------------------------------------------------------------- processes, threads


class Served(torch.utils.data.Dataset):
    """Samples that a worker process makes by a compiled function."""

    def __init__(self, f):
        self.f = f

    def __len__(self):
        return 4

    def __getitem__(self, n):
        return self.f(torch.full((6,), float(n)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_workers_of_a_data_loader():
    f = compiled(lambda x: x.exp().sum() * x)
    want = torch.stack([x.exp().sum() * x for x in (torch.full((6,), float(n)) for n in range(4))])
    agree(f(torch.zeros(6)), torch.zeros(6), 1e-5)
    workers = {"num_workers": 1, "multiprocessing_context": "fork", "timeout": 120}
    loader = torch.utils.data.DataLoader(Served(f), batch_size=2, **workers)
    agree(torch.cat(list(loader)), want, 1e-5)
    agree(f(torch.ones(6)), torch.full((6,), 6 * torch.e), 1e-5)


def test_the_entry_point(tmp_path):
    """An installed package is found without being imported."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["torch_dynamo_backends"]
    info = tmp_path / "einsmith_elsewhere-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: einsmith-elsewhere\nVersion: 1\n")
    lines = "\n".join(f"{name} = {target}" for name, target in points.items())
    (info / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{lines}\n")
    text = (
        "import sys, torch\nassert 'einsmith' not in sys.modules\nx = torch.randn(5)\n"
        "f = torch.compile(lambda x: x.sin() + 1, backend='einsmith', fullgraph=True)\n"
        "torch.testing.assert_close(f(x), x.sin() + 1)\nassert 'einsmith.frontends.torch_compile' in sys.modules\n"
    )
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run([sys.executable, "-c", text], env={**os.environ, "PYTHONPATH": paths}, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_errors_are_einsmiths():
    with pytest.raises(EinsmithError):
        split.Options("error").say("aten.foo", "no formula", "here")
