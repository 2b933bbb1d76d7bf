"""Layers on the samples that PyTorch tests its own with, by the reference evaluator in float64.

Each sample says how a module is made and what it is called on. The state of torch's is loaded here, and outputs and
gradients of the inputs are compared: in evaluation mode, and in training mode where nothing is drawn.
"""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from einsmith import nn  # noqa: E402
from tests.nn.twin import agree, derivatives, outputs, peers, torch_testing  # noqa: E402

NAMES = (
    "Bilinear", "BCELoss", "BCEWithLogitsLoss", "CELU", "CTCLoss", "CosineEmbeddingLoss", "CrossEntropyLoss", "ELU",
    "Embedding", "GELU", "GLU", "GaussianNLLLoss", "Hardshrink", "Hardswish", "Hardtanh", "HingeEmbeddingLoss",
    "HuberLoss", "KLDivLoss", "L1Loss", "LeakyReLU", "LogSigmoid", "LogSoftmax", "MSELoss",
    "MarginRankingLoss", "Mish",
    "MultiLabelMarginLoss", "MultiLabelSoftMarginLoss", "MultiMarginLoss", "MultiheadAttention", "NLLLoss",
    "PReLU", "PoissonNLLLoss", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "SmoothL1Loss", "SoftMarginLoss", "Softmax",
    "FractionalMaxPool2d", "FractionalMaxPool3d",
    "Softmax2d", "Softmin", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink", "Threshold", "Transformer",
    "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer",
)  # fmt: skip
IN_BOTH_MODES = (
    *(f"{kind}{n}d" for kind in (
        "AdaptiveAvgPool", "AdaptiveMaxPool", "AvgPool", "BatchNorm", "CircularPad", "ConstantPad", "Conv",
        "ConvTranspose", "InstanceNorm", "LPPool", "MaxPool", "ReflectionPad", "ReplicationPad", "ZeroPad",
    ) for n in (1, 2, 3)),
    "GroupNorm", "LayerNorm", "Linear", "LocalResponseNorm", "RMSNorm",
)  # fmt: skip
CASES = [
    *(pytest.param(name, False, id=name) for name in NAMES),
    *(pytest.param(name, mode, id=f"{name}-{'train' if mode else 'eval'}")
      for name in IN_BOTH_MODES for mode in (True, False)),
]  # fmt: skip
INFOS = {info.name.removeprefix("nn."): info for info in torch_testing("common_modules").module_db}
PLACES = ("device", "dtype")
ONLY_INPUT = ("PoissonNLLLoss", "SoftMarginLoss")  # torch has no gradient by the target, or NaN where that is 0


def samples(name: str, training: bool):
    torch.manual_seed(0)
    return INFOS[name].module_inputs_func(
        INFOS[name], device="cpu", dtype=torch.float64, requires_grad=False, training=training
    )


def array(x):
    return x.detach().numpy() if isinstance(x, torch.Tensor) else x


def ours_of(theirs: torch.nn.Module, name: str, args, kwargs) -> nn.Module:
    """The module that is made alike, in float64, with the state of torch's."""

    def converted(x):
        if isinstance(x, torch.nn.Module):
            return ours_of(x, type(x).__name__, *MADE[id(x)])
        if callable(x) and getattr(torch.nn.functional, getattr(x, "__name__", ""), None) is x:
            import einsmith.functional as F

            return getattr(F, x.__name__)
        return array(x)

    module = getattr(nn, name)(*map(converted, args), **{k: converted(v) for k, v in kwargs.items() if k not in PLACES})
    module.double()
    module.load_state_dict(theirs.state_dict())
    return module


MADE: dict[int, tuple] = {}
"""How torch's modules that are arguments of others were made, by id."""


@pytest.fixture(autouse=True)
def recorded(monkeypatch):
    """Remembers the arguments of the layers that a sample makes for itself."""
    for cls in (torch.nn.TransformerEncoderLayer, torch.nn.TransformerDecoderLayer, torch.nn.LayerNorm):

        def init(self, *args, _original=cls.__init__, **kwargs):
            _original(self, *args, **kwargs)
            MADE[id(self)] = (args, kwargs)

        monkeypatch.setattr(cls, "__init__", init)
    yield
    MADE.clear()


@pytest.mark.thinned(12)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name,training", CASES)
def test_samples(run, rng, name, training) -> None:
    count = 0
    for sample in samples(name, training):
        made, called = sample.constructor_input, sample.forward_input
        if called is None:
            continue
        theirs = getattr(torch.nn, name)(*made.args, **made.kwargs).double().train(training)
        ours = ours_of(theirs, name, made.args, made.kwargs).train(training)
        tensors = [x for x in (*called.args, *called.kwargs.values()) if isinstance(x, torch.Tensor)]
        arrays = [np.array(x.detach().numpy()) for x in tensors]
        places = iter(range(len(tensors)))
        args = [next(places) if isinstance(x, torch.Tensor) else (x,) for x in called.args]
        kwargs = {k: next(places) if isinstance(x, torch.Tensor) else (x,) for k, x in called.kwargs.items()}

        def call(module, values, args=args, kwargs=kwargs):
            def value(x):
                return values[x] if isinstance(x, int) else x[0]

            y = module(*map(value, args), **{k: value(x) for k, x in kwargs.items()})
            return tuple(o for o in outputs(y) if o is not None)

        given = peers(arrays, True)
        for t in given[1:] if name in ONLY_INPUT else ():
            t.requires_grad_(False)
        wanted = call(theirs, given)
        floats = [t for t in given if t.requires_grad]
        chosen = [o for o in wanted if o.is_floating_point()]
        cotangents = [rng.normal(size=tuple(o.shape)) for o in chosen]
        total = sum((o * torch.tensor(c)).sum() for o, c in zip(chosen, cotangents, strict=True))
        grads = []
        if floats and total.requires_grad and name != "CTCLoss":  # whose gradient in torch takes a softmax for granted
            grads = torch.autograd.grad(total, floats, allow_unused=True)
            grads = [torch.zeros_like(t) if g is None else g for g, t in zip(grads, floats, strict=True)]
        n = len(cotangents)

        def f(*values, ours=ours, call=call, n=n, second=bool(grads)):
            if not second:
                return call(ours, values[n:])
            return tuple(derivatives(lambda *v: call(ours, v), values[:n], [], values[n:]))

        found = run(f, *cotangents, *arrays)
        expected = [t.detach().numpy(force=True) for t in (*wanted, *grads)]
        try:
            agree(found[: len(expected)], expected, 1e-9)
        except AssertionError as e:
            raise AssertionError(f"{name}{made.args}{made.kwargs}, sample {sample.desc!r}: {e}") from None
        count += 1
    assert count
