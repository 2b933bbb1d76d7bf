"""Operators that PyTorch decomposes, by the backend and by imported modules, against eager PyTorch on awkward data."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="its operators are compared with")
from torch.nn import functional as F  # noqa: E402

from einsmith.frontends import torch_whole  # noqa: E402
from einsmith.frontends.torch import from_torch  # noqa: E402
from tests.frontends.torch_compiled import compiled, fresh  # noqa: E402, F401


def values_and_derivatives(f, x, *rest):
    x = x.detach().clone().requires_grad_()
    ys = f(x, *rest)
    return [v for y in ys for v in (y.detach(), torch.autograd.grad(y.sum(), x, retain_graph=True)[0])]


def class_lists(rng, batch, classes):
    """Lists of classes whose first -1 may stand anywhere, or nowhere; behind it there are further classes."""
    lists = rng.permuted(np.tile(np.arange(classes), (batch, 1)), axis=1)
    lists[rng.random(lists.shape) < 0.3] = -1
    return lists


@pytest.mark.thinned(3)
@pytest.mark.parametrize("shape", [(6, 7), (5,), (2, 1)])
def test_multilabel_margins_end_their_lists_at_the_first_negative(shape, rng):
    x = torch.tensor(rng.normal(size=shape))
    targets = torch.tensor(class_lists(rng, *(shape if len(shape) > 1 else (1, *shape))).reshape(shape))

    def losses(x, t):
        # PyTorch traces the unreduced loss of one list with the shape (1,), and computes it with the shape ().
        return [F.multilabel_margin_loss(x, t, reduction=r).reshape(-1) for r in ("none", "mean", "sum")]

    wanted = values_and_derivatives(losses, x, targets)
    torch.testing.assert_close(values_and_derivatives(compiled(losses), x, targets), wanted)

    class Losses(torch.nn.Module):
        def forward(self, x, t):
            return tuple(losses(x, t))

    imported = from_torch(Losses(), x, targets)(x.numpy(), targets.numpy())
    for ours, theirs in zip(imported, wanted[::2], strict=True):
        np.testing.assert_allclose(np.asarray(ours), theirs.numpy())


def test_pytorch_decomposes_again_after_a_graph_is_traced():
    """Another compiler finds PyTorch as it was, and overlapping tracers all see whole operators."""
    kernels = [dict(op.py_kernels) for op in torch_whole.WHOLE]
    assert all(torch._C.DispatchKey.Autograd in k for k in kernels)
    with torch_whole.keep_whole():
        with torch_whole.keep_whole():
            pass
        assert not any(torch._C.DispatchKey.Autograd in op.py_kernels for op in torch_whole.WHOLE)
    compiled(lambda x: F.softshrink(x))(torch.randn(3))
    assert [dict(op.py_kernels) for op in torch_whole.WHOLE] == kernels
