"""Bad input, as the user meets it: each its own error, said clearly, before anything is changed.

Faults of formulas are in tests/lang, of saves and steps in tests/training, of the cache in tests/codegen, of data in
tests/data, of the command line in tests/cli; here are the rest, and what each message must contain.
"""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es

V = np.arange(1, 6, dtype=np.float32)
M = np.ones((3, 4), np.float32)
IDS = np.array([0, 4, 2])


@pytest.mark.parametrize(
    "text,given,parameters,error,message",
    [
        ("Y[i] = expp(X[i])", [V], {}, es.FormulaError, r"unknown function expp(.|\n)*\^(.|\n)*did you mean exp"),
        ("Y[i] = X[i] + bias", [V], {}, es.FormulaError, r"bias is not an axis(.|\n)*\^\n +pass the parameter.*bias="),
        ("Y[i] = X[stride*i]", [V], {}, es.FormulaError, r"no parameter stride(.|\n)*sum\[stride\](.|\n)*or pass"),
        ("Y[i] = X[strid*i]", [V], {"stride": 2}, es.FormulaError, "no input or parameter 'stride'(.|\n)*strid"),
        ("Y[i] = sum[i](X[i])", [V], {}, es.FormulaError, "i is bound twice"),
        ("Y[X] = X[X]", [V], {}, es.FormulaError, "X names both an axis and a tensor"),
        ("exp[i] = X[i]", [V], {}, es.FormulaError, "'exp' is a reserved name"),
        ("Y[i, k] = X[i]", [V], {}, es.FormulaError, r'axis k is not determined(.|\n)*extents=\{"k"'),
        ("Y[i] = sum[k](X[i+k])", [V], {}, es.FormulaError, r'axes i and k are not(.|\n)*extents=\{"i"'),
        ("Y[i] = X[i] * W[i]", [V, V[:4]], {}, es.ShapeError, "X has extent 5.*W has extent 4"),
        ("Y[i] = X[i+1] - Z[i]", [V, V], {}, es.BoundsError, r'runs from 1 to 5(.|\n)*"i": "X.shape\[0\]-1"'),
        ("Y[i] = sum[r](X[i+r] * W[r])", [V[:3], V], {}, es.BoundsError, "no extent of i keeps the read of X"),
        ("Y[i] = X[i]", [M], {}, es.ShapeError, r"X has shape \(3, 4\), 2-d, but .* 1-d"),
        ("Y[i] = X[i]", [V.astype(np.complex64)], {}, es.DtypeError, "complex64.*not supported; convert.*float32"),
        ("Y[i] = X[i]", [V.astype(complex)], {}, es.DtypeError, "complex128.*not supported"),
        ("Y[i] = X[i]", [np.array(["a"])], {}, es.DtypeError, "not supported"),
        ("Y[i] = E[ids[i]]", [V, V], {}, es.DtypeError, "ids is f32.*integer array"),
        ("Y[i] = E[ids[i]]", [V, V > 2], {}, es.DtypeError, "ids is bool.*integer array"),
        ("Y[i] = E[ids[i]] + sum[k](E[ids[k]])", [V, V > 2], {}, es.DtypeError, "ids is bool.*integer array"),
        ("Y[i] = X[n*i]", [V], {"n": 2.0}, es.FormulaError, "n stands in an index, so it must be an integer, not 2.0"),
        ("Y[i] = X[n*i]", [V], {"n": True}, es.FormulaError,
         "n stands in an index, so it must be an integer, not True"),
        ("Y[i] = X[i // 0]", [V], {}, es.FormulaError, r"integer division by zero(.|\n)*\^"),
        ("Y[i] = X[i]", [None], {}, es.DtypeError, "input X is None; pass an array"),
        ("Y[i] = X[i]", ["abc"], {}, es.DtypeError, "input X is a str"),
        ("Y[i] = X[i] * s", [V], {"s": "half"}, es.DtypeError, "parameter s is a str; pass a number"),
        ("Y[i] = X[i] + s", [IDS], {"s": 2**70}, es.DtypeError, "does not fit int64"),
        ("Y[i] = X[i]", [V, V], {}, es.FormulaError, r"takes 1 inputs \(X\), not 2"),
    ],
)  # fmt: skip
def test_formulas(text, given, parameters, error, message):
    with pytest.raises(error, match=message):
        es.op(text)(*given, **parameters)


def test_negative_extents():
    with pytest.raises(es.ShapeError, match="'i' would be -3"):
        es.op("Y[i] = 1.0", extents={"i": -3})()
    with pytest.raises(es.ShapeError, match="'i' would be -1"):
        es.op("Y[i] = X[0]", extents={"i": "X.shape[0]-6"})(V)
    with pytest.raises(es.FormulaError, match="negative extent -1"):
        es.jit(lambda a: es.compute((-1,), lambda i: a[0]))(V)


def test_no_text():
    with pytest.raises(es.FormulaError, match="a formula is a text, not an int"):
        es.op(3)
    with pytest.raises(es.FormulaError, match="the formula is empty"):
        es.op("  # nothing\n")


# -------------------------------------------------------------------------------------------- indices from the data


@pytest.mark.parametrize("bad", [5, -1, 2**40, -(2**62)])
def test_an_index_outside_names_its_element(bad):
    ids = IDS.copy()
    ids[1] = bad
    take = es.op("Y[i] = E[ids[i]]")
    message = rf"element \[1\] of ids, i64 of shape \(3,\), is {bad}, .* of E, .*: only 0 to 4"
    with pytest.raises(IndexError, match=message):
        take(V, ids)
    np.testing.assert_array_equal(take(V, IDS), V[IDS])
    with pytest.raises(IndexError, match=rf"element \[\] of n, i64 of shape \(\), is {bad}"):
        es.op("Y[] = E[n[]]")(V, np.array(bad))


def test_an_index_of_an_index_is_checked_before_it_is_used():
    take = es.op("Y[i] = E[a[b[i]]]")
    with pytest.raises(IndexError, match=rf"\[2\] of b, i64 of shape \(3,\), is {2**40}, .* of a, .*: only 0 to 2"):
        take(V, IDS, np.array([0, 1, 2**40]))
    with pytest.raises(IndexError, match=r"\[1\] of a, i64 of shape \(3,\), is 7, .* of E, .*: only 0 to 4"):
        take(V, np.array([0, 7, 1]), np.array([0, 1, 1]))


def test_an_index_of_a_recurrence_is_told_with_the_formulas_dimensions():
    f = es.op("h[b,t,k] = x[b,t,k] + where(t > 0, h[b,t-1,perm[k]], 0)\nreturn h")
    x, message = np.ones((2, 7, 4)), r"is 4, .* dimension 2 of h, of shape \(2, 7, 4\): only 0 to 3"
    for call in (f, lambda *a: es.vjp(f, *a)[1](x)):
        with pytest.raises(IndexError, match=message):
            call(x, np.array([1, 2, 3, 4]))


def test_a_negative_index_tells_how_to_count_from_the_end():
    with pytest.raises(es.BoundsError, match=r"write h.shape\[1\]-2, not -2"):
        es.op("y[b] = h[b,-2]")(np.ones((2, 3)))


def test_indices_that_a_guard_excludes_may_be_anything():
    f = es.op("Y[i] = where(ids[i] >= 0, E[ids[i]], 0)")
    np.testing.assert_array_equal(f(np.array([2, -(2**40), 0]), V), [V[2], 0, V[0]])
    with pytest.raises(IndexError, match="is 5"):
        f(np.array([2, -1, 5]), V)
    nested = es.op("Y[i] = where(i < 3, where(E[ids[i]] > 2, F[E[ids[i]]], 0), 1)", extents={"i": 6})
    e = np.array([0, 3, 4, 1, 9])
    np.testing.assert_array_equal(nested(e, IDS[[0, 2, 2]], V), [0, V[4], V[4], 1, 1, 1])
    with pytest.raises(IndexError, match=r"\[4\] of E, i64 of shape \(5,\), is 9, .* of F"):
        nested(e, np.array([0, 4, 2]), V)


def test_a_scatter_index_outside_changes_nothing():
    add = es.op("E[ids[i]] += X[i]", extents={"E.shape[0]": 4})
    with pytest.raises(IndexError, match=r"element \[1\] of ids.* is 4, .* of E, of shape \(4,\): only 0 to 3"):
        add(IDS, V[:3])


@pytest.mark.parametrize("label", [10, -1, 2**33])
def test_labels(label, rng):
    y = rng.integers(0, 10, 6)
    y[4] = label
    logits = rng.standard_normal((6, 10)).astype(np.float32)
    with pytest.raises(IndexError, match=rf"\[4\] of 'target' of cross_entropy, .* is {label}, .*: only 0 to 9"):
        es.functional.cross_entropy(logits, y)
    es.manual_seed(0)
    step = es.TrainStep(es.models.mlp3(), es.functional.cross_entropy, es.optim.Adam(lr=1e-3))
    x = rng.standard_normal((6, 1, 28, 28)).astype(np.float32)
    before = {k: v.copy() for k, v in step.model.state_dict().items()}
    with pytest.raises(IndexError, match=rf"element \[4\] of argument 1, the target, .* is {label}, .* cross_entropy"):
        step(x, y)
    assert step.steps == 0
    assert all(np.array_equal(v, before[k]) for k, v in step.model.state_dict().items())
    with pytest.raises(IndexError, match=rf"element \[4\] of target, .* is {label}, .* cross_entropy"):
        step.evaluate([(x, y)])


TWO = es.op("""
    s[i] = X[n[i]] * 2     # the first of two reads by indices of one length
    y[i] = s[i] + X[m[i]]
""")


def _twice(X, left, right):
    return TWO(X=X, n=left, m=right)


@pytest.mark.parametrize(
    "call,names",
    [
        (TWO, ("n", "m")),
        (es.jit(_twice), (r"left \(n in the formula\)", r"right \(m in the formula\)")),
        (es.interpret(_twice), ("left", "right")),
        (es.grad(lambda X, n, m: TWO(X=X, n=n, m=m).sum()), ("n", "m")),
        (es.grad(lambda X, n, m: (TWO(X=X, n=n, m=m) ** 2).sum()), ("n", "m")),
        (lambda X, n, m: es.jvp(lambda x: TWO(X=x, n=n, m=m), (X,), (X,)), ("n", "m")),
    ],
)  # fmt: skip
def test_the_input_and_the_line_are_named(call, names):
    good, bad = np.array([0, 4, 2]), np.array([0, 5, -1])
    for n, m, name, line in ((bad, good, names[0], 2), (good, bad, names[1], 3)):
        with pytest.raises(IndexError, match=rf"^element \[1\] of {name}.* is 5, .* of shape \(5,\)") as e:
            call(V, n, m)
        text, place, caret = str(e.value).splitlines()
        assert place.startswith(f"  line {line}: ") and place[caret.index("^") :].startswith("nm"[line - 2] + "[i]")


def test_batches_of_a_formula_name_its_line():
    take = es.op("Y[i] = E[ids[i]]")
    with pytest.raises(IndexError, match=r"^element \[1\] of ids, .* is 5, (.|\n)*line 1: Y\[i\] = E\[ids\[i\]\]"):
        es.jit(lambda E, ids: es.vmap(lambda e: take(e, ids))(E))(np.ones((2, 5)), np.array([0, 5, 1]))


def test_members_of_a_recurrence_name_theirs():
    walk = es.op("h[t] = where(t > 0, h[t-1], 0) + E[ids[t]]")
    with pytest.raises(IndexError, match=r"^element \[1\] of ids, .* is 5, .* of E(.|\n)*E\[ids\[t\]\]\n +\^$"):
        walk(E=V, ids=np.array([0, 5, 1]))


def test_computed_indices_name_their_input():
    with pytest.raises(IndexError, match=r"^element \[2\] of ids .*, i64 of shape \(3,\), gives 5, which"):
        es.jit(lambda E, ids: es.op("y[i] = E[k[i] + 1]")(E, ids))(V, np.array([0, 1, 4]))
    with pytest.raises(IndexError, match=r"^element \[1\] of .*k.*, i64 of shape \(3,\), is 8, which"):
        es.jit(lambda E, ids: es.op("y[i] = E[k[i]]")(E, 2 * ids))(V, np.array([0, 4, 1]))


def test_functions_and_layers_name_their_argument():
    layer, F = es.nn.Embedding(5, 2), es.functional
    ids = np.array([[0, 1], [5, 2]])
    for call, name in (
        (lambda: F.embedding(ids, M), "'input' of embedding"), (lambda: layer(ids), "input"),
        (lambda: es.jit(lambda tokens: layer(tokens))(ids), "tokens"), (lambda: layer.predict(ids), "input"),
    ):  # fmt: skip
        with pytest.raises(IndexError, match=rf"^element \[1, 0\] of {name}, i64 .* is 5, .*, of shape"):
            call()
    with pytest.raises(IndexError, match=r"^element \[1, 0\] of tokens, .*, in embedding$"):
        es.jit(lambda tokens: layer(tokens))(ids)


def test_equal_templates_of_two_formulas_are_distinguished():
    """They have one template; where it is not known which of them reads, none is named."""
    first, second = es.op("Y[i] = A[a[i]]"), es.op("Z[i] = B[b[i]]")
    both = es.jit(lambda x, p, q: first(x, p) + second(x, q))
    for p, q in (([0, 9], [0, 1]), ([0, 1], [0, 9])):
        with pytest.raises(IndexError) as e:
            both(V, np.array(p), np.array(q))
        text = str(e.value)
        assert text.startswith(f"element [1] of {'p' if 9 in p else 'q'}, ") and "is 9" in text
        assert ("B[b" if 9 in p else "A[a") not in text


def test_inside_torch(torch):
    from einsmith.frontends.torch import operator

    f = operator(es.op("Y[i] = E[ids[i]]"))
    with pytest.raises(IndexError, match=r"^element \[1\] of ids, i64 of shape \(2,\), is 5, (.|\n)*line 1: Y\[i\]"):
        f(torch.ones(5), torch.tensor([0, 5]))


# ------------------------------------------------------------------------------------------------- traced functions


@pytest.mark.parametrize(
    "f,message",
    [
        (lambda a: a if a.sum() > 0 else -a, "`if`.*es.where"),
        (lambda a: a if a.sum() > 0 and a.max() > 1 else -a, "`if`.*es.where"),
        (lambda a: float(a.sum()), r"float\(\) needs the value.*astype"),
        (lambda a: int(a[0]), r"int\(\)"),
        (lambda a: np.exp(a), "np.exp needs the value.*es.exp"),
        (lambda a: np.asarray(a), "NumPy function"),
        (lambda a: [0 for _ in range(a.sum())], "index or a size.*static"),
        (lambda a: a.__setitem__(0, 1), "not changed in place.*es.where"),
        (lambda a: "text", "str is neither"),
    ],
)
def test_python_that_needs_values(f, message):
    with pytest.raises(es.TraceError, match=message):
        es.jit(f)(V)


def test_arguments_of_traced_functions():
    with pytest.raises(es.DtypeError, match="object"):
        es.jit(lambda a: a)(object())
    with pytest.raises(es.ShapeError, match=r"\(5,\) and \(3, 4\) do not broadcast"):
        es.jit(lambda a, b: a + b)(V, M)
    with pytest.raises(es.TraceError, match="cannot be hashed"):
        es.jit(lambda a, n: a, static_argnames="n")(V, n={1, 2})
    with pytest.raises(es.ArgumentError, match="argument 'm'"):
        es.jit(lambda a, n: a, static_argnames="m")


def test_gradients():
    with pytest.raises(es.GradientError, match=r"float scalar.* shape \(5,\)"):
        es.grad(lambda a: 2 * a)(V)
    with pytest.raises(es.GradientError, match="argument 0 has type i64"):
        es.grad(lambda a: a.sum())(IDS)
    with pytest.raises(es.GradientError, match="argnums=2"):
        es.grad(lambda a: a.sum(), 2)(V)
    with pytest.raises(es.ShapeError, match=r"cotangent has shape \(4,\)"):
        es.vjp(lambda a: 2 * a, V)[1](V[:4])


# --------------------------------------------------------------------------------------------- training and the rest


def test_empty_batches(rng):
    es.manual_seed(0)
    step = es.TrainStep(es.models.mlp3(), es.functional.cross_entropy, es.optim.SGD(lr=0.1))
    x, y = np.zeros((0, 1, 28, 28), np.float32), np.zeros(0, np.int64)
    for call in (lambda: step(x, y), lambda: step.compile(x, y), lambda: step.profile(x, y)):
        with pytest.raises(es.ShapeError, match="a batch needs at least one sample"):
            call()
    with pytest.raises(es.ShapeError, match="empty"):
        step.fit([], progress=False)
    with pytest.raises(es.ShapeError, match="empty"):
        step.evaluate([])
    assert step.steps == step.epoch == 0


def test_options():
    with pytest.raises(es.ArgumentError, match=r"set_threads: n=.* must be an integer in \[1, 4096\]"):
        es.set_threads(0)
    with pytest.raises(es.ArgumentError, match="'2'"):
        es.set_threads("2")
    with pytest.raises(es.ArgumentError, match="lr=-1"):
        es.optim.SGD(lr=-1)
    with pytest.raises(es.UnknownNameError, match="did you mean 'lenet5'") as e:
        es.models.get("lenet6")
    assert not str(e.value).startswith('"')
    with pytest.raises(es.SaveError, match="TrainStep"):
        es.save(es.models.mlp3(), "nowhere")


def test_every_error_is_an_einsmith_error():
    named = [getattr(es, name) for name in es.__all__]
    kinds = [x for x in named if isinstance(x, type) and issubclass(x, Exception)]
    assert len(kinds) > 10
    assert all(issubclass(k, es.EinsmithWarning if issubclass(k, Warning) else es.EinsmithError) for k in kinds)


def deep(levels: int) -> list:
    out: list = [1.0]
    for _ in range(levels):
        out = [out]
    return out


def test_arguments_that_are_nested_without_end() -> None:
    itself: list = []
    itself.append(itself)
    for wrong in (deep(100_000), itself, {"a": itself}):
        with pytest.raises(es.ArgumentError, match="nested too deeply, or contains itself"):
            es.jit(lambda a: V)(wrong)
        with pytest.raises(es.ArgumentError, match="nested too deeply, or contains itself"):
            es.jit(lambda a, wrong=wrong: wrong)(np.ones(3))
    np.testing.assert_array_equal(es.jit(lambda a: a[0][0] * 2)([[np.ones(3)]]), [2, 2, 2])
