"""Functions of transformers' layers that Einsmith takes the place of, against steps in float64."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import einsmith as es  # noqa: E402
from einsmith.frontends import transformers as door  # noqa: E402
from einsmith.frontends.transformers import delta_rules, registering, state_spaces  # noqa: E402

MODELS = "transformers.models"


@pytest.fixture
def enabled() -> Iterator[list[str]]:
    yield door.enable()
    door.disable()


def models(name: str):
    return importlib.import_module(f"{MODELS}.{name}.modeling_{name}")


def delta_rule(q, k, v, g, beta, normalizes: bool):
    """The gated delta rule in steps; g by head or by key."""
    if normalizes:
        q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    q, k = (x.repeat_interleave(v.shape[2] // k.shape[2], 2) for x in (q, k))
    state, out = v.new_zeros(v.shape[0], v.shape[2], k.shape[3], v.shape[3]), []
    for t in range(v.shape[1]):
        state = state * g[:, t].exp().reshape(*state.shape[:2], -1, 1)
        u = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + k[:, t, :, :, None] * u[:, :, None]
        out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]) * q.shape[-1] ** -0.5)
    return torch.stack(out, 1), state


def scan(x, dt, A, B, C, D):
    state, out = x.new_zeros(x.shape[0], x.shape[2], x.shape[3], B.shape[3]), []
    B, C = (y.repeat_interleave(x.shape[2] // B.shape[2], 2) for y in (B, C))
    for t in range(x.shape[1]):
        state = state * (A * dt[:, t]).exp()[..., None, None]
        state = state + (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        out.append(torch.einsum("bhpn,bhn->bhp", state, C[:, t]) + D[:, None] * x[:, t])
    return torch.stack(out, 1), state


def with_gradients(f: Callable, inputs, dtype) -> list:
    x = [a.to(dtype).requires_grad_() for a in inputs]
    y, last = f(*x)
    loss = (y.cos() * 0.1 + y).sum() + last.sum()
    return [y.detach(), last.detach(), *torch.autograd.grad(loss, x)]


def agree(found, wanted) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert (a - b).abs().max() <= 3e-6 * b.abs().max()


@pytest.mark.parametrize("name", ["chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"])
@pytest.mark.parametrize("by_key", [False, True])
def test_delta_rules(name: str, by_key: bool) -> None:
    torch.manual_seed(0)
    heads, width = 4, 6
    q, k = torch.randn(2, 2, 19, 2, width)
    v, g, beta = torch.randn(2, 19, heads, 5), -torch.rand(2, 19, heads), torch.rand(2, 19, heads)
    if by_key:
        q, k, g = torch.randn(2, 19, heads, width), torch.randn(2, 19, heads, width), -torch.rand(2, 19, heads, width)
    f = door.FUNCTIONS[name]
    own = lambda *x: f(*x, output_final_state=True, use_qk_l2norm_in_kernel=True)  # noqa: E731
    wanted = with_gradients(lambda *x: delta_rule(*x, True), (q, k, v, g, beta), torch.float64)
    agree(with_gradients(own, (q, k, v, g, beta), torch.float32), wanted)
    assert f(q, k, v, g, beta)[1] is None
    assert f(*(x.bfloat16() for x in (q, k, v, g, beta)))[0].dtype is torch.bfloat16


def test_scans() -> None:
    torch.manual_seed(0)
    x, dt = torch.randn(2, 19, 4, 5), torch.rand(2, 19, 4)
    a, d, left, right = -torch.rand(4), torch.randn(4), torch.randn(2, 19, 2, 6), torch.randn(2, 19, 2, 6)
    f = state_spaces.mamba_chunk_scan_combined
    own = lambda x, dt, A, B, C, D: f(x, dt, A, B, C, 8, D=D, return_final_states=True)  # noqa: E731
    inputs = x, dt, a, left, right, d
    agree(with_gradients(own, inputs, torch.float32), with_gradients(scan, inputs, torch.float64))
    low = f(x, dt - 3, a, left, right, dt_bias=d, dt_softplus=True, dt_limit=(0.1, 2.0))
    step = torch.nn.functional.softplus(dt - 3 + d).clamp(0.1, 2.0)
    agree([low], [f(x, step, a, left, right)])


@pytest.fixture
def calls(monkeypatch) -> list[Callable]:
    """The functions that Einsmith has run."""
    out, rule = [], delta_rules.DELTA_RULES[False, True]
    monkeypatch.setitem(delta_rules.DELTA_RULES, (False, True), lambda *x: out.append(rule) or rule(*x))
    return out


def test_models_take_and_give_back_functions(enabled: list[str], calls: list[Callable]) -> None:
    assert enabled == sorted([*door.FUNCTIONS, *door.METHODS])
    door.disable()
    module = models("qwen3_next")
    rows = [torch.randn(1, 9, 2, 4) for _ in range(3)]
    given = *rows, -torch.rand(1, 9, 2), torch.rand(1, 9, 2)
    wanted = module.torch_chunk_gated_delta_rule(*given, output_final_state=True)
    assert not calls
    door.enable()
    for options in ({}, {"use_cache": True, "cu_seqlens": None}):
        agree(module.torch_chunk_gated_delta_rule(*given, output_final_state=True, **options), wanted)
    assert len(calls) == 2
    with pytest.raises(ValueError, match="packed sequences"):  # transformers' own refuses them
        module.torch_chunk_gated_delta_rule(*given, cu_seqlens=torch.tensor([0, 9]))
    door.disable()
    module.torch_chunk_gated_delta_rule(*given, output_final_state=True)
    assert len(calls) == 2


def test_a_model_that_is_imported_later(enabled: list[str], calls: list[Callable], monkeypatch) -> None:
    path = f"{MODELS}.kimi_linear.modeling_kimi_linear"
    monkeypatch.delitem(sys.modules, path, raising=False)
    module = importlib.import_module(path)
    rows = [torch.randn(1, 9, 2, 4) for _ in range(3)]
    given = *rows, -torch.rand(1, 9, 2, 4), torch.rand(1, 9, 2)
    module.chunk_kimi_delta_attention(*given, initial_state=None, output_final_state=True)
    assert calls
    door.disable()
    module.chunk_kimi_delta_attention(*given, initial_state=None, output_final_state=True)
    assert len(calls) == 1


@pytest.mark.parametrize("name", ["chunk_gated_delta_rule", "mamba_chunk_scan_combined"])
def test_compiled_whole(name: str) -> None:
    torch.manual_seed(0)
    rows = [torch.randn(1, 9, 2, 4) for _ in range(3)]
    inputs = *rows, -torch.rand(1, 9, 2), torch.rand(1, 9, 2)
    if name.startswith("mamba"):
        inputs = rows[0], torch.rand(1, 9, 2), -torch.rand(2), rows[1], rows[2], 8
    f = door.FUNCTIONS[name]
    agree(torch.compile(f, backend="aot_eager", fullgraph=True)(*inputs)[:1], f(*inputs)[:1])


def test_a_training_step(enabled: list[str]) -> None:
    from transformers import Mamba2Config, Mamba2ForCausalLM

    torch.manual_seed(0)
    config = Mamba2Config(
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=1,
        num_heads=4,
        head_dim=8,
        state_size=8,
        n_groups=2,
        chunk_size=8,
    )
    model, tokens = Mamba2ForCausalLM(config).train(), torch.randint(0, 32, (2, 20))

    def step() -> list:
        model.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    ours = [x.clone() for x in step()]
    door.disable()
    for a, b in zip(ours, step(), strict=True):
        assert (a - b).abs().max() <= 1e-4 * b.abs().max() + 1e-9


def test_another_table_is_an_error(monkeypatch) -> None:
    from transformers.integrations import hub_kernels

    monkeypatch.delattr(hub_kernels, registering.TABLE)
    with pytest.raises(es.ArgumentError, match="another table of kernels; 5.24 is known"):
        door.enable()
