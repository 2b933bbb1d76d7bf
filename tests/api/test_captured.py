"""Arrays that a traced function reads around it: their present values count at each call, whatever came before."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import einsmith as es
from einsmith.base.captured import CapturedArray

F = np.float32
AROUND = np.ones(5, F)
PRODUCT = es.op("y[i] = sum[j](w[i,j]*x[j])")


class Holder:
    """An object with an array."""

    def __init__(self, array):
        self.array = array

    def scaled(self, x):
        return x * self.array


def read_around(x):
    return x * AROUND


def by_closure(array):
    return lambda x: x * array


def by_default(array):
    def f(x, scale=array):
        return x * scale

    return f


WAYS = {
    "closure": by_closure,
    "default argument": by_default,
    "attribute": lambda array: Holder(array).scaled,
    "partial": lambda array: functools.partial(lambda array, x: x * array, array),
    "function of tensors": lambda array: lambda x: es.functional.where(x > -100, x * array, x),
    "nested jit": lambda array: es.jit(lambda x: es.jit(lambda x: x * array)(x)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("transform", ["jit", "grad", "vjp", "jvp", "shared sizes"])
def test_a_changed_array_counts_at_the_next_call(rng, way, transform):
    array = rng.standard_normal(5).astype(F)
    f, x = WAYS[way](array), rng.standard_normal(5).astype(F)
    jitted, slope = es.jit(f, sizes="shared" if transform == "shared sizes" else None), es.grad(lambda x: f(x).sum())
    for _ in range(3):
        if transform == "grad":
            np.testing.assert_array_equal(slope(x), array)
        elif transform == "vjp":
            np.testing.assert_array_equal(es.vjp(f, x)[1](np.ones(5, F))[0], array)
        elif transform == "jvp":
            np.testing.assert_array_equal(es.jvp(f, (x,), (np.ones(5, F),))[1], array)
        else:
            for rows in (1, 2, 3, 1):
                np.testing.assert_array_equal(jitted(np.stack([x] * rows)), np.stack([x * array] * rows))
        array[...] = rng.standard_normal(5)


def test_a_global_array():
    f = es.jit(read_around)
    for value in (1, 5, 7):
        AROUND[:] = value
        assert (f(np.ones(5, F)) == value).all() and (f(np.ones((2, 5), F)) == value).all()


ARRAYS = {
    "contiguous": lambda rng: rng.standard_normal((4, 5)).astype(F),
    "transposed": lambda rng: rng.standard_normal((5, 4)).astype(F).T,
    "strided": lambda rng: rng.standard_normal((8, 10)).astype(F)[::2, ::-2],
    "a part": lambda rng: rng.standard_normal((9, 5)).astype(F)[3:7],
    "of the other byte order": lambda rng: rng.standard_normal((4, 5)).astype(">f4"),
    "unaligned": lambda rng: np.frombuffer(bytearray(81), np.uint8)[1:].view(F).reshape(4, 5),
    "float64": lambda rng: rng.standard_normal((4, 5)),
    "integers": lambda rng: rng.integers(0, 9, (4, 5)),
    "bools": lambda rng: rng.integers(0, 2, (4, 5)).astype(bool),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_of_every_layout_and_type(rng, kind):
    array, x = ARRAYS[kind](rng), rng.standard_normal(5).astype(F)
    f, g = es.jit(lambda x: x * array), es.jit(lambda x: PRODUCT(array, x))
    for _ in range(3):
        np.testing.assert_allclose(f(x), x * array.astype(array.dtype.newbyteorder("=")), rtol=1e-6)
        if array.dtype != bool:
            np.testing.assert_allclose(g(x), array.astype(np.float64) @ x, rtol=1e-4, atol=1e-5)
        array[...] = rng.integers(0, 2, array.shape)


def test_a_tensor_of_pytorch(torch, rng):
    for array in (torch.ones(5), torch.ones(5, 2)[:, 0]):
        f = es.jit(lambda x, array=array: x * array)
        for value in (1, 5):
            array[:] = value
            assert (f(np.ones(5, F)) == value).all()


def test_indices_are_checked_at_each_call():
    rows, table = np.array([0, 2]), np.arange(12, dtype=F).reshape(4, 3)
    f = es.jit(lambda table: table[rows])
    np.testing.assert_array_equal(f(table), table[[0, 2]])
    rows[:] = 3, 1
    np.testing.assert_array_equal(f(table), table[[3, 1]])
    rows[:] = 0, 4
    with pytest.raises(es.EinsmithError, match="4"):
        f(table)


def test_an_array_that_the_function_changes_keeps_the_values_of_each_reading(rng):
    """Work arrays of the trace: Python runs once, and each reading has the values of its time."""
    x = rng.standard_normal(3).astype(F)

    def f(x):
        mask, out = np.zeros(3, F), 0
        for i in range(3):
            mask[:] = 0
            mask[i] = i + 1
            out = out + x * mask
        return out

    jitted = es.jit(f)
    for _ in range(2):
        np.testing.assert_allclose(jitted(x), x * [1, 2, 3], rtol=1e-6)


def test_constants_of_a_function_are_not_read_again(monkeypatch):
    """What a function makes itself costs nothing at a call, and neither does an array that programs read in place."""
    bound = []
    bind = CapturedArray.bind
    monkeypatch.setattr(CapturedArray, "bind", lambda self: bound.append(bind(self)) or bound[-1])
    outside = np.ones(3, F)

    def f(x):
        own = np.arange(6, dtype=F)
        return x * own[:3] * np.array([1, 2, 3], F) * outside + [1, 2, 3]

    es.jit(f)(np.ones(3, F))
    assert [isinstance(a, CapturedArray) for a in bound] == [False, False, True, False]
    assert np.shares_memory(bound[2], outside)


def test_two_arrays_share_no_program_of_all_sizes():
    """Equal values now may differ later."""
    holder = Holder(np.ones(3, F))
    f = es.jit(lambda x: x * holder.array, sizes="shared")
    first, x = holder.array, np.ones((5, 3), F)
    f(x[:2]), f(x[:3])
    holder.array = np.ones(3, F)
    f(x[:4])
    holder.array[:] = 7
    assert (f(x[:4]) == 7).all()
    first[:] = 3
    assert (f(x[:4]) == 7).all()


class Scaled(es.nn.Module):
    def __init__(self, scale):
        self.linear, self.scale = es.nn.Linear(4, 3), scale

    def forward(self, x):
        return self.linear(x) * self.scale


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"deterministic": True}, {"sizes": "shared"}])
def test_training_reads_arrays_of_model_and_loss(rng, options):
    """The same numbers as a step of a model and a loss that are traced anew after each change."""
    x, y = rng.standard_normal((8, 4)).astype(F), rng.standard_normal((8, 3)).astype(F)
    scale, weight = np.ones(3, F), np.ones((3, 2), F)[:, 0]

    def make():
        es.manual_seed(0)
        return es.TrainStep(Scaled(scale), lambda o, t: (weight * (o - t) ** 2).mean(), es.optim.SGD(lr=0.1), **options)

    step, twin = make(), make()
    for n in range(4):
        scale[:], weight[:] = rng.uniform(1, 2, 3), rng.uniform(1, 2, 3)
        twin.compiler.drop()
        assert step(x, y) == pytest.approx(twin(x, y), rel=1e-5), n
        found = step.evaluate([(x, y)])["loss"]
        output = step.model.predict(x)
        np.testing.assert_allclose(found, (weight * (output - y) ** 2).mean(), rtol=1e-5)
        w, b = (np.array(p.data) for p in (step.model.linear.weight, step.model.linear.bias))
        np.testing.assert_allclose(output, (x @ w.T + b) * scale, rtol=1e-4, atol=1e-5)


def test_a_view_of_a_parameter_is_read_before_the_update(rng):
    """The program stores into the memory that the array shows: it reads the values from before the step."""
    es.manual_seed(0)
    model = es.nn.Linear(4, 3)
    view, x, y = model.weight.data, rng.standard_normal((8, 4)).astype(F), rng.standard_normal((8, 3)).astype(F)
    step = es.TrainStep(model, lambda o, t: ((o - t) ** 2).mean() + (t[0, 0] * view).sum(), es.optim.SGD(lr=0.1))
    for _ in range(3):
        w, b = np.array(model.weight.data), np.array(model.bias.data)
        expected = ((x @ w.T + b - y) ** 2).mean() + y[0, 0] * w.sum()
        assert step(x, y) == pytest.approx(expected, rel=1e-5)


def test_a_source_of_another_shape_is_an_error():
    class Growing:
        shape_now = (3,)

        def __array__(self, dtype=None, copy=None):
            return np.ones(self.shape_now, F)

    source = Growing()
    f = es.jit(lambda x: x * source)
    f(np.ones(3, F))
    source.shape_now = (1,)
    with pytest.raises(es.ShapeError, match=r"was float32\[3\] and is float32\[1\] now; pass it as an argument"):
        f(np.ones(3, F))
