"""Parameters that do not train as constants of the backend's programs (option `frozen`)."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="its backend is tested")

from einsmith.base.errors import ArgumentError  # noqa: E402
from einsmith.driver import executable  # noqa: E402
from einsmith.frontends.torch import refresh  # noqa: E402
from einsmith.frontends.torch_compile import frozen  # noqa: E402
from einsmith.nn.frozen import KINDS, KeptWeight  # noqa: E402
from tests.frontends.torch_compiled import compiled, fresh  # noqa: E402, F401

KEEPS = [True, "bf16", "int8"]


@pytest.fixture
def packs_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have kernels pack all constants once, however little that saves."""
    from einsmith.schedule import pipeline

    monkeypatch.setattr(pipeline, "LEAST_SAVED", -10.0)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """A list that gets the programs that are compiled."""
    out: list[Any] = []
    make = executable.Executable.__init__

    def note(self: Any, *args: Any, **more: Any) -> None:
        make(self, *args, **more)
        if more.get("memories"):
            out.append(self)

    monkeypatch.setattr(executable.Executable, "__init__", note)
    yield out
    out.clear()


def network(*widths: int) -> Any:
    """Return layers of which the first and the last do not train, after a layer that does."""
    sizes = widths or (7, 17, 16, 3)
    layers: list[Any] = []
    for a, b in zip(sizes, sizes[1:], strict=False):
        layers += [torch.nn.Linear(a, b), torch.nn.Tanh()]
    out = torch.nn.Sequential(*layers)
    for n in (0, len(layers) - 2):
        out[n].requires_grad_(False)
    return out


def kept(model: Any, keep: bool | str) -> Any:
    """Return a copy of a model whose frozen matrices have the values that are kept of them."""
    return keep_values(deepcopy(model), keep)


def keep_values(model: Any, keep: bool | str) -> Any:
    """Set the frozen matrices of a model to the values that are kept of them; return the model."""
    for p in model.parameters():
        if isinstance(keep, str) and not p.requires_grad and p.ndim > 1:
            weight = KeptWeight(tuple(p.shape), KINDS[keep])
            weight.store(p.detach().numpy())
            p.data = torch.from_numpy(np.array(weight.numpy()))
    return model


def results(f: Any, model: Any, rows: int, width: int = 7) -> list[torch.Tensor]:
    """Return the output and the gradients of a call, the input's included."""
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(rows)).requires_grad_()
    y = f(x)
    y.square().sum().backward()
    out = [y.detach(), x.grad, *(p.grad for p in model.parameters() if p.requires_grad)]
    for p in model.parameters():
        p.grad = None
    return out


def check(f: Any, model: Any, keep: bool | str, rows: int, width: int = 7) -> None:
    """Compare a call of the compiled model with eager execution, of the kept values."""
    eager = kept(model, keep)
    torch.testing.assert_close(results(f, model, rows, width), results(eager, eager, rows, width), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("sizes", [(7, 17, 16, 3), (7, 1, 15, 1), (7, 64, 33, 31)])
def test_values(keep: bool | str, sizes: tuple[int, ...], packs_all: None) -> None:
    model = network(*sizes)
    f = compiled(model, frozen=keep)
    for rows in (1, 5, 16, 5, 17, 1):
        check(f, model, keep, rows)


@pytest.mark.parametrize("keep", KEEPS)
def test_without_gradients(keep: bool | str) -> None:
    model = network().requires_grad_(False)
    f, x = compiled(model, frozen=keep), torch.randn(5, 7)
    torch.testing.assert_close(f(x), kept(model, keep)(x), rtol=2e-5, atol=2e-5)
    before = f(x)
    with torch.no_grad():
        model[0].weight.zero_()
    assert (f(x) - before).abs().max() > 1e-3


@pytest.mark.parametrize("keep", KEEPS)
def test_changes(keep: bool | str, packs_all: None) -> None:
    """Changes that PyTorch counts are followed, those through `.data` after `refresh`."""
    model = network()
    f = compiled(model, frozen=keep)
    check(f, model, keep, 5)
    model.load_state_dict({name: value * 1.5 for name, value in model.state_dict().items()})
    check(f, model, keep, 5)
    with torch.no_grad():
        model[0].weight.mul_(-1)
    check(f, model, keep, 5)
    for p in model.parameters():
        p.data *= 0.7
    refresh(model)
    check(f, model, keep, 5)
    model[4].weight.data = torch.randn(3, 16)  # other memory
    check(f, model, keep, 5)
    model[0].weight = torch.nn.Parameter(torch.randn(17, 7), requires_grad=False)
    check(f, model, keep, 5)


def test_weights_that_train_later() -> None:
    model = network()
    f = compiled(model, frozen="int8")
    check(f, model, "int8", 5)
    model.requires_grad_(True)
    check(f, model, "int8", 5)
    model[2].requires_grad_(False)
    check(f, model, "int8", 5)


def test_a_change_between_the_passes() -> None:
    model = network()
    y = compiled(model, frozen=True)(torch.randn(5, 7))
    refresh(model)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("keep", KEEPS)
def test_two_models(keep: bool | str, packs_all: None) -> None:
    """Models of one class share code, not weights; so do layers that are compiled one by one."""
    torch._dynamo.utils.counters.clear()
    models = [network(), network()]
    fs = [compiled(m, frozen=keep) for m in models]
    for _ in range(2):
        for f, model in zip(fs, models, strict=True):
            check(f, model, keep, 5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("keep", KEEPS)
def test_packing_once(keep: bool | str, packs_all: None, programs: list[Any]) -> None:
    """No step after the first packs anything, until weights change."""
    model = network(7, 64, 64, 64)
    f = compiled(model, frozen=keep)
    check(f, model, keep, 16)
    prepared = [(p, n) for p in programs for n in p.runs.bindings.values() if n.preparation is not None]
    assert prepared
    times = [b.prepared for _, b in prepared]
    for _ in range(3):
        check(f, model, keep, 16)
    assert [b.prepared for _, b in prepared] == times
    refresh(model)
    check(f, model, keep, 16)
    assert all(b.prepared > t for (_, b), t in zip(prepared, times, strict=True))


def test_memory_goes_with_the_model(packs_all: None) -> None:
    model = network(7, 64, 64, 64)
    f = compiled(model, frozen="bf16")
    check(f, model, "bf16", 16)
    x = model[0].weight
    weight = frozen.ref(frozen.weight_of(x, "bf16"))
    programs = frozen.ref(next(iter(frozen._of_storage(model[0].weight.untyped_storage()).programs.values()), f))
    assert weight() is not None
    del model, x, f
    torch._dynamo.reset()
    gc.collect()
    assert weight() is None and programs() is None


def test_replaced_weights_go(packs_all: None) -> None:
    """Programs of a weight that was replaced go at the next call."""
    model = network(7, 64, 64, 64)
    f = compiled(model, frozen="bf16")
    check(f, model, "bf16", 16)
    weight = frozen.ref(frozen.weight_of(model[4].weight, "bf16"))
    model[4].weight = torch.nn.Parameter(torch.randn(64, 64), requires_grad=False)
    check(f, model, "bf16", 16)
    gc.collect()
    assert weight() is None


def test_tied_weights_and_buffers() -> None:
    """Tied weights are one constant; buffers may change through `.data`, too."""

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(13, 8)
            self.middle = torch.nn.Linear(8, 8)
            self.head = torch.nn.Linear(8, 13, bias=False)
            self.head.weight = self.words.weight
            self.words.weight.requires_grad = False
            self.register_buffer("scale", torch.ones(8))

        def forward(self, x: Any) -> Any:
            return self.head(self.middle(self.words(x)) * self.scale)

    model = Tied()
    f, x = compiled(model, frozen=True), torch.randint(13, (3, 5))
    for _ in range(2):
        torch.testing.assert_close(f(x), model(x), rtol=2e-5, atol=2e-5)
        model.scale.data *= 2


def test_weights_that_the_function_changes() -> None:
    weight = torch.nn.Parameter(torch.ones(3, 4), requires_grad=False)

    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            weight.mul_(2)
        return x @ weight

    f, x = compiled(step, frozen="bf16"), torch.randn(2, 3)
    for n in range(1, 4):
        torch.testing.assert_close(f(x), x @ torch.full((3, 4), 2.0**n))


def test_other_orders_in_memory() -> None:
    model = network(7, 64, 33, 31)
    for n in (0, 4):
        model[n].weight.data = model[n].weight.data.t().contiguous().t()
    f = compiled(model, frozen=True)
    check(f, model, True, 5)


def test_autocast() -> None:
    """Values are eager autocast's, but for the roundings of its sums."""
    model = network(7, 64, 64, 64)
    f = compiled(model, frozen="bf16")
    with torch.autocast("cpu", torch.bfloat16):
        for rows in (5, 16, 5):
            ours, theirs = results(f, model, rows), results(model, model, rows)
            for a, b in zip(ours, theirs, strict=True):
                assert (a.float() - b.float()).abs().max() < 3e-2 * b.float().abs().max()


def test_wrong_options() -> None:
    x = torch.randn(5, 7)
    for wrong in ("fp8", 3, None):
        torch._dynamo.reset()
        with pytest.raises(Exception, match="frozen=") as e:
            compiled(network(), frozen=wrong)(x)
        assert ArgumentError.__name__ in repr(e.value)


def test_values_that_cannot_be_kept() -> None:
    model, x = network(), torch.randn(5, 7)
    f = compiled(model, frozen="int8")
    f(x)
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    with pytest.raises(ArgumentError, match=r"shape \[17, 7\].*finite"):
        f(x)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"shape \[17, 7\].*finite"):
        compiled(model, frozen="int8")(x)
