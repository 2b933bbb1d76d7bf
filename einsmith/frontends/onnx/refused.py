"""List the operators without a formula, with the reason that errors and the docs give, and those that the standard
defines as functions of others."""

from __future__ import annotations

_STRINGS = "it takes or gives strings, which are no numbers"
_TREES = "it walks decision trees, which are no formula of its inputs and have no derivative"
_KERNELS = "support vector machines are not built"
_MAPS = "it takes or gives maps from keys to numbers; tensors are taken"

REFUSED = {
    "StringConcat": _STRINGS, "StringNormalizer": _STRINGS, "StringSplit": _STRINGS, "RegexFullMatch": _STRINGS,
    "TfIdfVectorizer": "it counts words of a text; it has no derivative",
    "ImageDecoder": "it reads files of images; give it arrays, es.data has images",
    "MaxRoiPool": "it is not built; RoiAlign is",
    "ai.onnx.ml.CastMap": _MAPS, "ai.onnx.ml.DictVectorizer": _MAPS, "ai.onnx.ml.ZipMap": _MAPS,
    "ai.onnx.ml.CategoryMapper": _STRINGS,
    "ai.onnx.ml.FeatureVectorizer": "it is not built; Concat is",
    "ai.onnx.ml.Imputer": "it is not built; Where and IsNaN are",
    "ai.onnx.ml.LinearClassifier": "it gives labels and scores of several kinds; a Gemm and an ArgMax are built",
    "ai.onnx.ml.OneHotEncoder": "it is not built; OneHot is",
    "ai.onnx.ml.SVMClassifier": _KERNELS, "ai.onnx.ml.SVMRegressor": _KERNELS,
    "ai.onnx.ml.TreeEnsemble": _TREES, "ai.onnx.ml.TreeEnsembleClassifier": _TREES,
    "ai.onnx.ml.TreeEnsembleRegressor": _TREES,
}  # fmt: skip

COMPOSED = (
    "AffineGrid", "Attention", "BlackmanWindow", "CausalConvWithState", "CenterCropPad", "HammingWindow", "HannWindow",
    "LinearAttention", "NegativeLogLikelihoodLoss", "RotaryEmbedding", "SequenceMap", "SoftmaxCrossEntropyLoss",
    "SwiGLU", "ai.onnx.preview.FlexAttention",
)  # fmt: skip
"""Operators that are replaced by their function in the standard, and inlined, when a file is read."""
