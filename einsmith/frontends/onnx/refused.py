"""List the operators without a formula, with the reason that errors and documents give."""

from __future__ import annotations

_STRINGS = "strings are not supported"
_TREES = "decision trees have no formula and no derivative"
_KERNELS = "support vector machines are not implemented"
_MAPS = "maps from keys to numbers are not supported; use tensors"

REFUSED = {
    "StringConcat": _STRINGS,
    "StringNormalizer": _STRINGS,
    "StringSplit": _STRINGS,
    "RegexFullMatch": _STRINGS,
    "TfIdfVectorizer": "texts are not supported, and word counts have no derivative",
    "ImageDecoder": "image files are not supported; read images by es.data and pass arrays",
    "MaxRoiPool": "not implemented; use RoiAlign",
    "ai.onnx.ml.CastMap": _MAPS,
    "ai.onnx.ml.DictVectorizer": _MAPS,
    "ai.onnx.ml.ZipMap": _MAPS,
    "ai.onnx.ml.CategoryMapper": _STRINGS,
    "ai.onnx.ml.FeatureVectorizer": "not implemented; use Concat",
    "ai.onnx.ml.Imputer": "not implemented; use Where and IsNaN",
    "ai.onnx.ml.LinearClassifier": "not implemented; use Gemm and ArgMax",
    "ai.onnx.ml.OneHotEncoder": "not implemented; use OneHot",
    "ai.onnx.ml.SVMClassifier": _KERNELS,
    "ai.onnx.ml.SVMRegressor": _KERNELS,
    "ai.onnx.ml.TreeEnsemble": _TREES,
    "ai.onnx.ml.TreeEnsembleClassifier": _TREES,
    "ai.onnx.ml.TreeEnsembleRegressor": _TREES,
}
