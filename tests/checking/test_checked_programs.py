"""Programs under EINSMITH_CHECK: the same results, and faults in what lies between kernels are noticed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from weakref import WeakValueDictionary

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base import environment
from einsmith.base.caches import Cache
from einsmith.checking.checked_program import CheckedProgram
from einsmith.codegen.cache import native
from einsmith.codegen.llvm.memory import MemoryEmitter
from einsmith.driver import cpu, cpu_kernels, executable
from einsmith.ir.nodes import Graph, Leaf, postorder
from einsmith.ir.views import storage
from einsmith.kernels.contraction.emission import frame
from einsmith.kernels.emit import combine
from einsmith.passes import pipeline
from einsmith.runtime import assemble
from einsmith.runtime.program import Program
from einsmith.schedule import pipeline as plan_passes
from einsmith.schedule.arena import arena
from einsmith.schedule.kernel import Rows
from einsmith.schedule.serial import from_data, to_data
from tests.caches import CODE, bound
from tests.fuzz.variants import streaming
from tests.schedule.test_recurrent_chains import SIZES, recurrence
from tests.schedule.test_reduction_chains import CHAINS, arguments, compile_with


@pytest.fixture
def checked(monkeypatch, tmp_path):
    """Runs are checked; what is compiled meanwhile is forgotten, since it may be wrong."""
    monkeypatch.setenv("EINSMITH_CHECK", "1")
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cpu_kernels, "_NATIVE", Cache(bound(CODE)))
    monkeypatch.setattr(native, "_loaded", WeakValueDictionary())
    return tmp_path


def matrix(rng, *shape) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def two_layers(x, v, w):
    """Two intermediates that live at once."""
    a, b = x @ v, x @ w
    return (a / (1 + a.max())) @ (b / (1 + b.max())).T


def arrays(rng) -> tuple[np.ndarray, ...]:
    return matrix(rng, 9, 17), matrix(rng, 17, 33), matrix(rng, 17, 33)


CELL = es.op("""
    h[t,i] = where(t > 0, tanh(sum[j](w[i,j]*h[t-1,j]) + x[t,i]), x[t,i])
    y[t,i] = h[t,i]*v[i]
""")


def recurrent_gradient(x, w, v):
    return es.grad(lambda w, v: (CELL(x=x, w=w, v=v)[1] ** 2).sum(), (0, 1))(w, v)


def test_results_are_the_same(checked, rng, monkeypatch):
    args = arrays(rng)
    cell = matrix(rng, 13, 5), matrix(rng, 5, 5), matrix(rng, 5)
    got = es.jit(two_layers)(*args), *es.jit(recurrent_gradient)(*cell)
    monkeypatch.setenv("EINSMITH_CHECK", "0")
    want = es.jit(two_layers)(*args), *es.jit(recurrent_gradient)(*cell)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(got, want, strict=True))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("threads", [1, 2])
def test_training_steps_are_the_same(checked, rng, monkeypatch, threads):
    x, y = matrix(rng, 6, 1, 28, 28), rng.integers(0, 10, 6)

    def losses() -> list[float]:
        es.manual_seed(0)
        step = es.TrainStep(es.models.lenet5(), es.functional.cross_entropy, es.optim.SGD(lr=0.01, momentum=0.9))
        return [float(step(x, y)) for _ in range(3)]

    es.set_threads(threads)
    try:
        got = losses()
        monkeypatch.setenv("EINSMITH_CHECK", "0")
        assert got == losses()
    finally:
        es.set_threads(None)


def test_results_of_row_blocks_past_the_caches_are_no_fault(checked, rng):
    """They begin on cache lines, which non-temporal stores need."""
    args = arguments(rng, 31, 33, 7, 2)
    with streaming("16"):
        run = compile_with(CHAINS["farthest"], args, 2, 1)
        run(args)
    (call,) = run.plan.calls
    assert any(b.non_temporal for m in call.kernel.members for b in m.kernel.buffers)


def test_a_last_block_that_hands_over_more_is_no_fault(checked, rng):
    """Of 37 rows the last one is a block, which keeps results between its kernels that blocks of three do not."""
    args = [matrix(rng, *shape) for shape in SIZES.values()]
    with streaming("3"):
        run = compile_with(recurrence("causal attention"), args, 2, 1)
        run(args)
    assert any(isinstance(call.kernel, Rows) for _, call, _ in run.plan.kernel_calls())


def test_a_program_is_checked_only_if_asked(checked, rng, monkeypatch):
    assert environment.check_level() == 1
    x = matrix(rng, 3)
    on = trace_call(lambda x: x + 1, (x,), {})
    assert type(executable.Executable(on.graph, on.bind, 1).program) is CheckedProgram
    monkeypatch.delenv("EINSMITH_CHECK")
    assert type(executable.Executable(on.graph, on.bind, 1).program) is Program
    code = (
        "import sys, numpy as np, einsmith as es\nes.jit(lambda x: x + 1)(np.ones(3))\n"
        "print(any(m == 'einsmith.checking' for m in sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
                         env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    assert out.stdout.strip() == "False", out.stderr


def test_levels_of_optimisation_are_kept_apart(checked):
    target = native.host_target()
    assert len({native.digest(b"text", b"x", target, opt) for opt in (0, 1, 2)}) == 3


def test_inputs_stay_as_they_are(checked, rng):
    args = arrays(rng)
    before = [a.copy() for a in args]
    es.jit(two_layers)(*args)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(args, before, strict=True))


# ------------------------------------------------------------------------------------------------- planted faults


def fails(f, *args, match: str) -> str:
    with pytest.raises(es.CheckError, match=match) as found:
        f(*args)
    return str(found.value)


def test_tensors_in_one_place_of_the_arena_are_noticed(checked, rng, monkeypatch):
    def packed(*args):
        offsets, total = arena(*args)
        return dict.fromkeys(offsets, 0), total

    monkeypatch.setenv("EINSMITH_WITHOUT", "join products")
    monkeypatch.setattr(assemble, "arena", packed)
    text = fails(es.jit(two_layers), *arrays(rng), match="overwritten")
    assert "reproduce.py" in text and "last written by" in text


def test_kernels_in_a_wrong_order_are_noticed(checked, rng, monkeypatch):
    fuse = plan_passes.fuse

    def turned(*args, **options):
        plan = fuse(*args, **options)
        return replace(plan, calls=plan.calls[::-1])

    monkeypatch.setattr(plan_passes, "fuse", turned)
    fails(es.jit(two_layers), *arrays(rng), match="before it is written|overwritten")


def test_an_update_before_the_last_read_is_noticed(checked, rng, monkeypatch):
    fuse = plan_passes.fuse

    def early(*args, **options):
        plan = fuse(*args, **options)

        def key(call) -> bool:  # those that write into parameters come first
            return not any(storage(t) in plan.home for t, w in zip(call.tensors, call.written, strict=True) if w)

        return replace(plan, calls=sorted(plan.calls, key=key))

    model = es.nn.Sequential(es.nn.Linear(9, 17), es.nn.Tanh(), es.nn.Linear(17, 5))
    step = es.TrainStep(model, es.functional.mse_loss, es.optim.SGD(lr=0.1))
    monkeypatch.setattr(plan_passes, "fuse", early)
    fails(step, matrix(rng, 7, 9), matrix(rng, 7, 5), match="overwritten|before it is written|memory was updated")


def test_scratch_that_threads_share_is_noticed(checked, rng, monkeypatch):
    made = Program.__init__

    def together(self, *args):
        made(self, *args)
        self._stride = 0

    monkeypatch.setattr(Program, "__init__", together)
    own = cpu.Cpu.checked
    monkeypatch.setattr(cpu.Cpu, "checked", lambda self, made, watched, threads, scratch: own(
        self, made, watched, threads, max(64, scratch)))  # fmt: skip
    fails(es.jit(two_layers), *arrays(rng), match="scratch of threads overlaps")


def test_a_wrong_identity_in_the_emitter_is_noticed(checked, rng, monkeypatch):
    monkeypatch.setattr(combine, "identity", lambda combiner, dtype: 0)
    x = -1 - np.abs(matrix(rng, 33, 17))
    text = fails(es.jit(lambda x: x.max(0)), x, match="not the evaluator's|differ from run to run")
    assert "max[" in text


def test_a_dropped_mask_in_the_emitter_is_noticed(checked, rng, monkeypatch):
    own = MemoryEmitter.put_lanes
    monkeypatch.setattr(MemoryEmitter, "put_lanes", lambda self, value, lanes: own(
        self, value, [True for _ in lanes] if value.type.elem == "i1" else lanes))  # fmt: skip
    fails(es.jit(lambda x: (x * 2).sum(1)), matrix(rng, 19, 17), match="buffer")


def test_an_index_from_beyond_the_size_is_noticed(checked, rng, monkeypatch):
    """A program that sizes share finds no index there, and no number."""
    monkeypatch.setattr(frame.Frame, "k_end", lambda self, hi: hi)  # sums do not end at the size
    f = es.jit(es.op("G[m,k] = sum[e](A[e,m]*h[s[e],k])"), sizes="shared")
    f(matrix(rng, 100, 24), matrix(rng, 200, 64), rng.integers(0, 200, 100))
    fails(f, matrix(rng, 110, 24), matrix(rng, 200, 64), rng.integers(0, 200, 110), match="not the evaluator's")


def test_a_wrong_pass_is_noticed(checked, rng, monkeypatch):
    """The kernels do what they are asked, but that is not the user's formula."""

    def wrong(graph: Graph) -> Graph:
        return Graph(graph.inputs, graph.outputs[::-1], graph.updates, graph.checks)

    monkeypatch.setattr(pipeline, "PASSES", (*pipeline.PASSES, pipeline.graph_pass("wrong", wrong)))
    fails(es.jit(lambda x: (x + 1, x * 2)), matrix(rng, 17), match="a pass over the graph")


def test_a_wrong_kernel_of_a_step_is_noticed(checked, rng, monkeypatch):
    """Inside loops, too, at the step in which it shows."""
    own = assemble.Assembler._add_loop

    def late(self, call, segment, step, places, *rest):
        places = replace(places, offsets=dict.fromkeys(places.offsets, 0))
        own(self, call, segment, step, places, *rest)

    monkeypatch.setattr(assemble.Assembler, "_add_loop", late)
    monkeypatch.setenv("EINSMITH_WITHOUT", "joined steps")
    with pytest.raises(es.CheckError):
        pair = es.op("h[t,i] = where(t > 0, sum[j](w[i,j]*g[t-1,j])/(1 + max[j](g[t-1,j]*g[t-1,j])), x[t,i])\n"
                     "g[t,i] = h[t,i]/(1 + sum[j](h[t,j]*h[t,j])) + max[j](h[t,j])\nreturn g")  # fmt: skip
        pair(x=matrix(rng, 9, 17), w=matrix(rng, 17, 17))


# ---------------------------------------------------------------------------------------------------- what is written


def test_graphs_survive_being_written(checked, rng):
    for f, args in (
        (two_layers, arrays(rng)),
        (lambda x, w, v: CELL(x=x, w=w, v=v), (matrix(rng, 5, 3), matrix(rng, 3, 3), matrix(rng, 3))),
    ):
        graph = trace_call(f, args, {}).graph
        again = from_data(to_data(graph))
        assert [type(n) for n in postorder(again.roots)] == [type(n) for n in postorder(graph.roots)]
        assert to_data(again)[-1] == to_data(graph)[-1]
        leaves = [n for n in postorder(again.roots) if isinstance(n, Leaf)]
        assert {x.shape for x in leaves} == {n.shape for n in postorder(graph.roots) if isinstance(n, Leaf)}


@pytest.mark.parametrize("data", [[], [["Evil"]], [["Axis"]], [["Axis", {"node": 3}]], [["Reduce", "no", [], []]]])
def test_rubbish_is_no_graph(data):
    with pytest.raises(es.VerifyError):
        from_data(data)


def test_the_folder_of_a_programs_fault_can_be_run(checked, rng, monkeypatch):
    """Without the planted fault, the program is right."""
    monkeypatch.setenv("EINSMITH_WITHOUT", "join products")
    monkeypatch.setattr(assemble, "arena", lambda *a: (dict.fromkeys(arena(*a)[0], 0), arena(*a)[1]))
    fails(es.jit(two_layers), *arrays(rng), match="overwritten")
    (where,) = (checked / "faults").iterdir()
    out = subprocess.run([sys.executable, str(where / "reproduce.py")], capture_output=True, text=True, timeout=120,
                         env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    assert "no fault" in out.stdout, out.stderr
