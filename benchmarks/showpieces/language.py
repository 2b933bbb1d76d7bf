"""Operators of language models: linear recurrences, LSTMs with exponential gates, attentions that are no softmax of
products."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.loops import LOOPS
from benchmarks.peers import chunks
from benchmarks.recurrences import RECURRENCES, Size
from benchmarks.showpieces.case import Peer, Showpiece
from benchmarks.showpieces.peers import language as peers

WINDOW = 31
"""Keys that a query of the neighbourhood attention reads."""

_SCAN = """s[b,t,d,n] = exp(dt[b,t,d]*A[d,n])*where(t > 0, s[b,t-1,d,n], 0) + dt[b,t,d]*B[b,t,n]*x[b,t,d]
y[b,t,d] = sum[n](C[b,t,n]*s[b,t,d,n]) + D[d]*x[b,t,d]
return y"""
_AFT = """e[i,j,d] = exp(k[j,d] + w[i,j])
y[i,d] = sigmoid(q[i,d])*sum[j](e[i,j,d]*v[j,d])/sum[j](e[i,j,d])
return y"""
_NEIGHBOURS = """S[b,h,i,r] = sum[d](q[b,h,i,d]*k[b,h,min(max(i-R//2, 0), k.shape[2]-R)+r,d])*rsqrt(size(d)) + B[h,min(max(i-R//2, 0), k.shape[2]-R)+r-i+R-1]
P[b,h,i,r] = exp(S[b,h,i,r] - logsumexp[m](S[b,h,i,m]))
y[b,h,i,d] = sum[r](P[b,h,i,r]*v[b,h,min(max(i-R//2, 0), v.shape[2]-R)+r,d])
return y"""  # noqa: E501


def _recurrence(
    name: str, source: str, most: int, scan: Callable[..., Any], published: str, *larger: tuple[str, Size]
) -> Showpiece:
    """Return one of `benchmarks.recurrences`; most: steps of a chunk of PyTorch's form."""
    recurrence, fields = RECURRENCES[name], Size._fields

    def arrays(rng: np.random.Generator, **sizes: int) -> dict[str, np.ndarray]:
        return dict(recurrence.arrays(rng, Size(**sizes)))

    size = recurrence.size
    sizes = {f"{size.steps} steps, {size.heads} heads of {size.keys}": size, **dict(larger)}
    small = {"steps": (1, 37, 96), "heads": (1, 3, 2), "keys": (1, 7, 17), "values": (1, 16, 15)}
    return Showpiece(
        name, "language", source, recurrence.text, arrays,
        {label: dict(zip(fields, x, strict=True)) for label, x in sizes.items()},
        small,
        {
            "chunks": Peer(peers.in_chunks(chunks.FORMS[name], most), published),
            "scan": Peer(scan, f"{source}, in a scan of steps", library="jax"),
        },
    )  # fmt: skip


def _scan_arrays(rng: np.random.Generator, batch: int, steps: int, width: int, states: int) -> dict[str, np.ndarray]:
    z, rows = rng.standard_normal, (batch, steps)
    A = -rng.uniform(0.5, 4, (width, states))
    inputs = {"x": z((*rows, width)), "dt": 0.1 * rng.random((*rows, width)), "A": A}
    return inputs | {"B": z((*rows, states)), "C": z((*rows, states)), "D": z(width)}


def _slstm_arrays(rng: np.random.Generator, steps: int, batch: int, heads: int, width: int) -> dict[str, np.ndarray]:
    x = rng.standard_normal((steps, batch, 4, heads, width))
    return {"x": x, "R": 0.8 * width**-0.5 * rng.standard_normal((4, heads, width, width))}


def _aft_arrays(rng: np.random.Generator, length: int, width: int) -> dict[str, np.ndarray]:
    q, k, v = rng.standard_normal((3, length, width))
    return {"q": q, "k": k, "v": v, "w": rng.standard_normal((length, length))}


def _attention_arrays(
    rng: np.random.Generator, batch: int, heads: int, length: int, width: int
) -> dict[str, np.ndarray]:
    q, k, v = rng.standard_normal((3, batch, heads, length, width))
    return {"q": q, "k": k, "v": v, "B": 0.1 * rng.standard_normal((heads, 2 * WINDOW - 1))}


_loop = partial(Peer, compiles=False)
_LARGE = "1024 steps, 8 heads of 128", Size(1024, 8, 128, 128)
_MAMBA = "Gu, Dao 2023, Mamba"
_CHUNKS = "Yang et al. 2024, Gated delta networks, section 3.3"
SHOWPIECES = [
    _recurrence("gated delta rule", "Yang, Kautz, Hatamizadeh 2024, Gated delta networks, eq. 10", 64,
                peers.jax_delta_rule, _CHUNKS, _LARGE),
    _recurrence("Kimi delta attention", "Kimi Team 2025, Kimi Linear, eq. 1", 32, peers.jax_delta_rule,
                "Kimi Team 2025, section 3.1"),
    _recurrence("gated linear attention", "Yang et al. 2023, Gated linear attention transformers, section 4.1", 32,
                peers.jax_linear_attention, "Yang et al. 2023, section 4.3"),
    _recurrence("RWKV-7", "Peng et al. 2025, RWKV-7 Goose, section 4", 16, peers.jax_rwkv7,
                "Peng et al. 2025; chunks of diagonal plus low rank, as in flash-linear-attention"),
    Showpiece(
        "Mamba-1", "language", f"{_MAMBA}, algorithm 2", _SCAN, _scan_arrays,
        {
            "1 of 1024 steps, 512 channels": {"batch": 1, "steps": 1024, "width": 512, "states": 16},
            "8 of 256 steps, 256 channels": {"batch": 8, "steps": 256, "width": 256, "states": 16},
        },
        {"batch": (1, 3, 2), "steps": (1, 37, 64), "width": (1, 17, 16), "states": (1, 5, 16)},
        {
            "loop": _loop(peers.selective_scan, f"{_MAMBA}, its reference"),
            "chunks": Peer(peers.selective_scan_in_chunks, "Blelloch 1990, Prefix sums, in two levels"),
            "doubling": Peer(peers.selective_scan_by_doubling, "Hillis, Steele 1986, Data parallel algorithms"),
            "scan": Peer(peers.jax_selective_scan, f"{_MAMBA}, in a scan of steps", library="jax"),
            "associative": Peer(peers.jax_associative_scan, f"{_MAMBA}, by an associative scan", library="jax"),
        },
    ),
    _recurrence("Mamba-2", "Dao, Gu 2024, Transformers are SSMs, section 2", 64, peers.jax_mamba2,
                "Dao, Gu 2024, section 6"),
    _recurrence("mLSTM", "Beck et al. 2024, xLSTM, eq. 19-27", 64, peers.jax_mlstm,
                "Beck et al. 2025, Tiled flash linear attention, section 2"),
    Showpiece(
        "sLSTM", "language", "Beck et al. 2024, xLSTM, eq. 8-17", LOOPS["sLSTM"].text, _slstm_arrays,
        {"16 of 256 steps, 4 heads of 64": {"steps": 256, "batch": 16, "heads": 4, "width": 64}},
        {"steps": (1, 13, 24), "batch": (1, 3, 8), "heads": (1, 3, 2), "width": (1, 7, 17)},
        {
            "loop": _loop(peers.slstm, "Beck et al. 2024, a product of all gates in each step"),
            "scan": Peer(peers.jax_slstm, "Beck et al. 2024, in a scan of steps", library="jax"),
        },
    ),
    Showpiece(
        "attention-free transformer", "language", "Zhai et al. 2021, An attention free transformer, eq. 2", _AFT,
        _aft_arrays,
        {"256 of 128": {"length": 256, "width": 128}, "1024 of 256": {"length": 1024, "width": 256}},
        {"length": (1, 17, 32), "width": (1, 7, 16)},
        {
            "products": Peer(peers.aft, "Zhai et al. 2021, algorithm 1"),
            "exponentials": Peer(peers.jax_aft, "Zhai et al. 2021, algorithm 1", library="jax"),
        },
        settings={"separate_exponentials": True},
    ),
    Showpiece(
        "neighbourhood attention 1-D", "language", "Hassani et al. 2023, Neighborhood attention transformer, eq. 2-4",
        _NEIGHBOURS, _attention_arrays,
        {
            "2048, 8 heads of 32": {"batch": 1, "heads": 8, "length": 2048, "width": 32},
            "512, 8 heads of 64": {"batch": 1, "heads": 8, "length": 512, "width": 64},
        },
        {"batch": (1, 2, 3), "heads": (1, 3, 2), "length": (WINDOW, 37, 65), "width": (1, 7, 16)},
        {
            "windows": Peer(peers.neighbourhood_by_windows, "Hassani et al. 2023, keys of windows gathered"),
            "mask": Peer(peers.neighbourhood_by_mask, "scaled dot product attention under a mask"),
            "gathered": Peer(peers.jax_neighbourhood, "Hassani et al. 2023, windows gathered", library="jax"),
        },
        extents=lambda sizes: {"r": WINDOW},
        options={"R": WINDOW},
    ),
]  # fmt: skip
