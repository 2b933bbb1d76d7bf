"""Functions for models of transformers, against transformers' own in PyTorch, and models that call them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from einsmith.frontends import transformers as door  # noqa: E402
from einsmith.frontends.transformers import registering  # noqa: E402

STEPS = 19
MODELS: dict[str, dict[str, Any]] = {
    "Mamba": {"state_size": 4, "expand": 2, "use_mambapy": False},
    "FalconMamba": {"state_size": 4},
    "Mamba2": {"num_heads": 4, "head_dim": 8, "state_size": 8, "n_groups": 2, "chunk_size": 8},
    "Qwen3Next": {
        "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "num_experts": 0, "mlp_only_layers": [0, 1],
    },
    "Lfm2": {
        "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"], "num_attention_heads": 2,
        "num_key_value_heads": 1, "block_multiple_of": 8,
    },
    "Rwkv": {"num_hidden_layers": 2, "attention_hidden_size": 16, "context_length": 64},
    "xLSTM": {"hidden_size": 128, "num_heads": 2, "num_blocks": 1, "chunk_size": 16},
    "RecurrentGemma": {
        "num_hidden_layers": 2, "num_attention_heads": 2, "lru_width": 16, "block_types": ["recurrent", "recurrent"],
    },
}  # fmt: skip
"""Models that reach functions, by what their configurations have of their own."""
ALGORITHMS = "use_mambapy", "use_associative_scan"
"""Arguments that choose between ways to the same values."""


@pytest.fixture(autouse=True)
def disabled():
    torch.manual_seed(0)
    yield
    door.disable()


def own(model: str, name: str) -> Callable:
    """Return a model's own function in PyTorch."""
    return inspect.unwrap(getattr(importlib.import_module(f"transformers.models.{model}.modeling_{model}"), name))


def results(f: Callable, inputs: list, **options: Any) -> list:
    """Return values and gradients by all inputs that have one."""
    x = [a.detach().clone() for a in inputs]
    leaves = [a.requires_grad_() for a in x]
    y = f(*x, **options)
    out = [a for a in (y if isinstance(y, tuple) else (y,)) if a is not None]
    out = [b for a in out for b in (a if isinstance(a, (list, tuple)) else (a,))]
    loss = sum((a.cos() * 0.1 + a).sum() for a in out)
    return [a.detach() for a in out] + list(torch.autograd.grad(loss, leaves, allow_unused=True))


def agree(found: list, wanted: list, tolerance: float = 2e-5) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.shape == b.shape and a.dtype is b.dtype
            assert (a - b).abs().max() <= tolerance * b.abs().max() + 1e-7


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("activation", [None, "silu", "gelu"])
def test_convolutions(has_bias: bool, activation: str | None) -> None:
    inputs = [torch.randn(2, STEPS, 5).transpose(1, 2), torch.randn(5, 4)] + [torch.randn(5)] * has_bias
    f = door.FUNCTIONS["causal_conv1d_fn"]
    wanted = results(own("mamba", "causal_conv1d_fn"), inputs, activation=activation)
    agree(results(f, inputs, activation=activation), wanted)
    low = [x.bfloat16() for x in inputs[:1]]
    assert f(*low, *inputs[1:], activation=activation).dtype is torch.bfloat16


@pytest.mark.parametrize("steps", [1, 3])
def test_steps_of_convolutions(steps: int) -> None:
    x, state, k, b = torch.randn(2, 5, steps), torch.randn(2, 5, 4), torch.randn(5, 4), torch.randn(5)
    states = state.clone(), state.clone()
    wanted = own("mamba", "causal_conv1d_update")(x, states[0], k, b, "silu")
    agree([door.FUNCTIONS["causal_conv1d_update"](x, states[1], k, b, "silu"), states[1]], [wanted, states[0]])


@pytest.mark.parametrize("is_whole", [False, True])
def test_selective_scans(is_whole: bool) -> None:
    c, n = 6, 4
    x, z = torch.randn(2, STEPS, c).transpose(1, 2), torch.randn(2, STEPS, 2 * c).transpose(1, 2)[:, c:]
    inputs = [x, torch.rand(2, c, STEPS), -torch.rand(c, n), torch.randn(2, n, STEPS), torch.randn(2, n, STEPS)]
    options = {"return_last_state": True, "delta_softplus": is_whole}
    inputs += [torch.randn(c), z, torch.randn(c)] * is_whole
    f = door.FUNCTIONS["selective_scan_fn"]
    agree(results(f, inputs, **options), results(own("mamba", "mamba_selective_scan"), inputs, **options))


@pytest.mark.parametrize(("model", "is_expanded"), [("mamba", False), ("mamba2", False), ("mamba2", True)])
@pytest.mark.parametrize("is_whole", [False, True])
def test_selective_steps(model: str, is_expanded: bool, is_whole: bool) -> None:
    shape, groups = ((2, 6), ()) if model == "mamba" else ((2, 4, 6), (2,))
    x, dt, z = torch.randn(shape), torch.rand(shape), torch.randn(shape)
    a, d, bias = -torch.rand(*shape[1:], 3), torch.randn(shape[1:]), torch.randn(shape[1:])
    if is_expanded:
        a = -torch.rand(4, 1, 1).expand(4, 6, 3)
        d, bias, dt = torch.randn(4, 1).expand(4, 6), torch.randn(4, 1).expand(4, 6), dt[:, :, :1].expand(shape)
    left, right, state = torch.randn(2, *groups, 3), torch.randn(2, *groups, 3), torch.randn(*shape, 3)
    options = {"D": d, "dt_bias": bias, "dt_softplus": True, "z": z} if is_whole else {}
    states = state.clone(), state.clone()
    wanted = own(model, f"{model}_selective_state_update")(states[0], x, dt, a, left, right, **options)
    y = door.FUNCTIONS["selective_state_update"](states[1], x, dt, a, left, right, **options)
    agree([y, states[1]], [wanted, states[0]])


@pytest.mark.parametrize("softens", [False, True])
def test_chunked_scans(softens: bool) -> None:
    x, dt, a, bias, d = torch.randn(2, STEPS, 4, 5), torch.rand(2, STEPS, 4), -torch.rand(4), *torch.randn(2, 4)
    left, right = torch.randn(2, 2, STEPS, 2, 3)
    f, mine = own("mamba2", "mamba2_chunk_scan"), door.FUNCTIONS["mamba_chunk_scan_combined"]
    for limit in ((0.0, float("inf")), (0.2, 1.5)):
        options = {"dt_softplus": softens, "dt_limit": limit, "return_final_states": True}
        call = lambda f: lambda x, dt, a, b, c, d, bias: f(x, dt, a, b, c, 8, d, bias, **options)  # noqa: B023, E731
        inputs = [x, dt, a, left, right, d, bias]
        agree(results(call(mine), inputs), results(call(f), inputs), 1e-4)


@pytest.mark.parametrize("has_state", [False, True])
def test_rwkv(has_state: bool) -> None:
    from transformers.models.rwkv import modeling_rwkv as module

    inputs = [*torch.randn(2, 6), *torch.randn(2, 2, STEPS, 6)]
    state = [torch.randn(2, 6), torch.rand(2, 6), torch.randn(2, 6)] if has_state else None
    wanted = results(module.rwkv_linear_attention, inputs, state=state, return_state=True)
    door.enable()
    agree(results(module.rwkv_linear_attention, inputs, state=state, return_state=True), wanted)
    assert module.rwkv_linear_attention(*inputs)[1] is None


@pytest.mark.parametrize("mode", ["inference", "train", "train_with_padding"])
def test_matrix_lstms(mode: str) -> None:
    from transformers import xLSTMConfig
    from transformers.models.xlstm.modeling_xlstm import xLSTMBackend

    backend = xLSTMBackend(xLSTMConfig(chunk_size=16, mode=mode, return_last_states=False))
    steps = 32 if mode == "train" else STEPS
    inputs = [torch.randn(2, 3, steps, width) for width in (4, 4, 6)] + [*torch.randn(2, 2, 3, steps) * 3]
    inputs += [torch.randn(2, 3, 4, 6), torch.randn(2, 3, 4), torch.rand(2, 3, 1)] * (mode == "inference")
    wanted = results(backend, inputs)
    door.enable()
    agree(results(backend, inputs), wanted, 1e-4)
    if mode == "train":
        with pytest.raises(ValueError, match="not divisible"):
            backend(*(x[:, :, :-1] for x in inputs))


def test_gated_linear_units() -> None:
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRglru as Layer

    inputs = [torch.randn(2, STEPS, 6), torch.rand(2, STEPS, 6)]
    reset = torch.zeros(2, STEPS, 1, dtype=torch.bool)
    reset[:, 7] = True
    for first in (None, torch.randn(2, 6)):
        call = lambda x, gate: Layer._rnn_scan(None, x, gate, reset, first)  # noqa: B023, E731
        wanted = results(call, inputs)
        door.enable()
        agree(results(call, inputs), wanted)
        door.disable()


def test_arguments_are_those_of_the_models() -> None:
    """Whatever a model passes, by position or by name, means the same."""
    names = ["mamba", "mamba2", "zamba", "qwen3_next", "kimi_linear", "lfm2", "falcon_h1", "jamba", "nemotron_h"]
    for model in names:
        module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
        for f in [*vars(module).values()]:
            kernel = registering._kernel_of(f)
            if kernel in door.FUNCTIONS:
                theirs = [p for p in inspect.signature(f).parameters if p not in ("kwargs", *ALGORITHMS)]
                assert [*inspect.signature(door.FUNCTIONS[kernel]).parameters] == theirs, (model, kernel)


def tiny(name: str) -> Any:
    """Return a model of one layer or two, and put random numbers where its weights are 0 or 1."""
    options = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1} | MODELS[name]
    if name in ("Mamba2", "xLSTM"):
        options.pop("intermediate_size")
    model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**options)).train()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_training_steps(name: str) -> None:
    model, tokens = tiny(name), torch.randint(0, 32, (2, STEPS))

    def step(f: Callable) -> list:
        model.zero_grad()
        loss = f(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    wanted = step(model)
    door.enable()
    agree(step(model), wanted, 1e-4)
    torch._dynamo.reset()
    agree(step(torch.compile(model, backend="einsmith")), wanted, 1e-4)


@pytest.mark.parametrize("name", ["Mamba", "Mamba2", "Qwen3Next", "Lfm2"])
def test_generated_tokens(name: str) -> None:
    """Steps of one token each, which update the states of a cache."""
    model, tokens = tiny(name).eval(), torch.randint(0, 32, (2, 7))
    options = {"max_new_tokens": 6, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    wanted = model.generate(tokens, **options)
    door.enable()
    found = model.generate(tokens, **options)
    assert torch.equal(found.sequences, wanted.sequences)
    agree(list(found.logits), list(wanted.logits), 1e-4)
