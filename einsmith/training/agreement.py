"""Describe what the processes of a group train, so that they can compare it."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from functools import partial
from types import CodeType
from typing import Any

from einsmith import optim
from einsmith.base import VERSION
from einsmith.training.manifest import loss_name
from einsmith.training.state import StepParts


def describe_training(parts: StepParts, device: str) -> dict[str, Any]:
    """Return what all processes of a group have to have in common, by name, as JSON expresses it.

    device: the kind of device on which the programs of this process run."""
    definition = parts.definition
    model, loss, optimizer = definition.model, definition.loss, definition.optimizer
    return {
        "version": VERSION,
        "parameters": {n: [*_form(p), p.requires_grad] for n, p in model.named_parameters()},
        "buffers": {n: _form(b) for n, b in model.named_buffers()},
        "code": {type(m).__qualname__: _digest(type(m)) for m in model.modules()},
        "loss": loss_name(loss) or _describe(loss),
        "optimizer": optim.describe(optimizer) or _describe(optimizer),
        "settings": asdict(definition.updates),
        "seed": int(definition.seed),
        "device": device,
        "updates": parts.accumulation.steps,
    }


def _form(stored: Any) -> list[Any]:
    return [str(stored.memory.dtype), list(stored.shape)]


def _describe(x: Any) -> Any:
    """Return what JSON can express of a function or an object: its code, and the plain values that it holds."""
    if isinstance(x, partial):
        return [_describe(x.func), [_plain(a) for a in x.args], {n: _plain(a) for n, a in x.keywords.items()}]
    if hasattr(x, "__code__"):
        return _digest(x)
    return [type(x).__qualname__, _digest(type(x)), {n: _plain(v) for n, v in sorted(vars(x).items())}]


def _plain(x: Any) -> Any:
    return x if isinstance(x, (bool, int, float, str, type(None))) else type(x).__qualname__


def _digest(code: Any) -> str:
    """Return a checksum of the compiled code of a class's methods, or of a function; "" where there is none."""
    members = [x for _, x in sorted(vars(code).items())] if isinstance(code, type) else [code]
    texts = [_code_text(x.__code__) for x in members if hasattr(x, "__code__")]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12] if texts else ""


def _code_text(code: CodeType) -> str:
    parts = [_constant_text(x) for x in code.co_consts]
    return " ".join((code.co_code.hex(), *code.co_names, *parts))


def _constant_text(x: Any) -> str:
    if isinstance(x, CodeType):
        return _code_text(x)
    return repr(sorted(map(repr, x))) if isinstance(x, frozenset) else repr(x)
