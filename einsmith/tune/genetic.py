"""A genetic search over the configurations of a kernel: what to measure next.

Its first generation is what the cost model ranks first, of every pattern that takes the kernel. Later ones are children
of the fastest that were measured: genes of two parents mixed, some changed to a value near theirs, everything legal
before it is compiled. Of several children the one is proposed that the model holds to be the quickest, corrected by
what was measured so far. (The search is NeoFlow's, section 4; that the model guides it is ours.)
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from math import exp, inf, log
from typing import Any, NamedTuple

import numpy as np

from einsmith.decisions import changed, choice_of, written
from einsmith.errors import CompileError
from einsmith.kernels import autoconfig
from einsmith.kernels.genes import FORM, Space, genes
from einsmith.kernels.pattern import Pattern, cost_of
from einsmith.plan.kernel import Kernel, Rows
from einsmith.target.facts import Target

FIRST = 8
"""Candidates of the first generation: what is measured before children are made."""
FAR = 6.0
"""A pattern whose best prediction is so many times the choice's is not measured for its own sake."""
PARENTS = 6
"""The fastest that were measured, from which parents are drawn."""
BROOD = 8
"""Children of which the most promising is proposed."""
TRIES = 60
"""Drawn configurations after which legal ones that are new count as used up."""
CROSSED, NEAR = 0.5, 0.7
"""How often a child has two parents, and how often a changed gene takes a value near its own, where values are ordered.
"""
MUTATED = 1.5
"""Genes that are changed, on average."""
FIXED = (FORM, "way", "pattern")
"""Genes by which a configuration has its other ones: a child has those of its first parent."""
RIDGE = 1.0
"""Measurements without a deviation that are added for every value of a gene, so that one alone tells little."""


class Candidate(NamedTuple):
    """A pattern's name and one of its configurations."""

    pattern: str
    config: Any

    @property
    def text(self) -> str:
        """The decision that stands for it (`decisions.written`)."""
        return written(autoconfig.pattern_of(self.pattern), self.config)

    def __str__(self) -> str:
        return f"{self.pattern} {self.config}"


def candidate_of(kernel: Kernel | Rows, target: Target, text: str) -> Candidate | None:
    """What a decision stands for; the model's choice where it is empty, None where it cannot be followed."""
    try:
        choice = choice_of(kernel, target, text)
    except CompileError:
        return None
    return Candidate(choice.pattern.name, choice.config)


class Search:
    """The search over one kernel. `propose` says what to measure next, `tell` what came of it.

    first: what is proposed before anything else (what other machines or kernels of this form have found). guided: False
    leaves the model out of account: the first generation is drawn at random, and every child is as good as another.
    """

    def __init__(
        self, kernel: Kernel | Rows, target: Target, seed: int = 0, first: Sequence[Candidate] = (), guided: bool = True
    ):
        self.kernel, self.target, self.guided = kernel, target, guided
        self.choice = autoconfig.choose(kernel, target)
        self.chosen = Candidate(self.choice.pattern.name, self.choice.config)
        self.measured: dict[Candidate, float] = {}
        """Seconds of what was told about; infinity for what cannot run."""
        self._random = random.Random(seed)
        self._patterns = {p.name: p for p in autoconfig.asked(kernel, target) if p.match(kernel)}
        self._spaces: dict[str, Space] = {}
        self._seen: set[Candidate] = set()
        self._costs: dict[Candidate, float] = {}
        self._ranked = self._by_rank()
        self._first = self._generation_of(first)
        self._over = False
        self._off: Correction | None = None

    # -- asking and telling

    def propose(self) -> Candidate | None:
        """What to measure next, each only once; None where nothing legal is left."""
        if self._over:
            return None
        found = next(self._first, None) or self._child()
        if found is None:
            found = next((c for c in self._ranked if c not in self._seen), None)
        if found is None:
            self._over = True
            return None
        return self._new(found)

    def tell(self, candidate: Candidate, seconds: float) -> None:
        """What a candidate was measured to take; infinity where it cannot run or is wrong."""
        self._seen.add(candidate)
        self.measured[candidate] = seconds
        self._off = None

    @property
    def best(self) -> Candidate | None:
        """The fastest that was measured."""
        known = {c: s for c, s in self.measured.items() if s < inf}
        return min(known, key=known.__getitem__) if known else None

    def _new(self, c: Candidate) -> Candidate:
        self._seen.add(c)
        return c

    # -- the first generation

    def _by_rank(self) -> list[Candidate]:
        """What the patterns hold to be worth a measurement: the cheapest by prediction first, or in any order."""
        found = self.choice.alternatives
        self._costs |= {Candidate(name, config): cost.rank for name, config, cost in found}
        ranked = [Candidate(name, config) for name, config, _ in found]
        if not self.guided:
            self._random.shuffle(ranked)
        return ranked

    def _generation_of(self, first: Sequence[Candidate]) -> Iterator[Candidate]:
        """The choice, what is handed in, the best of every pattern that may win, and the next by rank."""
        if not self.guided:
            yield from self._ranked[:FIRST]
            return
        limit = FAR * self._cost(self.chosen)
        heads = {c.pattern: c for c in reversed(self._ranked) if self._costs[c] <= limit}
        wanted = [self.chosen, *first, *sorted(heads.values(), key=self._cost), *self._ranked]
        every = [c for c in dict.fromkeys(wanted) if c.pattern in self._patterns]
        yield from every[: max(FIRST, 1 + len(first) + len(heads))]

    # -- children

    def _child(self) -> Candidate | None:
        """A legal configuration that was not proposed before, made of the fastest ones; None where none is found."""
        known = sorted((s, n, c) for n, (c, s) in enumerate(self.measured.items()) if s < inf)
        every = [(c, s) for s, _, c in known]
        pools = [every[:PARENTS], *([p for p in every if p[0].pattern == name][:PARENTS] for name in self._patterns)]
        pools = [p for p in pools if p]
        brood: dict[Candidate, float] = {}
        for n in range(TRIES if pools else 0):  # half of them within one pattern, which may be slower so far
            pool = self._random.choice(pools) if n % 2 else pools[0]
            first, second = self._parent(pool), self._parent(pool)
            child = self._of(first[0], second[0])
            if child is None or child in self._seen or child in brood:
                continue
            brood[child] = self._promise(child) if self.guided else 0.0
            if not self.guided or len(brood) == BROOD:
                break
        return min(brood, key=brood.__getitem__) if brood else None

    def _parent(self, parents: Sequence[tuple[Candidate, float]]) -> tuple[Candidate, float]:
        """One of two drawn at random, the faster one."""
        return parents[min(self._random.randrange(len(parents)) for _ in range(2))]

    def _of(self, first: Candidate, second: Candidate) -> Candidate | None:
        """A child of two candidates, of which the second gives genes where both have the same ones; None where it is
        not legal."""
        pattern = self._patterns[first.pattern]
        own = genes(first.config)
        space = self._space(pattern)
        values: dict[str, Any] = {}
        other = genes(second.config) if second.pattern == first.pattern else {}
        alike = own.keys() == other.keys() and all(own[g] == other[g] for g in own if _fixed(g))
        crossed = alike and first != second and self._random.random() < CROSSED
        if crossed:
            values |= {g: v for g, v in other.items() if self._random.random() < 0.5}
        free = [g for g in own if len(space.get(g, ())) > 1 and not _fixed(g)]
        if not free:
            return None
        count = 0 if crossed and self._random.random() < 0.5 else 1 + int(self._random.expovariate(1 / (MUTATED - 0.5)))
        for _ in range(count):
            gene = self._random.choice(free)
            value = self._value(space[gene], values.get(gene, own[gene]))
            values[gene] = value
            if self._random.random() < 0.5:  # pieces of one kernel mostly want the same
                last = gene.rpartition(".")[2]
                values |= {g: value for g in free if g.rpartition(".")[2] == last and value in space[g]}
        values = {g: v for g, v in values.items() if not _fixed(g) and own[g] != v}
        if not values:
            return None
        try:
            config = changed(first.config, values)
            if pattern.legal(self.kernel, config, self.target):
                return None
        except (CompileError, KeyError, ValueError, ZeroDivisionError):
            return None
        return Candidate(first.pattern, config)

    def _value(self, values: Sequence[Any], now: Any) -> Any:
        """Another value of a gene: often a near one, where they have an order."""
        ordered = all(type(v) is int for v in values) and now in values
        if ordered and self._random.random() < NEAR:
            at = values.index(now)
            step = 1 + int(self._random.expovariate(0.7))
            return values[max(0, min(len(values) - 1, at + self._random.choice((-step, step))))]
        return self._random.choice([v for v in values if v != now])

    def _promise(self, child: Candidate) -> float:
        """Seconds that a child is held to take: predicted, and as far off as the predictions for what was measured tell
        of the values of its genes."""
        if self._off is None:
            self._off = Correction([(c, log(s / self._cost(c))) for c, s in self.measured.items() if s < inf])
        return self._cost(child) * exp(self._off(child))

    def _cost(self, c: Candidate) -> float:
        known = self._costs.get(c)
        if known is None:
            known = cost_of(self._patterns[c.pattern], self.kernel, c.config, self.target).rank
            self._costs[c] = known
        return known

    def _space(self, pattern: Pattern) -> Space:
        if pattern.name not in self._spaces:
            self._spaces[pattern.name] = pattern.space(self.kernel, self.target)
        return self._spaces[pattern.name]


def _fixed(gene: str) -> bool:
    return gene.rpartition(".")[2] in FIXED


class Correction:
    """How far off predictions are, in logarithms: a ridge regression of what was measured on the values of genes, each
    of which adds its own part, and on the pattern."""

    def __init__(self, known: Sequence[tuple[Candidate, float]]):
        self._columns: dict[Any, int] = {}
        rows = [[self._columns.setdefault(f, len(self._columns)) for f in _features(c)] for c, _ in known]
        x = np.zeros((len(rows), len(self._columns)))
        for n, row in enumerate(rows):
            x[n, row] = 1.0
        off = np.array([r for _, r in known])
        self._mean = float(off.mean()) if off.size else 0.0
        self._parts = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ (off - self._mean))

    def __call__(self, c: Candidate) -> float:
        return self._mean + sum(self._parts[self._columns[f]] for f in _features(c) if f in self._columns)


def _features(c: Candidate) -> list[Any]:
    return [c.pattern, *((c.pattern, gene, value) for gene, value in genes(c.config).items())]
