"""torch.compile(model, backend="einsmith"): the numbers, memory and side effects of PyTorch."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="its backend is tested")
from torch import nn  # noqa: E402
from torch.nn import functional as tf  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from einsmith.frontends.torch_compile import region, result_pool  # noqa: E402
from tests.frontends.torch_compiled import agree, compiled, fresh, randn  # noqa: E402, F401

ROOT = Path(__file__).parents[2]


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


def test_in_place_changes_reach_the_argument():
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


def test_results_for_inputs_are_written_where_these_lie(monkeypatch):
    """By the program itself where they are aligned and contiguous; of others, and of what is read later, copied."""

    def f(x, m, y):
        m.mul_(0.5).add_(y)
        x.sub_(m.flip(0) * x.sum())
        return (m * y).sum()

    def g(x, m, y):
        old = x * 2
        x.add_(y)
        m.copy_(x.t())
        return old + m, x[0]

    made = []
    kept = region.RegionProgram.__init__
    monkeypatch.setattr(region.RegionProgram, "__init__", lambda self, *a: (kept(self, *a), made.append(self))[0])
    rows = torch.zeros(50, dtype=torch.float64)[1:37].view(6, 6)  # contiguous, but not aligned
    for way in (torch.zeros(6, 6, dtype=torch.float64), torch.zeros(6, 6, dtype=torch.float64).t(), rows):
        for h in (f, g):
            torch._dynamo.reset()
            run = compiled(h)
            for _ in range(2):
                x, m, y = way.clone() if way is not rows else rows, randn(6, 6), randn(6, 6)
                x.copy_(randn(6, 6))
                twins, version = (x.clone(), m.clone(), y.clone()), m._version
                agree(run(x, m, y), h(*twins))
                torch.testing.assert_close((x, m, y), twins, rtol=1e-12, atol=1e-12)
                assert m._version > version
    assert any(p.in_place for p in made) and not all(p.in_place for p in made)
    assert 1 in {len(p.result_layouts) for p in made if p.in_place}  # of f, the sum alone


def test_inputs_that_overlap():
    x = randn(20)
    views = x.as_strided((4, 5), (2, 1)), x.as_strided((3, 7), (0, 1)), x[3:].unfold(0, 4, 1)
    for v in views:
        agree(compiled(lambda v: v.sum(0) * v)(v), v.sum(0) * v)


def test_memory_of_results_is_not_shared():
    n = result_pool.FROM // 8 + 3
    f = compiled(lambda x: x + 1)
    first = f(torch.zeros(n, dtype=torch.float64))
    second = f(torch.ones(n, dtype=torch.float64))
    assert (first == 1).all() and (second == 2).all()
    at, view = first.data_ptr(), first[5:]
    del first
    third = f(torch.zeros(n, dtype=torch.float64))
    assert third.data_ptr() != at and (view == 1).all()
    del view
    kept = result_pool.free_bytes()
    assert kept >= 8 * n
    fourth = f(torch.full((n,), 3.0, dtype=torch.float64))
    assert fourth.data_ptr() == at and (fourth == 4).all() and (third == 1).all() and result_pool.free_bytes() < kept


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
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), *head).double()

    def count(gm, inputs, **options):
        graphs.append(gm)
        from einsmith.frontends.torch_compile import backend

        return backend(gm, inputs, options={"fallback": "error"})

    f = torch.compile(model, backend=count)
    for n in (4, 3, 7, 4):
        x = randn(n, 3, 5, 6)
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


@pytest.mark.slow
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
