"""Write networks as ONNX files: a trace becomes nodes, operators by their names, other formulas as functions of
elementary operators."""

from einsmith.frontends.onnx import reader  # noqa: F401  # says how to get the package onnx where it is missing
