"""Define update rules: a training step's changes of each parameter and its state, written as formulas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.arguments import check_arguments, show
from einsmith.base.dtypes import DType
from einsmith.base.errors import ArgumentError, FormulaError, KindError, ShapeError
from einsmith.ir.functions import FUNCTIONS
from einsmith.ir.nodes import Apply, Compute, Const, Expr, Read, Tensor, postorder, template
from einsmith.ir.rebuild import map_bodies, prune_args, rebuild, substitute, types_of
from einsmith.lang.op import op
from einsmith.optim.lr_scheduler import Schedule
from einsmith.optim.rule_text import RuleProgram
from einsmith.tracing.builder import Value

Hyper = float | Callable[[int], float]


class Rule:
    """An update rule: assignments, in order, of the new values of p (a parameter) and of the rule's state.

        lion = es.optim.Rule('''
            p[i] = p[i] - lr*sign(b1*m[i] + (1-b1)*g[i])
            m[i] = b2*m[i] + (1-b2)*g[i]
        ''', lr=1e-4, b1=0.9, b2=0.99)

    g is the gradient of p; `step` counts from 1; a name that is read before it is written is state, at first `init`
    (a number for all, or name -> number; zero where not given); one written first is a temporary. The one axis stands
    for all elements of a tensor of any rank, and `n[] = ...` is a number of the whole tensor, a temporary or state. A
    rule with more axes applies to tensors of that rank; its state may have fewer of p's axes (the statistics of rows
    `r[i] = ...`), its temporaries any. Hyperparameters are numbers, or callables of the step; they are attributes, and
    new values compile nothing. Expressions of hyperparameters and `step` alone are computed in float64.

    Raises FormulaError for text that is not a rule, and for names without a value.
    """

    @check_arguments
    def __init__(self, text: str | None, init: float | Mapping[str, float] | None = None, **hyper: Hyper):
        object.__setattr__(self, "hyper", {})
        self._text = text or ""
        self._init = dict(init) if isinstance(init, Mapping) else init
        self._programs: dict[str, RuleProgram] = {}
        self._operators: dict[tuple[str, int], Any] = {}
        for name in ("step", "p", "g"):
            if name in hyper:
                raise FormulaError(f"{name} is a reserved name in a rule and cannot be a hyperparameter")
        if text is not None:
            program = RuleProgram(text)
            program.check_parameters(list(hyper))
            self._programs[text] = program
            if isinstance(init, Mapping):
                unknown = [n for n in init if n not in program.states]
                if unknown:
                    raise FormulaError(
                        f"init names {', '.join(unknown)}, but the rule's state is {list(program.states) or 'empty'}"
                    )
            else:
                self._init = dict.fromkeys(program.states, init or 0.0)
        for name, value in hyper.items():
            self.hyper[name] = _hyper(name, value)

    hyper: dict[str, Hyper]

    def assign(self, model: Any) -> dict[str, tuple[str, Rule]]:
        """Return {name: ("", this rule)} of every parameter of a model; "" is the name of the only group."""
        return {name: ("", self) for name, _ in model.named_parameters()}

    @property
    def rules(self) -> dict[str, Rule]:
        """The optimizer's rules by the names of their groups."""
        return {"": self}

    def text_for(self, shape: tuple[int, ...], dtype: DType) -> str:
        """Return the rule's assignments for a parameter of the given shape and type.

        Rules with several texts, which are made with text=None, override it."""
        return self._text

    def _program(self, shape: tuple[int, ...], dtype: DType) -> RuleProgram:
        text = self.text_for(shape, dtype)
        program = self._programs.get(text)
        if program is None:
            program = self._programs[text] = RuleProgram(text)
            program.check_parameters(list(self.hyper), all_used=False)
        if program.rank > 1 and len(shape) != program.rank:
            raise ShapeError(
                f"the rule {type(self).__name__} has {program.rank} axes and does not apply to a parameter of shape "
                f"{shape}; give such parameters a rule of their own with es.optim.Groups"
            )
        return program

    @property
    def state_names(self) -> list[str]:
        """Names of the arrays that the rule keeps for each parameter. Where the rule's text depends on shapes, only
        parameters seen so far count."""
        return list(dict.fromkeys(n for program in self._programs.values() for n in program.states))

    def states(self, shape: tuple[int, ...], dtype: DType) -> dict[str, tuple[int, ...]]:
        """Return the names and shapes of the arrays that the rule keeps for a parameter of the given shape and type.

        Raises ShapeError where the rule does not apply to it."""
        return self._program(shape, dtype).state_shapes(shape)

    def initial(self, name: str) -> float:
        """Return the value of every element of the state `name` before the first step."""
        return float(self._init.get(name, 0.0) if isinstance(self._init, dict) else self._init or 0.0)

    def values(self, step: int) -> dict[str, float]:
        """Return the hyperparameters at a step (from 1), callables evaluated. Raises KindError, ArgumentError."""
        return {n: _number(n, v(step), step) if callable(v) else float(v) for n, v in self.hyper.items()}

    def update(
        self, p: Value, g: Value, state: Mapping[str, Value], hyper: Mapping[str, Value], step: Value
    ) -> tuple[Value, dict[str, Value]]:
        """Return (the parameter's new value, the state's new values), in the trace that p belongs to.

        p and g have one shape, the state has the shapes of `states`; hyper and step are 0-d. The results have the types
        of p and of the state. Raises ShapeError.
        """
        if g.shape != p.shape:
            raise ShapeError(f"a gradient of shape {g.shape} does not fit a parameter of shape {p.shape}")
        rank = p.ndim
        program = self._program(p.shape, p.dtype)
        tensors = {"p": p, "g": g, **{n: state[n] for n in program.states}}
        if rank == 0:
            whole = {"p", "g", *(n for n, axes in program.states.items() if axes)}
            tensors = {n: v.reshape((1,)) if n in whole else v for n, v in tensors.items()}
        key = program.text, rank
        if key not in self._operators:
            self._operators[key] = op(program.formula(max(rank, 1)), name=type(self).__name__)
        numbers = {**hyper, "step": step}
        results = self._operators[key](
            **{n: tensors[n] for n in program.inputs}, **{n: numbers[n] for n in program.parameters}
        )
        outs = list(results) if isinstance(results, tuple) else [results]
        lifted = _lift([v.tensor for v in outs], [v.tensor for v in tensors.values()])
        done = []
        for t, old in zip(lifted, [p, *(state[n] for n in program.written)], strict=True):
            v = Value(t)
            done.append((v if v.shape == old.shape else v.reshape(old.shape)).astype(old.dtype))
        return done[0], dict(zip(program.written, done[1:], strict=True))

    def __getattr__(self, name: str) -> Any:
        hyper = self.__dict__.get("hyper")
        if hyper is None or name.startswith("__"):  # a copy that has no state yet, or a protocol that it does not have
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        if name in hyper:
            return hyper[name]
        raise AttributeError(_unknown(self, name))

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes of a copy: hyperparameters of its own, and no compiled operators."""
        own = {"hyper": dict(self.hyper), "_programs": dict(self._programs), "_operators": {}}
        return self.__dict__ | own

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.hyper:
            self.hyper[name] = _hyper(name, value)
        elif name.startswith("_") or isinstance(getattr(type(self), name, None), property):
            object.__setattr__(self, name, value)
        else:
            raise AttributeError(_unknown(self, name))

    def altered(self, changes: Mapping[str, Any]) -> Rule:
        """Return an equal rule with some hyperparameters changed. Raises ArgumentError for unknown ones."""
        unknown = [n for n in changes if n not in self.hyper]
        if unknown:
            raise ArgumentError(_unknown(self, unknown[0]))
        return Rule(self._text, self._init, **(self.hyper | dict(changes)))

    def describe(self) -> dict[str, Any] | None:
        """Return a JSON description from which `optim.restore` makes an equal rule.

        Return None where a hyperparameter is a callable that is not a schedule of `lr_scheduler`."""
        numbers = {n: v.describe() if isinstance(v, Schedule) else v for n, v in self.hyper.items()}
        if any(v is None or callable(v) for v in numbers.values()):
            return None
        return {"name": "Rule", "text": self._text, "init": self._init, "arguments": numbers}

    def __repr__(self) -> str:
        parts = [f"{n}={getattr(v, '__name__', v)}" for n, v in self.hyper.items()]
        return f"{type(self).__name__}({', '.join(parts)})"


def _hyper(name: str, value: Any) -> Hyper:
    return value if callable(value) and not hasattr(value, "__array__") else _number(name, value)


def _number(name: str, value: Any, step: int | None = None) -> float:
    """Convert a hyperparameter to float. step: the step at which a callable returned it, for messages.

    Raises KindError where it is not a number, ArgumentError for NaN."""
    at = "" if step is None else f" at step {step}"
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as e:
        raise KindError(f"{name}={show(value)}{at} must be a number or a callable of the step") from e
    if number != number:
        raise ArgumentError(f"{name}={value!r}{at} would make every parameter NaN; give a number")
    return number


def _unknown(rule: Rule, name: str) -> str:
    near = get_close_matches(name, rule.hyper, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"this rule has {', '.join(rule.hyper) or 'none'}"
    off = "a hyperparameter that is 0 or off when the rule is made cannot be set later"
    return f"{type(rule).__name__} has no hyperparameter {name!r}; {hint} ({off})"


# ------------------------------------------------------------------------------------- expressions of numbers alone


def _lift(roots: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Hoist costly float64 expressions of 0-d tensors into 0-d tensors, which all parameters share and no element
    recomputes. The tensors `inputs` of the rule, with the network behind a gradient, are not rewritten.

    before: p_1[i] = p[i] - f32(lr[]/(1 - b[]**step[]))*m[i]
    after:  s[] = lr[]/(1 - b[]**step[]);  p_1[i] = p[i] - f32(s[])*m[i]
    """

    def rule(node: Any) -> Any:
        return _lift_node(node) if isinstance(node, Compute) and node.shape else None

    return rebuild(roots, rule, dict(zip(inputs, inputs, strict=True)))


def _lift_node(node: Compute) -> Compute:
    args: list[Tensor] = list(node.args)
    new: dict[Expr, Expr] = {}
    for part in node.template.parts:
        for body in part.bodies:
            for e in _maximal(body):
                slots = {r.slot: n for n, r in enumerate(_reads(e))}
                used = tuple(node.args[s] for s in slots)
                small = template((), types_of(used), substitute(e, {}, slots))
                new[e] = Read(len(args), (), e.dtype)
                args.append(prune_args(small, used))
    if not new:
        return node
    return prune_args(map_bodies(node.template, lambda b: rebuild([b], new.get)[0], types_of(args)), tuple(args))


def _reads(e: Expr) -> list[Read]:
    seen: dict[int, Read] = {}
    for x in postorder([e]):
        if isinstance(x, Read):
            seen.setdefault(x.slot, x)
    return list(seen.values())


def _maximal(body: Expr) -> list[Expr]:
    """Return the maximal float64 subexpressions of 0-d reads and literals that contain a costly function."""
    plain: dict[Expr, bool] = {}  # float64 expressions of 0-d values alone
    costly: dict[Expr, bool] = {}
    for e in postorder([body]):
        inner = all(plain[a] for a in e.args)
        plain[e] = (
            inner
            and e.dtype is dt.f64
            and isinstance(e, (Const, Read, Apply))
            and not (isinstance(e, Read) and e.index)
        )
        costly[e] = any(costly[a] for a in e.args) or (isinstance(e, Apply) and FUNCTIONS[e.fn].seconds > 0)
    out: list[Expr] = []
    stack, seen = [body], set()
    while stack:
        e = stack.pop()
        if e in seen:
            continue
        seen.add(e)
        if plain[e] and costly[e] and _reads(e):
            out.append(e)
        else:
            stack.extend(e.args)
    return out
