"""Adapters of PEFT, trained by the backend as by PyTorch: LoRA, DoRA and IA3, merged and not, switched and disabled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="its backend is tested")
transformers = pytest.importorskip("transformers", reason="its models are tested")
peft = pytest.importorskip("peft", reason="its adapters are tested")

from einsmith.frontends.torch_compile import saved  # noqa: E402
from tests.frontends.torch_compiled import compiled, fresh  # noqa: E402, F401

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

WORDS = 37
RTOL = 2e-5
"""Of losses and gradients in float32 after at most 5 steps, relative to the largest element of each."""
MODELS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "Llama": (
        "ForCausalLM",
        {"tie_word_embeddings": True, "num_key_value_heads": 1},
        ("q_proj", "k_proj", "o_proj", "gate_proj", "down_proj"),
    ),
    "Qwen2": ("ForCausalLM", {"num_key_value_heads": 2}, ("v_proj", "up_proj", "down_proj")),
    "GPT2": ("LMHeadModel", {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}, ("c_attn", "c_fc", "mlp.c_proj")),
}
"""Name -> (ending of the class, options, layers with adapters)."""
ADAPTERS: dict[str, Callable[[tuple[str, ...]], Any]] = {
    "LoRA": lambda names: peft.LoraConfig(r=3, target_modules=list(names)),
    "rank-stabilized": lambda names: peft.LoraConfig(r=3, target_modules=list(names), use_rslora=True),
    "DoRA": lambda names: peft.LoraConfig(r=3, target_modules=list(names), use_dora=True),
    "head": lambda names: peft.LoraConfig(r=3, target_modules=list(names), modules_to_save=["lm_head"]),
    "IA3": lambda names: peft.IA3Config(target_modules=list(names), feedforward_modules=list(names[-1:])),
}


def plain(name: str) -> Any:
    """Return a small model of transformers in which random weights stand."""
    torch.manual_seed(0)
    end, options, _ = MODELS[name]
    sizes = {"vocab_size": WORDS, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 33} if name != "GPT2" else {"n_positions": 32}
    common = {"use_cache": False, "bos_token_id": 1, "eos_token_id": 2, "loss_type": "ForCausalLM"}
    config = getattr(transformers, f"{name}Config")(**sizes | common | options)
    return getattr(transformers, name + end)(config).train()


def shake(model: Any) -> Any:
    """Add random numbers to what is trained, so that no gradient is 0."""
    torch.manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p) * 0.1)
    return model


def adapted(name: str = "Llama", adapter: str = "LoRA") -> Any:
    """Return a small model with adapters."""
    return shake(peft.get_peft_model(plain(name), ADAPTERS[adapter](MODELS[name][2]))).train()


def train(
    model: Any, run: Callable, lengths: Sequence[int] = (7, 7), parts: int = 1, **autocast: Any
) -> list[torch.Tensor]:
    """Train for a step on texts of each length; return losses and gradients. parts: batches whose gradients a step
    adds up; autocast: options of torch.autocast."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    out = []
    for n, length in enumerate(lengths):
        for k in range(parts):
            tokens = torch.randint(WORDS, (2, length), generator=torch.Generator().manual_seed(100 * n + k))
            with torch.autocast("cpu", enabled=False) if not autocast else torch.autocast("cpu", **autocast):
                loss = run(input_ids=tokens, labels=tokens).loss
            (loss / parts).backward()
            out.append(loss.detach())
        out += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
    return out


def distance(values: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> float:
    """Return the largest distance of two lists of tensors, relative to the largest element of each tensor."""
    assert [a.shape for a in values] == [b.shape for b in wanted]
    assert all(b.abs().max() > 0 for b in wanted)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(values, wanted, strict=True))


def check(make: Callable[[], Any], **options: Any) -> None:
    """Compare training by the backend with eager training."""
    eager, model = make(), make()
    assert distance(train(model, compiled(model), **options), train(eager, eager, **options)) < RTOL


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("name", MODELS)
def test_training(name: str, adapter: str) -> None:
    check(lambda: adapted(name, adapter))


@pytest.mark.slow
def test_dora_is_one_graph() -> None:
    model = adapted("Llama", "DoRA")
    run = torch.compile(model, backend="einsmith", fullgraph=True, options={"fallback": "error"})
    assert all(x.isfinite().all() for x in train(model, run, (5,)))


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ["LoRA", "DoRA", "IA3"])
def test_merged_adapters(adapter: str) -> None:
    """A compiled model follows what is merged into its weights and taken out again."""
    tokens = torch.arange(12).reshape(2, 6)
    model = adapted("Llama", adapter).eval()
    run, run_plain = compiled(model), model.get_base_model()
    with torch.no_grad():
        wanted = model(input_ids=tokens).logits
        for change in (lambda: None, model.merge_adapter, model.unmerge_adapter):
            change()
            assert distance([run(input_ids=tokens).logits], [wanted]) < RTOL
        with model.disable_adapter():
            disabled = model(input_ids=tokens).logits
            assert distance([run(input_ids=tokens).logits], [disabled]) < RTOL
            assert distance([disabled], [wanted]) > 1e-2
        assert distance([run(input_ids=tokens).logits], [wanted]) < RTOL
        merged = model.merge_and_unload()
        assert merged is run_plain
        assert distance([compiled(merged)(input_ids=tokens).logits], [wanted]) < RTOL


@pytest.mark.slow
def test_two_adapters() -> None:
    """Training switches between adapters; only those of the active one have gradients."""
    models = []
    for _ in range(2):
        model = adapted()
        model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["q_proj", "up_proj"]))
        model.set_adapter("other")
        models.append(shake(model))
    eager, model = models
    run = compiled(model)
    for name in ("other", "default", "other"):
        for each in models:
            each.set_adapter(name)
        assert distance(train(model, run, (6,)), train(eager, eager, (6,))) < RTOL


@pytest.mark.slow
@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("name", ["Llama", "GPT2"])
def test_gradient_checkpointing(name: str, use_reentrant: bool) -> None:
    def make() -> Any:
        model = adapted(name)
        model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        model.enable_input_require_grads()
        return model

    check(make)


@pytest.mark.slow
def test_accumulated_gradients() -> None:
    check(adapted, lengths=(5, 5), parts=3)


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ["LoRA", "DoRA"])
def test_lengths_that_vary(adapter: str) -> None:
    check(lambda: adapted("Llama", adapter), lengths=(7, 9, 5, 12, 9))


@pytest.mark.slow
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_autocast(is_checkpointed: bool) -> None:
    """The distance from training in float32 is that of eager autocast, but for chance."""

    def make() -> Any:
        model = adapted()
        if is_checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.enable_input_require_grads()
        return model

    eager, model, exact = make(), make(), make()
    wanted = train(exact, exact)
    theirs = distance(train(eager, eager, dtype=torch.bfloat16), wanted)
    ours = distance(train(model, compiled(model), dtype=torch.bfloat16), wanted)
    assert 1e-4 < ours < 2 * theirs


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that gets the graphs of each forward and backward pass."""
    out, cut = [], saved.partition

    def partition(joint: Any, inputs: Any, **known: Any) -> Any:
        passes = cut(joint, inputs, **known)
        out.append([g.graph for g in passes])
        return passes

    monkeypatch.setattr("einsmith.frontends.torch_compile.aot.partition", partition)
    return out


def shapes(graph: Any, first: int = 0) -> list[tuple[int, ...]]:
    """Return the shapes of a graph's results, from a number on, that are no inputs."""
    results = [n for n in next(reversed(graph.nodes)).args[0] if n is not None][first:]
    return [tuple(n.meta["val"].shape) for n in results if n.op != "placeholder"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_frozen_weights_are_read_in_place(dtype: torch.dtype, graphs: list[Any]) -> None:
    """The forward saves no copy of a weight, and of what a layer with an adapter computes the sum of both products and
    the small one; the backward computes gradients of the adapter and of the input alone."""
    rows, width, inner, rank = 11, 16, 48, 2
    w = torch.nn.Parameter(torch.randn(inner, width), requires_grad=False)
    out = torch.nn.Parameter(torch.randn(width, inner), requires_grad=False)
    a, b = (torch.nn.Parameter(torch.randn(shape)) for shape in ((rank, width), (inner, rank)))
    x = torch.randn(rows, width, requires_grad=True)

    def layer(x: torch.Tensor, w: Any, out: Any, a: Any, b: Any) -> torch.Tensor:
        linear = torch.nn.functional.linear
        return linear(torch.nn.functional.silu(linear(x, w) + 0.5 * linear(linear(x, a), b)), out)

    with torch.autocast("cpu", dtype=dtype, enabled=dtype is torch.bfloat16):
        compiled(layer)(x, w, out, a, b).sum().backward()
        assert w.grad is None
        wanted = torch.autograd.grad(layer(x, w, out, a, b).sum(), [x, a, b])
    assert distance([x.grad, a.grad, b.grad], wanted) < (RTOL if dtype is torch.float32 else 3e-2)
    forward, backward = graphs[0]
    converted = [(rows, width)] * (dtype is torch.bfloat16)
    kept = [shape for shape in shapes(forward, 1) if shape]
    assert sorted(kept) == sorted([(rows, inner), (rows, rank), *converted])
    assert sorted(shapes(backward)) == sorted([(rows, width), (rank, width), (inner, rank)])


def test_parameters_that_change_between_the_passes_under_autocast() -> None:
    """Eager execution saves a copy in the other type; here the change is an error."""
    w = torch.nn.Parameter(torch.randn(4, 4), requires_grad=False)
    x = torch.randn(3, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = compiled(torch.nn.functional.linear)(x, w)
    w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_log_probabilities_are_not_kept(graphs: list[Any]) -> None:
    """Of a cross-entropy's log-probabilities a number or two for each row are kept, beside the logits."""
    x, w = torch.randn(5, 8, requires_grad=True), torch.randn(101, 8)
    target = torch.tensor([3, 100, 0, -100, 7])

    def loss(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(x @ w.T, target)

    compiled(loss)(x).backward()
    torch.testing.assert_close(x.grad, torch.autograd.grad(loss(x), x)[0])
    assert shapes(graphs[0][0], 1).count((5, 101)) == 1
