"""The cases of `onnx.backend.test`, through the interface of backends: which pass, which are apart, refused, and why.

python -m tests.frontends.onnx_cases                     all cases of nodes, a summary, and what is refused
python -m tests.frontends.onnx_cases lstm gru            those whose names contain a word
python -m tests.frontends.onnx_cases --kind simple --part 0/2
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case import node
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from einsmith.base.errors import EinsmithError
from einsmith.frontends.onnx.backend import Backend

PASSED, REFUSED, APART, WRONG = "passed", "refused", "apart", "wrong"

OTHERWISE = {
    r"bernoulli|training_dropout": (None, "its numbers are random, and by a generator that the standard does not say"),
    r"attention_.*fp16": (2e-3, "NumPy rounds sums to float16 where ours are rounded once, at the end"),
    r"dft_inverse": (1e-5, "what is 0 is 4e-6 of 54 there, from rounding in NumPy's transforms"),
}
"""Cases whose expected numbers are not the standard's: how far they may be apart, absolutely (None: shapes and types
are compared), and why."""


def cases(kind: str = "node") -> dict[str, Any]:
    """Cases by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in load_model_tests(kind=kind)}


FEW = (
    "adam", "add", "argmax", "batch_normalization", "bitshift", "cast", "cumsum", "dft", "gathernd",
    "groupnormalization", "if_", "loop", "lstm", "maxpool", "mod", "nonzero", "onehot", "pad", "qlinearmatmul",
    "resize", "scan", "scatternd", "split", "topk",
)  # fmt: skip
"""Modules of the standard's cases, of every family: to make all cases takes five seconds."""


def few_cases() -> dict[str, Any]:
    """Cases of few operators by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in FEW:
            import_module(f"{node.__name__}.{name}")
    return {case.name: case for case in node._NodeTestCases}


def _loaded(path: Path, kind: onnx.TypeProto) -> Any:
    data = path.read_bytes()
    which = kind.WhichOneof("value")
    if which == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if which == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def _sets(case: Any, model: onnx.ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
    """(inputs, expected outputs) of a case."""
    if case.data_sets:
        yield from case.data_sets
        return
    for folder in sorted(Path(case.model_dir).glob("test_data_set*")):
        yield tuple(
            [
                _loaded(folder / f"{what}_{n}.pb", value.type)
                for n, value in enumerate(values)
                if (folder / f"{what}_{n}.pb").exists()
            ]
            for what, values in (("input", model.graph.input), ("output", model.graph.output))
        )  # type: ignore[misc]


def run(case: Any) -> tuple[str, str]:
    """(how a case ends, why)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = case.model or onnx.load(Path(case.model_dir) / "model.onnx")
            prepared = Backend.prepare(model)
            for inputs, expected in _sets(case, model):
                inputs, expected = ([numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x for x in some]
                                    for some in (inputs, expected))  # fmt: skip
                found, expected = _flat(prepared.run(inputs)), _flat(expected)
                try:
                    Runner.assert_similar_outputs(expected, found, rtol=case.rtol, atol=case.atol)
                except AssertionError:
                    if (why := _otherwise(case.name, expected, found)) is None:
                        raise
                    return APART, why
    except EinsmithError as e:
        notes = "; ".join(getattr(e, "__notes__", ()))
        return REFUSED, f"{type(e).__name__}: {e}" + (f" ({notes})" if notes else "")
    except Exception as e:
        return WRONG, f"{type(e).__name__}: {' '.join(str(e).split())}" + "".join(getattr(e, "__notes__", ()))[:200]
    return PASSED, ""


def _flat(values: Any) -> list[Any]:
    """Sequences taken apart, which the standard's comparison cannot where they hold numbers without dimensions."""
    return [x for v in values for x in (_flat(v) if isinstance(v, list) else [v])]


def _otherwise(name: str, expected: list[Any], found: list[Any]) -> str | None:
    """Why a case's numbers may be other ones, where they may and are not further away."""
    for pattern, (most, why) in OTHERWISE.items():
        if re.search(pattern, name):
            for a, b in zip(expected, found, strict=True):
                if a.shape != b.shape or a.dtype != b.dtype:
                    return None
                if most is not None and not np.allclose(a.astype(float), b.astype(float), 0, most):
                    return None
            return why
    return None


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*")
    parser.add_argument("--kind", default="node")
    parser.add_argument("--part", default="0/1", help="N/M: every M-th case, from N on")
    given = parser.parse_args()
    part, parts = map(int, given.part.split("/"))
    chosen = [c for n, c in sorted(cases(given.kind).items()) if not given.words or any(w in n for w in given.words)]
    counts: Counter[str] = Counter()
    reasons: dict[str, list[str]] = defaultdict(list)
    for case in chosen[part::parts]:
        how, why = run(case)
        counts[how] += 1
        if how != PASSED:
            print(f"{how} {case.name}: {why[:600]}", flush=True)
            reasons[f"{how} {why.partition('(')[0][:100]}"].append(case.name)
    print(", ".join(f"{counts[k]} {k}" for k in (PASSED, APART, REFUSED, WRONG)), f"of {sum(counts.values())}")
    return 1 if counts[WRONG] else 0


if __name__ == "__main__":
    np.seterr(all="ignore")
    sys.exit(main())
