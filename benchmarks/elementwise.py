"""Define element-wise operators written as formulas, and Adam's update of all parameters of a network."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np

from benchmarks.kernel_cases import Case, adam, kernel_case
from benchmarks.models import NETWORKS

_NAME = re.compile(
    r"(sigmoid|own_sigmoid|multiply_add)-n(\d+)-(forward|gradient)|adam-of-(\w+?)(?:-(plain|operators))?"
)
INPUTS = {"sigmoid": "X", "own_sigmoid": "X", "multiply_add": "XAB"}


def elementwise(network: str, elements: int, direction: str = "forward") -> Case:
    """Return an operator of vectors. direction: "forward", or "gradient" for the result and the gradients of all
    inputs."""
    inputs = INPUTS[network]
    wrt = tuple(inputs) if direction == "gradient" else ()
    specials = (("exp", elements),) if "sigmoid" in network else ()
    shapes = dict.fromkeys(inputs, (elements,))
    name = f"{network}-n{elements}-{direction}"
    return kernel_case(name, network, shapes, (elements,), wrt=wrt, with_forward=bool(wrt), specials=specials)


def adam_of(network: str, form: str = "") -> Case:
    """Return Adam's update of all parameters of a network: of parameter n p, m and v are p0, m0 and v0, and so on.

    form: "plain" where PyTorch's optimizer updates one parameter after the other; "operators" where Einsmith's is
    composed of operators of arrays, and is no formula."""
    shapes = [tuple(p.shape) for _, p in NETWORKS[network](1).make_network().named_parameters()]
    sizes = [math.prod(s) for s in shapes]
    whole = adam(f"adam-of-{network}{f'-{form}' * bool(form)}", sum(sizes))

    def make() -> dict[str, np.ndarray]:
        ends = np.cumsum(sizes)[:-1]
        parts = {k: np.split(a, ends) for k, a in whole.arrays().items()}
        return {
            f"{k}{n}": np.ascontiguousarray(a.reshape(s))
            for k in parts
            for n, (a, s) in enumerate(zip(parts[k], shapes, strict=True))
        }

    names = {k: tuple(f"{k}{n}" for n in range(len(shapes))) for k in "pgmv"}
    inputs = tuple(x for k in "pgmv" for x in names[k])
    results = tuple(x for k in "pmv" for x in names[k])
    options = {"count": len(shapes), "form": form}
    return replace(whole, network="adam_of", inputs=inputs, results=results, make=make, options=options)


def named(name: str) -> Case | None:
    """Return the case of a name; None where it is none of these."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    if found[1]:
        return elementwise(found[1], int(found[2]), found[3])
    return adam_of(found[4], found[5] or "") if found[4] in NETWORKS else None
