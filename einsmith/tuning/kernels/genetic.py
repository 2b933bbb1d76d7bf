"""Propose configurations of a kernel to measure, by a genetic search that the cost model guides.

The first generation holds the configurations that the cost model ranks first, of every pattern that takes the kernel.
Later ones are children of the fastest that were measured: genes of two parents mixed, some changed to a value near
theirs, everything legal before it is compiled. Of several children the one with the least predicted seconds is
proposed; predictions are corrected by the measurements so far. (The search is NeoFlow's, section 4; the guidance by
the model is ours.)
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from math import exp, inf, log
from typing import Any, NamedTuple

import numpy as np

from einsmith.base.errors import CompileError
from einsmith.cost.facts import Target
from einsmith.kernels import autoconfig
from einsmith.kernels.genes import FORM, Space, genes
from einsmith.kernels.pattern import Pattern, cost_of
from einsmith.schedule.kernel import Kernel
from einsmith.tuning.kernels.decisions import change_genes, choice_of, format_choice
from einsmith.tuning.kernels.model_error import ModelError, Win, expect_saving

FIRST_GENERATION_SIZE = 8
"""Candidates of the first generation, which are measured before children are bred."""
MAX_FIRST_RATIO = 6.0
"""Most times the choice's predicted seconds that a pattern's best prediction may be for the pattern to be measured in
the first generation."""
PARENT_POOL_SIZE = 6
"""Number of fastest measured candidates from which parents are drawn."""
BROOD_SIZE = 8
"""Number of children bred for each proposal, of which the one with the least predicted seconds is proposed."""
MAX_DRAWS = 60
"""Most configurations drawn without a new legal one; after them none is assumed to be left."""
CROSSOVER_PROBABILITY, NEIGHBOUR_PROBABILITY = 0.5, 0.7
"""Probability that a child has two parents, and that a changed gene takes a value near its own, where values are
ordered."""
MEAN_MUTATIONS = 1.5
"""Genes that a child changes, on average."""
INHERITED_GENES = (FORM, "way", "pattern")
"""Genes that determine which other genes a configuration has; a child takes their values from its first parent."""
RIDGE_WEIGHT = 1.0
"""Weight of the ridge penalty: pseudo-measurements without a deviation added for every value of a gene, so that a
single measurement moves the prediction little."""


class Candidate(NamedTuple):
    """A pattern's name and one of its configurations."""

    pattern: str
    config: Any

    @property
    def text(self) -> str:
        """Return the decision's text for this candidate (`decisions.format_choice`)."""
        return format_choice(autoconfig.pattern_of(self.pattern), self.config)

    def __str__(self) -> str:
        return f"{self.pattern} {self.config}"


class Expectation(NamedTuple):
    """A candidate, its predicted seconds, and the fraction of the present configuration's time that it is expected to
    save."""

    candidate: Candidate
    seconds: float
    saving: float


def candidate_of(kernel: Kernel, target: Target, text: str) -> Candidate | None:
    """Return the candidate that a decision's text names: the model's choice for an empty text, None where the text
    cannot be followed."""
    try:
        choice = choice_of(kernel, target, text)
    except CompileError:
        return None
    return Candidate(choice.pattern.name, choice.config)


class Search:
    """A search over the configurations of one kernel. `propose` returns the candidate to measure next; `tell` reports
    its seconds.

    first: candidates proposed before all others (found on other machines, or for kernels that differ in extents)
    error: errors of the model's predictions for other kernels; None where nothing is known of them
    guided: False leaves the model out of account; the first generation is drawn at random, and children are not ranked
    """

    def __init__(
        self,
        kernel: Kernel,
        target: Target,
        seed: int = 0,
        first: Sequence[Candidate] = (),
        guided: bool = True,
        error: ModelError | None = None,
    ):
        self.kernel, self.target, self.guided, self.error = kernel, target, guided, error
        self.choice = autoconfig.choose(kernel, target)
        self.chosen = Candidate(self.choice.pattern.name, self.choice.config)
        self.measured: dict[Candidate, float] = {}
        """Seconds of each candidate reported by `tell`; infinity for one that cannot run."""
        self._random = random.Random(seed)
        self._patterns = {p.name: p for p in autoconfig.eligible_patterns(kernel, target) if p.match(kernel)}
        self._spaces: dict[str, Space] = {}
        self._known: set[Candidate] = set()
        self._costs: dict[Candidate, float] = {}
        self._ranked = self._rank_candidates()
        self._first = self._list_first_generation(first)
        self._over = False
        self._correction: Correction | None = None

    # -- asking and telling

    def propose(self) -> Candidate | None:
        """Return a candidate to measure that was never proposed before; None where no legal one is left."""
        if self._over:
            return None
        candidate = next((c for c in self._first if c not in self._known), None) or self._breed()
        if candidate is None:
            candidate = next((c for c in self._ranked if c not in self._known), None)
        if candidate is None:
            self._over = True
            return None
        return self._mark_known(candidate)

    def expect_most(self, now: float, bound: float, wins: Mapping[Candidate, Win]) -> Expectation | None:
        """Return the untried candidate that is expected to save most; None where none is left.

        Children of the fastest candidates are among them. Where the prediction is as low as another's, the candidate
        of the pattern that the model is less sure of saves more.

        Args:
            now: seconds of the present configuration
            bound: lower bound of the seconds of any configuration
            wins: candidates that were faster for this kernel or like ones, by earlier measurements
        """
        error, choice_seconds = self.error or ModelError(), self.measured.get(self.chosen, now)
        best: Expectation | None = None
        for c in dict.fromkeys([*wins, *self._ranked, *self._draw_brood()]):
            if c in self._known or c.pattern not in self._patterns:
                continue
            seconds = self._predict(c)
            if c in wins:
                seconds = wins[c].correct(seconds, choice_seconds)
            ratio = seconds * exp(error.optimism(c.pattern)) / now
            saving = expect_saving(ratio, error.deviation(c.pattern), bound / now)
            if best is None or saving > best.saving:
                best = Expectation(c, seconds, saving)
        return best

    def tell(self, candidate: Candidate, seconds: float) -> None:
        """Report a candidate's measured seconds; infinity where it cannot run or gives wrong results."""
        self._known.add(candidate)
        self.measured[candidate] = seconds
        self._correction = None

    @property
    def best(self) -> Candidate | None:
        """Return the fastest measured candidate; None where none could run."""
        known = {c: s for c, s in self.measured.items() if s < inf}
        return min(known, key=known.__getitem__) if known else None

    def _mark_known(self, c: Candidate) -> Candidate:
        self._known.add(c)
        return c

    # -- the first generation

    def _rank_candidates(self) -> list[Candidate]:
        """Return the candidates that the patterns hold to be worth a measurement, the cheapest by prediction first, or
        shuffled in an unguided search."""
        alternatives = self.choice.alternatives
        self._costs |= {Candidate(name, config): cost.rank for name, config, cost in alternatives}
        ranked = [Candidate(name, config) for name, config, _ in alternatives]
        if not self.guided:
            self._random.shuffle(ranked)
        return ranked

    def _list_first_generation(self, first: Sequence[Candidate]) -> Iterator[Candidate]:
        """Yield the first generation: the choice, the candidates handed in, the best of every pattern that may win,
        and the next by rank."""
        if not self.guided:
            yield from self._ranked[:FIRST_GENERATION_SIZE]
            return
        limit = MAX_FIRST_RATIO * self.price(self.chosen)
        best_of_patterns = {c.pattern: c for c in reversed(self._ranked) if self._costs[c] <= limit}
        ordered = [self.chosen, *first, *sorted(best_of_patterns.values(), key=self.price), *self._ranked]
        every = [c for c in dict.fromkeys(ordered) if c.pattern in self._patterns]
        yield from every[: max(FIRST_GENERATION_SIZE, 1 + len(first) + len(best_of_patterns))]

    # -- children

    def _breed(self) -> Candidate | None:
        """Return the child with the least predicted seconds; None where no legal one is new."""
        brood = self._draw_brood()
        return min(brood, key=brood.__getitem__) if brood else None

    def _draw_brood(self) -> dict[Candidate, float]:
        """Breed legal candidates that were not proposed before from the fastest ones; return the predicted seconds of
        each."""
        known = sorted((s, n, c) for n, (c, s) in enumerate(self.measured.items()) if s < inf)
        every = [(c, s) for s, _, c in known]
        pools = [
            every[:PARENT_POOL_SIZE],
            *([p for p in every if p[0].pattern == name][:PARENT_POOL_SIZE] for name in self._patterns),
        ]
        pools = [p for p in pools if p]
        brood: dict[Candidate, float] = {}
        for n in range(MAX_DRAWS if pools else 0):  # half of them within one pattern, which may be slower so far
            pool = self._random.choice(pools) if n % 2 else pools[0]
            first, second = self._draw_parent(pool), self._draw_parent(pool)
            child = self._cross(first[0], second[0])
            if child is None or child in self._known or child in brood:
                continue
            brood[child] = self._predict(child) if self.guided else 0.0
            if not self.guided or len(brood) == BROOD_SIZE:
                break
        return brood

    def _draw_parent(self, parents: Sequence[tuple[Candidate, float]]) -> tuple[Candidate, float]:
        """Return the faster of two parents drawn at random."""
        return parents[min(self._random.randrange(len(parents)) for _ in range(2))]

    def _cross(self, first: Candidate, second: Candidate) -> Candidate | None:
        """Cross and mutate two candidates; the second contributes genes that both have. Return None where the child is
        not legal."""
        pattern = self._patterns[first.pattern]
        first_genes = genes(first.config)
        space = self._space(pattern)
        values: dict[str, Any] = {}
        second_genes = genes(second.config) if second.pattern == first.pattern else {}
        alike = first_genes.keys() == second_genes.keys() and all(
            first_genes[g] == second_genes[g] for g in first_genes if _is_inherited(g)
        )
        crossed = alike and first != second and self._random.random() < CROSSOVER_PROBABILITY
        if crossed:
            values |= {g: v for g, v in second_genes.items() if self._random.random() < 0.5}
        free = [g for g in first_genes if len(space.get(g, ())) > 1 and not _is_inherited(g)]
        if not free:
            return None
        count = (
            0
            if crossed and self._random.random() < 0.5
            else 1 + int(self._random.expovariate(1 / (MEAN_MUTATIONS - 0.5)))
        )
        for _ in range(count):
            gene = self._random.choice(free)
            value = self._mutate_value(space[gene], values.get(gene, first_genes[gene]))
            values[gene] = value
            if self._random.random() < 0.5:  # pieces of one kernel mostly want equal values
                last = gene.rpartition(".")[2]
                values |= {g: value for g in free if g.rpartition(".")[2] == last and value in space[g]}
        values = {g: v for g, v in values.items() if not _is_inherited(g) and first_genes[g] != v}
        if not values:
            return None
        try:
            config = change_genes(first.config, values)
            if pattern.legal(self.kernel, config, self.target):
                return None
        except (CompileError, KeyError, ValueError, ZeroDivisionError):
            return None
        return Candidate(first.pattern, config)

    def _mutate_value(self, values: Sequence[Any], now: Any) -> Any:
        """Return another value of a gene: where values are ordered, a neighbouring one with probability
        NEIGHBOUR_PROBABILITY."""
        ordered = all(type(v) is int for v in values) and now in values
        if ordered and self._random.random() < NEIGHBOUR_PROBABILITY:
            at = values.index(now)
            step = 1 + int(self._random.expovariate(0.7))
            return values[max(0, min(len(values) - 1, at + self._random.choice((-step, step))))]
        return self._random.choice([v for v in values if v != now])

    def _predict(self, child: Candidate) -> float:
        """Return a child's predicted seconds, corrected by how far off the predictions were for measured candidates
        with the same gene values."""
        bias = self._bias
        if self._correction is None:
            known = [(c, s / p) for c, s in self.measured.items() if s < inf and (p := self.price(c))]
            errors = [(c, log(ratio) - bias(c)) for c, ratio in known if ratio > 0]
            self._correction = Correction(errors, prior=float(self.error is not None))
        return self.price(child) * exp(bias(child) + self._correction(child))

    def _bias(self, c: Candidate) -> float:
        """Return the logarithm of measured over predicted seconds that other kernels have shown for a pattern."""
        return 0.0 if self.error is None else self.error.bias(c.pattern)

    def price(self, c: Candidate) -> float:
        """Return the rank that the cost model gives a candidate."""
        known = self._costs.get(c)
        if known is None:
            known = cost_of(self._patterns[c.pattern], self.kernel, c.config, self.target).rank
            self._costs[c] = known
        return known

    def _space(self, pattern: Pattern) -> Space:
        if pattern.name not in self._spaces:
            self._spaces[pattern.name] = pattern.space(self.kernel, self.target)
        return self._spaces[pattern.name]


def _is_inherited(gene: str) -> bool:
    return gene.rpartition(".")[2] in INHERITED_GENES


class Correction:
    """Model of the logarithm of measured over predicted seconds of a candidate: ridge regression on its pattern and the
    values of its genes.

    prior: number of pseudo-measurements of 0 that are added to the known ones in the mean. They account for a kernel
    that is slow because of its configuration, which others need not share.
    """

    def __init__(self, known: Sequence[tuple[Candidate, float]], prior: float = 0.0):
        self._columns: dict[Any, int] = {}
        rows = [[self._columns.setdefault(f, len(self._columns)) for f in _features(c)] for c, _ in known]
        x = np.zeros((len(rows), len(self._columns)))
        for n, row in enumerate(rows):
            x[n, row] = 1.0
        log_ratios = np.array([r for _, r in known])
        self._mean = float(log_ratios.sum()) / (log_ratios.size + prior) if log_ratios.size else 0.0
        self._parts = np.linalg.solve(x.T @ x + RIDGE_WEIGHT * np.eye(x.shape[1]), x.T @ (log_ratios - self._mean))

    def __call__(self, c: Candidate) -> float:
        return self._mean + sum(self._parts[self._columns[f]] for f in _features(c) if f in self._columns)


def _features(c: Candidate) -> list[Any]:
    return [c.pattern, *((c.pattern, gene, value) for gene, value in genes(c.config).items())]
