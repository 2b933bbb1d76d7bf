"""Kernels for NEON, on an AArch64 processor or under qemu, and for WebAssembly, under wasmtime: every pattern against
the evaluator, every instruction against NumPy, masks beside pages that cannot be touched, the vector functions'
accuracy, the native entry."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from einsmith.codegen.entry import entry_program
from einsmith.codegen.llvm import jit
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.codegen.loopnest.nest import Builder
from einsmith.kernels import autoconfig
from einsmith.kernels.pattern import Lowered
from einsmith.tuning.kernels.decisions import lower_choice
from tests.codegen.test_llvm_ops import BINARY, NUMPY, UNARY, values
from tests.codegen.test_vmath import LIMIT, arguments, exact, pairs, ulps
from tests.kernels.cover import NAMES, cases, pairwise
from tests.kernels.runner import agree, poisoned
from tests.kernels.samples import product
from tests.machines import aarch64, wasm
from tests.machines.jobs import Job


@pytest.fixture(params=[aarch64, wasm], ids=["aarch64", "wasm"])
def machine(request):
    request.param.skip()
    return request.param


@pytest.mark.parametrize("offset", [-1, 3, 64])
def test_a_store_outside_its_buffer_is_detected(machine, tmp_path, offset):
    b = Builder("stray", 1)
    b.store(b.const(1.0, "f32"), b.buffers[0], b.add(b.task, b.const(offset)))
    with pytest.raises(AssertionError, match="ends with"):
        machine.execute(tmp_path, [Job([(b.finish(), 1)], [np.zeros(3, np.float32)])])


@pytest.mark.thinned(6)
@pytest.mark.parametrize("of, nth", [(1, 4), *(pytest.param(n, 1, marks=pytest.mark.slow) for n in (1, 2))])
@pytest.mark.parametrize("name", NAMES)
def test_patterns(machine, tmp_path, name, of, nth):
    """Every value of a parameter and of a configuration's field, and every two of them; or a part of the former."""
    pool = list(cases([machine.TARGET], name))
    jobs, checks = [], []
    for n in pairwise([c.traits for c in pool], of)[::nth]:
        base, want = pool[n].data()
        lowered = renamed(pool[n].lower(), str(n))
        arrays = poisoned(pool[n].kernel, base, want)
        jobs.append(Job([(x.function, x.tasks) for x in lowered.launches], arrays, lowered.workspace))
        checks.append((pool[n], base, want))
    machine.execute(tmp_path, jobs)
    for job, (case, base, want) in zip(jobs, checks, strict=True):
        agree(job.arrays, base, want, str(case), case.tolerance)


def renamed(lowered: Lowered, name: str) -> Lowered:
    """The same, every function with a name of its own."""
    launches = [
        replace(x, function=replace(x.function, name=f"kernel_{name}_{m}")) for m, x in enumerate(lowered.launches)
    ]
    return replace(lowered, launches=launches)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("elem", ["f32", "f64", "i8", "i16", "i32", "i64"])
def test_instructions(machine, tmp_path, elem):
    """Scalars, one register, parts of registers and several registers."""
    rng = np.random.default_rng()
    floats = elem in ("f32", "f64")
    jobs, wanted = [], []
    for fn, meaning in {**UNARY, **BINARY}.items():
        if not floats and fn in UNARY and fn not in ("neg", "abs", "sign") or not floats and fn in ("div", "pow"):
            continue
        for lanes in (0, 3, 4, 16):
            n, arity = 24 * max(lanes, 1), 1 if fn in UNARY else 2
            args = [values(rng, elem, n) for _ in range(arity)]
            out = "i1" if fn in ("lt", "le", "eq", "ne") else elem
            with np.errstate(all="ignore"):
                wanted.append((f"{fn} x{lanes}", meaning(*args)))
            b = Builder(f"op_{fn}_{lanes}", arity + 1)
            with b.loop(0, n, max(lanes, 1)) as row:
                b.store(b.op(fn, *(b.load(p, row.var, elem, lanes) for p in b.buffers[:-1])), b.buffers[-1], row.var)
            jobs.append(Job([(b.finish(), 1)], [*args, np.zeros(n, NUMPY[out])]))
    machine.execute(tmp_path, jobs)
    for job, (name, want) in zip(jobs, wanted, strict=True):
        got = job.arrays[-1]
        if floats and got.dtype != np.bool_:
            kind = np.finfo(got.dtype)
            np.testing.assert_allclose(got, want, rtol=8 * kind.eps, atol=kind.smallest_subnormal, err_msg=name)
        else:
            np.testing.assert_array_equal(got, want, err_msg=name)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("elem", ["f32", "f64", "u8", "i8", "i16", "i32", "i64", "i1"])
def test_casts_masks_and_gathers(machine, tmp_path, elem):
    """The last lanes that a mask allows end where memory ends."""
    rng = np.random.default_rng()
    jobs, checks = [], []
    n = 192
    for lanes in (2, 4, 7, 16):
        for live in sorted({0, 1, lanes // 2, lanes - 1, lanes}):
            a, tail, whole = values(rng, elem, n), np.zeros(n, NUMPY[elem]), np.zeros(lanes, NUMPY[elem])
            picked, spread = np.zeros(lanes, NUMPY[elem]), np.zeros(n, NUMPY[elem])
            where = rng.permutation(n)[:lanes].astype(np.int32)
            where[live:] = rng.integers(10**8, 10**9, lanes - live)  # masked off: must not be touched
            b = Builder(f"mask_{lanes}_{live}", 6)
            mask = b.op("lt", b.iota(lanes), b.splat(b.add(b.task, b.const(live)), lanes))
            x = b.load(b.buffers[0], b.const(n - live), elem, lanes, mask=mask)
            b.store(x, b.buffers[1], b.const(n - live), mask=mask)
            b.store(x, b.buffers[2], b.const(0))
            offsets = b.load(b.buffers[5], b.const(0), "i32", lanes)
            y = b.gather(b.buffers[0], offsets, elem, mask)
            b.store(y, b.buffers[3], b.const(0))
            b.scatter(y, b.buffers[4], offsets, mask)
            jobs.append(Job([(b.finish(), 1)], [a, tail, whole, picked, spread, where]))
            checks.append((live, a.copy()))
    for to in ("f32", "f64", "u8", "i8", "i16", "i32", "i64", "i1"):
        for lanes in (0, 3, 4, 16):
            b = Builder(f"cast_{to}_{lanes}", 2)
            with b.loop(0, n // 12 * 12 if lanes == 3 else n, max(1, lanes)) as row:
                b.store(b.cast(b.load(b.buffers[0], row.var, elem, lanes), to), b.buffers[1], row.var)
            jobs.append(Job([(b.finish(), 1)], [values(rng, elem, n), np.zeros(n, NUMPY[to])]))
    machine.execute(tmp_path, jobs)
    for job, (live, a) in zip(jobs, checks, strict=False):
        _, tail, whole, picked, spread, where = job.arrays
        want = np.zeros_like(tail)
        want[n - live :] = a[n - live :]
        np.testing.assert_array_equal(tail, want)
        np.testing.assert_array_equal(whole[:live], a[n - live :])
        np.testing.assert_array_equal(picked[:live], a[where[:live]])
        assert not whole[live:].any() and not picked[live:].any()
        want = np.zeros_like(spread)
        want[where[:live]] = a[where[:live]]
        np.testing.assert_array_equal(spread, want)
    for job in jobs[len(checks) :]:
        a, got = job.arrays
        with np.errstate(all="ignore"):
            if a.dtype.kind == "f" and got.dtype.kind in "iu":
                low, high = np.iinfo(got.dtype).min, np.iinfo(got.dtype).max
                want = np.array([0 if np.isnan(v) else high if v >= high else low if v <= low else int(v) for v in a])
            else:
                want = a.astype(got.dtype)
        np.testing.assert_array_equal(got, want, err_msg=job.launches[0][0].name)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("elem", ["f32", "f64"])
def test_accuracy(machine, tmp_path, elem):
    """The same limits as on the machine that the functions were made on."""
    if elem == "f64" and np.finfo(np.longdouble).nmant < 60:
        pytest.skip("longdouble is no wider than double here")
    rng = np.random.default_rng()
    lanes, n = 16 // np.dtype(NUMPY[elem]).itemsize * 2, 40000
    jobs = []
    for fn in (*LIMIT, "pow"):
        every = pairs(elem) if fn == "pow" else (arguments(fn, elem),)
        picked = np.concatenate([np.arange(1300), rng.integers(0, every[0].size, n - 1300)])
        args = [x[picked] for x in every]
        b = Builder(fn, len(args) + 1)
        with b.loop(0, n, lanes) as row:
            b.store(b.op(fn, *(b.load(p, row.var, elem, lanes) for p in b.buffers[:-1])), b.buffers[-1], row.var)
        f = b.finish()
        f.name = f"vector_{fn}"
        jobs.append(Job([(f, 1)], [*args, np.zeros(n, NUMPY[elem])]))
    machine.execute(tmp_path, jobs)
    for fn, job in zip((*LIMIT, "pow"), jobs, strict=True):
        *args, got = job.arrays
        if fn == "pow":
            wide = np.float64 if elem == "f32" else np.longdouble
            with np.errstate(all="ignore"):
                want = np.power(*(x.astype(wide) for x in args))
        else:
            want = exact(fn, args[0])
        assert ulps(got, want).max() <= (LIMIT.get(fn, 1.0) if elem == "f32" else 3.0), fn


def test_the_native_entry(tmp_path):
    """Parallel launches on three threads, a check, flushed denormals, and the control register as it was."""
    tasks, block = 16, 64
    halve, add = Builder("halve", 3), Builder("add_to", 3)
    for b, fn in ((halve, "mul"), (add, "add")):
        base = b.mul(b.task, b.const(block))
        source, old, out = (0, None, 1) if b is halve else (1, 2, 2)
        with b.loop(0, block, 4) as row:
            at = b.add(base, row.var)
            other = b.const(0.5, "f32", 4) if old is None else b.load(b.buffers[old], at, "f32", 4)
            b.store(b.op(fn, b.load(b.buffers[source], at, "f32", 4), other), b.buffers[out], at)
    native = jit.emit_object(entry_program.emit_entry(aarch64.TARGET.triple, own=True), aarch64.TARGET)
    text = f"const int64_t einsmith_state_bytes = {entry_program.STATE_BYTES}, einsmith_tasks = {tasks}, "
    text += f"einsmith_run_words = {len(entry_program.RUN_WORDS)}, einsmith_block = {block};"
    aarch64.skip()
    aarch64.start(aarch64.link(tmp_path, "entry.c", [halve.finish(), add.finish()], [native], text))


def test_the_code_uses_vector_registers():
    """Products become NEON multiply-adds of four lanes."""
    text = ""
    for kind in ("NN", "NT"):
        for x in lower_choice(autoconfig.choose(product(17, 31, 40, kind), aarch64.TARGET)).launches:
            text += jit.emit_assembly(emit_module([x.function], aarch64.TARGET), aarch64.TARGET)
    assert text.count("fmla") > 50 and ".4s" in text


def test_modules_use_vectors_and_no_library():
    """Products become multiplications of four lanes; an fma would be a call of C's library."""
    text = ""
    for x in lower_choice(autoconfig.choose(product(17, 31, 40, "NN"), wasm.TARGET)).launches:
        text += jit.emit_assembly(emit_module([x.function], wasm.TARGET), wasm.TARGET)
    assert text.count("f32x4.mul") > 20 and "fma" not in text
    relaxed = replace(wasm.TARGET, features=f"{wasm.TARGET.features},+relaxed-simd")
    text = ""
    for x in lower_choice(autoconfig.choose(product(17, 31, 40, "NN"), relaxed)).launches:
        text += jit.emit_assembly(emit_module([x.function], relaxed), relaxed)
    assert text.count("f32x4.relaxed_madd") > 20
