"""Transformations keep their arguments apart, and compiled functions notice when what they depend on changes."""

import gc
import weakref

import numpy as np
import pytest

import einsmith as es
from tests.programs import programs_of


def vector(n=5, seed=None):
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


# ------------------------------------------------------------------------------------------- gradients inside traces


def test_gradient_inside_a_trace_does_not_flow_through_what_the_function_closes_over():
    x = vector()
    got = es.jit(lambda x: es.grad(lambda a: es.sum(a * x, axis=0))(x))(x)
    np.testing.assert_allclose(got, x)


def test_gradient_inside_a_trace_does_not_flow_through_a_closed_over_function_of_the_argument():
    x = vector()
    got = es.jit(lambda x: es.grad(lambda a: es.sum(a * es.exp(x), axis=0))(x))(x)
    np.testing.assert_allclose(got, np.exp(x), rtol=1e-5)


def test_partial_gradients_at_one_tensor_passed_twice():
    x = vector()
    both = es.jit(lambda x: es.grad(lambda a, b: es.sum(a * b * b, axis=0), argnums=(0, 1))(x, x))(x)
    np.testing.assert_allclose(both[0], x * x, rtol=1e-5)
    np.testing.assert_allclose(both[1], 2 * x * x, rtol=1e-5)


def test_pullback_at_one_tensor_passed_twice():
    x = vector()

    def f(x):
        _, pull = es.vjp(lambda a, b: a * b * b, x, x)
        return pull(x)

    a, b = es.jit(f)(x)
    np.testing.assert_allclose(a, x**3, rtol=1e-5)
    np.testing.assert_allclose(b, 2 * x**3, rtol=1e-5)


def test_pullback_in_a_trace_does_not_flow_through_closures():
    x = vector()
    got = es.jit(lambda x: es.vjp(lambda a: a * x, x)[1](x)[0])(x)
    np.testing.assert_allclose(got, x * x, rtol=1e-5)


def test_hessian_of_a_product_with_a_closed_over_outer_argument():
    """d/dx (d/da a*a*x at a=x) = d/dx 2*x*x = 4*x."""
    x = np.float64(1.5)
    inner = es.grad(lambda x: es.grad(lambda a: a * a * x)(x))
    np.testing.assert_allclose(inner(np.asarray(x)), 4 * x)


def test_gradient_by_a_python_number_inside_a_trace():
    x = vector()
    got = es.jit(lambda x: es.grad(lambda a, b: es.sum(a * b * b, axis=0), argnums=1)(x, 3.0))(x)
    np.testing.assert_allclose(got, 6 * x.sum(), rtol=1e-4)


def test_gradient_of_arrays_inside_a_trace_may_close_over_traced_tensors():
    x = vector()
    got = es.jit(lambda x: es.grad(lambda w: es.sum(w * w * x, axis=0))(np.full(5, 2, np.float32)))(x)
    np.testing.assert_allclose(got, 4 * x, rtol=1e-5)
    got = es.jit(lambda x: es.vjp(lambda w: w * x, np.full(5, 2, np.float32))[1](np.ones(5, np.float32))[0])(x)
    np.testing.assert_allclose(got, x, rtol=1e-5)
    got = es.jit(lambda x: es.jit(lambda w: w * x)(np.full(5, 2, np.float32)))(x)
    np.testing.assert_allclose(got, 2 * x, rtol=1e-5)


def test_negative_argnums():
    x, y = vector(), vector()
    np.testing.assert_allclose(es.grad(lambda a, b: es.sum(a * a * b, axis=0), argnums=-1)(x, y), x * x, rtol=1e-5)
    with pytest.raises(es.GradientError):
        es.grad(lambda a, b: es.sum(a * b, axis=0), argnums=-3)(x, y)
    got = es.grad(lambda a, b: es.sum(a * b, axis=0), argnums=np.int64(1))(x, y)
    np.testing.assert_allclose(got, x)


def test_aux_must_be_a_pair():
    with pytest.raises(es.GradientError, match="has_aux"):
        es.grad(lambda a: a * a, has_aux=True)(vector(2))


def test_gradients_of_nested_containers_and_keywords():
    p = {"w": vector(), "rest": [vector(), (vector(), None)]}

    def f(p, *, scale):
        return es.sum(p["w"] * p["rest"][0] * p["rest"][1][0], axis=0) * scale

    value, g = es.value_and_grad(f)(p, scale=2.0)
    assert g["rest"][1][1] is None
    np.testing.assert_allclose(g["w"], 2 * p["rest"][0] * p["rest"][1][0], rtol=1e-5)
    np.testing.assert_allclose(g["rest"][1][0], 2 * p["rest"][0] * p["w"], rtol=1e-5)


# ----------------------------------------------------------------------------------------------------------- pullback


def test_keys_of_a_cotangent_may_come_in_any_order():
    x = vector()
    _, pull = es.vjp(lambda x: {"a": x, "b": [3 * x]}, x)
    np.testing.assert_allclose(pull({"b": [x], "a": 0 * x})[0], 3 * x, rtol=1e-6)
    with pytest.raises(es.GradientError):
        pull({"b": [x]})


def test_pullback_outlives_the_function_that_was_differentiated(new_objects):
    x = vector()
    out, pull = es.vjp(lambda a: a * a * a, x)
    gc.collect()
    np.testing.assert_allclose(pull(np.ones(5, np.float32))[0], 3 * x * x, rtol=1e-5)


def test_pullback_belongs_to_the_point_where_it_was_made():
    x = vector()
    old = x.copy()
    _, pull = es.vjp(lambda a: a * a, x)
    x[...] = 0
    np.testing.assert_allclose(pull(np.ones(5, np.float32))[0], 2 * old, rtol=1e-5)


def test_pullback_of_a_bound_method_and_of_a_callable_without_hash(new_objects):
    class Square:
        __hash__ = None

        def __call__(self, a):
            return a * a

        def method(self, a):
            return a * a

    x = vector()
    for f in (Square(), Square().method):
        out, pull = es.vjp(f, x)
        gc.collect()
        np.testing.assert_allclose(pull(out)[0], 2 * x**3, rtol=1e-5)


# ------------------------------------------------------------------------------------------------------- static values


def test_static_values_that_are_equal_but_not_the_same():
    f = es.jit(lambda x, c: x / c if isinstance(c, float) else x * 0 + (7 if c is True else 9), static_argnames="c")
    x = np.ones(2, np.float32)
    assert f(x, 1.0)[0] == 1
    assert f(x, 1)[0] == 9
    assert f(x, True)[0] == 7
    assert f(x, 0.0)[0] == np.inf
    assert f(x, -0.0)[0] == -np.inf


def test_static_keyword_only_name_says_nothing_about_positions():
    def f(*xs, n):
        return xs[0] * n + xs[1]

    x, y = vector(), vector()
    g = es.jit(f, static_argnames="n")
    np.testing.assert_allclose(g(x, y, n=2), 2 * x + y, rtol=1e-6)
    np.testing.assert_allclose(g(x, 2 * y, n=2), 2 * x + 2 * y, rtol=1e-6)
    assert len(programs_of(g)) == 1


def test_static_value_without_hash_is_refused():
    f = es.jit(lambda x, c: x * float(c[0]), static_argnames="c")
    with pytest.raises(es.TraceError, match="static"):
        f(vector(), np.ones(1))


# --------------------------------------------------------------------------------------------- what a trace depends on


class Mode(es.nn.Module):
    def __init__(self):
        self.weight = es.nn.Parameter(np.full(3, 2.0, np.float32))
        self.scale = 1.0

    def forward(self, x):
        return x * self.weight * self.scale if self.training else x


@pytest.mark.parametrize("wrap", ["closure", "argument", "grad", "vjp", "functional_call", "plain"])
def test_training_mode_is_noticed(wrap):
    model, x = Mode(), np.ones(3, np.float32)
    if wrap == "closure":
        f = es.jit(lambda x: model(x))
    elif wrap == "argument":
        g = es.jit(lambda m, x: m(x))
        f = lambda x: g(model, x)  # noqa: E731
    elif wrap == "grad":
        f = es.grad(lambda x: es.sum(model(x), axis=0))
    elif wrap == "vjp":
        h = lambda x: model(x)  # noqa: E731
        f = lambda x: es.vjp(h, x)[1](x)[0]  # noqa: E731
    elif wrap == "functional_call":
        f = lambda x: es.nn.functional_call(model, {"weight": model.weight.data}, x)  # noqa: E731
    else:
        f = model
    assert f(x)[0] == 2
    model.eval()
    assert f(x)[0] == 1
    model.train()
    assert f(x)[0] == 2


@pytest.mark.parametrize("wrap", ["closure", "plain", "attribute"])
def test_replaced_parameters_and_settings_are_noticed(wrap):
    model, x = Mode(), np.ones(3, np.float32)
    f = {"closure": es.jit(lambda x: model(x)), "plain": model, "attribute": es.jit(lambda x: x * model.weight)}[wrap]
    assert f(x)[0] == 2
    model.weight = es.nn.Parameter(np.full(3, 5.0, np.float32))
    assert f(x)[0] == 5
    model.weight.data[...] = 6
    assert f(x)[0] == 6
    if wrap != "attribute":
        model.scale = 3.0
        assert f(x)[0] == 18
    model.to("float64")
    assert f(x)[0] in (6, 18)
    assert f(x).dtype == np.float64


def test_modules_are_freed_with_their_compiled_code(new_objects):
    model = Mode()
    model(np.ones(3, np.float32))
    es.nn.functional_call(model, {}, np.ones(3, np.float32))
    ref = weakref.ref(model)
    del model
    gc.collect()
    assert ref() is None


class Counting(es.nn.Module):
    def __init__(self):
        self.register_buffer("seen", np.zeros(3, np.float32))

    def forward(self, x):
        self.seen = self.seen + x
        return x * x


def test_buffers_are_updated_once_a_call_under_every_transformation():
    x = np.ones(3, np.float32)
    for f in (
        lambda m: m(x),
        lambda m: es.grad(lambda x: es.sum(m(x), axis=0))(x),
        lambda m: es.jvp(m, (x,), (x,)),
        lambda m: es.jit(lambda x: es.grad(lambda a: es.sum(m(a * x), axis=0))(x))(x),
        lambda m: es.jit(lambda x: es.jvp(m, (x,), (x,)))(x),
    ):
        m = Counting()
        f(m)
        np.testing.assert_array_equal(m.seen.data, x)
        f(m)
        np.testing.assert_array_equal(m.seen.data, 2 * x)


def test_vjp_updates_buffers_once():
    m, x = Counting(), np.ones(3, np.float32)
    out, pull = es.vjp(m, x)
    pull(out)
    np.testing.assert_array_equal(m.seen.data, x)


def test_input_that_is_the_memory_of_an_updated_buffer():
    """The call reads x after it has stored into the buffer; what it reads is what was passed."""

    class Shift(es.nn.Module):
        def __init__(self):
            self.register_buffer("b", np.arange(100, dtype=np.float32))

        def forward(self, x):
            self.b = self.b * 2
            return self.b + x[::-1]

    m = Shift()
    x = m.b.data.copy()
    want = m(x)
    m.b.data[...] = x
    np.testing.assert_array_equal(m(m.b.data), want)
    m.b.data[...] = x
    np.testing.assert_array_equal(m(m.b), want)
    m.b.data[...] = x
    np.testing.assert_array_equal(m(m.b.data[::1]), want)


def test_tensor_of_another_trace_is_refused():
    kept = []
    es.jit(lambda x: kept.append(x) or x)(vector())
    with pytest.raises(es.TraceError, match="another trace"):
        es.jit(lambda x: x + kept[0])(vector())


def test_outputs_are_fresh_memory():
    x = vector()
    f = es.jit(lambda x: (x, x, x.reshape(5, 1), x * 2, (x * 2).reshape(1, 5)))
    out = f(x)
    for i, a in enumerate(out):
        assert not np.shares_memory(a, x)
        assert not any(np.shares_memory(a, b) for b in out[i + 1 :])
    again = f(x)
    assert not any(np.shares_memory(a, b) for a in out for b in again)


def test_buffer_that_is_only_written_is_found_after_a_conversion():
    class Last(es.nn.Module):
        def __init__(self):
            self.register_buffer("last", np.zeros(3, np.float32))

        def forward(self, x):
            self.last = x
            return x

    m, x = Last(), vector(3)
    m(x)
    m.double()
    m(2 * x)
    np.testing.assert_array_equal(m.last.data, 2 * x)
