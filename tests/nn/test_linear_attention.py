"""Layers of linear recurrences beside transformers' with the same weights: values, all gradients, and errors."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import einsmith as es
from einsmith import nn
from einsmith.base.errors import ArgumentError, DtypeError, KindError, ShapeError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

WIDTH = 12
DELTA = {"num_heads": 2, "head_dim": 4}
LAYERS = {
    "GatedDeltaNet": DELTA | {"num_value_heads": 6, "value_head_dim": 3},
    "GatedDeltaNet, as many heads": DELTA | {"conv_size": 2, "eps": 0.1},
    "KimiDeltaAttention": DELTA | {"num_heads": 3},
    "KimiDeltaAttention, options": DELTA | {"head_dim": 5, "conv_size": 2, "eps": 0.1},
    "Mamba2": {"state_dim": 5, "head_dim": 4, "num_groups": 3},
    "Mamba2, options": {"state_dim": 3, "head_dim": 6, "expand": 1, "conv_size": 2, "bias": True, "conv_bias": False,
                        "dt_limit": (0.6, 1.1), "eps": 0.1},
    "MLSTM": {"num_heads": 3},
    "MLSTM, options": {"num_heads": 2, "key_dim": 6, "value_dim": 18, "gate_cap": 1.5, "bias": True, "norm_eps": 0.1,
                       "eps": 0.2},
}  # fmt: skip


@contextmanager
def wide() -> Iterator[None]:
    """Let transformers' layers compute in float64 what they convert to float32."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "float32", torch.float64)
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        yield


def ours_of(case: str, **more) -> nn.Module:
    return getattr(nn, case.partition(",")[0])(WIDTH, **LAYERS[case], **more)


def part_of(name: str):
    """A module of transformers' models by its path."""
    return importlib.import_module(f"transformers.models.{name}")


def theirs_of(ours: nn.Module) -> torch.nn.Module:
    """The layer of transformers that is made alike."""
    if isinstance(ours, nn.GatedDeltaNet):
        config = part_of("qwen3_next").Qwen3NextConfig(
            hidden_size=WIDTH, linear_num_key_heads=ours.num_heads, linear_key_head_dim=ours.head_dim,
            linear_num_value_heads=ours.num_value_heads, linear_value_head_dim=ours.value_head_dim,
            linear_conv_kernel_dim=ours.conv_size, rms_norm_eps=ours.eps, num_hidden_layers=1,
        )  # fmt: skip
        return part_of("qwen3_next.modeling_qwen3_next").Qwen3NextGatedDeltaNet(config, 0)
    if isinstance(ours, nn.KimiDeltaAttention):
        config = part_of("kimi_linear").KimiLinearConfig(
            hidden_size=WIDTH, linear_num_heads=ours.num_heads, linear_head_dim=ours.head_dim,
            linear_conv_kernel_dim=ours.conv_size, rms_norm_eps=ours.eps, num_hidden_layers=1,
        )  # fmt: skip
        return part_of("kimi_linear.modeling_kimi_linear").KimiLinearDeltaAttention(config, 0)
    if isinstance(ours, nn.Mamba2):
        config = part_of("mamba2").Mamba2Config(
            hidden_size=WIDTH, num_heads=ours.num_heads, head_dim=ours.head_dim, state_size=ours.state_dim,
            n_groups=ours.num_groups, expand=ours.expand, conv_kernel=ours.conv_size, layer_norm_epsilon=ours.eps,
            time_step_limit=ours.dt_limit, use_bias=ours.in_proj.bias is not None,
            use_conv_bias=ours.conv1d.bias is not None, chunk_size=16, num_hidden_layers=1,
        )  # fmt: skip
        return part_of("mamba2.modeling_mamba2").Mamba2Mixer(config, 0)
    config = part_of("xlstm").xLSTMConfig(
        hidden_size=WIDTH, num_heads=ours.num_heads, qk_dim_factor=ours.key_dim / WIDTH, norm_eps=ours.norm_eps,
        v_dim_factor=ours.value_dim / WIDTH, gate_soft_cap=ours.gate_cap, use_bias=ours.q.bias is not None,
        eps=ours.eps, autocast_kernel_dtype="float32", chunk_size=128,
    )  # fmt: skip
    return part_of("xlstm.modeling_xlstm").xLSTMLayer(config)


def twins(case: str, rng: np.random.Generator, dtype: str = "float64"):
    """Our layer and transformers' in float64, with the same random weights."""
    ours = ours_of(case, dtype=dtype)
    theirs = theirs_of(ours).double()
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(torch.tensor(rng.standard_normal(p.shape) * 0.5))
    assert not any(ours.load_state_dict(theirs.state_dict()))
    return ours, theirs


def wanted(theirs, x: np.ndarray, seed: np.ndarray):
    """Values, the gradient of the input, and those of the parameters by name."""
    given = torch.tensor(x, requires_grad=True)
    y = theirs(given)
    y = y[0] if isinstance(y, tuple) else y
    y.backward(torch.tensor(seed))
    return y.detach().numpy(), given.grad.numpy(), {n: p.grad.numpy() for n, p in theirs.named_parameters()}


def found(ours: nn.Module, x: np.ndarray, seed: np.ndarray):
    params = {n: np.asarray(v) for n, v in ours.state_dict().items()}

    def f(params, x):
        y, pull = es.vjp(lambda p, x: nn.functional_call(ours, p, x), params, x)
        return y, *pull(seed)

    y, by_params, by_x = es.jit(f)(params, x)
    return y, by_x, by_params


def errors(a, b) -> dict[str, tuple[float, float]]:
    """The largest error of each result, and the largest element that it should have."""
    named = {"y": (a[0], b[0]), "x": (a[1], b[1]), **{n: (a[2][n], q) for n, q in b[2].items()}}
    assert all(p.shape == q.shape for p, q in named.values())
    return {n: (np.abs(p - q).max(), np.abs(q).max()) for n, (p, q) in named.items()}


@pytest.mark.parametrize("batch, steps", [(2, 1), (1, 3), (2, 65)])
@pytest.mark.parametrize("case", LAYERS)
def test_layers_equal_those_of_transformers(rng, case: str, batch: int, steps: int) -> None:
    x, seed = rng.standard_normal((2, batch, steps, WIDTH))
    with wide():
        ours, theirs = twins(case, rng)
        exact = wanted(theirs, x, seed)
    for n, (error, size) in errors(found(ours, x, seed), exact).items():
        assert size > 0 or steps == 1, n  # the only step does not decay
        assert error <= 1e-12 * size + 1e-14, (n, error / size)


@pytest.mark.parametrize("case", LAYERS)
def test_errors_in_float32_are_those_of_transformers(rng, case: str) -> None:
    """Relative to the largest element, against float64, of the worst result, by a factor of two."""
    x, seed = rng.standard_normal((2, 2, 65, WIDTH)).astype(np.float32)
    with wide():
        ours, theirs = twins(case, rng, "float32")
        exact = wanted(theirs, *(a.astype(np.float64) for a in (x, seed)))
    theirs.zero_grad()
    results = found(ours, x, seed), wanted(theirs.float(), x, seed)
    error, usual = (max(e / size for e, size in errors(r, exact).values()) for r in results)
    assert error <= 2 * usual < 1e-3


def test_initial_values() -> None:
    es.manual_seed(0)
    gate = nn.KimiDeltaAttention(WIDTH, 32, 4).forget_gate
    for layer in nn.GatedDeltaNet(WIDTH, 8, 4, 64), gate, nn.Mamba2(WIDTH, head_dim=1):
        rates, steps = np.exp(layer.A_log.data), np.log1p(np.exp(layer.dt_bias.data))
        assert 1 <= rates.min() < 3 and 10 < rates.max() <= 16
        assert 0.99e-3 <= steps.min() < 0.01 and 0.05 < steps.max() <= 0.101
    assert (layer.D.data == 1).all()
    layer = nn.MLSTM(WIDTH, 3)
    assert not layer.fgate_preact.weight.data.any() and not layer.igate_preact.weight.data.any()
    np.testing.assert_array_equal(layer.igate_preact.bias.data, [-10, -10, -10])
    np.testing.assert_array_equal(layer.fgate_preact.bias.data, [3, 4.5, 6])
    assert "num_heads=3, key_dim=6, value_dim=12, gate_cap=15.0" in repr(layer)


@pytest.mark.parametrize(
    "make, error, says",
    [
        (lambda: nn.GatedDeltaNet(8, 2, 4, 3), ArgumentError, "num_value_heads=3 must be a multiple of num_heads=2"),
        (lambda: nn.GatedDeltaNet(8, 0, 4), KindError, "num_heads=0"),
        (lambda: nn.KimiDeltaAttention(8, 2, 0), KindError, "head_dim=0"),
        (lambda: nn.KimiDeltaAttention(8, 2, 4, 4, -1.0), KindError, "eps=-1.0"),
        (lambda: nn.Mamba2(8, head_dim=5), ArgumentError, r"expand\*embed_dim=16 must be a multiple of head_dim=5"),
        (lambda: nn.Mamba2(8, head_dim=4, num_groups=3), ArgumentError, "num_heads=4 must be a multiple of num_gr"),
        (lambda: nn.Mamba2(8, head_dim=4, dt_limit=(0.1, 0.1)), ArgumentError, r"dt_limit=\(0.1, 0.1\)"),
        (lambda: nn.Mamba2(8, head_dim=4, dt_limit=(-1, 1)), KindError, "dt_limit="),
        (lambda: nn.MLSTM(8, 3), ArgumentError, "key_dim=4 must be a multiple of num_heads=3"),
        (lambda: nn.MLSTM(8, 3, 3), ArgumentError, "value_dim=8 must be a multiple of num_heads=3"),
        (lambda: nn.MLSTM(8, 2, gate_cap=0), ArgumentError, "gate_cap=0 must be positive"),
    ],
)
def test_wrong_arguments_are_errors(make, error, says: str) -> None:
    with pytest.raises(error, match=says):
        make()


@pytest.mark.parametrize("case", ["GatedDeltaNet", "KimiDeltaAttention", "Mamba2", "MLSTM"])
def test_wrong_inputs_are_errors(case: str) -> None:
    layer = ours_of(case)
    x = np.zeros((2, 3, WIDTH), np.float32)
    for wrong in x[0], x[:, :0], x[..., :3]:
        with pytest.raises(ShapeError, match=f"{case}: 'input'"):
            layer(wrong)
    with pytest.raises(DtypeError, match=f"{case}: 'input' needs floats"):
        layer(x.astype(np.int64))
    assert layer(x[:0]).shape == (0, 3, WIDTH)
