"""Make a program of Relax: a function, its gradient by Relax's pass, what follows from both, and its machine code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import Op
from tvm.relax.backend.cpu_generic import pipeline
from tvm.s_tir import dlight
from tvm.target import Target

from benchmarks.peers.tvm_arrays import RelaxArray

Body = Callable[[Mapping[str, RelaxArray]], tuple[RelaxArray, Sequence[RelaxArray]]]
"""From arrays by name, a scalar to differentiate, and further results."""
After = Callable[[RelaxArray, Sequence[RelaxArray], Mapping[str, RelaxArray], Mapping[str, RelaxArray]],
                 Sequence[RelaxArray]]  # fmt: skip
"""From that scalar, those results, the gradients and the arrays by name, what a step returns."""


class WhereApplicable(dlight.ScheduleRule):
    """One of DLight's rules, which some functions make fail with an error where it does not apply."""

    def __init__(self, rule: dlight.ScheduleRule):
        self._rule = rule

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> Any:
        """Return the schedule; None where there is none."""
        try:
            return self._rule.apply(func, target, tunable)
        except Exception:  # of several kinds, from its passes
            return None


class Undifferentiable(NotImplementedError):
    """A function whose gradient Relax's pass cannot make: the operators without one."""

    def __init__(self, names: Sequence[str]):
        super().__init__(f"Relax has no gradient of {', '.join(names)}")


@cache
def target_of(threads: int) -> Target:
    """Return this machine's CPU, or the newest of its family that TVM's LLVM knows."""
    name = llvm.get_host_cpu_name()
    known = list(tvm.get_global_func("target.llvm_get_cpu_archlist")(Target("llvm")))
    if name not in known:
        family = name.rstrip("0123456789")
        name = max((k for k in known if k.rstrip("0123456789") == family), default="x86-64-v3")
    return Target({"kind": "llvm", "mcpu": name, "num-cores": threads})


def without_gradient(function: relax.Function) -> tuple[str, ...]:
    """Return the names of a function's operators that have no registered gradient."""
    calls = [binding.value for block in function.body.blocks for binding in block.bindings]
    names = {c.op.name: _has_gradient(c.op) for c in calls if isinstance(c, tvm.ir.Call) and isinstance(c.op, Op)}
    return tuple(name for name, has_one in names.items() if not has_one)


def _has_gradient(operator: Op) -> bool:
    """Return whether the pass can differentiate an operator: one with a gradient, or a TE expression that names one."""
    return operator.name == "relax.call_tir_with_grad" or operator.get_attr("FPrimalGradient") is not None


def forward(arrays: Mapping[str, np.ndarray], body: Body) -> tvm.IRModule:
    """Return a module whose function "forward" takes the arrays in order and gives the results of the body, in one
    dataflow block."""
    variables = _variables(arrays)
    bb = relax.BlockBuilder()
    with bb.function("forward", list(variables.values()), private=True):
        with bb.dataflow():
            loss, more = body({n: RelaxArray(v) for n, v in variables.items()})
            out = [bb.emit_output(x.value) for x in (loss, *more)]
        bb.emit_func_output(out if more else out[0])
    return relax.transform.CanonicalizeBindings()(bb.get())


@relax.expr_functor.mutator
class _Alone(relax.PyExprMutator):
    """Calls of expressions without their gradients, which the gradient pass alone takes away."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if call.op != Op.get("relax.call_tir_with_grad"):
            return call
        return relax.Call(Op.get("relax.call_tir"), call.args, None, call.ty_args)


def program(arrays: Mapping[str, np.ndarray], wrt: Sequence[str], body: Body, after: After) -> tvm.IRModule:
    """Return a module whose function "main" takes the arrays in order: the forward and, where `wrt` names some, the
    gradients by `relax.transform.Gradient`, and what `after` makes of them, in one dataflow block. Raises
    Undifferentiable."""
    mod = forward(arrays, body)
    if not wrt:
        mod["forward"] = _Alone().visit_expr(mod["forward"])
    else:
        function = mod["forward"]
        held = dict(zip(arrays, function.params, strict=True))
        try:
            mod = relax.transform.Gradient("forward", [held[n] for n in wrt])(mod)
        except Exception as e:
            if missing := without_gradient(function):
                raise Undifferentiable(missing) from e
            raise
    return _completed(mod, arrays, wrt, after)


def _variables(arrays: Mapping[str, np.ndarray]) -> dict[str, relax.Var]:
    types = {n: relax.TensorType(a.shape, str(a.dtype)) for n, a in arrays.items()}
    return {n: relax.Var(n.replace(".", "_"), t) for n, t in types.items()}


def _completed(mod: tvm.IRModule, arrays: Mapping[str, np.ndarray], wrt: Sequence[str], after: After) -> tvm.IRModule:
    """Return the module with a function "main" that calls the forward, or its adjoint, and does what comes after."""
    bb = relax.BlockBuilder(mod)
    callee = mod.get_global_var("forward_adjoint" if wrt else "forward")
    bb.update_func(callee, mod[callee].without_attr("global_symbol"))
    variables = _variables(arrays)
    with bb.function("main", list(variables.values())):
        whole = bb.emit(callee(*variables.values()))
        with bb.dataflow():
            values = bb.emit(whole[0]) if wrt else whole
            is_tuple = isinstance(values.ty, relax.TupleType)
            parts = [values[k] for k in range(len(values.ty.fields))] if is_tuple else [values]
            loss, *more = map(RelaxArray, parts)
            d = {n: RelaxArray(whole[1][k]) for k, n in enumerate(wrt)}
            given = {n: RelaxArray(v) for n, v in variables.items()}
            out = [bb.emit_output(x.value) for x in after(loss, more, d, given)]
        bb.emit_func_output(out)
    return tvm.transform.Sequential(
        [
            relax.transform.InlinePrivateFunctions(),
            relax.transform.CanonicalizeBindings(),
            relax.transform.ConvertToDataflow(1),
            relax.transform.DeadCodeElimination(["main"]),
        ]
    )(bb.finalize())


def lowered(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Return the module as loops: operators legalized and fused as Relax's pipelines for CPUs do it."""
    with target:
        passes = [relax.transform.FuseTransposeMatmul(), *pipeline.library_dispatch_passes(target)]
        return tvm.transform.Sequential([*passes, *pipeline.legalize_passes(target)])(mod)


def compiled(mod: tvm.IRModule, target: Target) -> relax.VirtualMachine:
    """Return the virtual machine of a module of loops. DLight's rule for reductions on CPUs schedules what is not
    scheduled yet; where it does not apply the plain loops are left to LLVM: Relax has no other default schedules for
    CPUs. (With DLight's rule for products of a vector, LLVM takes minutes for one such product of CapsuleNet.)"""
    with target:
        mod = dlight.ApplyDefaultSchedule(WhereApplicable(dlight.cpu.Reduction()))(mod)
        passes = pipeline.dataflow_lower_passes(target) + pipeline.finalize_passes(target)
        built = tvm.compile(mod, target, relax_pipeline=tvm.transform.Sequential(passes))
    return relax.VirtualMachine(built, tvm.cpu())
