"""The methods that traced tensors share with PyTorch's, by name, arguments and results."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es

CALLS = [
    ("permute", lambda x: x.permute(2, 0, 1)),
    ("permute", lambda x: x.permute((0, -1, 1))),
    ("permute", lambda x: x.permute(dims=(1, 2, 0))),
    ("view", lambda x: x.view(3, -1)),
    ("view", lambda x: x.view((5, 1, -1))),
    ("flatten", lambda x: x.flatten()),
    ("flatten", lambda x: x.flatten(1)),
    ("flatten", lambda x: x.flatten(start_dim=0, end_dim=1)),
    ("unsqueeze", lambda x: x.unsqueeze(0)),
    ("unsqueeze", lambda x: x.unsqueeze(dim=-1)),
    ("squeeze", lambda x: x.unsqueeze(1).squeeze()),
    ("squeeze", lambda x: x.unsqueeze(1).squeeze(1)),
    ("squeeze", lambda x: x.squeeze(0)),
    ("expand", lambda x: x.unsqueeze(0).expand(2, -1, 5, 4)),
    ("expand", lambda x: x.expand((2, -1, -1, -1))),
    ("chunk", lambda x: x.chunk(2, dim=1)),
    ("chunk", lambda x: x.chunk(3)),
    ("split", lambda x: x.split(2, 1)),
    ("split", lambda x: x.split([1, 4], dim=1)),
    ("split", lambda x: x.split(split_size=2)),
    ("softmax", lambda x: x.softmax(-1)),
    ("softmax", lambda x: x.softmax(dim=1)),
    ("masked_fill", lambda x: x.masked_fill(x > 0, -1.5)),
    ("transpose", lambda x: x.transpose(1, 2)),
    ("transpose", lambda x: x.transpose(-1, 0)),
]
PLAIN = {"permute", "view", "flatten", "unsqueeze", "squeeze", "expand", "chunk", "split", "softmax", "masked_fill"}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name,call", CALLS, ids=[n for n, _ in CALLS])
def test_as_torch_s(name, call, torch, rng):
    x = rng.standard_normal((3, 5, 4))
    want = call(torch.tensor(x))
    for run in (es.jit, es.interpret):
        got = run(call)(x)
        if isinstance(want, tuple):
            assert len(got) == len(want)
        pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
        for a, b in pairs:
            assert a.shape == tuple(b.shape)
            np.testing.assert_allclose(a, b.numpy(), rtol=1e-12)


def test_every_name_is_tried():
    assert {n for n, _ in CALLS} == PLAIN | {"transpose"}


def test_numpy_s_transpositions_stay(rng):
    """Two numbers are an order of two dimensions, and more of more."""
    x, y = rng.standard_normal((3, 5)), rng.standard_normal((3, 5, 4))
    for order in ((), (0, 1), (1, 0)):
        got = es.jit(lambda v, o=order: v.transpose(*o), static_argnames="o")(x)
        np.testing.assert_array_equal(got, x.transpose(*order))
    for order in ((), (2, 0, 1)):
        got = es.jit(lambda v, o=order: v.transpose(*o), static_argnames="o")(y)
        np.testing.assert_array_equal(got, y.transpose(*order))


def test_a_forward_pass_of_torch_runs_unchanged(torch, rng):
    """Heads of attention, split and joined by methods; parameters have them as well."""

    def heads(x, w, mask):
        b, t, _ = x.shape
        parts = (x @ w.transpose(0, 1)).view(b, t, 3, 2, -1).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unsqueeze(0).flatten(0, 1).chunk(3)
        scores = (q.squeeze(0) @ k.squeeze(0).transpose(-2, -1)).masked_fill(mask, -1e9).softmax(-1)
        return (scores @ v.squeeze(0)).transpose(1, 2).flatten(2)

    def own(x, w, mask):
        return heads(x, w.T, mask).sum()  # NumPy's meaning of transpose(0, 1) of two dimensions

    x, w = rng.standard_normal((2, 5, 6)), rng.standard_normal((18, 6))
    mask = np.triu(np.ones((5, 5), bool), 1)
    tensors = [torch.tensor(a, requires_grad=a.dtype == np.float64) for a in (x, w, mask)]
    heads(*tensors).sum().backward()
    for got, t in zip(es.grad(own, argnums=(0, 1))(x, w, mask), tensors, strict=False):
        np.testing.assert_allclose(got, t.grad.numpy(), rtol=1e-9, atol=1e-12)


class Turned(es.nn.Module):
    def __init__(self):
        self.weight = es.nn.Parameter(np.arange(6.0).reshape(1, 2, 3))

    def forward(self, x):
        return x + self.weight.permute(0, 2, 1).squeeze(0).flatten()


def test_parameters_have_them():
    np.testing.assert_array_equal(Turned()(np.zeros(6)), [0, 3, 1, 4, 2, 5])


@pytest.mark.parametrize("call,words", [
    (lambda x: x.repeat(2), r"no attribute 'repeat'; use es\.functional\.repeat\(x, \.\.\.\)"),
    (lambda x: x.permuted(0, 1), r"no attribute 'permuted'; did you mean \.permute"),
    (lambda x: x.zzz, "no attribute 'zzz'; it has"),
    (lambda x: x.permute(0), "permute: dims=.* does not name each of 3"),
    (lambda x: x.permute((0, 1, 2), dims=1), "permute takes"),
    (lambda x: x.view(7, -1), "do not fill"),
    (lambda x: x.view("a"), "reshape: shape=.* must be"),
    (lambda x: x.unsqueeze(9), "dim=9 is no dimension"),
    (lambda x: x.transpose(0, 7), "transpose: dim=7 is no dimension"),
    (lambda x: x.split(-1), "split_size_or_sections=-1"),
    (lambda x: x.masked_fill(1, 2), "'mask' must hold bools"),
])  # fmt: skip
def test_errors(call, words, rng):
    with pytest.raises(es.EinsmithError, match=words):
        es.jit(call)(rng.standard_normal((3, 5, 4)))


def test_missing_names_are_missing_attributes():
    assert es.jit(lambda x: 1 if hasattr(x, "nothing_of_it") or hasattr(x, "__nothing__") else 2)(np.ones(2)) == 2
    assert issubclass(es.UnknownAttributeError, AttributeError)
    for thing in (es.nn.Linear(2, 2), es.nn.Parameter(np.ones(2))):
        with pytest.raises(es.UnknownAttributeError, match="has no attribute 'nothing'"):
            _ = thing.nothing
