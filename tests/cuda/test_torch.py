"""PyTorch's CUDA tensors: programs run where these lie, in PyTorch's stream, without copies. Tensors of the CPU stand
for them here, and the process's memory for the device's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import einsmith as es
from einsmith.base.errors import DtypeError
from einsmith.driver.cuda import Cuda
from einsmith.runtime.buffers import bytes_at
from tests.cuda.fake import FIRST, FakeDevice, Piece

torch = pytest.importorskip("torch")

from einsmith.frontends import torch_device  # noqa: E402
from einsmith.frontends.torch_operator import operator  # noqa: E402

STREAM = 77


class SharedDevice(FakeDevice):
    """Its memory is the process's, too."""

    def piece(self, address: int, nbytes: int) -> tuple[Piece, int]:
        if address >= FIRST:
            return super().piece(address, nbytes)
        return Piece(address, bytes_at(address, nbytes), np.ones(nbytes, bool)), 0


@pytest.fixture
def pretended(card: Callable[..., Cuda], monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedDevice]:
    """Tensors of the CPU are taken for ones of "cuda:0", unless they have the attribute `here`."""
    made = card()
    device = made.card.device
    device.__class__ = SharedDevice
    streams: list[int] = []
    launch = SharedDevice.launch
    monkeypatch.setattr(
        SharedDevice, "launch", lambda d, graph, stream: (streams.append(stream), launch(d, graph, stream))
    )
    monkeypatch.setattr(torch_device, "device_of", lambda x: "cpu" if hasattr(x, "here") else "cuda:0")
    monkeypatch.setattr(torch_device, "_torch_device", lambda name: torch.device("cpu"))
    monkeypatch.setattr(torch_device, "_current_stream", lambda name: STREAM)
    monkeypatch.setattr(torch_device, "_synchronize", lambda name: None)
    torch_device.place.cache_clear()
    yield device
    torch_device.place.cache_clear()
    assert streams and set(streams) == {STREAM}


def test_an_operator_and_its_gradients(pretended: SharedDevice) -> None:
    g = operator(es.op("y[i,j] = tanh(sum[k](a[i,k]*b[k,j]))*c[j]"))
    torch.manual_seed(0)
    a, b, c = (torch.randn(s, requires_grad=True) for s in ((7, 5), (5, 9), (9,)))
    want = torch.autograd.grad((torch.tanh(a @ b) * c).square().sum(), (a, b, c))
    uploaded = pretended.uploaded
    found = torch.autograd.grad(g(a, b, c).square().sum(), (a, b, c))
    assert pretended.uploaded - uploaded < 2000  # words of guards alone
    for x, y in zip(found, want, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_a_compiled_module_trains(pretended: SharedDevice) -> None:
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.Tanh(), torch.nn.LayerNorm(9), torch.nn.Linear(9, 3))
    x = torch.randn(5, 7)
    compiled = torch.compile(net, backend="einsmith", options={"fallback": "error"})

    def gradients(f: Callable) -> list:
        net.zero_grad()
        loss = f(x).square().mean()
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in net.parameters())]

    want = gradients(net)
    for found, y in zip(gradients(compiled), want, strict=True):
        torch.testing.assert_close(found, y, rtol=1e-4, atol=1e-5)


def test_tensors_of_two_devices_are_refused(pretended: SharedDevice) -> None:
    g = operator(es.op("y[i] = a[i]*b[i]"))
    a, b = torch.randn(4), torch.randn(4)
    g(a, b)
    b.here = True
    with pytest.raises(DtypeError, match="another tensor on cuda:0"):
        g(a, b)
