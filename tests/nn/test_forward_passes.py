"""Networks that are written for PyTorch run with another import line: outputs and gradients beside PyTorch's."""

from __future__ import annotations

import linecache

import numpy as np
import pytest

import einsmith as es
from tests.nn.forward_passes import NETWORKS

THEIRS = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\nimport numpy as np\n"
OURS = "import einsmith as torch\nimport einsmith.nn as nn\nimport einsmith.functional as F\nimport numpy as np\n"


def run(imports: str, name: str) -> dict:
    text, file = imports + NETWORKS[name], f"<{name}>"
    linecache.cache[file] = len(text), None, text.splitlines(True), file  # for messages that quote the line
    names: dict = {"__name__": name}
    exec(compile(text, file, "exec"), names)
    return names


def outputs(y) -> tuple:
    return y if isinstance(y, tuple) else (y,)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_import_line_alone_changes(name, torch, rng):
    compare(name, es.interpret, torch, rng)


@pytest.mark.thinned(16)
@pytest.mark.parametrize("name", NETWORKS)
def test_compiled(name, torch, rng):
    compare(name, es.jit, torch, rng)


def compare(name: str, by, torch, rng) -> None:
    """Compare outputs and gradients with PyTorch's."""
    theirs, ours = run(THEIRS, name), run(OURS, name)
    torch.manual_seed(0)
    twin = theirs["Net"]().double()
    model = ours["Net"]().double()
    # Batch norm normalizes by its running statistics, and nothing is dropped.
    twin.eval(), model.eval()
    with torch.no_grad():
        for n, b in twin.named_buffers():
            if "running" in n:
                b.copy_(torch.rand_like(b) + 0.5)
    result = model.load_state_dict(twin.state_dict())
    assert not result.missing_keys and not result.unexpected_keys
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in twin.named_parameters()]
    arrays = ours["inputs"](rng)
    tensors = [torch.tensor(a, requires_grad=a.dtype == np.float64) for a in arrays]
    wanted = outputs(twin(*tensors))
    weights = [rng.standard_normal(tuple(w.shape)) for w in wanted]
    sum((w * torch.tensor(a)).sum() for w, a in zip(wanted, weights, strict=True)).backward()

    def total(parameters, floats, others):
        given = [floats[n] if n in floats else others[n] for n in range(len(arrays))]
        found = outputs(es.nn.functional_call(model, parameters, *given))
        return sum((y * w).sum() for y, w in zip(found, weights, strict=True)), found

    parameters = {n: p.numpy() for n, p in model.named_parameters()}
    floats = {n: a for n, a in enumerate(arrays) if a.dtype == np.float64}
    others = {n: a for n, a in enumerate(arrays) if n not in floats}
    (_, found), (by_name, by_place) = by(es.value_and_grad(total, argnums=(0, 1), has_aux=True))(
        parameters, floats, others
    )
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-8, atol=1e-8)
    for n, p in twin.named_parameters():
        np.testing.assert_allclose(by_name[n], p.grad.numpy(), rtol=1e-7, atol=1e-8, err_msg=n)
    for n, g in by_place.items():
        np.testing.assert_allclose(g, tensors[n].grad.numpy(), rtol=1e-7, atol=1e-8)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ["causal_language_model", "vision_transformer"])
def test_networks_are_called_on_arrays(name, torch, rng):
    """The latter draws random numbers in training, here for a batch whose rows differ by them alone."""
    model = run(OURS, name)["Net"]()
    arrays = run(THEIRS, name)["inputs"](rng)
    first, _ = model(*(np.repeat(a[:1], 8, axis=0).astype("f4" if a.dtype == np.float64 else a.dtype) for a in arrays))
    rows = len(np.unique(first.round(4), axis=0))
    assert rows > 1 if name == "vision_transformer" else rows == 1
