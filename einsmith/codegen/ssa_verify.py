"""Verify bodies in static single assignment: scopes, what loops carry, and the types of all results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from einsmith.base.errors import CompileError, VerifyError
from einsmith.codegen.ssa import If, Loop, Op, SSAValue, Type

Rule = Callable[[Op], Sequence[Type]]
"""Returns the types that an instruction's results have, by its operands; raises CompileError where these do not fit."""
_BOUNDS = (Type("i32"), Type("i64"))
_CONDITION = Type("i1")


def verify_body(function: str, body: Sequence[Any], outside: Collection[SSAValue], rules: Mapping[str, Rule]) -> None:
    """Verify a body.

    Args:
        function: the function's name, for errors.
        body: instructions, loops and branches.
        outside: values that are defined around the body.
        rules: the rule of each operation, by name.

    Raises:
        VerifyError: names the function and the instruction.
    """
    seen = set(outside)
    for x in body:
        if isinstance(x, If):
            _expect_defined(function, x, (x.cond,), seen)
            expect(x.cond.type is _CONDITION, function, x, "its condition is not a scalar i1")
            verify_body(function, x.body, seen, rules)
            continue
        if isinstance(x, Loop):
            _verify_loop(function, x, seen, rules)
        else:
            _expect_defined(function, x, x.args, seen)
            _verify_types(function, x, rules)
        expect(seen.isdisjoint(x.results), function, x, "a result of it is defined twice")
        seen.update(x.results)


def _verify_types(function: str, x: Op, rules: Mapping[str, Rule]) -> None:
    rule = rules.get(x.name)
    if rule is None:
        raise _fault(function, x, "there is no such operation")
    try:
        types = list(rule(x))
    except CompileError as e:
        raise _fault(function, x, str(e)) from e
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as e:  # rules unpack what they take
        raise _fault(function, x, f"it takes other operands or attributes than {list(x.attrs)}") from e
    expect(types == [r.type for r in x.results], function, x, f"its results are not {', '.join(map(str, types))}")


def _verify_loop(function: str, x: Loop, seen: set[SSAValue], rules: Mapping[str, Rule]) -> None:
    _expect_defined(function, x, (x.lo, x.hi, *x.init), seen)
    expect(x.step > 0, function, x, "its step is not positive")
    bounds = {x.var.type, x.lo.type, x.hi.type}
    expect(len(bounds) == 1 and bounds <= {*_BOUNDS}, function, x, "its bounds are no integers of one type")
    groups = [[v.type for v in vs] for vs in (x.init, x.carried, x.next, x.results)]
    expect(all(g == groups[0] for g in groups), function, x, "what it carries changes its type")
    inner = {*seen, x.var, *x.carried}
    verify_body(function, x.body, inner, rules)
    _expect_defined(function, x, x.next, inner.union(*(y.results for y in x.body if not isinstance(y, If))))


def _expect_defined(function: str, x: Any, values: Sequence[SSAValue | None], seen: Collection[SSAValue]) -> None:
    for v in values:
        expect(v is None or v in seen, function, x, f"{v} is not known there")


def expect(holds: bool, function: str, x: Any, message: str) -> None:
    """Raise VerifyError about an instruction, a loop or a branch unless something holds."""
    if not holds:
        raise _fault(function, x, message)


def _fault(function: str, x: Any, message: str) -> VerifyError:
    names = f"{x.name}({', '.join(str(a and a.type) for a in x.args)})" if isinstance(x, Op) else ""
    return VerifyError(f"{function}: {names or ('a loop' if isinstance(x, Loop) else 'a branch')}: {message}")
