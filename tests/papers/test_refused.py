"""Spellings in which operators from papers come naturally, and which are refused: the error names the remedy."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es

REFUSED = [
    (
        "softmax that reduces over an axis of the left side",
        "p[i,j] = exp(s[i,j])/sum[j](exp(s[i,j]))",
        {"s": (3, 4)},
        "the axis j is bound twice.*give the reduction another axis than j",
    ),
    (
        "a letter for a gate and for an axis",
        """i[t,k] = sigmoid(sum[i](x[t,i]*I[i,k]))
           y[t,k] = i[t,k]*sum[i](x[t,i]*H[i,k])""",
        {"x": (3, 2), "I": (2, 4), "H": (2, 4)},
        "i names both an axis and a tensor.*rename the axis i",
    ),
    (
        "causal convolution of which every read is guarded",
        "y[t,d] = sum[r](where(0 <= t + r - 1 < x.shape[0], w[r]*x[t+r-1,d], 0))",
        {"x": (5, 2), "w": (3,)},
        r'the extent of the axis t is not determined.*add extents=\{"t": "x.shape\[0\]"\}',
    ),
    (
        "layer that doubles the channels",
        "y[i] = where(i < x.shape[0], x[min(i, x.shape[0]-1)], -x[max(i - x.shape[0], 0)])",
        {"x": (5,)},
        r'the extent of the axis i is not determined.*add extents=\{"i": ',
    ),
    (
        "differences of two signals, of which one is read ahead",
        "y[i] = z[i] - x[i+1]",
        {"z": (8,), "x": (8,)},
        r'the read of x, dimension 0, runs from 1 to 8.*shorten the axis with extents=\{"i": "x.shape\[0\]-1"\}',
    ),
    (
        "advantages from one value more than rewards, without the next one",
        "d[t] = r[t] - v[t]",
        {"r": (4,), "v": (5,)},
        "the axis t has two extents: r has extent 4 in dimension 0, but v has extent 5 in dimension 0"
        '.*add extents={"t": N}',
    ),
    (
        "sum of which the second term stands in the next line",
        """s[i] = sum[d](q[i,d])
                  + b[i]""",
        {"q": (3, 2), "b": (3,)},
        "expected the name of a tensor, found .*only inside brackets: put the expression after = in parentheses",
    ),
]


@pytest.mark.parametrize("text,shapes,remedy", [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED])
def test_errors_suggest_what_to_write(text, shapes, remedy):
    with pytest.raises(es.EinsmithError) as error:
        es.op(text)(**{n: np.ones(s) for n, s in shapes.items()})
    assert error.match("(?s)" + remedy)
    assert "line" in str(error.value)
