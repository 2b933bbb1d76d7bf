"""What may be passed where an array is expected, and how everything else is refused: by name, with a remedy."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import einsmith as es
from einsmith.base.arrays import to_array
from einsmith.base.errors import DtypeError
from tests.programs import arena_of

DOUBLED = es.op("y[i] = 2 * A[i]")


@pytest.mark.parametrize(
    "made,remedy",
    [
        (lambda: np.array([1, 2, None], object), "Python objects"),
        (lambda: np.array(["a", "b"]), "strings"),
        (lambda: np.array([b"a"]), "bytes"),
        (lambda: np.zeros(3, [("a", "f4"), ("b", "i4")]), "structured"),
        (lambda: np.array(["2020-01-01"], "datetime64[D]"), "dates"),
        (lambda: np.array([3], "timedelta64[s]"), "durations"),
        (lambda: np.ones(3, np.complex64), "complex64"),
        (lambda: np.ones(3, np.longdouble), "float128|longdouble"),
        (lambda: np.ones(3, np.uint16), "uint16"),
        (lambda: np.ma.array([1.0, 2.0], mask=[0, 1]), "masked array.*filled"),
        (lambda: object(), "is an object; pass an array or a number"),
    ],
)
def test_other_elements_are_refused_by_name(made, remedy):
    for call, name in (
        (lambda x: DOUBLED(x), "A"),
        (lambda x: DOUBLED(A=x), "A"),
        (lambda x: es.jit(lambda weights: weights + 1)(x), "weights"),
        (lambda x: es.grad(lambda a, b: (a + b).sum())(np.ones(2), x), "b"),
    ):
        with pytest.raises(DtypeError, match=rf"\b{name} .*{remedy}"):
            call(made())


class Boxed:
    """As a column of a table: its elements are had by the array protocol alone."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        if self.values is None:
            raise ValueError("the column is empty")
        return np.asarray(self.values, dtype)


def test_layouts_of_memory(rng):
    base = rng.standard_normal((7, 34))
    readonly = base[0].copy()
    readonly.flags.writeable = False
    odd = np.frombuffer(b"\0" + base[1].tobytes(), np.uint8)[1:].view(np.float64)
    for x in (base[0, ::-1], base[:, 3], base[2, 1::3], np.broadcast_to(base[0, :1], (17,)), readonly, odd,
              base[3].astype(">f8"), base[3].view(np.recarray) if False else np.asmatrix(base[:1]).A1):  # fmt: skip
        before = np.array(x)
        np.testing.assert_array_equal(DOUBLED(x), 2 * before)
        np.testing.assert_array_equal(x, before)
        assert to_array(x).flags.c_contiguous
    np.testing.assert_array_equal(DOUBLED(Boxed(base[0])), 2 * base[0])
    np.testing.assert_array_equal(DOUBLED([1.0, 2.5]), [2.0, 5.0])
    with pytest.raises(DtypeError, match="A is a Boxed that cannot be converted to a NumPy array: the column is empty"):
        DOUBLED(Boxed(None))
    with pytest.raises(DtypeError, match="A is an array of Python objects"):
        DOUBLED(Boxed([1, None]))


def test_tensors_of_torch(torch, rng):
    x = torch.tensor(rng.standard_normal(6))
    z = torch.complex(x, 2 * x)
    for t in (x, x[::2], x.flip(0), x[:1].expand(17), x.float(), z.conj().imag, z.real):
        want = 2 * t.resolve_neg().numpy()
        np.testing.assert_array_equal(DOUBLED(t), want)
    refused = [
        (x.bfloat16(), r"bfloat16; pass \.float\(\)"),
        (x.to_sparse(), r"sparse_coo; pass \.to_dense\(\)"),
        (torch.eye(3).to_sparse_csr(), r"sparse_csr; pass \.to_dense\(\)"),
        (x.to("meta"), "meta device and has no elements"),
        (torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8), r"quantized; pass \.dequantize\(\)"),
        (torch.nested.nested_tensor([x, x[:2]]), "nested"),
        (z.conj(), "complex128"),
        (x.to(torch.uint16), "uint16"),
    ]
    for t, remedy in refused:
        with pytest.raises(DtypeError, match=f"A is .*{remedy}"):
            DOUBLED(t)
    with pytest.raises(es.EinsmithError, match="A is a Tensor"):
        torch.func.vmap(lambda t: DOUBLED(t))(torch.ones(2, 3))


def _step():
    return es.TrainStep(es.nn.Linear(3, 3), es.functional.mse_loss, es.optim.SGD(lr=0.1))


_PLAIN = np.ones((3, 3), np.float32)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "call",
    [
        es.op("y[i,j] = 2 * x[i,j]"),
        lambda x: es.op("y[i,j] = 2 * x[i,j]")([list(x[0]), list(x[1])]),
        lambda x: es.op("y[i,j] = s * x[i,j]")(_PLAIN, s=x[0, 0]),
        lambda x: es.op("y[i,j] = 2 * x[i,j]").gradient("x", x),
        lambda x: es.functional.permute(x, (1, 0)),
        lambda x: es.functional.cat([_PLAIN, x]),
        lambda x: es.exp(x),
        lambda x: es.jit(lambda a: a + 1)(x),
        lambda x: es.jit(lambda a: a["w"] + 1)({"w": x}),
        lambda x: es.jit(lambda a: a + x)(_PLAIN),
        lambda x: es.grad(lambda a: a.sum())(x),
        lambda x: es.vjp(lambda a: 2 * a, x),
        lambda x: es.vjp(lambda a: 2 * a, _PLAIN)[1](x),
        lambda x: es.jvp(lambda a: 2 * a, (_PLAIN,), (x,)),
        lambda x: es.interpret(lambda a: 2 * a)(x),
        lambda x: es.check_gradients(lambda a: (2 * a).sum(), x),
        lambda x: es.vmap(lambda a: 2 * a)(x),
        lambda x: es.nn.Linear(3, 3)(x),
        lambda x: es.nn.Linear(3, 3).predict(x),
        lambda x: _step()(x, _PLAIN),
        lambda x: _step()(_PLAIN, x),
        lambda x: _step().profile(x, _PLAIN),
        lambda x: _step().evaluate([(x, _PLAIN)]),
        lambda x: es.data.batches(x, _PLAIN, 1),
    ],
)
def test_a_gradient_of_torch_is_not_lost(torch, call):
    """Where PyTorch records gradients, a call that it cannot record is refused; elsewhere there is none to lose."""
    x = torch.ones(3, 3, requires_grad=True)
    for given in (x, 2 * x):
        with pytest.raises(es.GradientError, match=r"frontends\.torch\.operator(.|\n)*\.detach\(\)"):
            call(given)
    call(x.detach())
    with torch.no_grad():
        call(x)
    with torch.inference_mode():
        call(x)


def test_a_gradient_of_torch_is_refused_by_the_argument_s_name(torch):
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(es.GradientError, match="^A is a torch tensor that requires a gradient"):
        DOUBLED(x)
    with pytest.raises(es.GradientError, match="^permute: 'input' is a torch tensor that requires"):
        es.functional.permute(x[None], (1, 0))
    with torch.no_grad(), pytest.raises(DtypeError, match=r"bfloat16; pass \.float\(\)"):
        DOUBLED(x.bfloat16().requires_grad_())


def test_parameters_take_the_values_of_torch_s(torch):
    """They are copies, as those of torch.nn.Parameter are."""
    layer = torch.nn.Linear(3, 2)
    own = es.nn.Linear(3, 2)
    own.load_state_dict(dict(layer.named_parameters()))
    np.testing.assert_array_equal(own.weight.data, layer.weight.detach().numpy())
    np.testing.assert_array_equal(es.nn.Parameter(layer.bias).data, layer.bias.detach().numpy())


@pytest.mark.parametrize("call", [
    lambda x: es.jit(lambda a: a + x)(np.ones(2)),
    lambda x: es.functional.add(np.ones(2), x),
    lambda x: es.op("y[i,j] = 2 * x[i,j]")([x, [1.0, 2.0]]),
    lambda x: es.functional.add([x, [1.0, 2.0]], 1.0),
    lambda x: es.data.batches(x, np.ones(2), 1),
])  # fmt: skip
def test_masks_are_not_lost(call):
    with pytest.raises(DtypeError, match=r"masked array, whose mask would be lost; pass \.filled"):
        call(np.ma.array([1.0, 2.0], mask=[0, 1]))


@pytest.mark.parametrize("call,name", [
    (lambda x: es.op("y[i,j] = 2 * A[i,j]")(x), "A"),
    (lambda x: es.jit(lambda a: a + x)(np.ones(2)), "an array in a traced function"),
    (lambda x: es.jit(lambda a: es.functional.add(a, x))(np.ones(2)), "add: 'other'"),
    (lambda x: es.functional.add(x, 1.0), "add: 'input'"),
    (lambda x: es.data.batches(np.ones(2), x, 1), "y"),
    (lambda x: es.nn.Linear(2, 2).predict(x), "predict: argument 0"),
    (lambda x: es.nn.Parameter(x), "the value of a parameter or buffer"),
    (lambda x: es.data.windows(x, 1), "tokens"),
])  # fmt: skip
def test_rows_of_unequal_lengths(call, name):
    with pytest.raises(es.ShapeError, match=f"^{name} is a list whose rows differ in length"):
        call([[1.0, 2.0], [3.0]])


def _powers(x, n=2):
    return x**n


class _Squares(es.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = es.nn.Linear(3, 2)
        self.squares = es.jit(_powers, static_argnames="n")
        self.both = es.jit(self.forward)

    def forward(self, x):
        return self.linear(self.squares(x, n=3))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"])
def test_a_copy_of_a_compiled_function_compiles_for_itself(copied) -> None:
    model, x = _Squares(), np.ones((4, 3), np.float32) * 2
    for _ in range(2):
        other = copied(model)
        other.linear.weight.data[...] = 1
        other.linear.bias.data[...] = 0
        assert other.squares is not model.squares and arena_of(other.squares) is not arena_of(model.squares)
        assert other.both(x).tolist() == other(x).tolist() == [[24, 24]] * 4
        assert model.both(x).tolist() == model(x).tolist() != [[24, 24]] * 4
        assert other.squares.static == {"n"} and other.squares.__name__ == "_powers"


@pytest.mark.parametrize("run", [es.interpret, es.jit])
def test_an_integer_of_run_time_is_an_index(run, rng):
    x = rng.normal(size=(3, 5))
    found = run(
        lambda x, i, j: (x[i], x[:, j], x[i, 1::2], x[..., j, None], x[i, j], x[x[:, 0].argmax()],
                         es.compute((4,), lambda a: x[i, j] * a), es.compute((2,), lambda a: x[i][a + j]))
    )(x, np.array(1), 3)  # fmt: skip
    wanted = (x[1], x[:, 3], x[1, 1::2], x[..., 3, None], x[1, 3], x[x[:, 0].argmax()])
    wanted += x[1, 3] * np.arange(4), x[1, 3:]
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, want)
    gradient = run(es.grad(lambda x, i: (x[i] ** 2).sum()))(x, np.array(2, np.int32))
    np.testing.assert_allclose(gradient, np.where(np.arange(3)[:, None] == 2, 2 * x, 0), rtol=1e-15)
    for out in (3, -1):
        with pytest.raises(IndexError, match=str(out)):
            run(lambda x, i: x[i])(x, np.array(out))


def test_inputs_in_an_order_of_ones_own(rng) -> None:
    text = "Y[i] = n*sum[k](B[k]*A[i,k])"
    a, b = rng.normal(size=(3, 5)), rng.normal(size=5)
    for order in ("A, B", ("A", "B")):
        f = es.op(text, inputs=order, n=2)
        assert f.inputs == ("A", "B") and f.signature.startswith("Y(A[i,k], B[k]")
        for g in (f, pickle.loads(pickle.dumps(f))):
            np.testing.assert_allclose(g(a, b), 2 * a @ b)
            np.testing.assert_allclose(g(B=b, A=a, n=3), 3 * a @ b)
    da, db = es.vjp(lambda a, b: f(a, b), a, b)[1](np.ones(3))
    np.testing.assert_allclose(db, 2 * a.sum(0))
    np.testing.assert_allclose(da, 2 * np.tile(b, (3, 1)))
    for wrong in ("A", ("A", "B", "C"), ["A", "A"]):
        with pytest.raises(es.FormulaError, match="name each input once; they are B, A"):
            es.op(text, inputs=wrong)
    with pytest.raises(es.KindError, match="inputs=3 must be a string"):
        es.op(text, inputs=3)


def test_the_plan_tells_what_was_compiled(rng) -> None:
    f = es.op("Y[i] = sum[k](A[i,k+s])", extents={"k": 2}, s=0)
    assert f.plan.startswith("nothing is compiled yet; call Y")
    f(rng.normal(size=(3, 5))), f(rng.normal(size=(4, 5)).astype(np.float32), s=1)
    assert "s=0\nfor f64[3, 5]\n" in f.plan and "s=1\nfor f32[4, 5]\n" in f.plan
    assert f.plan.count("us predicted") == 2
    g = es.jit(lambda x, n: x * n)
    assert g.plan.startswith("nothing")
    g(np.ones(3), 2.0)
    assert g.plan.startswith("for f64[3], f64[]\n1 kernels")
