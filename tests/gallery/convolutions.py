"""The gallery: convolutions in one to three dimensions, grouped, depthwise, transposed; capsules."""

from __future__ import annotations

from collections.abc import Callable

from tests.gallery.entry import entry


def convolution(n: int, groups: str = "1") -> str:
    """`n` spatial dimensions; stride, dilation and padding are parameters. `groups`: an expression, or "all"."""
    p, r = "pqo"[:n], "rst"[:n]
    at = [f"stride*{a}+dilation*{b}-padding" for a, b in zip(p, r, strict=True)]
    channel = "k//depth" if groups == "all" else "c" if groups == "1" else f"k//(W.shape[0]//{groups})*W.shape[1]+c"
    read = f"X[b,{channel},{','.join(at)}]"
    guard = " and ".join(f"0 <= {i} and {i} < X.shape[{d + 2}]" for d, i in enumerate(at))
    weight = f"W[k,{'0' if groups == 'all' else 'c'},{','.join(r)}]"
    over = ",".join([*([] if groups == "all" else ["c"]), *r])
    return f"Y[b,k,{','.join(p)}] = sum[{over}](where({guard}, {read}, 0) * {weight})"


def spatial(n: int) -> dict[str, str]:
    return {
        a: f"(X.shape[{d + 2}]+2*padding-dilation*(W.shape[{d + 2}]-1)-1)//stride+1" for d, a in enumerate("pqo"[:n])
    }


def conv_case(x: tuple, w: tuple, stride: int = 1, dilation: int = 1, padding: int = 0, **more: int) -> dict:
    return {"X": x, "W": w, "stride": stride, "dilation": dilation, "padding": padding, **more}


def torch_conv(n: int, groups: Callable[..., int] = lambda X, **_: 1) -> Callable:
    def twin(T, X, W, stride, dilation, padding, **more):
        f = getattr(T.nn.functional, f"conv{n}d")
        return f(X, W, None, stride, padding, dilation, groups(X, **more))

    return twin


for dims, cases in (
    (
        1,
        [
            conv_case((2, 3, 17), (5, 3, 3)),
            conv_case((1, 1, 15), (2, 1, 3), 3),
            conv_case((3, 2, 16), (1, 2, 2), 3, 1, 1),
            conv_case((2, 3, 17), (4, 3, 3), 2, 3, 1),
            conv_case((2, 3, 16), (4, 3, 5), 2, 2, 2),
        ],
    ),
    (
        2,
        [
            conv_case((2, 3, 7, 8), (4, 3, 3, 3), 2, 1, 1),
            conv_case((1, 2, 5, 9), (3, 2, 3, 2), 1, 2),
            conv_case((2, 1, 7, 7), (3, 1, 1, 1), 2),
            conv_case((1, 3, 7, 5), (2, 3, 3, 3)),
        ],
    ),
    (3, [conv_case((1, 2, 5, 4, 3), (2, 2, 2, 3, 2)), conv_case((1, 1, 5, 5, 4), (2, 1, 3, 3, 3), 2, 1, 1)]),
):
    entry(f"convolution in {dims}d", convolution(dims), cases, torch_conv(dims), extents=spatial(dims))
for dims, cases in (
    (1, [conv_case((2, 6, 9), (4, 3, 3), g=2), conv_case((1, 3, 8), (6, 1, 3), 2, 1, 1, g=3)]),
    (2, [conv_case((1, 4, 5, 6), (6, 2, 3, 2), 2, g=2), conv_case((2, 3, 5, 5), (3, 1, 3, 3), 1, 1, 1, g=3)]),
    (3, [conv_case((1, 4, 3, 4, 5), (2, 2, 2, 2, 2), g=2), conv_case((1, 2, 4, 3, 5), (2, 1, 2, 1, 3), 2, g=2)]),
):
    entry(
        f"grouped convolution in {dims}d",
        convolution(dims, "g"),
        cases,
        torch_conv(dims, lambda X, g: g),
        extents=spatial(dims),
    )
for dims, cases in (
    (1, [conv_case((2, 5, 9), (5, 1, 3), depth=1), conv_case((1, 3, 8), (6, 1, 3), 2, 1, 1, depth=2)]),
    (2, [conv_case((2, 3, 9, 8), (3, 1, 7, 7), 1, 1, 3, depth=1), conv_case((1, 2, 7, 5), (4, 1, 3, 3), 2, depth=2)]),
    (
        3,
        [conv_case((1, 3, 3, 4, 5), (3, 1, 2, 3, 2), depth=1), conv_case((1, 2, 5, 3, 4), (2, 1, 3, 1, 2), 2, depth=1)],
    ),
):
    entry(
        f"depthwise convolution in {dims}d",
        convolution(dims, "all"),
        cases,
        torch_conv(dims, lambda X, depth: X.shape[1]),
        extents=spatial(dims),
    )


def transposed(n: int) -> str:
    """By gathering: position i of the result meets (i + padding - r)/stride of the input, where that divides."""
    out, r = "pqo"[:n], "rst"[:n]
    e = [f"({a}+padding-{b})" for a, b in zip(out, r, strict=True)]
    guard = " and ".join(
        f"{x} % stride == 0 and 0 <= {x}//stride and {x}//stride < X.shape[{d + 2}]" for d, x in enumerate(e)
    )
    read = ",".join(f"{x}//stride" for x in e)
    return f"Y[b,k,{','.join(out)}] = sum[c,{','.join(r)}](where({guard}, X[b,c,{read}] * W[c,k,{','.join(r)}], 0))"


for dims, cases in (
    (
        1,
        [
            {"X": (2, 3, 7), "W": (3, 4, 3), "stride": 2, "padding": 1},
            {"X": (1, 2, 5), "W": (2, 1, 2), "stride": 3, "padding": 0},
        ],
    ),
    (
        2,
        [
            {"X": (1, 3, 4, 5), "W": (3, 2, 3, 3), "stride": 2, "padding": 1},
            {"X": (2, 1, 3, 3), "W": (1, 2, 2, 2), "stride": 2, "padding": 0},
        ],
    ),
    (
        3,
        [
            {"X": (1, 2, 3, 2, 3), "W": (2, 2, 2, 3, 2), "stride": 2, "padding": 0},
            {"X": (1, 1, 2, 3, 2), "W": (1, 2, 3, 2, 3), "stride": 1, "padding": 1},
        ],
    ),
):
    entry(
        f"transposed convolution in {dims}d",
        transposed(dims),
        cases,
        lambda T, X, W, stride, padding, n=dims: getattr(T.nn.functional, f"conv_transpose{n}d")(
            X, W, None, stride, padding
        ),
        extents={a: f"(X.shape[{d + 2}]-1)*stride-2*padding+W.shape[{d + 2}]" for d, a in enumerate("pqo"[:dims])},
    )
for stride, cases in (
    (2, [{"X": (1, 3, 4, 5), "W": (3, 2, 3, 3)}, {"X": (2, 1, 3, 3), "W": (1, 2, 2, 2)}]),
    (3, [{"X": (1, 3, 4, 3), "W": (3, 2, 3, 3)}, {"X": (2, 1, 3, 3), "W": (1, 2, 2, 2)}]),
):
    entry(
        f"transposed convolution that accumulates, stride {stride}",
        f"Y[b,k,{stride}*p+r,{stride}*q+s] += sum[c](X[b,c,p,q] * W[c,k,r,s])",
        cases,
        lambda T, X, W, stride=stride: T.nn.functional.conv_transpose2d(X, W, None, stride),
    )
for stride, sizes in ((1, [(5, 7), (4, 3)]), (2, [(7, 8), (5, 5)])):
    entry(
        f"capsule convolution, stride {stride}",
        "C[b,k,p,q,i,j] = sum[c,r,s,m](A[b,c,stride*p+r,stride*q+s,i,m] * W[k,c,r,s,m,j])",
        [{"A": (2, 3, *hw, 2, 3), "W": (5, 3, 3, 3, 3, 2), "stride": stride} for hw in sizes],
        lambda T, A, W, stride: T.einsum("bcpqimrs,kcrsmj->bkpqij", A.unfold(2, 3, stride).unfold(3, 3, stride), W),
    )
