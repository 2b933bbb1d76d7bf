"""RoiAlign whose number of samples depends on the boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from einsmith.base.errors import EinsmithError
from einsmith.frontends.onnx import load

ort = pytest.importorskip("onnxruntime")


@pytest.mark.thinned(4)
@pytest.mark.parametrize("mode", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("settings", [{}, {"output_height": 3, "output_width": 2}, {"sampling_ratio": 3}])
def test_roi_align(mode: str, known: bool, settings: dict[str, Any], rng: np.random.Generator):
    x = rng.standard_normal((2, 3, 10, 13)).astype(np.float32)
    low = rng.uniform(0, 6, (5, 2))
    high = np.minimum(low + rng.uniform(0.2, 7, (5, 2)), [13, 10])
    rois, batch = np.concatenate([low, high], 1).astype(np.float32) * 2, np.array([0, 1, 0, 1, 1])
    node = h.make_node("RoiAlign", ["x", "r", "b"], ["y"], spatial_scale=0.5, coordinate_transformation_mode=mode,
                       **settings)  # fmt: skip
    inputs = {"x": x} if known else {"x": x, "r": rois, "b": batch}
    infos = [h.make_tensor_value_info(n, T.INT64 if n == "b" else T.FLOAT, a.shape) for n, a in inputs.items()]
    held = [numpy_helper.from_array(rois, "r"), numpy_helper.from_array(batch, "b")] if known else []
    graph = h.make_graph([node], "g", infos, [h.make_tensor_value_info("y", T.FLOAT, None)], held)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 20)], ir_version=10)
    expected = ort.InferenceSession(model.SerializeToString()).run(None, inputs)[0]
    for frozen in ((), ("r",)):
        net = load(model, frozen=frozen)
        np.testing.assert_allclose(net(**inputs), expected, 1e-4, 1e-5)
    if not known and "sampling_ratio" not in settings:
        with pytest.raises(EinsmithError):  # larger than the image
            net(**{**inputs, "r": rois * 40})
