"""Operators under torch.func, forward-mode duals, vmap and torch.compile, against the same mathematics in PyTorch."""

from __future__ import annotations

import pickle

import pytest

import einsmith as es

torch = pytest.importorskip("torch", reason="the operators under test are PyTorch's")
from torch.autograd import forward_ad  # noqa: E402

from einsmith.base.errors import DtypeError, TraceError  # noqa: E402
from einsmith.frontends.torch import operator  # noqa: E402
from tests.frontends.formulas import CASES  # noqa: E402


@pytest.fixture(params=list(CASES))
def case(request):
    return CASES[request.param]


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def total(f):
    """A scalar that weighs every output, and bends so that all second derivatives are there."""

    def scalar(*floats):
        return sum((o * torch.linspace(0.3, 1.7, o.numel(), dtype=o.dtype).view(o.shape)).sin().sum()
                   for o in f(*floats))  # fmt: skip

    return scalar


def directions(rng, floats):
    return tuple(torch.tensor(rng.standard_normal(x.shape)) for x in floats)


@pytest.mark.thinned(6)
def test_forward_and_reverse_transforms(case, rng):
    ours, theirs, floats = case.functions(case.inputs(rng))
    moves = directions(rng, floats)
    every = tuple(range(len(floats)))
    got, want = (torch.func.jvp(f, floats, moves) for f in (ours, theirs))
    close(got, want)
    assert any(t.abs().max() > 0 for t in want[1])
    (got, pull), (want, twin_pull) = (torch.func.vjp(f, *floats) for f in (ours, theirs))
    cotangents = directions(rng, got)
    close(got, want)
    close(pull(cotangents), twin_pull(cotangents))
    for transform in (torch.func.jacrev, torch.func.jacfwd):
        close(transform(ours, every)(*floats), transform(theirs, every)(*floats))
    close(torch.func.grad(total(ours), every)(*floats), torch.func.grad(total(theirs), every)(*floats))
    close(torch.func.linearize(ours, *floats)[1](*moves), torch.func.linearize(theirs, *floats)[1](*moves))


OTHER_HESSIANS = ("jacfwd", "jacfwd"), ("jacrev", "jacfwd"), ("jacrev", "jacrev")


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    "outer,inner", [("jacfwd", "jacrev"), *(pytest.param(*x, marks=pytest.mark.slow) for x in OTHER_HESSIANS)]
)
def test_second_derivatives(case, inner, outer, rng):
    ours, theirs, floats = case.functions(case.inputs(rng))
    every = tuple(range(len(floats)))
    inner, outer = getattr(torch.func, inner), getattr(torch.func, outer)
    got, want = (outer(inner(total(f), every), every)(*floats) for f in (ours, theirs))
    close(got, want)


@pytest.mark.thinned(4)
def test_hessian_and_values_inside_of_transforms(case, rng):
    ours, theirs, floats = case.functions(case.inputs(rng))
    move, (other, *_) = directions(rng, floats[:1]), directions(rng, floats)
    rest = floats[1:]

    def along(f):  # the derivative of a value times its own tangent
        def product(x):
            value, tangent = torch.func.jvp(lambda x: total(f)(x, *rest), (x,), move)
            g, again = torch.func.grad_and_value(lambda x: total(f)(x, *rest))(x)
            return value * tangent + (g * other).sum() * again

        return product

    close(torch.func.hessian(total(ours))(*floats), torch.func.hessian(total(theirs))(*floats))
    close(torch.func.grad(along(ours))(floats[0]), torch.func.grad(along(theirs))(floats[0]))
    got, want = (torch.func.jvp(along(f), floats[:1], (other,)) for f in (ours, theirs))
    close(got, want)


def test_vmap(case, rng):
    drawn = [case.inputs(rng) for _ in range(3)]
    twin, f = case.twin, case.op

    def calls(f):
        return lambda *inputs: f(*inputs, **case.numbers)

    for batched in {0, len(case.draws) - 1}:
        want = [calls(twin)(*(d[i] if i == batched else drawn[0][i] for i in range(len(case.draws)))) for d in drawn]
        want = tuple(map(torch.stack, zip(*want, strict=True))) if isinstance(want[0], tuple) else torch.stack(want)
        for dim in (0, -1):
            inputs = [torch.stack([d[i] for d in drawn], dim) if i == batched else x for i, x in enumerate(drawn[0])]
            got = torch.vmap(calls(f), tuple(dim if i == batched else None for i in range(len(inputs))))(*inputs)
            close(got, want)
    every = [torch.stack([d[i] for d in drawn]) for i in range(len(case.draws))]
    want = [calls(twin)(*d) for d in drawn]
    want = tuple(map(torch.stack, zip(*want, strict=True))) if isinstance(want[0], tuple) else torch.stack(want)
    close(torch.vmap(calls(f))(*every), want)


@pytest.mark.thinned(4)
def test_gradients_of_single_samples(case, rng):
    """vmap of grad, grad of vmap, and vmap in vmap."""
    ours, theirs, floats = case.functions(case.inputs(rng))
    batch = torch.stack([floats[0], *(directions(rng, floats[:1])[0] for _ in range(2))])
    rest = floats[1:]

    def single(f):
        return lambda x: total(f)(x, *rest)

    for of in (lambda f: torch.vmap(torch.func.grad(single(f)))(batch),
               lambda f: torch.vmap(torch.func.hessian(single(f)))(batch),
               lambda f: torch.func.grad(lambda b: (torch.vmap(single(f))(b) ** 2).sum())(batch),
               lambda f: torch.func.jacfwd(torch.vmap(single(f)))(batch),
               lambda f: torch.vmap(torch.vmap(single(f)))(torch.stack([batch, batch * 0.5]))):  # fmt: skip
        close(of(ours), of(theirs))


def test_duals(case, rng):
    ours, theirs, floats = case.functions(case.inputs(rng))
    for moving in range(len(floats)):
        (move,) = directions(rng, floats[moving : moving + 1])
        found = []
        for f in (ours, theirs):
            with forward_ad.dual_level():
                given = [forward_ad.make_dual(x, move) if i == moving else x for i, x in enumerate(floats)]
                out = [forward_ad.unpack_dual(o) for o in f(*given)]
                found.append([(o.primal, torch.zeros_like(o.primal) if o.tangent is None else o.tangent) for o in out])
        close(*found)


def test_the_registered_operator_itself(rng):
    f = CASES["product"].op
    a, b = CASES["product"].inputs(rng)
    close(torch.func.jacfwd(f.op)(a, b), torch.func.jacfwd(CASES["product"].twin)(a, b))
    close(torch.func.jacfwd(lambda a: f._program([a, b], "")[0])(a), torch.func.jacfwd(CASES["product"].twin)(a, b))


@pytest.mark.thinned(8)
def test_torchs_own_checks(case, rng):
    ours, _, floats = case.functions(case.inputs(rng))
    floats = tuple(x.requires_grad_() for x in floats)
    assert torch.autograd.gradcheck(
        ours, floats, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )
    assert torch.autograd.gradgradcheck(ours, floats, check_fwd_over_rev=True, check_batched_grad=True)


@pytest.mark.thinned(8)
def test_autograd_functional(case, rng):
    ours, theirs, floats = case.functions(case.inputs(rng))
    moves = directions(rng, floats)
    functional = torch.autograd.functional
    first, second = functional.jacobian(theirs, floats), functional.hessian(total(theirs), floats)
    close(functional.jacobian(ours, floats), first)
    for strategy in ("reverse-mode", "forward-mode"):
        close(functional.jacobian(ours, floats, vectorize=True, strategy=strategy), first)
        got = functional.hessian(total(ours), floats, vectorize=True, outer_jacobian_strategy=strategy)
        close(got, second)
    for name in ("jvp", "vjp"):
        given = directions(rng, ours(*floats)) if name == "vjp" else moves
        close(getattr(functional, name)(ours, floats, given), getattr(functional, name)(theirs, floats, given))
    for name in ("hvp", "vhp"):
        got, want = (getattr(functional, name)(total(f), floats, moves) for f in (ours, theirs))
        close(got, want)


def test_functional_call(rng):
    f = CASES["product"].op

    class Layer(torch.nn.Module):
        def __init__(self, f):
            super().__init__()
            self.f, self.w = f, torch.nn.Parameter(torch.tensor(rng.standard_normal((5, 2))))

        def forward(self, x):
            return self.f(x, self.w)

    layer, x = Layer(f), torch.tensor(rng.standard_normal((4, 3, 5)))
    twin = Layer(CASES["product"].twin)
    weights = {"w": layer.w.detach()}

    def loss(module):
        return lambda w, x: torch.func.functional_call(module, w, (x,)).sin().sum()

    got, want = (torch.vmap(torch.func.grad(loss(m)), (None, 0))(weights, x) for m in (layer, twin))
    close(got, want)
    stacked = {"w": torch.stack([layer.w.detach(), layer.w.detach() * 2])}  # an ensemble
    got, want = (torch.vmap(loss(m), (0, None))(stacked, x[0]) for m in (layer, twin))
    close(got, want)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", ["product", "several outputs", "number", "recurrence"])
def test_compiled(name, rng):
    case = CASES[name]
    torch._dynamo.reset()
    ours, theirs, floats = case.functions(case.inputs(rng))
    moves = directions(rng, floats)
    pairs = tuple(torch.stack([x, 2 * x]) for x in floats)
    for of, given in (
        (total, floats),
        (lambda f: torch.func.grad(total(f)), floats),
        (lambda f: torch.vmap(total(f)), pairs),
        (lambda f: lambda *xs: torch.func.jvp(total(f), xs, moves), floats),
    ):
        compiled = torch.compile(of(ours), fullgraph=True, backend="aot_eager")
        close(compiled(*given), of(theirs)(*given))
    torch._dynamo.reset()


def test_indices_out_of_range_are_found_in_a_batch(rng):
    f = operator(es.op("y[t] = E[ids[t]] * E[0]"))
    table = torch.tensor(rng.standard_normal(5))
    ids = torch.tensor([[0, 4], [2, 5]])
    for of in (lambda e: torch.vmap(f, (None, 0))(e, ids), lambda e: torch.func.jvp(lambda e: f(e, ids[1]), (e,), (e,)),
               lambda e: torch.vmap(torch.func.grad(lambda e, i: f(e, i).sum()), (None, 0))(e, ids)):  # fmt: skip
        with pytest.raises(es.EinsmithError, match="5"):
            of(table)


# -------------------------------------------------------------------------------------------- numbers and pickles


def test_numbers_at_calls(rng):
    text = "y[i] = alpha * x[i] + beta"
    f = operator(es.op(text))
    for dtype in (torch.float32, torch.float64):
        x = torch.tensor(rng.standard_normal(17), dtype=dtype, requires_grad=True)
        for alpha, beta in ((0.5, 2), (1.25, -1.0), (3, 0)):
            y = f(x, alpha=alpha, beta=beta)
            assert y.dtype is dtype
            torch.testing.assert_close(y, alpha * x + beta)
            (g,) = torch.autograd.grad(y.sum(), x)
            torch.testing.assert_close(g, torch.full_like(x, alpha))
    assert len({k[0] for k in f._definition.compiled if "|" not in k[0]}) == 1, "a value is not compiled for"
    mixed = f(x, alpha=torch.tensor(2.0, dtype=torch.float64), beta=1)
    torch.testing.assert_close(mixed, 2 * x + 1)


def test_other_values_at_calls_are_refused(rng):
    f = operator(es.op("y[i] = sum[k](x[n*i+k]) + alpha", {"k": 2}))
    x = torch.ones(9)
    with pytest.raises(TraceError, match="n is an int"):
        f(x, n=2, alpha=0.5)
    with pytest.raises(TraceError, match="alpha is a str"):
        f(x, alpha="a")
    with pytest.raises(TraceError, match="alpha is a bool"):
        f(x, alpha=True)


def scaled(x, factor):
    return x * factor


def test_operators_are_pickled(rng):
    x = torch.tensor(rng.standard_normal(7))
    f = operator(es.op("y[i] = scale * x[i+k]"), k=2)
    again = pickle.loads(pickle.dumps(f))
    assert again.op is f.op
    assert torch.equal(again(x, scale=3.0), 3 * x[2:])
    g = pickle.loads(pickle.dumps(operator(scaled, factor=2.5)))
    assert torch.equal(g(x), 2.5 * x)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(operator(lambda x: x + 1))


@pytest.mark.parametrize(
    "made,remedy",
    [
        (lambda: torch.ones(3, dtype=torch.float8_e5m2), "convert it to one of float16"),
        (lambda: torch.ones(3, dtype=torch.complex64), "convert it to one of float16"),
        (lambda: torch.ones(3).to_sparse(), "to_dense"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), "convert it"),
    ],
)
def test_tensors_of_other_kinds(made, remedy):
    f = operator(es.op("y[i] = x[i] + 1"))
    with pytest.raises(DtypeError, match=f"x .*{remedy}"):
        f(made())
