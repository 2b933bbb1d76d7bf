# fmt: off
# %% [markdown]
# # A compiler from scratch
#
# This page is a program of 300 lines, which the tests run: a small Einsmith, from formulas to machine code. It uses
# Python's parser, NumPy for arrays, and llvmlite to emit code, and omits what makes Einsmith fast and complete.
#
# ## The language
#
# A program is a list of statements such as `Y[p] = sum[r](X[2*p + r]*W[r])`. Its syntax is Python's, so Python parses
# and prints it; an expression is a node of Python's `ast`. An *index* is a sum of axes with integer coefficients. What
# follows is arithmetic on indices, so we also need them as dictionaries, with the constant under the name `""`.

# %%
import ast
import ctypes
from contextlib import contextmanager
from functools import reduce

import llvmlite.binding as llvm
import llvmlite.ir as ir
import numpy as np


def linear(node):
    """Return the coefficients of an index, as {"p": 2, "r": 1}."""
    match node:
        case ast.Constant(value):
            return {"": value} if value else {}
        case ast.Name(axis):
            return {axis: 1}
        case ast.BinOp(ast.Constant(value), ast.Mult(), b):
            return plus({}, linear(b), value)
        case ast.BinOp(a, op, b):
            return plus(linear(a), linear(b), 1 if isinstance(op, ast.Add) else -1)

def plus(f, g, times=1):
    return {a: c for a in f | g if (c := f.get(a, 0) + times * g.get(a, 0))}

def substitute(f, mapping):
    return reduce(lambda total, a: plus(total, mapping.get(a, {a: 1}), f[a]), f, {})

def node_of(f):
    ordered = sorted(f.items(), key=lambda part: -part[1]) or [("", 0)]
    text = " + ".join(f"{c}" if not a else a if c == 1 else f"{c}*{a}" for a, c in ordered).replace("+ -", "- ")
    return ast.parse("0 " + text if ordered[0][1] < 0 else text, mode="eval").body

# %% [markdown]
# A statement is a *sum of terms*, each with reduction axes of its own: a gradient has a term for each read of a tensor.
# An axis that indexes a dimension alone has its extent. An axis that is the only unknown of an index takes the largest
# extent that stays in bounds, as `p` in `X[2*p + r]`. (Nothing else is checked here; Einsmith proves every read.)

# %%
def listed(node):
    return node.elts if isinstance(node, ast.Tuple) else [node]

def parse(text):
    """Return the statements (name, axes, [(reduction axes, expression), ...]) of a program."""
    parts = [(*s.targets, s.value) for s in ast.parse(text).body]
    return [(left.value.id, [a.id for a in listed(left.slice)], list(terms(right))) for left, right in parts]

def terms(node):
    match node:
        case ast.BinOp(a, ast.Add(), b) if "sum[" in ast.unparse(node):
            yield from (*terms(a), *terms(b))
        case ast.Call(ast.Subscript(ast.Name("sum"), axes), [body]):
            yield [a.id for a in listed(axes)], body
        case _:
            yield [], node

def show(program):
    """Return the text of a program, which `parse` reads again."""
    right = [[f"sum[{', '.join(r)}]({ast.unparse(e)})" if r else ast.unparse(e) for r, e in ts] for _, _, ts in program]
    return "\n".join(f"{s[0]}[{', '.join(s[1])}] = {' + '.join(ts)}" for s, ts in zip(program, right, strict=True))

def reads_of(statement):
    return [r for _, e in statement[2] for r in ast.walk(e) if isinstance(r, ast.Subscript)]

def extents(statement, shapes):
    """Return the extent of each axis of a statement. A gradient dX has the shape of X."""
    known = shapes.get(statement[0].removeprefix("d"), ())
    reads, sizes = reads_of(statement), dict(zip(statement[1], known, strict=False))
    places = [(linear(i), n) for r in reads for i, n in zip(listed(r.slice), shapes[r.value.id], strict=True)]
    for f, n in sorted(places, key=lambda place: len(place[0])):  # single axes first
        unknown = [a for a in f if a and a not in sizes]
        if len(unknown) == 1:
            rest = sum(c * (sizes[a] - 1 if a else 1) for a, c in f.items() if a not in unknown)
            sizes[unknown[0]] = (n - 1 - rest) // f[unknown[0]] + 1
    return sizes

def infer(program, shapes):
    for s in program:
        shapes = shapes | {s[0]: tuple(extents(s, shapes)[a] for a in s[1])}
    return shapes

# %% [markdown]
# ## Gradients
#
# Inside an expression, the cotangent C of the root goes down to the reads, by one rule for each function of A and B
# with the value E:

# %%
RULES = {
    ast.Add: ("{C}", "{C}"), ast.Sub: ("{C}", "0 - {C}"), ast.Mult: ("{C}*{B}", "{C}*{A}"),
    ast.Div: ("{C}/{B}", "0 - {C}*{E}/{B}"), "exp": ("{C}*{E}",), "log": ("{C}/{A}",), "tanh": ("{C}*(1 - {E}*{E})",),
}  # fmt: skip

def fill(template, **parts):
    return ast.parse(template.format(**{n: f"({ast.unparse(e)})" for n, e in parts.items()}), mode="eval").body

def replace(e, mapping):
    """Return an expression in which axes are replaced by indices."""
    for node in ast.walk(e := fill("{e}", e=e)):  # a copy
        if isinstance(node, ast.Subscript):
            at = [node_of(substitute(linear(i), mapping)) for i in listed(node.slice)]
            node.slice = ast.Tuple(at) if len(at) > 1 else at[0]
        elif isinstance(node, ast.Compare):  # the condition of a guard: 0 <= index < size
            node.comparators[0] = node_of(substitute(linear(node.comparators[0]), mapping))
    return e

def cotangents(e, c):
    """Yield (read, cotangent) for each read in e, where c is the cotangent of e."""
    match e:
        case ast.Subscript():
            yield e, c
        case ast.Call(ast.Name("where"), [condition, a, _]):
            yield from cotangents(a, fill("where({N}, {C}, 0)", N=condition, C=c))
        case ast.BinOp(a, op, b):
            for argument, rule in zip((a, b), RULES[type(op)], strict=True):
                yield from cotangents(argument, fill(rule, A=a, B=b, C=c, E=e))
        case ast.Call(ast.Name(function), [a]):
            yield from cotangents(a, fill(RULES[function][0], A=a, C=c, E=e))

# %% [markdown]
# A read `X[2*p + r]` *gathers*; its gradient would have to *scatter*, to add at `2*p + r`. Instead we solve the
# equation `x = 2*p + r` for an axis with coefficient one, `r = x - 2*p`, and sum over the axes that remain, where
# `0 <= x - 2*p < 3`. So the gradient is a formula again, in which each element is computed once. Where no axis can be
# solved for, the equation itself is the guard. (Einsmith also solves with remainders: no point is visited in vain.)

# %%
def solve(read, c, sizes, shape, names):
    """Return the term (reduction axes, expression) of the gradient at `names` of the tensor that is read."""
    remaining, mapping, guards = dict(sizes), {}, []
    for i, n, x in zip(listed(read.slice), shape, names, strict=True):
        f = substitute(linear(i), mapping)
        axis = next((a for a in reversed(f) if abs(f[a]) == 1 and a in remaining), None)
        solution = plus({x: 1}, f, -1)  # zero where the equation holds
        if axis is not None:
            solution = plus({}, plus(solution, {axis: f[axis]}), f[axis])
            mapping = {a: substitute(g, {axis: solution}) for a, g in mapping.items()} | {axis: solution}
        extent = remaining.pop(axis, 1)
        if solution != {x: 1} or extent < n:
            guards.append((solution, extent))
    for f, n in guards:
        c = fill(f"where(0 <= {{I}} < {n}, {{C}}, 0)", I=node_of(f), C=c)
    return list(remaining), replace(c, mapping)

def gradient(text, wrt, shapes):
    """Return the program `text` with the gradients of its last tensor by those of `wrt`, for inputs of these shapes."""
    program, names, found = parse(text), {}, {}
    shapes = infer(program, shapes)
    for s in reversed(program):
        d = fill(f"d{s[0]}[{', '.join(s[1])}]")
        for axes, e in s[2]:
            sizes = {a: n for a, n in extents(s, shapes).items() if a in [*s[1], *axes]}
            for read, c in cotangents(e, d):
                t = read.value.id
                names.setdefault(t, [f"{t.lower()}{n}" for n in range(len(shapes[t]))])
                found.setdefault(t, []).append(solve(read, c, sizes, shapes[t], names[t]))
    order = [s[0] for s in reversed(program[:-1]) if s[0] in found] + list(wrt)
    return show(program + [(f"d{t}", names[t], found[t]) for t in order])

CONV = "Y[p] = sum[r](X[2*p + r]*W[r])"
print(gradient(CONV, "XW", {"X": (9,), "W": (3,)}))

# %% [markdown]
# ## Machine code
#
# Each statement becomes a function of pointers with a loop nest for each term. LLVM vectorizes and unrolls the loops.

# %%
REAL, INT = ir.DoubleType(), ir.IntType(64)
INSTRUCTIONS = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}
llvm.initialize_native_target()
llvm.initialize_native_asmprinter()

class Emitter:
    """Emit one statement as a function of pointers to its tensor and to what it reads."""

    def __init__(self, module, statement, shapes):
        name, axes, ts = statement
        self.tensors = list(dict.fromkeys([name, *(r.value.id for r in reads_of(statement))]))
        self.shapes, sizes, kinds = shapes, extents(statement, shapes), [REAL.as_pointer()] * len(self.tensors)
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), name)
        self.b = b = ir.IRBuilder(function.append_basic_block())
        self.pointers, self.values = dict(zip(self.tensors, function.args, strict=True)), {"": INT(1)}
        self.inside = ir.IntType(1)(1)
        total = b.alloca(REAL)
        with self.loops(axes, sizes):
            b.store(REAL(0), total)
            for reduced, e in ts:
                with self.loops(reduced, sizes):
                    b.store(b.fadd(b.load(total), self.value(e), flags=["fast"]), total)
            b.store(b.load(total), self.place(name, [self.values[a] for a in axes]))
        b.ret_void()

    @contextmanager
    def loops(self, axes, sizes):
        if not axes:
            yield
            return
        b, before = self.b, self.b.block
        body, after = b.append_basic_block(), b.append_basic_block()
        b.branch(body)
        b.position_at_end(body)
        self.values[axes[0]] = i = b.phi(INT)
        with self.loops(axes[1:], sizes):
            yield
        following = b.add(i, INT(1))
        i.add_incoming(INT(0), before)
        i.add_incoming(following, b.block)
        b.cbranch(b.icmp_signed("<", following, INT(sizes[axes[0]])), body, after)
        b.position_at_end(after)

    def place(self, name, at):
        offset = INT(0)
        for i, n in zip(at, self.shapes[name], strict=True):
            offset = self.b.add(self.b.mul(offset, INT(n)), i)
        return self.b.gep(self.pointers[name], [self.b.select(self.inside, offset, INT(0))])  # what is safe to read

    def index(self, node):
        return reduce(self.b.add, (self.b.mul(INT(c), self.values[a]) for a, c in linear(node).items()), INT(0))

    def value(self, e):
        b = self.b
        match e:
            case ast.Constant(value):
                return REAL(value)
            case ast.Subscript(ast.Name(name), at):
                return b.load(self.place(name, [self.index(i) for i in listed(at)]))
            case ast.BinOp(a, op, c):
                return getattr(b, INSTRUCTIONS[type(op)])(self.value(a), self.value(c), flags=["fast"])
            case ast.Call(ast.Name("where"), [ast.Compare(_, _, [i, n]), a, _]):
                outer, self.inside = self.inside, b.and_(self.inside, b.icmp_unsigned("<", self.index(i), INT(n.value)))
                chosen = b.select(self.inside, self.value(a), REAL(0))
                self.inside = outer
                return chosen
            case ast.Call(ast.Name(function), [a]):
                known = b.module.globals.get(function)  # of the C library
                return b.call(known or ir.Function(b.module, ir.FunctionType(REAL, [REAL]), function), [self.value(a)])

def build(text, shapes):
    """Return a function of a dictionary of arrays, which adds the tensors of the program to it."""
    program, module = parse(text), ir.Module()
    shapes = infer(program, shapes)
    emitted = [Emitter(module, s, shapes) for s in program]
    machine = llvm.Target.from_default_triple().create_target_machine(opt=3)
    code = llvm.parse_assembly(str(module))
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(code, passes)
    engine = llvm.create_mcjit_compiler(code, machine)

    def run(arrays):
        arrays = arrays | {s[0]: np.empty(shapes[s[0]]) for s in program}
        for s, e in zip(program, emitted, strict=True):
            pointers = [arrays[t].ctypes.data_as(ctypes.c_void_p) for t in e.tensors]
            ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(pointers))(engine.get_function_address(s[0]))(*pointers)
        return arrays

    return run

# %% [markdown]
# ## Does it work?
#
# Gradients against finite differences, for the convolution and for attention, which is five statements:

# %%
ATTENTION = """
S[i,j] = sum[k](Q[i,k]*K[j,k])
E[i,j] = exp(S[i,j])
N[i] = sum[j](E[i,j])
P[i,j] = E[i,j]/N[i]
Y[i,d] = sum[j](P[i,j]*V[j,d])
"""
rng = np.random.default_rng(0)

def check(text, **inputs):
    shapes = {n: a.shape for n, a in inputs.items()}
    inputs["dY"] = rng.standard_normal(infer(parse(text), shapes)["Y"])
    forward, full = build(text, shapes), build(gradient(text, shapes, shapes), shapes | {"dY": inputs["dY"].shape})
    for name, shape in shapes.items():
        v = rng.standard_normal(shape) * 1e-5
        high, low = (forward(inputs | {name: inputs[name] + s * v})["Y"] for s in (1, -1))
        assert abs(np.vdot(inputs["dY"], high - low) - 2 * np.vdot(full(inputs)[f"d{name}"], v)) < 1e-10
    return forward(inputs)["Y"]

check(CONV, X=rng.standard_normal(9), W=rng.standard_normal(3))
q, k, v = (rng.standard_normal(s) for s in ((5, 4), (7, 4), (7, 3)))
e = np.exp(q @ k.T)
assert np.allclose(check(ATTENTION, Q=q, K=k, V=v), e / e.sum(1, keepdims=True) @ v)
