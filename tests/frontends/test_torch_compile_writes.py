"""Changes in place through views with gaps and overlaps: the caller's tensors end as after eager execution."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="its backend is tested")

from einsmith.base.errors import TraceError  # noqa: E402
from einsmith.frontends.torch import from_torch  # noqa: E402
from tests.frontends.torch_compiled import compiled, fresh, randn  # noqa: E402, F401

VIEWS: dict[str, Callable] = {
    "step": lambda x: x[1::2],
    "transposed": lambda x: x.t(),
    "columns": lambda x: x[:, ::2],
    "column": lambda x: x[:, 1],
    "block": lambda x: x[1:3, 1:4],
    "diagonal": lambda x: x.diagonal(),
    "as_strided": lambda x: x.as_strided((2, 3), (8, 2), 1),
    "overlapping": lambda x: x.as_strided((3, 3), (2, 1)),
    "windows": lambda x: x.unfold(1, 3, 2),
    "overlapping windows": lambda x: x.unfold(1, 3, 1),
    "expanded": lambda x: x[:1].expand(4, 6),
    "row of expanded": lambda x: x[:1].expand(4, 6)[2],
    "permuted": lambda x: x.view(2, 2, 6).permute(2, 0, 1)[::2],
    "nothing": lambda x: x[:0],
}
CHANGES: dict[str, Callable] = {
    "add_": lambda v: v.add_(1),
    "mul_": lambda v: v.mul_(v.sum()),
    "sin_": lambda v: v.sin_(),
    "fill_": lambda v: v.fill_(7),
    "copy_": lambda v: v.copy_(torch.linspace(0, 1, v.numel(), dtype=v.dtype).view(v.shape)),
    "setitem": lambda v: v.__setitem__(slice(0, 1), 5.0),
    "relu": lambda v: torch.nn.functional.relu(v, inplace=True),
    "out": lambda v: torch.add(v, 1, out=v),
    "index_fill_": lambda v: v.index_fill_(-1, torch.tensor([0]), 4.0),
}
OF_ARGUMENTS: dict[str, Callable] = {
    "itself": lambda v: v,
    "last": lambda v: v.select(-1, -1),
    "as_strided": lambda v: v.as_strided((2, 2), (3, 1)),
}


def _run(f: Callable, argument: Callable, base: torch.Tensor) -> object:
    base = base.clone()
    try:
        return f(argument(base)).clone(), base
    except RuntimeError:
        return None


def _compare(f: Callable, argument: Callable = lambda x: x) -> None:
    """Compare a function's result and the memory of its argument, a view of a tensor, with eager execution's."""
    base = randn(4, 6)
    want = _run(f, argument, base)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = _run(torch.compile(f, backend="einsmith"), argument, base)
    if want is not None:  # eager execution refuses some
        assert got is not None
        torch.testing.assert_close(got, want)


TABLE = [
    pytest.param(v, c, marks=() if k % 11 == 0 else pytest.mark.slow)
    for k, (v, c) in enumerate(itertools.product(VIEWS, CHANGES))
]


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("view", "change"), TABLE)
def test_views_in_the_function_and_views_as_arguments(view, change):
    def inside(x):
        v = VIEWS[view](x)
        CHANGES[change](v)
        return v * 2 + x.sum()

    def argument(v):
        CHANGES[change](v)
        return v * 2

    _compare(inside)
    _compare(argument, VIEWS[view])


@pytest.mark.thinned(3)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("second", OF_ARGUMENTS)
def test_views_of_arguments_that_are_views(view, second):
    if second == "as_strided" and view in ("nothing", "column", "row of expanded"):
        return

    def f(v):
        w = OF_ARGUMENTS[second](v)
        w.add_(1)
        return v * 2 + w.sum()

    _compare(f, VIEWS[view])


@pytest.mark.thinned(2)
@pytest.mark.parametrize("view", ["step", "transposed", "columns", "block"])
def test_as_strided_reads_memory(view):
    for offset in (None, 7):
        _compare(lambda v, offset=offset: v.as_strided((2, 2), (3, 1), offset) * 2, VIEWS[view])
        _compare(lambda v, offset=offset: (v * 2).as_strided((2, 2), (3, 1), offset and 1).sin(), VIEWS[view])


def test_refusals_name_the_line():
    def f(x):
        x.expand(4, 6).add_(1)
        return x

    with pytest.raises(Exception, match=r"share memory[^$]*x.expand\(4, 6\).add_\(1\)"):
        compiled(f)(randn(1, 6))

    class Strided(torch.nn.Module):
        def forward(self, x):
            return x.t().as_strided((2, 2), (3, 1), 1) * 2

    with pytest.raises(TraceError, match=r"not contiguous[^$]*x.t\(\).as_strided"):
        from_torch(Strided(), torch.randn(3, 4))


def test_changes_in_place_of_batches():
    def f(x):
        def g(v):
            w = v.clone()
            w[0] = 5
            return w.add_(v) * 2

        return torch.func.vmap(g)(x)

    _compare(f)


def test_calls_that_change_nothing_are_compiled():
    """A number 1 and the True of another option are no inplace=True."""

    def f(x):
        rows = x.unsqueeze(0).expand(3, -1)
        return rows[:, :1] - 1, rows.sum(0, True), torch.nn.functional.relu(rows, False)

    x = torch.arange(5.0)
    torch.testing.assert_close(compiled(f)(x), f(x), rtol=0, atol=0)
