"""Attention without keys, dropout, and layers of transformers beside torch's: states, masks, training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import einsmith as es  # noqa: E402
from einsmith import functional as F  # noqa: E402
from einsmith import nn  # noqa: E402
from einsmith.api.tracing import trace_call  # noqa: E402
from einsmith.base.errors import ArgumentError, DtypeError, ShapeError  # noqa: E402
from einsmith.cost.facts import host  # noqa: E402
from einsmith.driver.executable import Executable  # noqa: E402
from einsmith.ir.evaluator import evaluate  # noqa: E402
from tests.nn.twin import agree, pairwise  # noqa: E402
from tests.operators.samples import MASK, L, S, qkv  # noqa: E402


def test_queries_without_keys_give_zeros(run, rng) -> None:
    q, k, v = qkv(2)(rng)
    mask = MASK.copy()
    mask[2] = False
    for given in (mask, np.where(mask, 0.0, -np.inf)):
        found = run(lambda q, k, v, g=given: F.scaled_dot_product_attention(q, k, v, g), q, k, v)
        wanted = torch.nn.functional.scaled_dot_product_attention(*map(torch.tensor, (q, k, v, mask))).numpy()
        agree([found], [wanted], 1e-12)
        assert not found[:, 2].any()
    gradient = es.grad(lambda q: (F.scaled_dot_product_attention(q, k, v, mask) ** 2).sum())(q)
    assert np.isfinite(gradient).all() and not gradient[:, 2].any()


@pytest.mark.slow
def test_dropout_of_weights(rng) -> None:
    es.manual_seed(2)
    q, k = np.zeros((40, 50, 4), np.float32), np.zeros((40, 60, 4), np.float32)
    v = np.ones((40, 60, 1), np.float32)
    y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.25)
    kept = y * 60 * 0.75
    np.testing.assert_allclose(kept, np.round(kept), atol=1e-3)
    assert abs(y.mean() - 1) < 4 * np.sqrt(0.25 / 0.75 / (60 * 2000))
    np.testing.assert_allclose(F.scaled_dot_product_attention(q, k, v), 1, rtol=1e-6)


OPTIONS = {
    "bias": [True, False], "add_bias_kv": [False, True], "add_zero_attn": [False, True], "widths": [None, (5, 3)],
    "batch_first": [False, True], "mask": [None, "bool", "float", "heads"], "padding": [None, "bool", "float"],
    "batched": [True, False], "average_attn_weights": [True, False], "need_weights": [True, False],
}  # fmt: skip


@pytest.mark.parametrize("o", pairwise(OPTIONS), ids=lambda o: "-".join(map(str, o.values())))
def test_multihead_attention(run, rng, o) -> None:
    e, heads, batch = 6, 2, 3 if o["batched"] else 1
    kdim, vdim = o["widths"] or (None, None)
    keywords = {k: o[k] for k in ("bias", "add_bias_kv", "add_zero_attn", "batch_first")}
    ours = nn.MultiheadAttention(e, heads, kdim=kdim, vdim=vdim, **keywords)
    theirs = torch.nn.MultiheadAttention(e, heads, kdim=kdim, vdim=vdim, **keywords)
    assert [(n, v.shape) for n, v in ours.state_dict().items()] == [
        (n, tuple(v.shape)) for n, v in theirs.state_dict().items()
    ]
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(torch.tensor(rng.normal(size=tuple(p.shape))))
    ours.load_state_dict(theirs.state_dict())
    ours.double(), theirs.double()
    q, k, v = (rng.normal(size=(n, batch, w)) for n, w in ((L, e), (S, kdim or e), (S, vdim or e)))
    if not o["batched"]:
        q, k, v = q[:, 0], k[:, 0], v[:, 0]
    elif o["batch_first"]:
        q, k, v = (x.transpose(1, 0, 2) for x in (q, k, v))
    mask = {None: None, "bool": ~MASK, "float": rng.normal(size=(L, S)),
            "heads": rng.normal(size=(batch * heads, L, S))}[o["mask"]]  # fmt: skip
    padding = None
    if o["padding"]:
        padding = np.arange(S)[None] >= np.array([[7], [4], [5]])[:batch]
        padding = padding if o["batched"] else padding[0]
        padding = np.where(padding, -np.inf, 0.1) if o["padding"] == "float" else padding
    rest = {k: o[k] for k in ("need_weights", "average_attn_weights")}
    x = [torch.tensor(a) for a in (q, k, v)]
    masks = {"attn_mask": mask, "key_padding_mask": padding}
    wanted = theirs(*x, **{k: m if m is None else torch.tensor(m) for k, m in masks.items()}, **rest)

    def forward(q, k, v):
        return tuple(y for y in ours(q, k, v, **masks, **rest) if y is not None)

    found = run(forward, q, k, v)
    agree(found, [y.detach().numpy() for y in wanted if y is not None], 1e-10)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("separate, static, zero", [(False, "k", True), (True, "", False), (False, "kv", False)])
def test_multihead_attention_of_given_weights(run, rng, separate, static, zero) -> None:
    e, heads, batch = 6, 2, 3
    widths = (e, 5, 4) if separate else (e, e, e)
    q, k, v = (rng.normal(size=(n, batch, w)) for n, w in zip((L, S, S), widths, strict=True))
    weights = {f"{n}_proj_weight": rng.normal(size=(e, w)) for n, w in zip("qkv", widths, strict=True)}
    weights = weights if separate else {}
    fixed = {f"static_{n}": rng.normal(size=(batch * heads, S, e // heads)) for n in static}
    biases = [None if static else rng.normal(size=(1, 1, e)) for _ in range(2)]
    arrays = [q, k, v, None if separate else rng.normal(size=(3 * e, e)), rng.normal(size=3 * e), *biases,
              rng.normal(size=(e, e)), rng.normal(size=e)]  # fmt: skip
    named = weights | fixed | {"attn_mask": ~MASK}

    def call(f, convert):
        x = [None if a is None else convert(a) for a in arrays]
        return f(
            *x[:3], e, heads, *x[3:7], zero, 0.3, *x[7:], training=False, use_separate_proj_weight=separate,
            **{n: convert(a) for n, a in named.items()},
        )  # fmt: skip

    theirs = torch.nn.functional.multi_head_attention_forward
    wanted = [y.numpy() for y in call(theirs, torch.tensor)]
    agree(call(F.multi_head_attention_forward, np.asarray), wanted, 1e-10)
    gradient = es.grad(lambda a: call(F.multi_head_attention_forward, lambda b: a if b is q else b)[0].sum())(q)
    x = torch.tensor(q, requires_grad=True)
    call(theirs, lambda b: x if b is q else torch.tensor(b))[0].sum().backward()
    agree([gradient], [x.grad.numpy()], 1e-10)


def test_gradients_of_self_attention(rng) -> None:
    ours, theirs = nn.MultiheadAttention(6, 3, dtype="float64"), torch.nn.MultiheadAttention(6, 3).double()
    ours.load_state_dict(theirs.state_dict())
    x, mask = rng.normal(size=(L, 2, 6)), ~np.tril(np.ones((L, L), bool))

    def loss(params, x):
        return (nn.functional_call(ours, params, x, x, x, attn_mask=mask, need_weights=False)[0] ** 2).sum()

    t = torch.tensor(x, requires_grad=True)
    (theirs(t, t, t, attn_mask=torch.tensor(mask), need_weights=False)[0] ** 2).sum().backward()
    grads, dx = es.grad(loss, argnums=(0, 1))({n: p.numpy() for n, p in ours.named_parameters()}, x)
    agree([dx], [t.grad.numpy()], 1e-10)
    for name, p in theirs.named_parameters():
        agree([grads[name]], [p.grad.numpy()], 1e-10)
    causal = es.jit(lambda x: ours(x, x, x, is_causal=True)[0])(x)
    agree([causal], [theirs(t, t, t, attn_mask=torch.tensor(mask))[0].detach().numpy()], 1e-10)


def _equal(ours, theirs, rng) -> None:
    """The states fit, and both have random weights."""
    assert [(n, v.shape) for n, v in ours.state_dict().items()] == [
        (n, tuple(v.shape)) for n, v in theirs.state_dict().items()
    ]
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(torch.tensor(rng.normal(size=tuple(p.shape)) / 2))
    ours.load_state_dict(theirs.state_dict())
    ours.double(), theirs.double()
    ours.eval(), theirs.eval()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_transformer(run, rng) -> None:
    options = {"dim_feedforward": 9, "batch_first": True, "norm_first": True}
    ours, theirs = (n.Transformer(6, 2, 2, 2, **options) for n in (nn, torch.nn))
    for a in ours.parameters():
        if a.ndim > 1:  # Glorot's bounds
            assert np.abs(a.data).max() <= np.sqrt(6 / sum(a.shape))
    _equal(ours, theirs, rng)
    src, tgt = rng.normal(size=(2, S, 6)), rng.normal(size=(2, L, 6))
    mask = nn.Transformer.generate_square_subsequent_mask(L)
    np.testing.assert_array_equal(mask, torch.nn.Transformer.generate_square_subsequent_mask(L).numpy())
    padding = np.arange(S)[None] >= np.array([[5], [7]])
    wanted = theirs(
        torch.tensor(src, requires_grad=True), torch.tensor(tgt), tgt_mask=torch.tensor(mask).double(),
        src_key_padding_mask=torch.tensor(padding), memory_key_padding_mask=torch.tensor(padding),
    )  # fmt: skip
    masks = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding}
    agree([run(lambda x, y: ours(x, y, tgt_mask=mask, **masks), src, tgt)], [wanted.detach().numpy()], 1e-9)
    agree([run(lambda x, y: ours(x, y, tgt_is_causal=True, **masks), src, tgt)], [wanted.detach().numpy()], 1e-9)
    with pytest.raises(ShapeError, match="batch"):
        run(ours, src[:1], tgt)


def test_an_encoder_trains_as_torchs(rng) -> None:
    def make(lib):
        layer = lib.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation="gelu")
        return lib.TransformerEncoder(layer, 2, lib.LayerNorm(8), enable_nested_tensor=False)

    ours, theirs = make(nn), make(torch.nn)
    first, second = (dict(ours.layers[n].named_parameters()) for n in (0, 1))
    assert all(np.array_equal(first[n].data, second[n].data) and first[n] is not second[n] for n in first)
    ours.load_state_dict(theirs.state_dict())
    ours.double(), theirs.double()
    step = es.TrainStep(ours, F.mse_loss, es.optim.SGD(lr=0.1, momentum=0.9))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    for _ in range(4):
        x, y = rng.normal(size=(2, 3, 5, 8))
        loss = torch.nn.functional.mse_loss(theirs(torch.tensor(x)), torch.tensor(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert step(x, y) == pytest.approx(loss.item(), rel=1e-9)
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(a.data, b.detach().numpy(), rtol=1e-7, atol=1e-10, err_msg=name)


def test_dropout_in_training_alone(rng) -> None:
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.5)
    x = rng.normal(size=(L, 2, 6)).astype(np.float32)
    assert not np.array_equal(layer(x), layer(x))
    layer.eval()
    np.testing.assert_array_equal(layer(x), layer(x))
    attention = nn.MultiheadAttention(6, 2, dropout=1.0)
    out, weights = attention(x, x, x)
    np.testing.assert_allclose(out, np.broadcast_to(attention.out_proj.bias.data, out.shape))
    np.testing.assert_allclose(weights.sum(2), 1, rtol=1e-5)


def test_initial_distributions() -> None:
    m = nn.MultiheadAttention(32, 4, add_bias_kv=True)
    for p, bound in ((m.in_proj_weight, np.sqrt(6 / 128)), (m.out_proj.weight, 1 / np.sqrt(32))):
        assert np.abs(p.data).max() <= bound and abs(p.data.std() - bound / np.sqrt(3)) < 0.01
    assert not m.in_proj_bias.data.any() and not m.out_proj.bias.data.any() and m.bias_k.data.std() > 0


X = np.ones((4, 2, 6))


def given(x, weight=None, num_heads=2, **named):
    rest = (weight, None, None, None, False, 0.0, np.ones((6, 6)), None)
    return F.multi_head_attention_forward(x, x, x, 6, num_heads, *rest, **named)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda x: F.scaled_dot_product_attention(x, x[:, :, :3], x), ShapeError, "'query'"),
        (lambda x: F.scaled_dot_product_attention(x, x, x, np.ones((3, 3), bool)), ShapeError, "'attn_mask'"),
        (lambda x: F.scaled_dot_product_attention(x, x, x, np.ones((2, 2), int)), DtypeError, "bools or floats"),
        (lambda x: F.scaled_dot_product_attention(x, x, x, MASK, is_causal=True), ArgumentError, "both"),
        (lambda x: F.scaled_dot_product_attention(x, x[:2], x[:2]), ShapeError, "enable_gqa"),
        (lambda x: F.scaled_dot_product_attention(x, x[:3], x[:3], enable_gqa=True), ShapeError, "multiple"),
        (lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=2.0), ArgumentError, "p=2"),
        (lambda x: given(x, q_proj_weight=x[0]), ArgumentError, "'in_proj_weight' is missing"),
        (lambda x: given(x, np.ones((9, 6))), ShapeError, "'in_proj_weight'"),
        (lambda x: given(x, np.ones((18, 6)), static_k=x), ShapeError, "'static_k'"),
        (lambda x: given(x, np.ones((18, 6)), num_heads=4), ArgumentError, "num_heads=4"),
        (lambda x: nn.MultiheadAttention(6, 4), ArgumentError, "num_heads=4"),
        (lambda x: nn.MultiheadAttention(5, 1)(x, x, x), ShapeError, "features"),
        (lambda x: nn.MultiheadAttention(6, 2)(x, x[:, 0], x[:, 0]), ShapeError, "rank"),
        (lambda x: nn.MultiheadAttention(6, 2)(x, x, x, attn_mask=np.ones((3, 4))), ShapeError, "'attn_mask'"),
        (lambda x: nn.MultiheadAttention(6, 2)(x, x, x, np.ones((4, 2))), ShapeError, "'key_padding_mask'"),
        (lambda x: nn.TransformerEncoderLayer(6, 2, activation="tanh"), ArgumentError, "activation"),
        (lambda x: nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 4), -1), ArgumentError, "num_layers"),
    ],
)
def test_bad_options(run, call, error, words) -> None:
    with pytest.raises(error, match=words):
        run(call, X)


def test_scores_of_grouped_heads_are_not_stored_for_their_gradient(rng):
    """Where L3 does not hold them: as those of heads with keys of their own."""
    heads, steps = 6, 256

    def loss(q, k, v):
        return (F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True) ** 2).sum()

    args = [rng.standard_normal((1, n, steps, 32), np.float32) for n in (heads, 2, 2)]
    traced = trace_call(es.grad(loss, (0, 1, 2)), tuple(args), {})
    run = Executable(traced.graph, traced.bind, 1, target=replace(host(), cores=1, l3=1 << 19))
    assert run.arena_bytes < heads * steps * steps * 4
    for got, wanted in zip(run(args)[1], evaluate(traced.graph, args)[0], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
