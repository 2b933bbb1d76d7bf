"""What torch.compile(backend="einsmith") saves: gradients are those of eager code where inputs change later."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="its backend is tested")
from torch import nn  # noqa: E402

from tests.frontends.torch_compiled import agree, compiled, fresh, randn  # noqa: E402, F401


def _update_twice(x, b):
    y = x * torch.exp(-b * b)
    b.mul_(0.9).add_(0.1 * x.detach().mean(0))
    z = x * b.sin()
    b.copy_(x.detach().sum(0))
    return y + z * b.tanh()


def _view(x, b):
    y = x * b.view(2, 2).sin().reshape(-1)
    b.mul_(2)
    return y


def _view_written(x, b):
    y = x * b.cos()
    b.view(-1)[1:3].add_(1.5)
    return y * b.exp()


def _index_put(x, b):
    y = x * b.sigmoid()
    b.index_put_((torch.tensor([0, 2]),), x.detach()[0, :2], accumulate=True)
    return y


def _product(x, b):
    y = x @ torch.outer(b, b)
    b.mul_(x.detach().abs().mean())
    return y


def _under_no_grad(x, b):
    y = torch.where(b > 0, x, x * x)
    with torch.no_grad():
        b.neg_().clamp_(max=0.3)
    return y


def _attached(x, b):
    y = x * b.exp().sin()
    b.mul_(x[0])  # the buffer requires a gradient from now on
    return y


WRITES: dict[str, Callable] = {
    f.__name__.strip("_"): f
    for f in (_update_twice, _view, _view_written, _index_put, _product, _under_no_grad, _attached)
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", WRITES)
def test_buffers_that_the_forward_overwrites(kind):
    f = WRITES[kind]
    x, start, g = randn(3, 4, grad=True), randn(4), randn(3, 4)
    ours, theirs = start.clone(), start.clone()
    c = compiled(f) if kind != "index_put" else torch.compile(f, backend="einsmith")
    for _ in range(2):
        y, want = c(x, ours), f(x, theirs)
        agree(y.detach(), want.detach())
        agree(torch.autograd.grad(y, x, g)[0], torch.autograd.grad(want, x, g)[0])
        ours, theirs = ours.detach(), theirs.detach()
        agree(ours, theirs)


def test_running_statistics_of_batch_norm_that_are_read():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4).double()

        def forward(self, x):
            before = self.norm.running_mean.sin() * self.norm.running_var
            return self.norm(x) * before * x

    net, other = Net(), Net()
    f = compiled(net)
    for _ in range(3):
        x, g = randn(5, 4, grad=True), randn(5, 4)
        agree(torch.autograd.grad(f(x), x, g)[0], torch.autograd.grad(other(x), x, g)[0])
    agree(net.norm.running_var, other.norm.running_var)


READS: dict[str, Callable] = {
    "index": lambda x, b: x[:, b.long() % 4],
    "sine": lambda x, b: x * b.sin(),
    "view": lambda x, b: (x.view(3, 2, 2) * b.view(2, 2).exp()).sum(1),
    "mask": lambda x, b: x.masked_fill(b > 0.5, 2.0).square(),
    "normalized": lambda x, b: x @ torch.softmax(b, 0).outer(b.abs().sqrt()),
    "two readers": lambda x, b: torch.relu(x * b.cos()) + x * (b + 1),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", READS)
@pytest.mark.parametrize("way", ["in place", "data"])
def test_tensors_that_eager_code_changes_between_the_passes(kind, way):
    f, x = READS[kind], randn(3, 4, grad=True)
    ours, theirs = (torch.arange(4.0, dtype=torch.float64) for _ in range(2))
    y, want = compiled(f)(x, ours), f(x, theirs)
    for b in (ours, theirs):
        (b if way == "in place" else b.data).add_(1.7)
    agree(torch.autograd.grad(y.sum(), x)[0], torch.autograd.grad(want.sum(), x)[0])


def test_changes_of_what_eager_execution_saves_are_errors():
    x, b = randn(3, 4, grad=True), randn(4)
    y = compiled(lambda x, b: x * b)(x, b)
    b.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y.sum(), x)
