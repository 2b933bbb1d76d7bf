"""Quantize networks to integers of 8 bits: after calibration (`quantize`), or after training that knows of the
rounding (`prepare_qat`, `convert`)."""

from einsmith.quantization.aware import QuantizationAware, convert, prepare_qat
from einsmith.quantization.model import Quantized, quantize

__all__ = ["QuantizationAware", "Quantized", "convert", "prepare_qat", "quantize"]
