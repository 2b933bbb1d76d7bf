"""The space of a pattern: what it proposes lies in it and is legal, and whatever is legal is computed right."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from einsmith.cost.facts import Target
from einsmith.kernels import autoconfig
from einsmith.kernels.genes import genes, space_of
from einsmith.kernels.pattern import Pattern
from einsmith.schedule.kernel import Kernel
from einsmith.tuning.kernels.decisions import change_genes, show_space
from tests.kernels.runner import WIDE, compare, fresh, host, reference
from tests.kernels.samples import (
    batched,
    biased,
    conv,
    conv_dw,
    conv_dx,
    depthwise,
    functions,
    padded_conv,
    pointwise_dx,
    product,
    rows,
    scan,
    shuffled,
    strided_conv_dx,
    transpose,
)

KERNELS = {
    "product": product(13, 37, 19), "transposed": product(17, 33, 41, "NT"), "row": product(1, 129, 67),
    "turned": product(5, 17, 2304, "NT"), "long": product(6, 131, 701, "TN"), "batched": batched(3, 7, 17, 5),
    "biased": biased(product(9, 17, 9), 1, True), "convolution": conv(2, 3, 9, 17, 5, 3, 3, 1),
    "padded": padded_conv(2, 4, 7, 15, 17, 3, 3, 1), "few": conv(1, 1, 11, 17, 3, 5, 5, 2),
    "backward": conv_dx(1, 5, 8, 17, 3, 3, 3, 1), "weights": conv_dw(2, 3, 9, 17, 5, 3, 3, 1),
    "pieces": strided_conv_dx(2, 5, 4, 34, 3), "zeros": pointwise_dx(2, 3, 5, 17, 4, 2),
    "digits": shuffled(3, 17), "depthwise": depthwise(2, 3, 9, 17, 3, 1), "functions": functions(37),
    "transpose": transpose(17, 19), "rows": rows("argmin", 37),
    "scan": scan("sum", 5, 301, "rows", False),
}  # fmt: skip


def pairs() -> list[tuple[str, str]]:
    return [(name, p.name) for name, k in KERNELS.items() for p in autoconfig.eligible_patterns(k, WIDE) if p.match(k)]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name,pattern_name", pairs())
def test_proposals_are_legal(name: str, pattern_name: str) -> None:
    kernel, pattern = KERNELS[name], autoconfig.pattern_of(pattern_name)
    for target in (WIDE, Target()):
        space = pattern.space(kernel, target)
        for config in pattern.configs(kernel, target):
            assert pattern.legal(kernel, config, target) == "", str(config)
            lost = {g: v for g, v in genes(config).items() if v not in space[g]}
            assert not lost, f"{config} has {lost}, which are not in {show_space(space)}"


def mutants(pattern: Pattern, kernel: Kernel, target: Target, rng: np.random.Generator, count: int, tries: int = 4000):
    """Legal configurations, at most so many, each a proposed one with one to three other genes."""
    space, found = pattern.space(kernel, target), list(pattern.configs(kernel, target))
    seen = set(found)
    for _ in range(tries):
        if not found:
            return
        config = found[rng.integers(len(found))]
        own = [g for g in genes(config) if len(space[g]) > 1 and not g.endswith("form")]
        if not own:
            return
        some = rng.choice(own, min(len(own), int(rng.integers(1, 4))), replace=False)
        config = change_genes(config, {str(g): space[g][rng.integers(len(space[g]))] for g in some})
        if config not in seen and not pattern.legal(kernel, config, target):
            seen.add(config)
            yield config
            if len(seen) >= len(found) + count:
                return


def run(name: str, pattern_name: str, seed: int, count: int) -> int:
    kernel, pattern, target = KERNELS[name], autoconfig.pattern_of(pattern_name), host()
    rng = np.random.default_rng(seed)
    base = fresh(kernel, seed)
    want, n = reference(kernel, base), 0
    for config in mutants(pattern, kernel, target, rng, count):
        lowered = pattern.lower(kernel, config, target)
        compare(lowered, kernel, base, want, f"{pattern_name} {config}", target, 3e-5)
        n += 1
    return n


def test_any_value_of_one_gene_is_legal_or_has_a_reason() -> None:
    kernel, pattern = strided_conv_dx(2, 3, 8, 16, 5), autoconfig.pattern_of("contraction")
    space = pattern.space(kernel, WIDE)
    config = next(c for c in pattern.configs(kernel, WIDE) if genes(c)["joint"])
    for gene in (g for g in genes(config) if g.startswith("pieces.1.") and not g.endswith("form")):
        answers = {pattern.legal(kernel, change_genes(config, {gene: v}), WIDE) for v in space[gene]}
        assert "" in answers and all(isinstance(x, str) for x in answers)


CONTRACTIONS = [name for name, p in pairs() if p == "contraction"]


@pytest.mark.thinned(5)
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_legal_configurations_are_correct(name: str) -> None:
    assert run(name, "contraction", 3, 6) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_much_of_what_is_legal_is_right(name: str, seed: int) -> None:
    run(name, "contraction", 100 + seed, 60)


def test_genes() -> None:
    kernel = KERNELS["product"]
    config = next(iter(autoconfig.pattern_of("contraction").configs(kernel, WIDE)))
    found = genes(config)
    assert found["pieces.0.form"] == "Tiled" and {"pieces.0.mr", "pieces.0.windows", "joint"} <= set(found)
    other = change_genes(config, {"pieces.0.mr": 3, "pieces.0.a": "buffer"})
    assert genes(other) == found | {"pieces.0.mr": 3, "pieces.0.a": "buffer"}
    assert change_genes(other, {g: v for g, v in found.items() if not g.endswith("form")}) == config
    for wrong in ("mr", "pieces.1.mr", "pieces.0", "pieces.0.form", "pieces.0.mr.x"):
        with pytest.raises(KeyError):
            change_genes(config, {wrong: 1})
    every = space_of(islice(autoconfig.pattern_of("contraction").configs(kernel, WIDE), 3))
    assert all(genes(config)[g] == values[0] for g, values in every.items())
    assert show_space({"a": (1, 2, 3), "b": (True, "x"), "c": (2, 5)}) == "a=1..3; b=True|x; c=2|5"
