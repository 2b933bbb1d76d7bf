"""One case number: a formula or a graph, and the trials that are made of it. A pure function of the choices.

A case is counted for every comparison: of one program (a formula with extents and types; its value, gradients, second
order or tangents), for one number of threads, target and set of configurations, with what the evaluator gives; of a
call on arrays in some layout with the program; of forward with reverse mode; of a formula with its twin in PyTorch.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from einsmith.base.errors import EinsmithError
from einsmith.schedule.kernel import Rows
from tests.fuzz import chains, generate, graphs, productions, recurrent
from tests.fuzz.case import Case, as_test
from tests.fuzz.check import Unfit
from tests.fuzz.choices import Choices
from tests.fuzz.chunk_lengths import set_chunk_lengths
from tests.fuzz.trial import WHATS, Check, Trial, run_check
from tests.fuzz.variants import STREAMED, Cell, cells
from tests.fuzz.writer import KINDS, Writer

SLOW = 20.0
"""Seconds of this process from which on a case is a find. Compiling is what takes them."""


def _written(production: Callable[[Writer], None], kinds: Sequence[str] = KINDS) -> Callable[[Choices], Case]:
    def make(choose: Choices) -> Case:
        w = Writer(choose, kinds)
        production(w)
        return w.case()

    return make


def _mixture(choose: Choices) -> Case:
    kinds = (*generate.KINDS, "f32", "f64", "exact")
    return generate.Generator(choose, kinds, smooth=choose.chance(2)).case()


THEMES: dict[str, Callable[[Choices], Case]] = {
    "contraction": _written(productions.contraction), "bilinear": _written(productions.bilinear, productions.FLOATS),
    "convolution": _written(productions.convolution),
    "window": _written(productions.window), "rows": _written(productions.rows),
    "reduction": _written(productions.reduction), "pointwise": _written(productions.pointwise),
    "divided": _written(productions.divided), "narrow": _written(productions.narrow, ("exact", "exact", "i32", "i8")),
    "gather": _written(productions.gather), "scatter": _written(productions.scatter),
    "pieces": _written(productions.pieces), "typed": _written(productions.typed),
    "recurrence": _written(recurrent.recurrence), "grid": _written(recurrent.grid),
    "states": _written(recurrent.states),
    "linear": _written(recurrent.linear, ("f32", "f64", "f32")),
    "mixture": _mixture, "graph": graphs.graph, "chain": _written(chains.chain, chains.KINDS),
}  # fmt: skip
NAMES = (*THEMES, "illegal")
TARGETS = ("host", "host", "host", "32", "avx2", "16")
TARGETS_OF = {"narrow": ("words", "words", "words", "host", "avx2")}
"""Targets that kernels in other configurations are compiled for, by theme; TARGETS in others."""


@dataclass
class Outcome:
    """What a session has compared and met. `find`: what is wrong, as JSON can hold it."""

    compared: int = 0
    kernels: int = 0
    unfit: int = 0
    theme: str = ""
    seconds: float = 0.0
    cells: list[Cell] = field(default_factory=list)
    offered: list[Cell] = field(default_factory=list)
    find: dict[str, Any] | None = None
    taken: list[int] = field(default_factory=list)
    whats: dict[str, int] = field(default_factory=dict)


def theme_of(number: int) -> str:
    return NAMES[number % len(NAMES)]


def session(seed: str | int, number: int, reached: Collection[Cell] = ()) -> Outcome:
    """The case of a number and its trials. `reached`: cells that need not be reached."""
    choose = Choices(f"{seed}/{number}")
    outcome = Outcome(theme=theme_of(number))
    set_chunk_lengths()
    start = time.process_time()
    if outcome.theme == "illegal":
        _illegal(seed, number, outcome)
    else:
        try_legal_case(choose, outcome, reached)
    outcome.seconds = time.process_time() - start
    if outcome.seconds > SLOW and outcome.find is None:
        outcome.find = {"kind": "slow", "what": "", "message": f"{outcome.seconds:.0f} s", "case": "", "test": ""}
    outcome.taken = choose.taken
    return outcome


def attempt(theme: str, given: list[int], check: dict[str, Any]) -> Outcome:
    """One check of the case that given choices make."""
    choose = Choices(0, given)
    outcome = Outcome(theme=theme)
    set_chunk_lengths()
    case = THEMES[theme](choose)
    outcome.taken = choose.taken
    told = {**check, "forced": tuple(tuple(x) for x in check.get("forced", ()))}
    announce(case, Check(**told))
    try:
        run_check(case, Check(**told))
    except Unfit:
        outcome.unfit = 1
    except Exception as e:
        found = {**_described(e), "what": check.get("what", "value"), "check": told, "case": str(case)}
        outcome.find = {**found, "data": case.data(), "test": as_test(case, told)}
    return outcome


def _illegal(seed: str | int, number: int, outcome: Outcome) -> None:
    """What is no legal formula, where the module that makes such is there."""
    import random

    try:
        illegal = importlib.import_module("tests.fuzz.illegal")
    except ModuleNotFoundError:
        return
    case = illegal.case(random.Random(f"{seed}/{number}"))
    outcome.compared += 1
    try:
        illegal.check(case)
    except Exception as e:
        text = f"import random\n\nfrom tests.fuzz import illegal\n\n\ndef test_found():\n    illegal.check(illegal.case(random.Random('{seed}/{number}')))\n"  # fmt: skip # noqa: E501
        outcome.find = {**_described(e), "what": "illegal", "case": str(case), "test": text}


def _described(e: BaseException) -> dict[str, Any]:
    kind = type(e).__name__ if not isinstance(e, AssertionError) else "wrong"
    return {"kind": kind, "message": str(e)[:2000]}


def try_legal_case(choose: Choices, outcome: Outcome, reached: Collection[Cell]) -> None:
    case = THEMES[outcome.theme](choose)
    announce(case)
    check = Check()
    trial = None
    try:
        trial = Trial(case)
        for check in _streamed_checks(choose) if outcome.theme == "chain" else _checks(choose, outcome.theme):
            announce(case, check)
            try:
                try_check(trial, check, choose, reached)
                outcome.compared += 1
                outcome.whats[check.what] = outcome.whats.get(check.what, 0) + 1
            except Unfit:
                outcome.unfit += 1
                if check.what == "value":
                    break
    except Exception as e:
        forced = tuple(trial.seen.forced) if trial and check.forced else ()
        told = {"what": check.what, "threads": check.threads, "target": check.target, "forced": forced,
                "orders": check.orders, "streamed": check.streamed}  # fmt: skip
        if isinstance(e, EinsmithError) and trial is not None and not trial.is_begun():
            told = {"what": "value"}
        outcome.find = {
            **_described(e), "what": check.what, "check": told, "case": str(case), "data": case.data(),
            "test": as_test(case, told), "patterns": list(trial.seen.patterns[-6:]) if trial else [],
        }  # fmt: skip
    if trial is not None:
        outcome.kernels = trial.seen.kernels
        outcome.cells, outcome.offered = list(trial.seen.reached), list(trial.seen.offered)


ORDERS = 8  # as they are, and drawn from so many seeds but one
VARIED = ("varied", "")  # forced: configurations that choices pick


def _checks(choose: Choices, theme: str):
    """The checks of a case, in the order in which they are made; the value comes first."""
    n, targets = choose.pick((1, 2, 3)), TARGETS_OF.get(theme, TARGETS)
    yield Check("value", n)
    if choose.chance(2):
        yield Check("call", n)
    if choose(3):  # what alone knows derivatives of its own
        yield Check("twin")
    if choose.chance(2):
        yield Check("value", choose.pick((2, 1, 3)))
    for _ in range(choose.pick((1, 0, 2))):
        yield Check("value", choose.pick((1, 2, 3)), choose.pick(targets), (VARIED,), choose(ORDERS))
    what = choose.pick((*WHATS[1:], "gradient"))
    yield Check(what, choose.pick((1, 2, 3)))
    if choose.chance(2):
        yield Check("dot")
    if choose.chance(4):
        yield Check("sizes")
    if choose.chance(2):
        yield Check("constants", choose.pick((1, 2)))
    if choose.chance(2):
        yield Check("frozen", choose.pick((1, 2)))
    if choose.chance(2):
        yield Check(what, choose.pick((1, 2, 3)), choose.pick(targets), (VARIED,), choose(ORDERS))


def _streamed_checks(choose: Choices) -> Iterator[Check]:
    """The checks of a chain of reductions, most of them in nests."""

    def streamed(what: str) -> Check:
        forced = (VARIED,) if choose.chance(3) else ()
        return Check(what, choose.pick((1, 2, 3)), choose.pick(TARGETS), forced, streamed=choose.pick(tuple(STREAMED)))

    yield streamed("value")
    if choose.chance(3):
        yield Check("value", choose.pick((1, 2)))
    if choose.chance(3):
        yield Check("twin")
    what = choose.pick(("gradient", "gradient", "gradient", "jvp", "second"))
    for _ in range(choose.pick((1, 2))):
        yield streamed(what)


def try_check(trial: Trial, check: Check, choose: Choices, reached: Collection[Cell]) -> None:
    if check.what == "twin":
        trial.twin()
    elif check.what == "dot":
        trial.dot()
    elif check.what == "sizes":
        trial.sizes()
    elif check.what == "constants":
        trial.constants(check.threads)
    elif check.what == "frozen":
        trial.frozen(check.threads)
    elif check.what == "call":
        trial.call(check.threads)
    elif check.forced:
        trial.compare(check, _steered(choose, trial, check, reached))
    else:
        trial.compare(check)


def _steered(choose: Choices, trial: Trial, check: Check, reached: Collection[Cell]):
    """Of a kernel's configurations some are drawn, and the one of them is taken that reaches most cells anew. It is
    announced: the process may die of it. Of a streamed chain only the row blocks are drawn: a nest prices hundreds of
    kernels."""
    trial.seen.forced.clear()

    def pick(kernel: Any, target: Any, choice: Any, others: Any) -> int:
        if check.streamed and not isinstance(kernel, Rows):
            return -1
        drawn = [choose(len(others)) for _ in range(min(6, len(others)))]

        def gain(n: int) -> int:
            found = cells(kernel, target, others[n][0], others[n][1])
            return sum(c not in reached and c not in trial.seen.reached for c in found)

        n = max(drawn, key=gain)
        taken = others[n][0], str(others[n][1])
        announce(trial.case, replace(check, forced=(*trial.seen.forced, taken)))
        return n

    return pick


def announce(case: Case, check: Check | None = None) -> None:
    """Leaves word of what is under way, for whoever finds this process dead or silent."""
    if ANNOUNCED is not None:
        told = vars(check) if check else {}
        text = f"{case}\n{told}"
        os.ftruncate(ANNOUNCED, 0)
        os.pwrite(ANNOUNCED, (text + "\n" + as_test(case, told)).encode(), 0)


ANNOUNCED: int | None = None
"""A file that `announce` writes to."""
