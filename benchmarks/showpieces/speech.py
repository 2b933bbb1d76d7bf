"""Losses of speech recognition and of sequences: sums over all alignments or labellings."""

from __future__ import annotations

from functools import partial

import numpy as np

from benchmarks.showpieces.case import Peer, Showpiece
from benchmarks.showpieces.peers import speech as peers

_TRANSDUCER = """p[b,t,u,v] = x[b,t,u,v] - logsumexp[w](x[b,t,u,w])
a[b,t,u] = where(t == 0 and u == 0, 0, logaddexp(
    where(t > 0, a[b,t-1,u] + p[b,t-1,u,0], -inf),
    where(u > 0, a[b,t,u-1] + p[b,t,u-1,y[b,u-1]], -inf)))
loss[] = -mean[b](a[b,n[b]-1,m[b]] + p[b,n[b]-1,m[b],0])
return loss"""
_CTC = """p[b,t,v] = x[b,t,v] - logsumexp[w](x[b,t,w])
c[b,s] = where(s % 2 == 1, y[b,s//2], 0)
a[b,t,s] = p[b,t,c[b,s]] + where(t == 0, where(s < 2, 0, -inf), logaddexp(
    a[b,t-1,s], where(s > 0, a[b,t-1,s-1], -inf),
    where(s > 1, where(c[b,s] != 0 and c[b,s] != c[b,s-2], a[b,t-1,s-2], -inf), -inf)))
loss[] = -mean[b](logaddexp(a[b,n[b]-1,2*m[b]], a[b,n[b]-1,2*m[b]-1]))
return loss"""
_CRF = """a[b,t,j] = e[b,t,j] + where(t > 0, logsumexp[i](a[b,t-1,i] + M[i,j]), 0)
Z[b] = logsumexp[j](a[b,a.shape[1]-1,j])
S[b] = sum[t](e[b,t,y[b,t]] + where(t > 0, M[y[b,t-1],y[b,t]], 0))
loss[] = mean[b](Z[b] - S[b])
return loss"""
_SOFT_DTW = """d[b,i,j] = sum[k]((x[b,i,k] - y[b,j,k])**2)
r[b,i,j] = d[b,i,j] - where(i == 0 and j == 0, 0, gamma*logaddexp(
    where(i > 0 and j > 0, -r[b,i-1,j-1]/gamma, -inf),
    where(i > 0, -r[b,i-1,j]/gamma, -inf), where(j > 0, -r[b,i,j-1]/gamma, -inf)))
cost[b] = r[b,r.shape[1]-1,r.shape[2]-1]
return cost"""


def _lengths(rng: np.random.Generator, batch: int, least: int, most: int) -> np.ndarray:
    """Return lengths of sequences, the first of which is the longest."""
    lengths = rng.integers(least, most + 1, batch)
    lengths[0] = most
    return lengths


def _transducer_arrays(
    rng: np.random.Generator, batch: int, steps: int, labels: int, words: int
) -> dict[str, np.ndarray]:
    x = rng.standard_normal((batch, steps, labels + 1, words))
    inputs = {"x": x, "y": rng.integers(1, words, (batch, labels))}
    return inputs | {"n": _lengths(rng, batch, max(1, steps // 2), steps), "m": _lengths(rng, batch, 1, labels)}


def _ctc_arrays(rng: np.random.Generator, batch: int, steps: int, labels: int, words: int) -> dict[str, np.ndarray]:
    """Steps are at least twice the labels, so that each sequence has an alignment."""
    x = rng.standard_normal((batch, steps, words))
    inputs = {"x": x, "y": rng.integers(1, words, (batch, labels))}
    return inputs | {"n": _lengths(rng, batch, 2 * labels, steps), "m": _lengths(rng, batch, 1, labels)}


def _crf_arrays(rng: np.random.Generator, batch: int, steps: int, labels: int) -> dict[str, np.ndarray]:
    z = rng.standard_normal
    return {"e": z((batch, steps, labels)), "M": z((labels, labels)), "y": rng.integers(0, labels, (batch, steps))}


def _series(rng: np.random.Generator, batch: int, rows: int, columns: int, width: int) -> dict[str, np.ndarray]:
    x, y = (rng.standard_normal((batch, n, width)) for n in (rows, columns))
    return {"x": x, "y": y}


_loop = partial(Peer, compiles=False)
_GRAVES = "Graves 2012, Sequence transduction with recurrent neural networks, section 2.4"
_CLASSES = "Graves et al. 2006, Connectionist temporal classification, section 4.1"
_CUTURI = "Cuturi, Blondel 2017, Soft-DTW, algorithm 1"
SHOWPIECES = [
    Showpiece(
        "RNN-T loss", "speech", _GRAVES, _TRANSDUCER, _transducer_arrays,
        {
            "8 of 200 by 50, 128 words": {"batch": 8, "steps": 200, "labels": 50, "words": 128},
            "2 of 400 by 100, 256 words": {"batch": 2, "steps": 400, "labels": 100, "words": 256},
        },
        {"batch": (1, 3, 8), "steps": (1, 13, 17), "labels": (1, 7, 16), "words": (2, 11, 17)},
        {
            "diagonals": _loop(peers.transducer_by_diagonals, "Bagby et al. 2018, Efficient RNN-T, section 3"),
            "rows": _loop(peers.transducer_by_rows, f"{_GRAVES}, by cumulative log-sum-exps"),
            "scan": Peer(peers.jax_transducer, "Bagby et al. 2018, in a scan of diagonals", library="jax"),
        },
    ),
    Showpiece(
        "CTC loss", "speech", _CLASSES, _CTC, _ctc_arrays,
        {
            "16 of 400 by 80, 64 words": {"batch": 16, "steps": 400, "labels": 80, "words": 64},
            "4 of 1000 by 200, 32 words": {"batch": 4, "steps": 1000, "labels": 200, "words": 32},
        },
        {"batch": (1, 3, 8), "steps": (16, 19, 33), "labels": (1, 5, 8), "words": (2, 11, 17)},
        {
            "ctc_loss": _loop(peers.ctc, "torch.nn.functional.ctc_loss"),
            "steps": _loop(peers.ctc_by_steps, f"{_CLASSES}, all places in each step"),
            "scan": Peer(peers.jax_ctc, f"{_CLASSES}, in a scan of steps, as Optax", library="jax"),
        },
        extents=lambda sizes: {"s": 2 * sizes["labels"] + 1},
    ),
    Showpiece(
        "linear-chain CRF", "speech", "Lafferty, McCallum, Pereira 2001, Conditional random fields, section 3", _CRF,
        _crf_arrays,
        {
            "32 of 128, 32 labels": {"batch": 32, "steps": 128, "labels": 32},
            "8 of 512, 64 labels": {"batch": 8, "steps": 512, "labels": 64},
        },
        {"batch": (1, 3, 8), "steps": (1, 13, 16), "labels": (1, 7, 17)},
        {
            "products": _loop(peers.crf_by_products, "Rabiner 1989, A tutorial on hidden Markov models, section V"),
            "logarithms": _loop(peers.crf_by_logarithms, "pytorch-crf"),
            "scan": Peer(peers.jax_crf, "Rabiner 1989, section V, in a scan of steps", library="jax"),
        },
        settings={"separate_exponentials": True},
    ),
    Showpiece(
        "soft-DTW", "speech", _CUTURI, _SOFT_DTW, _series,
        {
            "16 of 128 by 128": {"batch": 16, "rows": 128, "columns": 128, "width": 8},
            "1 of 512 by 512": {"batch": 1, "rows": 512, "columns": 512, "width": 8},
        },
        {"batch": (1, 3, 8), "rows": (1, 13, 17), "columns": (1, 11, 16), "width": (1, 3, 8)},
        {
            "diagonals": _loop(peers.soft_dtw, f"{_CUTURI}, by diagonals, as pytorch-softdtw-cuda"),
            "scan": Peer(peers.jax_soft_dtw, f"{_CUTURI}, in a scan of diagonals", library="jax"),
        },
        options={"gamma": peers.GAMMA},
    ),
]  # fmt: skip
