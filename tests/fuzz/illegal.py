"""Illegal and odd formulas: mutations of texts, shapes, types, extents and parameters, none of which may do worse than
raise an error that says what is wrong and where.

    case(rng) -> (text, extents, arrays, parameters);  check(case) raises AssertionError for a fault of ours

`python -m tests.fuzz.illegal --seed S --count N` checks many in processes of their own, so that a crash or a hang is a
finding like any other, and prints each with the number that makes it again.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from math import prod
from typing import Any

import numpy as np

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.ir.nodes import Compute, Recurrence, postorder
from tests.fuzz.generate import Generator
from tests.gallery.entries import ENTRIES
from tests.lang.recurrences import CASES

Case = tuple[str, dict[str, Any] | None, tuple, dict[str, Any]]

LIMIT = 10  # seconds of the processor for a case
POINTS = 1_000_000  # of all tensors, up to which a legal formula is compiled and run

WORDS = (
    "i", "j", "k", "t", "x", "X", "Y", "A", "n", "0", "1", "2", "-1", "3", "0.5", "1e400", "1e-400", "2147483648",
    "4611686018427387904", "9223372036854775807", "9223372036854775808", "99999999999999999999999", "True", "inf",
    "nan", "+", "-", "*", "/", "//", "%", "**", "<", "<=", "==", "!=", ">", ">=", "=", "+=", "(", ")", "[", "]", ",",
    ".", "shape", "size", "sum", "max", "min", "mean", "prod", "argmax", "argmin", "where", "exp", "log", "sqrt",
    "floor", "relu", "pow", "sign", "abs", "stop_gradient", "random_bits", "f16", "bf16", "f32", "f64", "u8", "i8",
    "i16", "i32", "i64", "bool",
    "and", "or", "not", "return", "if", "else", "for", "lambda", "in", "\n", "#", "\x00", "\\", "'", '"', "é", "π",
    "²", "∑", "\u200b", "\ud800", "𝐱", "٣", ":", ";", "@", "&", "|", "~", "!", "$", "{", "}", "`", "_", "__class__",
)  # fmt: skip
SNIPPETS = (
    "i//0", "i%0", "1//0", "1%0", "0**0", "0**-1", "10**10**10", "(-1)**0.5", "2**63", "-2**63", "1/0", "0/0",
    "log(0)", "sqrt(-1)", "i32(inf)", "i64(nan)", "i8(300)", "x.shape[0]", "X.shape[99]", "X.shape[-1]", "size(i)",
    "size(X)", "sum[i](1)", "sum[i,i](i)", "sum[](1)", "max[q](q)", "argmax[i](i)", "argmax[k](k == 1)", "min(1)",
    "where(1, 2)", "where(1, 2, 3)", "where(True, 1, 2)", "where(i > 0, i, 0.5)", "not 1", "1 < 2 < 3", "i == i == i",
    "True + True", "-True", "bool(2)", "i64(i)*i64(3037000500)*i64(3037000500)", "min(max(i, 0), 3)", "X[]", "X[0]",
    "X[i]", "X[i,j]", "X[X[i]]", "X[0.5]", "X[True]", "Y[i-1]", "Y[i]", "q", "f(1)", "stop_gradient(1)",
    "random_bits(1,2,3,4)", "floor(2)", "exp(True)", "abs(i > 0)", "prod[k](k > 0)", "mean[k](k > 0)", "i**i",
    "2**i", "i**-1", "i**17", "(i+1)**-17", "inf - inf", "-inf", "nan", "i//-3", "i % -3", "i//(-1)", "i*i*i*i*i*i",
)  # fmt: skip
SIZES = (0, -1, 1, 2, 3, 17, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 10**30)
DTYPES = ("float32", "float64", "int8", "int32", "int64", "bool", "float16", "uint8", "int16", "uint16", "complex64",
          "object", "<U1")  # fmt: skip
ODD = (None, "abc", "", b"x", True, -1, 0, 1, 0.5, float("nan"), float("inf"), 1e300, 2**31, 2**63, 2**70, -(2**63),
       [], [1, 2], (), {}, np.float32(2), np.int8(3), np.zeros(2), np.array(2), np.array(0.5), 1j)  # fmt: skip
STRINGS = ("", "(", ")", "X.shape[0]", "X.shape[9]", "1/2", "1//0", "10**10**10", "i", "n", "X[0]", "sum[i](i)", "-3",
           "2**70", "True", "X.shape[X.shape[0]]", "é", "size(i)", "1 1", "\x00", "x\ny")  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- the seeds


@cache
def _pool() -> list[Case]:
    """Legal formulas of the gallery, and recurrences."""
    out: list[Case] = []
    rng = np.random.default_rng(0)
    for e in ENTRIES:
        c = e.cases[0]
        given, parameters = e.inputs(c, rng), e.parameters(c)
        inputs = es.op(e.formula, extents=e.extents).inputs
        out.append((e.formula, dict(e.extents), tuple(given[n] for n in inputs), parameters))
    for r in CASES.values():
        program = r.formula.program
        extents = {a: n if isinstance(n, int) else program.text[n.at :] for a, n in program.extents.items()}
        out.append((program.text, {a: n for a, n in extents.items() if isinstance(n, int)}, r.inputs, r.parameters))
    return out


def _legal(rng: random.Random) -> Case:
    if rng.random() < 0.5:
        return rng.choice(_pool())
    made = Generator(rng.randrange).case()
    return made.text, made.extents, tuple(made.arrays()), made.parameters


def case(rng: random.Random) -> Case:
    """A formula with extents, inputs and parameters, one or a few of which are wrong, or odd."""
    text, extents, arrays, parameters = _legal(rng)
    extents, arrays, parameters = dict(extents or {}), list(arrays), dict(parameters)
    for _ in range(rng.choice((1, 1, 1, 1, 2, 2, 3))):
        what = rng.random()
        if what < 0.68:
            text = _text(text, rng)
        elif what < 0.76:
            _extents(extents, text, rng)
        elif what < 0.94:
            _arrays(arrays, rng)
        elif parameters:
            name = rng.choice(sorted(parameters))
            if rng.random() < 0.8:
                parameters[name] = rng.choice(ODD)
            else:
                del parameters[name]
        else:
            parameters[rng.choice(("n", "x", "X", "stride", "checkpoint"))] = rng.choice(ODD)
    return text, extents or None, tuple(arrays), parameters


def _tokens(text: str) -> list[str]:
    return re.findall(r"\d+\.?\d*(?:[eE][+-]?\d+)?|\w+|\*\*|//|<=|>=|==|!=|\+=|\n|[ \t]+|.", text, re.DOTALL)


def _text(text: str, rng: random.Random) -> str:
    tokens = _tokens(text)
    solid = [n for n, t in enumerate(tokens) if t.strip(" \t")]
    if not solid:
        return rng.choice(("", "\n", " ", "#", "Y[i] = X[i]"))
    n, m = rng.choice(solid), rng.choice(solid)
    kind = rng.choice(
        ("alike",) * 8
        + ("snippet",) * 4
        + ("delete", "delete", "duplicate", "swap", "word", "word", "own", "own", "insert", "number", "line", "odd")
    )
    if kind == "delete":
        del tokens[n : n + rng.choice((1, 1, 1, 2, 5))]
    elif kind == "duplicate":
        tokens[n:n] = tokens[n : n + rng.choice((1, 1, 2, 6))]
    elif kind == "swap":
        tokens[n], tokens[m] = tokens[m], tokens[n]
    elif kind == "word":
        tokens[n] = rng.choice(WORDS)
    elif kind == "own":
        tokens[n] = tokens[m]
    elif kind == "alike":
        tokens[n] = _alike(tokens, n, rng)
    elif kind == "insert":
        tokens.insert(n, rng.choice(WORDS))
    elif kind == "snippet":
        atoms = [a for a in solid if re.fullmatch(r"\w+", tokens[a])]
        tokens[rng.choice(atoms or solid)] = rng.choice((f"({rng.choice(SNIPPETS)})", rng.choice(SNIPPETS)))
    elif kind == "number":
        numbers = [a for a in solid if tokens[a][0].isdigit()] or solid
        big = rng.choice((10, 2**31, 2**62, 2**63, 10**25, 10**400)) + rng.choice((-1, 0, 1))
        tokens[rng.choice(numbers)] = str(rng.choice((big, 0, 1e300, 0.1, "9" * 5000)))
    elif kind == "line":
        lines = text.split("\n")
        at = rng.randrange(len(lines))
        if rng.random() < 0.4:
            del lines[at]
        elif rng.random() < 0.5:
            lines.insert(rng.randrange(len(lines) + 1), lines[at])
        else:
            lines[at] = rng.choice(("return", "return Y", "return X, X", "Y[i] =", "[i] = 1", "Y = 1", "Y[i] += 1",
                                    "Y[] = 1", "Y[i,i] = X[i]", "Y[i+j] = X[i]", "Y[2*i] = X[i]", "Y[-i] = X[i]",
                                    "Y[0] = 1", "Y[i*i] = 1", "Y[Y[i]] += 1", "Y[X[i]] = 1"))  # fmt: skip
        return "\n".join(lines)
    else:
        return _odd(text, tokens, n, rng)
    return "".join(tokens)


_CLASSES = (
    ("+", "-", "*", "//", "%", "/", "**"), ("<", "<=", "==", "!=", ">", ">="), ("and", "or"),
    ("sum", "max", "min", "mean", "prod", "argmax", "argmin", "logsumexp"), ("=", "+=", "max=", "min="),
    ("exp", "log", "tanh", "sigmoid", "sqrt", "rsqrt", "erf", "abs", "sign", "floor", "relu", "sin", "cos", "f32",
     "f64", "f16", "u8", "i8", "i16", "i32", "i64", "bool", "stop_gradient"),
)  # fmt: skip


def _alike(tokens: list[str], n: int, rng: random.Random) -> str:
    """Another token of the same class: the text is often legal again."""
    token = tokens[n]
    for words in _CLASSES:
        if token in words:
            return rng.choice(words)
    if token[0].isdigit():
        return str(rng.choice((0, 1, 2, 3, 5, 0.5, 7, 100)))
    names = [t for t in tokens if t[0].isalpha() and len(t) < 4 and t[0].isupper() == token[0].isupper()]
    return rng.choice(names) if token[0].isalpha() and names else token


def _odd(text: str, tokens: list[str], n: int, rng: random.Random) -> str:
    """Shapes that are no fault of one token: deep, long, cut off."""
    kind = rng.randrange(9)
    deep = rng.choice((5, 60, 300, 3000, 100_000))
    if kind == 0:
        tokens[n] = "(" * deep + tokens[n] + ")" * (deep if rng.random() < 0.7 else deep - 1)
    elif kind == 1:
        tokens[n] = rng.choice(("-", "not ", "- -", "+")) * deep + tokens[n]
    elif kind == 2:
        tokens[n] = rng.choice(("exp(", "where(i>0,1,", "X[", "abs(", "f32(")) * deep + tokens[n] + ")" * deep
    elif kind == 3:
        tokens[n] = rng.choice((" + ", " * ", " - ", "**", " < ", " and ", "//")).join([tokens[n]] * min(deep, 100))
    elif kind == 4:
        tokens[n] = tokens[n] * rng.choice((2, 100, 20_000))
    elif kind == 5:
        return text[: rng.randrange(len(text) + 1)]
    elif kind == 6:
        return text.replace("\n", rng.choice((" ", "\r", "\r\n", "\n\n", ";", "\x0b", "\u2028")))
    elif kind == 7:
        return text + "\n" + "".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 12)))
    else:
        return "".join(chr(rng.choice((rng.randrange(32, 127), rng.randrange(0x110000)))) for _ in range(20))
    return "".join(tokens)


def _extents(extents: dict[str, Any], text: str, rng: random.Random) -> None:
    names = sorted({*extents, *re.findall(r"\b[a-z]\b", text)} or {"i"})
    name = rng.choice((*names, *names, "zz", "", "X.shape[0]", "Y.shape[0]", "Y.shape[", "Y.shape[x]"))
    if rng.random() < 0.3 and extents:
        del extents[rng.choice(sorted(extents))]
    else:
        extents[name] = rng.choice((rng.choice(SIZES), rng.choice(SIZES[:6]), rng.choice(STRINGS), rng.choice(ODD)))


def _arrays(arrays: list, rng: random.Random) -> None:
    kind = rng.randrange(8)
    if not arrays or kind == 0:
        arrays.insert(rng.randrange(len(arrays) + 1), rng.choice((np.ones(3), np.ones((2, 3), np.float32), 1.0, None)))
        return
    n = rng.randrange(len(arrays))
    a = arrays[n]
    if kind == 1:
        del arrays[n]
    elif kind == 2 or not isinstance(a, np.ndarray):
        arrays[n] = rng.choice(ODD)
    elif kind == 3:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                arrays[n] = a.astype(rng.choice(DTYPES))
            except (TypeError, ValueError):
                arrays[n] = a
    elif kind == 4:
        arrays[n] = a[None] if rng.random() < 0.5 or not a.ndim else a[0] if len(a) else a
    elif kind == 5 and a.ndim:
        shape = list(a.shape)
        shape[rng.randrange(a.ndim)] = rng.choice((0, 0, 1, 1, 2, 3, 5, 16))
        arrays[n] = np.resize(a, shape) if a.size else np.zeros(shape, a.dtype)
    elif kind == 6:
        m = rng.randrange(len(arrays))
        arrays[n], arrays[m] = arrays[m], arrays[n]
    else:
        with np.errstate(all="ignore"):
            arrays[n] = rng.choice((a[::-1] if a.ndim else a, a.T, np.zeros_like(a), -a if a.dtype.kind in "if" else a))


# -------------------------------------------------------------------------------------------------------- the checks


class Hang(AssertionError):
    """A case took longer than it may."""


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raises Hang after so many seconds of the processor; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(*_: Any) -> None:
        raise Hang(f"took more than {seconds} seconds")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def points(roots: Sequence[Any]) -> int:
    """Scalar evaluations that tensors take, at most."""
    total = 0
    for n in postorder(roots):
        if isinstance(n, Compute):
            total += sum(prod(p.domain) for p in n.template.parts)
        elif isinstance(n, Recurrence):
            total += sum(prod(p.domain) for t in n.members for p in t.parts)
    return total


def check(made: Case) -> str:
    """Raises AssertionError unless the case runs, or raises an EinsmithError that says where. Returns the outcome: the
    name of the error, "runs", or "large" where it is legal, and too large to be run here."""
    text, extents, arrays, parameters = made
    try:
        with _limited(LIMIT), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _outcome(text, extents, arrays, parameters)
    except Hang as e:
        raise AssertionError(f"{e}\n{traceback.format_exc(limit=-6)}\n{describe(made)}") from None
    except es.EinsmithError as e:
        wrong = fault(e, text)
        if wrong:
            raise AssertionError(f"{type(e).__name__}: {wrong}: {e}\n{describe(made)}") from e
        return type(e).__name__
    except Exception as e:
        raise AssertionError(f"{type(e).__name__}: {e}\n{traceback.format_exc(limit=-4)}\n{describe(made)}") from e


def _outcome(text: str, extents: Any, arrays: tuple, parameters: dict[str, Any]) -> str:
    op = es.op(text, extents=extents)
    assert isinstance(op.signature, str)
    static = {n: v for n, v in parameters.items() if n not in op.program.parameters or op.program.parameters[n]}
    running = {n: v for n, v in parameters.items() if n not in static}
    if all(isinstance(v, (int, float)) for v in running.values()):
        graph = trace_call(lambda *x, **k: op(*x, **k, **static), arrays, running).graph
        if points([*graph.roots]) > POINTS:
            return "large"
    op(*arrays, **parameters)
    return "runs"


def fault(e: es.EinsmithError, text: str) -> str | None:
    """What is wrong with an error as the answer to a formula, if anything."""
    if isinstance(e, (es.VerifyError, es.CompileError)):
        return "an internal error"
    if len(str(e)) > 2000 + 3 * max(map(len, text.split("\n"))):
        return "an endless message"
    if isinstance(e, es.FormulaError) and e.source is None and not re.match(
        r"extents: |.*: the (input|parameter) |.* takes \d+ inputs|.* has no input or parameter|.*: checkpoint=|"
        r"the parameter .*, used in extents=|the formula is empty|'?\S+'? is not a parameter of", str(e)
    ):  # fmt: skip
        return "it names no line"
    return None


def describe(made: Case) -> str:
    text, extents, arrays, parameters = made
    if len(text) > 3000:
        text = text[:1500] + " ... " + text[-500:]
    given = [f"{a.dtype}{a.shape}" if isinstance(a, np.ndarray) else repr(a) for a in arrays]
    return f"{text!r}\n{text}\nextents={extents}\narrays={given}\nparameters={parameters}"


def make(seed: int) -> Case:
    return case(random.Random(seed))


# -------------------------------------------------------------------------------------------------------- many cases


def run(first: int, count: int) -> int:
    """Checks cases by their seeds in this process; prints findings. Returns how many."""
    wrong = 0
    for seed in range(first, first + count):
        print(f"@{seed}", flush=True)
        if os.environ.get("ILLEGAL_CRASHES_AT") == str(seed):  # a test that crashes are noticed
            os.abort()
        try:
            print(f"={check(make(seed))}", flush=True)
        except AssertionError as e:
            wrong += 1
            print(f"!seed {seed}: {e}".encode(errors="backslashreplace").decode(), flush=True)
    return wrong


def watched(first: int, count: int, outcomes: dict[str, int], patience: float = 120.0) -> Iterator[str]:
    """Checks cases in a process of its own, and goes on with another one after a crash or a hang. Yields the findings,
    and counts how often each outcome was met."""
    seed, end = first, first + count
    while seed < end:
        options = ["--here", "--seed", str(seed), "--count", str(end - seed)]
        command = [sys.executable, "-m", "tests.fuzz.illegal", *options]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
        heard = [time.monotonic()]
        done = threading.Event()

        def watch(child: subprocess.Popen = child, heard: list[float] = heard, done: threading.Event = done) -> None:
            while not done.wait(1.0):
                if time.monotonic() - heard[0] > patience:
                    child.kill()

        threading.Thread(target=watch, daemon=True).start()
        assert child.stdout is not None and child.stderr is not None
        finding: list[str] = []
        current = None
        for line in child.stdout:
            heard[0] = time.monotonic()
            if line.startswith(("@", "=", "!")) and finding:
                yield "".join(finding)
                finding = []
            if line.startswith("@"):
                current = int(line[1:])
            elif line.startswith("="):
                outcomes[line[1:].strip()] = outcomes.get(line[1:].strip(), 0) + 1
                current = None
            elif line.startswith("!"):
                finding, current = [line[1:]], None
            elif finding:
                finding.append(line)
        done.set()
        status, errors = child.wait(), child.stderr.read()
        if finding:
            yield "".join(finding)
        if current is None:
            if status:
                yield f"the process ended with {status}: {errors[-2000:]}"
            break
        late = "hung or crashed" if status < 0 else "ended the process"
        yield f"seed {current}: {late} ({status})\n{errors[-1500:]}\n{describe(make(current))}"
        seed = current + 1


def main() -> int:
    options = argparse.ArgumentParser(description="Checks odd and illegal formulas.")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--count", type=int, default=1000)
    options.add_argument("--here", action="store_true", help="in this process: a crash ends it")
    given = options.parse_args()
    if given.here:
        run(given.seed, given.count)
        return 0
    findings = 0
    outcomes: dict[str, int] = {}
    for f in watched(given.seed, given.count, outcomes):
        print(f, end="\n\n", flush=True)
        findings += 1
    print(f"{findings} findings; " + ", ".join(f"{n} {k}" for k, n in sorted(outcomes.items())))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
