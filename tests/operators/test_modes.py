"""The samples of the operators in every mode beside PyTorch: by the reference evaluator, as compiled code, as PyTorch's
programs taken apart, by the backend of `torch.compile`, as layers, and from ONNX."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="its operators are compared with")

from torch._subclasses import fake_tensor  # noqa: E402

from einsmith import nn  # noqa: E402
from einsmith.ops.table import OPERATORS  # noqa: E402
from tests.frontends import aten_samples, compile_samples  # noqa: E402
from tests.nn.conftest import evaluated  # noqa: E402
from tests.nn.twin import agree, as_torch, check, compiled, outputs  # noqa: E402
from tests.operators.samples import SAMPLES  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

DRAWS = [pytest.param(c, o, id=f"{c.name}-{n}-{m}") for n, c in enumerate(SAMPLES) for m, o in enumerate(c.draws)]
ONES = [pytest.param(c, c.draws[-1], id=f"{c.name}-{n}") for n, c in enumerate(SAMPLES)]


def tensors(case, options, rng):
    """Return the function of torch without its options, and its tensors."""
    arrays = [torch.tensor(np.asarray(a)) for a in case.arrays(rng)]
    return lambda *given: case.twin(*given, **options), arrays


@pytest.mark.thinned(3)
@pytest.mark.parametrize("case, options", DRAWS)
def test_evaluator(rng, case, options) -> None:
    check(evaluated, case, options, rng)


@pytest.mark.thinned(16)
@pytest.mark.parametrize("case, options", ONES)
def test_compiled(rng, case, options) -> None:
    check(compiled, case, options, rng, "float32")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("case, options", DRAWS)
def test_all_compiled(rng, case, options, kind) -> None:
    check(compiled, case, options, rng, kind)


REFUSED = {
    "bincount", "rrelu", "gaussian_nll_loss", "ctc_loss", "batch_norm", "instance_norm", "one_hot",
    "repeat_interleave",
}  # fmt: skip
"""Where PyTorch traces these, shapes or branches depend on values, or it gives operators that it does not export."""
REWRITTEN = {
    "l1_loss": lambda o: o["weight"] is not None,  # which is left out
    "cosine_similarity": lambda o: o.get("eps", 0) > 1,  # its derivative is that of a length that eps does not bound
}
"""What PyTorch makes of these where it traces them gives other numbers than it does, for some options."""
LEFT = {"rrelu", "embedding_bag"}
"""`torch.compile`'s backend leaves these, or their derivatives, to PyTorch."""


def is_equal(case, options):
    """Return the context of a comparison, which fails where PyTorch rewrites the call."""
    differs = case.name in REWRITTEN and REWRITTEN[case.name](options)
    return pytest.raises(AssertionError) if differs else nullcontext()


@pytest.mark.thinned(9)
@pytest.mark.parametrize("case, options", DRAWS)
def test_aten(rng, case, options) -> None:
    f, given = tensors(case, options, rng)
    try:
        with is_equal(case, options):
            aten_samples.compare(f, given, rtol=case.tolerance if case.tolerance < 1e-6 else 10 * case.tolerance)
    except aten_samples.Missing as e:
        assert case.name in REFUSED, e


@pytest.mark.thinned(28)
@pytest.mark.parametrize("case, options", ONES)
def test_torch_compile(rng, case, options) -> None:
    f, given = tensors(case, options, rng)
    given = [t.requires_grad_(t.is_floating_point() and case.smooth > 0) for t in given]
    told: list[str] = []
    try:
        with is_equal(case, options):
            told = compile_samples.compare(f, given, rtol=case.tolerance)
    except (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException):
        assert case.name in REFUSED
    assert told == [] or case.name in LEFT


def layers():
    """Yield the samples whose options a layer of PyTorch takes, and each layer with its own options."""
    for case in SAMPLES:
        layer = getattr(torch.nn, OPERATORS[case.name].layer or "-", None)
        for options in ({}, *case.draws) if layer and not case.call else ():
            try:
                inspect.signature(layer).bind(**options)
            except TypeError:
                continue
            yield case, options


@pytest.mark.thinned(4)
@pytest.mark.parametrize("case, options", list(layers()))
def test_layers(rng, case, options) -> None:
    make = [getattr(library, OPERATORS[case.name].layer) for library in (nn, torch.nn)]
    ours, theirs = make[0](**options), make[1](**as_torch(options))
    if case.name != "triplet_margin_with_distance_loss":  # the text of torch's lists its function
        assert repr(ours) == repr(theirs)
    if "inplace" in inspect.signature(make[1]).parameters and "inplace" in repr(make[1](**options, inplace=True)):
        assert repr(make[0](**options, inplace=True)) == repr(make[1](**options, inplace=True))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    arrays = [np.asarray(a) for a in case.arrays(rng)]
    ours.load_state_dict(theirs.state_dict())
    found = evaluated(ours.double().eval(), *arrays)
    wanted = theirs.double().eval()(*map(torch.tensor, arrays))
    agree(outputs(found), [t.numpy() for t in outputs(wanted)], case.tolerance)


@pytest.mark.parametrize("name", [row.name for row in OPERATORS.values() if row.onnx])
def test_onnx(rng, name) -> None:
    onnx = pytest.importorskip("onnx")
    from einsmith.frontends.onnx import load

    row, ran = OPERATORS[name], 0
    known = onnx.defs.get_schema(row.onnx).attributes
    for case in (c for c in SAMPLES if c.name == name):
        for options in case.draws:
            given = {k: v for k, v in options.items() if v != row.settings[k].default}
            attributes = {row.attributes.get(k, k): v for k, v in given.items()}
            if not known.keys() >= attributes.keys():
                continue
            f, arrays = tensors(case, options, rng)
            arrays = [a.float() if a.is_floating_point() else a for a in arrays]
            wanted = f(*arrays).numpy()
            model = _one_node(onnx, row.onnx, attributes, [a.numpy() for a in arrays], wanted)
            agree([np.asarray(load(model)(*(a.numpy() for a in arrays)))], [wanted], 1e-5)
            ran += 1
    assert ran


def _one_node(onnx, operator, attributes, arrays, result):
    def info(name, a):
        kind = onnx.helper.np_dtype_to_tensor_dtype(a.dtype)
        return onnx.helper.make_tensor_value_info(name, kind, a.shape)

    names = [f"x{n}" for n in range(len(arrays))]
    node = onnx.helper.make_node(operator, names, ["y"], **attributes)
    graph = onnx.helper.make_graph([node], "one", list(map(info, names, arrays)), [info("y", result)])
    return onnx.helper.make_model(graph)


ELSEWHERE = {
    **dict.fromkeys(["dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"],
                    "tests/nn/test_dropout.py"),
    **dict.fromkeys(["rand", "rand_like", "randn", "randn_like", "bernoulli"], "tests/nn/test_dropout.py"),
    "as_tensor": "tests/nn/test_tensor_functions.py", "gumbel_softmax": "tests/nn/test_activations.py",
    "arange": "tests/nn/test_functional.py",
    **dict.fromkeys(["full", "zeros", "ones", "eye", "linspace"], "tests/nn/test_tensor_functions.py"),
    "flex_attention": "tests/nn/test_flex_attention.py", "multi_head_attention_forward": "tests/nn/test_attention.py",
    **dict.fromkeys(["group_sum", "sync_batch_norm"], "tests/distributed/test_sync_batch_norm.py"),
    "margin_loss": "tests/models/test_capsule.py",
    **dict.fromkeys(["linear_attention", "gated_delta_rule", "ssd", "rwkv7", "mlstm"],
                    "tests/operators/test_linear_recurrence.py"),
}  # fmt: skip
"""Operators without a sample -> the tests that they have: random numbers, creation, and what torch has not."""


def test_every_operator_has_a_sample() -> None:
    sampled = {c.name for c in SAMPLES}
    assert {n for n in OPERATORS if n not in sampled} == ELSEWHERE.keys()
    for name, file in ELSEWHERE.items():
        text = (Path(__file__).parents[2] / file).read_text().lower().replace("_", "")
        assert name.replace("_", "") in text, f"{file} does not name {name}"
    assert sampled <= OPERATORS.keys()
