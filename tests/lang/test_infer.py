"""Inference of extents, against enumeration of every index."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einsmith.base.errors import BoundsError, FormulaError, ShapeError
from einsmith.lang.copied import find_copied_dimensions
from einsmith.lang.infer import infer
from einsmith.lang.resolve import resolve


def axes(text, shapes, extents=None, **values):
    """{axis: extent} of a formula of one statement, or {(line, axis): extent}."""
    found = infer(resolve(text, extents, values), shapes, values).axes
    return {a: n for (_, a), n in found.items()} if len({k for k, _ in found}) == 1 else found


def test_plain_indices():
    assert axes("Y[i,j] = sum[k](A[i,k] * B[k,j])", {"A": (2, 3), "B": (3, 5)}) == {"i": 2, "j": 5, "k": 3}


def test_extents_flow_between_statements_in_any_order():
    text = "Y[i] = S[i] / T[]\nT[] = sum[i](S[i])\nS[k] = sum[j](X[k,j])"
    found = infer(resolve(text), {"X": (7, 3)}, {})
    assert found.shapes == {"X": (7, 3), "Y": (7,), "T": (), "S": (7,)}
    assert found.axes == {(0, "i"): 7, (1, "i"): 7, (2, "k"): 7, (2, "j"): 3}


def test_a_left_side_binds_through_the_reader():
    found = infer(resolve("Y[i] = T[i] + X[i]\nT[k] = k * 2.0"), {"X": (5,)}, {})
    assert found.axes == {(0, "i"): 5, (1, "k"): 5}


@st.composite
def _window(draw):
    """An index over p (unknown) and r (known), and the extents of r and of the tensor."""
    r, n = draw(st.integers(1, 4)), draw(st.integers(1, 14))
    a, b = draw(st.integers(1, 4)), draw(st.integers(-2, 3))
    c = draw(st.integers(0, 3))
    form = draw(
        st.sampled_from(["{a}*p + {b}*r + {c}", "({a}*p + r + {c})//2", "p//{a} + r", "n-1-p-r", "(p+r)//{a}+{c}"])
    )
    return form.format(a=a, b=b, c=c).replace("n", str(n)), r, n


@given(_window())
@settings(max_examples=150)
def test_the_largest_extent_by_enumeration(case):
    index, r, n = case

    def fits(extent):
        points = itertools.product(range(extent), range(r))
        return all(0 <= eval(index, {"p": p, "r": q}) < n for p, q in points)

    want = 0
    while fits(want + 1) and want < 200:
        want += 1
    text, shapes = f"Y[p] = sum[r](X[{index}] * W[r])", {"X": (n,), "W": (r,)}
    if want == 0:
        with pytest.raises(BoundsError):
            axes(text, shapes)
    else:
        assert axes(text, shapes) == {"p": want, "r": r}


@pytest.mark.parametrize("h,r,stride,dilation", list(itertools.product((7, 15, 16, 17), (1, 3), (1, 2, 3), (1, 2))))
def test_windows_have_the_usual_extent(h, r, stride, dilation):
    found = axes("Y[p] = sum[r](X[s*p + d*r] * W[r])", {"X": (h,), "W": (r,)}, s=stride, d=dilation)
    assert found["p"] == (h - dilation * (r - 1) - 1) // stride + 1


def test_several_reads_take_the_smallest():
    assert axes("Y[p] = X[2*p] + Z[p+1]", {"X": (9,), "Z": (4,)}) == {"p": 3}


def test_fixpoint():
    # r is known only after p, which is known only after q.
    found = axes("Y[p,q] = sum[r](A[2*q] + B[p+q+0*r] + C[p+r+1])", {"A": (7,), "B": (9,), "C": (11,)})
    assert found == {"q": 4, "p": 6, "r": 5}


def test_guarded_plain_indices():
    assert axes("Y[i] = where(i > 0, X[i], 0)", {"X": (5,)}) == {"i": 5}
    assert axes("Y[i,j] = where(i > 0, X[i,j], 0)", {"X": (5, 3)}) == {"i": 5, "j": 3}
    with pytest.raises(FormulaError, match="axis i is not determined"):  # the second branch would be dead
        axes("Y[i] = where(i < n, A[i], B[i-n])", {"A": (4,), "B": (3,)}, n=4)
    found = axes("Y[i] = where(i < n, A[i], B[i-n])", {"A": (4,), "B": (3,)}, {"i": "n + B.shape[0]"}, n=4)
    assert found == {"i": 7}


@pytest.mark.parametrize("n", [1, 2, 3, 5, 9])
def test_which_reads_tell_an_extent_does_not_depend_on_extents(n):
    """Where guards leave an axis free above, where they compare it with other axes, and where nothing goes on."""
    assert axes("Y[i] = where(i > 0, X[i]-X[i-1], X[i])", {"X": (n,)}) == {"i": n}
    assert axes("Y[i] = where(i > 0, X[i], S[i])", {"X": (n,), "S": (1,)}) == {"i": n}
    assert axes("Y[i] = where(i > 1, X[i-2], X[i])", {"X": (n,)}) == {"i": n}
    assert axes("Y[t] = sum[s](where(s <= t, Q[t]*K[s], 0))", {"Q": (n,), "K": (3,)}) == {"t": n, "s": 3}
    assert axes("Y[i] = where(i < m, A[i], B[i])", {"A": (4,), "B": (n + 3,)}, m=4) == {"i": n + 3}
    for m in (1, n, n + 1):
        assert axes("Y[i] = where(i < m, A[i], 0)", {"A": (n,)}, m=m) == {"i": n}
        for text in (
            "Y[i] = where(i < m, A[i], B[i-m])", "Y[i] = where(i >= m, B[i-m], A[i])",
            "Y[i] = where(i < m, A[i], 0) + where(i >= m, B[i-m], 0)",
        ):  # fmt: skip
            with pytest.raises(FormulaError, match="axis i is not determined"):
                axes(text, {"A": (n,), "B": (3,)}, m=m)
    for guard in ("i < A.shape[0]", "i <= A.shape[-1]-1", "not (i+1 > A.shape[0])", "0 <= i and 2+i < 2+A.shape[0]"):
        with pytest.raises(FormulaError, match="axis i is not determined"):  # the guard would say nothing
            axes(f"Y[i] = where({guard}, A[i], 0)", {"A": (n,)})
    assert axes("Y[i] = where(i+1 < A.shape[0], A[i+1]-A[i], 0)", {"A": (n,)}) == {"i": n}


@pytest.mark.parametrize("n", [2, 3, 5, 9])
def test_a_quotient_by_a_negative_number_falls(n):
    """`i // -2 < 0` is 0 < i, which lets the axis go on; `-1 < i // -2` is i < 1."""
    assert axes("Y[i] = where(i // -2 < 0, X[i], S[i])", {"X": (n,), "S": (1,)}) == {"i": n}
    assert axes("Y[i] = where(-1 < i // -2, S[i], X[i])", {"X": (n,), "S": (1,)}) == {"i": n}


def test_guards_on_other_axes_do_not_hinder():
    assert axes("Y[i,p] = where(i > 0, X[i-1,p+1], 0)", {"X": (5, 3)}, {"i": 6}) == {"i": 6, "p": 2}


def test_explicit_extents():
    text = "Y[i] = X[i+1] - X[i]"
    assert axes(text, {"X": (5,)}, {"i": "X.shape[0]-1"}) == {"i": 4}
    assert axes(text, {"X": (5,)}, {"i": 2}) == {"i": 2}
    assert axes("Y[p] = sum[r](X[p+r])", {"X": (9,)}, {"r": "m//2"}, m=7) == {"p": 7, "r": 3}
    with pytest.raises(ShapeError, match="would be -2"):
        axes(text, {"X": (5,)}, {"i": "X.shape[0]-7"})
    with pytest.raises(FormulaError, match="not an axis of the formula.*\n.*did you mean"):
        axes("Y[ii] = X[ii]", {"X": (5,)}, {"i": 3})
    with pytest.raises(FormulaError, match="unknown tensor"):
        axes(text, {"X": (5,)}, {"i": "Z.shape[0]"})


def test_size_and_shape():
    found = axes("Y[i] = sum[j](X[i + size(j) - 1 - j] * W[j])", {"X": (9,), "W": (3,)})
    assert found == {"i": 7, "j": 3}


def test_pieces_cover():
    found = infer(resolve("D[b,2*h] = X[b,h]\nD[b,2*h+1] = -X[b,h]"), {"X": (3, 4)}, {})
    assert found.shapes["D"] == (3, 8)


def test_conflicts_name_both():
    with pytest.raises(ShapeError, match="axis c has two extents: A has extent 3 .* W has extent 4"):
        axes("Y[] = sum[c](A[c] * W[c])", {"A": (3,), "W": (4,)})


@pytest.mark.parametrize(
    "text,shapes,message",
    [
        ("Y[i] = X[0] * 2", {"X": (3,)}, 'axis i is not determined(.|\n)*extents={"i": N}'),
        ("Y[i] = sum[k](X[i+k])", {"X": (3,)}, 'axes i and k(.|\n)*extents={"i"'),
        ("Y[i] = where(0 <= i-1, X[i-1], 0)", {"X": (3,)}, 'extents={"i": "X.shape\\[0\\]"}'),
        ("Y[i] = X[i%3]", {"X": (3,)}, "axis i is not determined"),
        ("E[ids[i]] += X[i]", {"ids": (3,), "X": (3,)}, 'extents={"E.shape\\[0\\]": N}'),
    ],
)
def test_undetermined(text, shapes, message):
    with pytest.raises(FormulaError, match=message):
        axes(text, shapes)


def test_nothing_fits():
    with pytest.raises(BoundsError, match="no extent of p.*from 0 to 2.*extent 2"):
        axes("Y[p] = sum[r](X[p+r] * W[r])", {"X": (2,), "W": (3,)})
    with pytest.raises(BoundsError, match="from -1(.|\n)*guard the read"):
        axes("Y[i] = X[i-1]", {"X": (5,)})


COPIED = {
    "y[i,k] = sum[j](x[i,j]*w[k,j])": {"x0", "x1", "w0", "w1", "y0", "y1"},
    "y[b,i] = sum[r](x[b,i+r]*w[r])": {"x0", "y0"},  # the extent of i follows from those of x and w
    "y[b,i] = x[b+1,i]": {"x1", "y1"},
    "y[b,i] = x[b,i] + where(b > 0, x[b-1,i], 0)": {"x1", "y1"},
    "y[b,i] = where(b < i, x[b,i], 0)": {"x0", "x1", "y0", "y1"},
    "y[b,t] = where(t < n[b], x[b,t], 0)": {"n0", "x0", "x1", "y0", "y1"},
    "y[b] = x[b,x.shape[1]-1]": {"x0", "y0"},
    "y[b] = x[b,x.shape[-1]-1]": {"x0", "y0"},
    "y[b,t] = x[b,t]*n[b] + where(t < n.shape[0], w[t+1], 0)": set(),  # n guards the read of w
    "y[b] = x[b] + w[size(b)-1]": set(),
    "y[b] = x[b]*size(b)": {"x0", "y0"},
    "y[b,i] = x[b]*w[i % x.shape[0]]": set(),
    "y[b,2*i] = x[b,i]\ny[b,2*i+1] = x[b,i]": {"x0", "y0"},
    "y[t,k] = sum[j](where(t > 0, y[t-1,j], 0)*w[j,k]) + x[t,k]": {"x1", "w0", "w1", "y1"},
    "y[b,k] = x[w[b],k]": {"w0", "x1", "y0", "y1"},
    "return z, y\ny[b] = x[b]\nz[c] = y[c]*w[c]": {"x0", "w0", "y0", "z0"},
}


@pytest.mark.parametrize("text", COPIED)
def test_copied_dimensions(text):
    lines = text.split("\n")
    program = resolve("\n".join([*(x for x in lines if "return" not in x), *(x for x in lines if "return" in x)]))
    shapes = {n: (1,) * r for n, r in program.inputs.items()}
    copied = find_copied_dimensions(program, shapes)
    assert {f"{n}{d}" for n, d in copied.sources} == COPIED[text]
    assert all(source[0] in program.inputs for source in copied.sources.values())
    assert copied.why.keys() == {(n, d) for n, s in shapes.items() for d in range(len(s))} - copied.sources.keys()


def test_extents_that_are_given_are_not_copied():
    program = resolve("y[b,i,k] = x[b,i]", {"k": "x.shape[1]"})
    copied = find_copied_dimensions(program, {"x": (1, 1)})
    assert copied.sources == {("x", 0): ("x", 0), ("y", 0): ("x", 0)}
    assert copied.why == {("x", 1): "extents={'k': x.shape[1]}"}
    program = resolve("y[b,i] = x[b,i]", {"i": 3})
    copied = find_copied_dimensions(program, {"x": (1, 1)})
    assert copied.sources == {("x", 0): ("x", 0), ("y", 0): ("x", 0)}
    assert copied.why == {("x", 1): "extents={'i': 3}"}
