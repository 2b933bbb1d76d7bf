"""Generate texts with language models: a cache of keys and values, a program for the prompt, and one for each token."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

import numpy as np

from einsmith import ops as F
from einsmith.base import locks
from einsmith.base.arguments import Count, Magnitude, Share, Size, check_arguments, describe
from einsmith.base.errors import ArgumentError, KindError, ShapeError
from einsmith.lang.op import op
from einsmith.models.cache_shape import Attend
from einsmith.models.llama import causal
from einsmith.nn import Module
from einsmith.runtime import buffers
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

LEAST_CAPACITY = 64
"""Tokens for which the smallest cache has room: capacities are powers of two, so that few programs are compiled."""

_CACHED = """
    a[b,g,r] = sum[d](q[b,size(r)*g+r,0,d]*k[b,g,0,d])*scale
    s[j,b,g,r] = sum[d](q[b,size(r)*g+r,0,d]*K[j,b,g,d])*scale
    m[b,g,r] = max(a[b,g,r], max[j](where(SEEN, s[j,b,g,r], -1e30)))
    w[b,g,r] = exp(a[b,g,r] - m[b,g,r])
    e[j,b,g,r] = where(SEEN, exp(s[j,b,g,r] - m[b,g,r]), 0)
    z[b,g,r] = w[b,g,r] + sum[j](e[j,b,g,r])
    y[b,g,r,d] = (sum[j](where(SEEN, e[j,b,g,r]*V[j,b,g,d], 0)) + w[b,g,r]*v[b,g,0,d])/z[b,g,r]
"""
_SHARED = {"r": "q.shape[1]//k.shape[1]"}
attend_all = op(_CACHED.replace("SEEN", "j < n[]"), extents=_SHARED)
"""Attention of one query to the first n keys of a cache [capacity, B, heads, width], and to its own key k and value v.

Tokens are the first dimension, along which kernels end at n: what lies beyond it is not read."""
attend_window = op(_CACHED.replace("SEEN", "first[] <= j and j < n[]"), extents=_SHARED)
"""Attention of one query as `attend_all` has it, to the keys of a cache from number `first` to n - 1."""


class CachedModel(Module):
    """A language model with buffers for keys and values of each layer [capacity, batch, heads, width].

    Programs that update them in place keep no packed copies of the weights, so memory stays that of the weights."""

    def __init__(self, model: Any, batch: Count, capacity: Count):
        self.model, self.capacity, self.layers = model, capacity, len(model.cached.windows)
        shape = (capacity, batch, model.cached.heads, model.cached.width)
        kind = next(p.dtype for p in model.parameters() if p.dtype.is_float)
        for name in self._names():
            self.register_buffer(name, buffers.zeros(shape, kind.numpy), persistent=False)

    def _names(self) -> list[str]:
        return [f"{what}_{n}" for what in ("keys", "values") for n in range(self.layers)]

    def clear(self) -> None:
        """Fill the buffers with zeros, to which programs add."""
        for name in self._names():
            getattr(self, name).data[...] = 0

    def read_prompt(self, ids: Value) -> Value:
        """Return the logits [B, vocabulary] behind the tokens [B, T] of prompts, and keep their keys and values."""
        attends = [partial(self._attend_prompt, n, causal(w, None)) for n, w in enumerate(self.model.cached.windows)]
        return self._last(self.model.states(ids, None, attends))

    def _attend_prompt(self, layer: int, attend: Attend, q: Value, k: Value, v: Value) -> Value:
        self._append(layer, F.arange(k.shape[2]), k, v)
        return attend(q, k, v)

    def read_token(self, ids: Value, length: Value) -> Value:
        """Return the logits [B, vocabulary] behind one more token [B, 1] of each text, and keep its key and value.

        length: number of tokens before it, of which the cache has keys and values."""
        places = builder.compute(ids.shape, lambda b, t: length)
        attends = [partial(self._attend_token, n, w, length) for n, w in enumerate(self.model.cached.windows)]
        return self._last(self.model.states(ids, places, attends))

    def _attend_token(self, layer: int, window: int, length: Value, q: Value, k: Value, v: Value) -> Value:
        keys, values = (builder.as_value(getattr(self, f"{what}_{layer}")) for what in ("keys", "values"))
        attend, more = (attend_window, {"first": length - (window - 1)}) if window else (attend_all, {})
        y = attend(q=q, k=k, v=v, K=keys, V=values, n=length, scale=q.shape[-1] ** -0.5, **more)
        self._append(layer, length.reshape((1,)), k, v)
        return y.reshape(q.shape)

    def _append(self, layer: int, places: Value, k: Value, v: Value) -> None:
        for name, new in ((f"keys_{layer}", k), (f"values_{layer}", v)):
            setattr(self, name, F.index_add(getattr(self, name), 0, places, new.permute((2, 0, 1, 3))))

    def _last(self, states: Value) -> Value:
        return self.model.head(states[:, -1])


class Decoder:
    """A language model that reads texts token by token, with a cache of their keys and values.

    Args:
        model: a network of `einsmith.models` such as Llama or GPT
        batch: texts that are read at a time, all of one length
        capacity: tokens for which the cache has room, rounded up to a power of two

    A decoder serves one thread at a time.
    """

    def __init__(self, model: Any, batch: int = 1, capacity: int = LEAST_CAPACITY):
        if not hasattr(model, "cached"):
            raise KindError(f"the model is {describe(model)}; pass a Llama or a GPT")
        size = max(LEAST_CAPACITY, 1 << (capacity - 1).bit_length())
        self.model, self.batch, self.capacity = model, batch, int(min(size, model.cached.most_steps))
        self.cells = CachedModel(model, batch, self.capacity)
        self.length = 0
        """Tokens of each text that have been read."""
        with locks.IMPORTING:
            from einsmith.api.jit import jit  # imported late: most users of models compile no functions
        self._prompt = jit(self.cells.read_prompt, sizes="shared")
        self._token = jit(self.cells.read_token)

    def read(self, ids: np.ndarray) -> np.ndarray:
        """Return the logits [batch, vocabulary] behind further tokens [batch, T] of the texts: prompts of any length at
        first, one token each thereafter.

        Raises ShapeError for other shapes, and where the cache is full."""
        if ids.ndim != 2 or len(ids) != self.batch or not ids.shape[1] or self.length and ids.shape[1] > 1:
            wanted = 1 if self.length else "T"
            raise ShapeError(f"tokens have shape {ids.shape}, need ({self.batch}, {wanted})")
        if self.length + ids.shape[1] > self.capacity:
            raise ShapeError(f"{self.length} + {ids.shape[1]} tokens do not fit into a cache of {self.capacity}")
        with self.cells.in_mode(training=False):
            out = self._token(ids, np.array(self.length)) if self.length else self._prompt(ids)
        self.length += ids.shape[1]
        return out

    def restart(self) -> None:
        """Forget all texts."""
        self.cells.clear()
        self.length = 0


def choose(
    logits: np.ndarray, temperature: float, top_k: int | None, top_p: float | None, rng: np.random.Generator
) -> np.ndarray:
    """Return a token for each row of logits [B, vocabulary]: the most likely at temperature 0, else a drawn one.

    Drawn is from the softmax of logits/temperature among the top_k most likely tokens, and among those the fewest whose
    probabilities are top_p or more together. Source of the latter: Holtzman et al. 2020, arXiv 1904.09751."""
    if temperature == 0:
        return logits.argmax(-1)
    out = np.empty(len(logits), np.int64)
    for row, numbers in enumerate(logits.astype(np.float64) / temperature):
        order = np.argsort(-numbers, kind="stable")[:top_k]
        p = np.exp(numbers[order] - numbers[order[0]])
        p /= p.sum()
        if top_p is not None:
            p = p[: int(np.searchsorted(p.cumsum(), top_p)) + 1]
        out[row] = order[min(int(np.searchsorted(p.cumsum(), rng.random() * p.sum(), side="right")), len(p) - 1)]
    return out


@check_arguments
def stream(
    model: Any,
    ids: Any,
    *,
    max_new_tokens: Count,
    temperature: Magnitude = 0.0,
    top_k: Count | None = None,
    top_p: Share | None = None,
    seed: Size = 0,
    stop: Collection[int] = (),
) -> Iterator[np.ndarray]:
    """Yield the tokens [B] that follow texts, one of each text at a time; arguments as of `generate`."""
    prompt = _prompt_of(model, ids)
    needed = prompt.shape[1] + max_new_tokens - 1  # the last token is not read
    if needed > model.cached.most_steps:
        raise ArgumentError(
            f"{prompt.shape[1]} tokens and max_new_tokens={max_new_tokens} are more than the model's "
            f"{model.cached.most_steps:g}; shorten the text"
        )
    return _run(model, prompt, needed, max_new_tokens, temperature, top_k, top_p, seed, stop)


def _run(
    model: Any,
    prompt: np.ndarray,
    needed: int,
    most: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
    stop: Collection[int],
) -> Iterator[np.ndarray]:
    rng = np.random.Generator(np.random.PCG64(seed))
    # Taken out while it is in use, so that another thread, or another text meanwhile, gets its own.
    decoder = model.__dict__.pop(_KEPT, None)
    if decoder is None or decoder.model is not model or decoder.batch != len(prompt) or decoder.capacity < needed:
        decoder = Decoder(model, len(prompt), needed)
    decoder.restart()
    ended = np.zeros(len(prompt), bool)
    tokens, last = prompt, prompt[:, -1]
    try:
        for _ in range(most):
            last = np.where(ended, last, choose(decoder.read(tokens), temperature, top_k, top_p, rng))
            yield last
            ended |= np.isin(last, list(stop))
            if ended.all():
                break
            tokens = last[:, None]
    finally:
        model.__dict__[_KEPT] = decoder


_KEPT = "_decoder"
"""Attribute of a model with the decoder that it used last, whose programs the next text finds."""


def _prompt_of(model: Any, ids: Any) -> np.ndarray:
    """Return prompts as integers [B, T]. Raises KindError, ShapeError."""
    if not hasattr(model, "cached"):
        raise KindError(f"generate: the model is {describe(model)}; pass a Llama or a GPT")
    prompt = np.asarray(ids)
    if prompt.ndim not in (1, 2) or not prompt.size or prompt.dtype.kind not in "iu":
        raise ShapeError(
            f"generate: ids are {prompt.dtype} of shape {prompt.shape}; pass integers [T] or [B, T], T being 1 or more"
        )
    return np.atleast_2d(prompt).astype(np.int64)


@check_arguments
def generate(
    model: Any,
    ids: Any,
    *,
    max_new_tokens: Count,
    temperature: Magnitude = 0.0,
    top_k: Count | None = None,
    top_p: Share | None = None,
    seed: Size = 0,
    stop: Collection[int] = (),
) -> np.ndarray:
    """Return texts with the tokens that follow: [T] -> [T + new], or [B, T] -> [B, T + new].

    Args:
        model: a network of `einsmith.models` such as Llama or GPT
        ids: the tokens of a text, or of texts of one length
        max_new_tokens: tokens that follow at most
        temperature: divisor of the logits of the softmax that tokens are drawn from; 0: the most likely token
        top_k: number of the most likely tokens that may be drawn
        top_p: probability that the tokens which may be drawn have together at least
        seed: seed of the draws
        stop: tokens after which a text ends; it is repeated where other texts go on

    Raises:
        ArgumentError: the texts would be longer than the model's positions.
        KindError, ShapeError: the model or the tokens are none.
        IndexOutOfRange: a token is beyond the vocabulary.
    """
    prompt = _prompt_of(model, ids)
    new = [*stream(
        model, prompt, max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed,
        stop=stop,
    )]  # fmt: skip
    out = np.concatenate([prompt, np.stack(new, 1)], 1)
    return out if np.ndim(ids) == 2 else out[0]
