"""Exported formulas give onnxruntime's results where operators of the same name differ: divisions, remainders and
conversions of awkward numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith.frontends.onnx import export, load

ort = pytest.importorskip("onnxruntime")

FLOATS = ["x[i]//y[i]", "x[i]%y[i]", "x[i]//0.7", "x[i]%-0.7", "(x[i]*x[i])//0.3", "(x[i] + 1)%0.3", "floor(x[i])",
          "min(x[i], y[i])", "max(x[i], y[i])", "x[i]**3", "x[i]**y[i]", "sign(x[i])", "abs(x[i])", "i32(x[i])",
          "i64(x[i])", "i8(x[i])", "u8(x[i])", "i16(x[i])", "f64(x[i])//y[i]"]  # fmt: skip
INTEGERS = ["x[i]//y[i]", "x[i]%y[i]", "x[i]//3", "x[i]%3", "x[i]//-3", "x[i]%-3", "x[i]//-1", "x[i]%-1", "x[i]//4",
            "-x[i]", "abs(x[i])", "x[i]*y[i]", "i8(x[i])", "u8(x[i])", "f32(x[i])"]  # fmt: skip


def pairs(dtype: Any, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of awkward numbers and some random ones."""
    if np.dtype(dtype).kind == "f":
        info = np.finfo(dtype)
        numbers = [0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 0.7, -0.7, 2.1, 4.2, 7, -7, info.max, -info.max, np.inf,
                   -np.inf, np.nan, info.tiny, -info.tiny, 127.5, 128, -128.5, 255.5, 256, 40000.0]  # fmt: skip
        values = np.concatenate([np.array(numbers, dtype), (rng.standard_normal(20) * 9).astype(dtype)])
    else:
        ends = np.iinfo(dtype)
        numbers = [0, 1, 2, 3, 5, 7, 100, ends.max, ends.min, ends.max - 1, ends.min + 1]
        numbers += [-1, -2, -3, -7] if ends.min else []
        drawn = rng.integers(ends.min, ends.max, 12, dtype=dtype)
        values = np.concatenate([np.array(numbers, dtype), drawn])
    a, b = np.meshgrid(values, values)
    return a.reshape(-1).copy(), b.reshape(-1).copy()


def assert_same(text: str, x: np.ndarray, y: np.ndarray, folder: Path) -> None:
    """The results of onnxruntime, and of the file loaded again, are the formula's; so are the signs of zeros."""
    f, arrays = es.op(f"q[i] = {text}"), (x, y) if "y[" in text else (x,)
    expected = np.asarray(f(*arrays))
    export(f, arrays, folder / "f.onnx")
    session = ort.InferenceSession(folder / "f.onnx")
    names = [i.name for i in session.get_inputs()]
    for result in (session.run(None, dict(zip(names, arrays, strict=True)))[0], load(folder / "f.onnx")(*arrays)):
        assert result.dtype == expected.dtype
        power = "**" in text
        relative, absolute = (4 * np.finfo(x.dtype).eps, np.finfo(x.dtype).tiny) if power else (0, 0)
        np.testing.assert_allclose(result, expected, relative, absolute, err_msg=text)
        if expected.dtype.kind == "f" and not power and "m" not in text:  # min(0, -0) is either
            zero = expected == 0
            np.testing.assert_array_equal(np.signbit(result[zero]), np.signbit(expected[zero]), text)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("text", FLOATS)
def test_floats(text: str, dtype: str, rng: np.random.Generator, tmp_path: Path):
    with np.errstate(all="ignore"):
        assert_same(text, *pairs(dtype, rng), tmp_path)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", ["int32", "int64", "int8", "uint8", "int16"])
@pytest.mark.parametrize("text", INTEGERS)
def test_integers(text: str, dtype: str, rng: np.random.Generator, tmp_path: Path):
    if dtype == "uint8" and "-" in text:
        pytest.skip("a negative number is no uint8")
    assert_same(text, *pairs(dtype, rng), tmp_path)
