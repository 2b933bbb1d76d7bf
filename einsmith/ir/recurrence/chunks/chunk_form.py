"""Derive the chunk form of a linear recurrence.

Steps are cut into chunks of C. Within a chunk that begins with the state P,

    u_r[i] = U_r[i] + W_r[i].P,   y[i] = D[i]*q[i].P + sum over j <= i of M[i,j]*u[j],   M[i,j] = q[i].(D[i,j]*p[j])

where D[i,j] is the product of decays of steps j+1 .. i. U and W solve unit triangular systems that hold no state,
for all chunks at once; what is left of the recurrence runs over chunks (Yang et al. 2024, "Parallelizing Linear
Transformers with the Delta Rule over Sequence Length"; Dao and Gu 2024, section 6). Products of decays are multiplied
up, without logarithms and divisions: decays of zero and of any sign are as good as others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from einsmith.base.symbolic import SIZES_VARY
from einsmith.ir.nodes import Axis, Const, Expr, Leaf, Read, Recurrence, StepOptions, Tensor, apply, postorder
from einsmith.ir.rebuild import exchange, substitute
from einsmith.ir.recurrence.chunks.affine import STATE, product, reduction_slot
from einsmith.ir.recurrence.chunks.decays import BEFORE, CHUNK, COLUMN, ROW, STEP, ChunkSheet, decays_of
from einsmith.ir.recurrence.chunks.linear_recurrence import LinearRecurrence, StateRead
from einsmith.ir.recurrence.chunks.sheet import DECIDED, Labelled, Sheet, choose, integer, labels_of, plus
from einsmith.ir.recurrence.chunks.triangular import blocked
from einsmith.ir.recurrence.define import recurrence, solve


@dataclass(frozen=True)
class Output:
    """A contraction of the state outside of the recurrence.

    read: the contraction, whose slots are those of `args`; is_after: whether it is of the state after the step, not of
    the one before; first: the step that its first element reads the state of; steps: the number of its elements along
    time, one of which may be of the initial state
    """

    read: StateRead
    args: Sequence[Tensor]
    is_after: bool
    first: int
    steps: int


class ChunkForm:
    """The chunk form of a linear recurrence, in chunks of `length` steps, or of all where there are fewer."""

    def __init__(self, linear: LinearRecurrence, length: int):
        node = linear.node
        # Where sizes vary, the last chunk is padding in all of them; there are two at least, as an axis of one has no
        # index.
        self.varies = SIZES_VARY.get()
        length = length if self.varies else min(length, node.steps)
        self.linear, self.length = linear, length
        self.steps, self.chunks = node.steps, node.steps // length + 2 if self.varies else -(-node.steps // length)
        dtype, shape = node.results[linear.state]
        self.dtype = dtype
        extents = dict(enumerate(shape)) | {0: node.steps}
        for read in linear.reads.values():
            extents |= read.extents
        extents |= {CHUNK: self.chunks, ROW: length, COLUMN: length, BEFORE: self.chunks + 1}
        extents[STEP] = self.chunks * length
        self.sheet = ChunkSheet(extents, linear.keys, linear.values, self.varies)
        self.dims = tuple(range(1, len(shape)))
        self.is_padded = self.varies or self.chunks * length != node.steps
        decay = None if linear.decay is None else self._operand(self._own(linear.decay), 1.0)
        self.decays = decays_of(self.sheet, decay)
        self.keys = [self._operand(self._own(t.key), 0.0) for t in linear.terms]
        self.queries = {s: self._operand(self._own(r.query), 0.0) for s, r in linear.reads.items()}
        self._zero = Const(0.0, dtype)
        self._solve()
        self._run()

    # -- operands

    def _own(self, x: Expr) -> Expr:
        return self.sheet.taken(x, self.linear.node.args)

    def _operand(self, x: Expr, neutral: float, first: int = 0, stop: int | None = None) -> Labelled:
        """Return the tensor of an expression over time, cut into chunks. neutral: its value outside of the positions in
        time from `first` on, ahead of `stop`, that it exists at; all by default."""
        place = apply("add", apply("mul", Axis(CHUNK), integer(self.length)), Axis(ROW))
        # A tensor of its own has no condition on chunks and rows, which numbers that vary would divide in some sizes.
        step = Axis(STEP) if self.varies else place
        last = self.steps - 1
        time = apply("sub", integer(last), step) if self.linear.node.reverse else step
        x = substitute(x, {0: time})
        if stop is not None and stop < self.steps:
            x = choose(apply("lt", time, integer(stop)), x, neutral)
        if first > 0:
            x = choose(apply("le", integer(first), time), x, neutral)
        if self.is_padded:
            x = choose(apply("le", step, integer(last)), x, neutral)
        laid = self.sheet.lay(labels_of(x), x)
        if STEP not in laid.labels:
            return laid
        x = self.sheet.read(laid, {STEP: place})
        return self.sheet.lay(labels_of(x), x)

    def _start(self, query: Labelled, is_after: bool) -> Expr:
        """Return the query of the state at the beginning of the chunk."""
        start = self.decays.from_start(is_after)
        return self.sheet.read(query) if start is None else product(self.sheet.read(query), start)

    def _solve(self) -> None:
        """Solve u = U + W.P of the terms that read the state; the values of the others are known."""
        terms, sheet = self.linear.terms, self.sheet
        solved = [r for r, t in enumerate(terms) if t.weights]
        self.known = [None if t.value is None else self._operand(self._own(t.value), 0.0) for t in terms]
        weights = {
            (r, s): sheet.read(self._operand(self._own(w), 0.0)) for r in solved for s, w in terms[r].weights.items()
        }
        links = {(r, q): self._link(weights, r, q) for r in solved for q in range(len(terms))}
        definitions: dict[Leaf, Tensor] = {}

        def define(parts: Mapping[int, Sequence[Expr]], others: Sequence[int]) -> dict[int, Labelled]:
            """Return the placeholders of systems with these right sides."""
            labels = sheet.ordered({*self.linear.shared, CHUNK, ROW, *others})
            out = {r: sheet.placeholder(labels, self.dtype) for r in solved}
            for r, x in out.items():
                # Right sides are tensors of their own: they come ahead of the recurrence over rows.
                steps: list[Expr] = [sheet.read(sheet.lay(labels, added(parts[r]) if parts[r] else self._zero))]
                for q in solved:
                    pair = product(sheet.read(links[r, q]), sheet.read(out[q], {ROW: Axis(COLUMN)}))
                    lower = choose(apply("lt", Axis(COLUMN), Axis(ROW)), pair, 0.0)
                    steps.append(sheet.read(sheet.define(labels, lower, (COLUMN,))))
                assert isinstance(x.tensor, Leaf)
                definitions[x.tensor] = sheet.define(labels, added(steps)).tensor
            return out

        own = define({r: self._known_part(links, r, solved) for r in solved}, self.linear.values)
        by_state = define(
            {
                r: [product(weights[r, s], self._start(self.queries[s], False)) for s in terms[r].weights]
                for r in solved
            },
            self.linear.keys,
        )
        systems = recurrence(definitions, options=DECIDED) if definitions else {}
        nodes = [n for n in postorder(systems.values()) if isinstance(n, Recurrence)]
        blocks = dict(pair for n in nodes for pair in blocked(n).items())
        tensors = dict(zip(systems, exchange([*systems.values()], blocks), strict=True))
        self.own, self.by_state = (
            {r: Labelled(t, x.labels) for r, x in of.items() for p, t in tensors.items() if p is x.tensor}
            for of in (own, by_state)
        )

    def _link(self, weights: Mapping[tuple[int, int], Expr], r: int, q: int) -> Labelled:
        """Return what the value of term q at a column's step adds to that of term r at a row's."""
        parts = [
            product(weights[r, s], self.sheet.read(self.decays.coefficients(self.queries[s], self.keys[q], False)))
            for s in self.linear.terms[r].weights
        ]
        return self.sheet.lay(labels_of(*parts), added(parts))

    def _known_part(self, links: Mapping[tuple[int, int], Labelled], r: int, solved: Sequence[int]) -> list[Expr]:
        """Return what is known of a term's value: its own, and what terms add that do not read the state."""
        sheet, own = self.sheet, self.known[r]
        out: list[Expr] = [] if own is None else [sheet.read(own)]
        for q, known in enumerate(self.known):
            if q not in solved and known is not None:
                x = product(sheet.read(links[r, q]), sheet.read(known, {ROW: Axis(COLUMN)}))
                out.append(sheet.read(sheet.sum(x, (COLUMN,))))
        return out

    # -- over chunks

    def _run(self) -> None:
        """Define the state before each chunk, and the values of the terms."""
        sheet, linear = self.sheet, self.linear
        before = sheet.placeholder((BEFORE, *self.dims), self.dtype)
        values: list[Labelled | None] = []
        sums: list[Labelled] = []
        for r in range(len(linear.terms)):
            if r in self.own:
                state = sheet.read(before, {BEFORE: Axis(CHUNK)})
                part = self.sheet.lay(self.own[r].labels, product(sheet.read(self.by_state[r]), state), linear.keys)
                x = added([sheet.read(self.own[r]), sheet.read(part)])
                values.append(self.sheet.lay(self.own[r].labels, x))
            else:
                values.append(self.known[r])
            value = values[-1]
            if value is not None:
                sums.append(self._last(self.keys[r], value))
        at = {CHUNK: plus(Axis(BEFORE), -1)}
        last = at | {ROW: integer(self.length - 1)}
        parts: list[Expr] = []
        kept = self.decays.from_start(True)
        own_state = sheet.read(before, {BEFORE: plus(Axis(BEFORE), -1)})
        parts.append(own_state if kept is None else product(substitute(kept, last), own_state))
        parts += [sheet.read(s, at) for s in sums]
        x = choose(apply("lt", integer(0), Axis(BEFORE)), added(parts), self._initial())
        tensor = sheet.define(before.labels, x).tensor
        placeholders = {before.tensor: tensor}
        roots = [v.tensor for r, v in enumerate(values) if r in self.own and v is not None]
        solved = solve(placeholders, (before.tensor, *roots), options=self._options())  # type: ignore[arg-type]
        self.before = Labelled(solved[0], before.labels)
        rest = iter(solved[1:])
        self.values = [
            Labelled(next(rest), v.labels) if r in self.own and v is not None else v for r, v in enumerate(values)
        ]

    def _options(self) -> StepOptions:
        """Return how the chunks are run: one after the other, and as many states are saved as of single steps."""
        checkpoint = self.linear.node.options.checkpoint // self.length
        return StepOptions(checkpoint if checkpoint > 1 else 0, self.length)

    def _initial(self) -> Expr:
        node, state = self.linear.node, self.linear.state
        at = node.steps if node.reverse else 0
        (part,) = [p for p in node.members[state].parts if p.offset[0] == at]  # type: ignore[union-attr]
        return self._own(substitute(part.body, {0: integer(0)}))  # type: ignore[arg-type]

    def _last(self, key: Labelled, value: Labelled) -> Labelled:
        """Return what a term adds to the state at the end of a chunk."""
        sheet = self.sheet
        x: Expr = sheet.read(key)
        y: Expr = sheet.read(value)
        left = self.decays.to_end()
        if left is not None:
            # The operand that has its axes already takes it.
            if not labels_of(left) <= labels_of(x) and labels_of(left) <= labels_of(y):
                y = product(left, y)
            else:
                x = product(x, left)
        x, y = (e if isinstance(e, Read) else sheet.read(sheet.lay(labels_of(e), e)) for e in (x, y))
        return sheet.lay({CHUNK, *self.dims}, product(x, y), (ROW,))

    # -- results

    def output(self, out: Output) -> Tensor:
        """Return the tensor of a contraction of the state at all steps."""
        read, sheet = out.read, self.sheet
        sheet.extents |= read.extents
        own = sheet.taken(read.query, out.args)
        at = {0: plus(Axis(0), -out.first)}
        query = self._operand(substitute(own, at), 0.0, out.first, out.first + out.steps)
        initial = None
        ahead = self.steps if self.linear.node.reverse else -1
        if out.first <= ahead < out.first + out.steps:
            scaled = product(own, sheet.taken(read.scale, out.args))
            x = product(substitute(scaled, {0: integer(ahead - out.first)}), self._initial())
            initial = sheet.read(sheet.define([d for d in read.axes if d], x, self.linear.keys))
        scale = self._scale(substitute(sheet.taken(read.scale, out.args), at), out.first, out.first + out.steps)
        return self._spread(self._read(query, out.is_after, read.axes, scale), out.first, out.steps, initial)

    def _scale(self, x: Expr, first: int, stop: int) -> Expr:
        return self.sheet.read(self._operand(x, 0.0, first, stop)) if labels_of(x) else x

    def _read(self, query: Labelled, is_after: bool, axes: Sequence[int], scale: Expr | None = None) -> Labelled:
        """Return scale times the contraction of the state with a query. axes: the labels of the result's axes, of which
        time, 0, becomes the chunk and its steps."""
        sheet = self.sheet
        order = [d for label in axes for d in ((CHUNK, ROW) if label == 0 else (label,))]

        def summed(x: Expr, over: Sequence[int]) -> Expr:
            """Return a sum in the order of the result's axes, in which it is stored without a copy."""
            return sheet.read(sheet.define([d for d in order if d in labels_of(x)], x, over))

        state = sheet.read(self.before, {BEFORE: Axis(CHUNK)})
        start = self.decays.from_start(is_after)
        has_keys = start is not None and not labels_of(start).isdisjoint(self.linear.keys)
        if start is None or has_keys or labels_of(start) <= labels_of(query):
            scaled = self._start(query, is_after)
            e = scaled if isinstance(scaled, Read) else sheet.read(self.sheet.lay(labels_of(scaled), scaled))
            parts: list[Expr] = [summed(product(e, state), self.linear.keys)]
        else:
            parts = [product(start, summed(product(sheet.read(query), state), self.linear.keys))]
        for key, value in zip(self.keys, self.values, strict=True):
            if value is not None:
                m = sheet.read(self.decays.coefficients(query, key, is_after))
                parts.append(summed(product(m, sheet.read(value, {ROW: Axis(COLUMN)})), (COLUMN,)))
        x = added(parts) if scale is None else product(added(parts), scale)
        return sheet.define(order, x)

    def _spread(self, x: Labelled, first: int = 0, steps: int | None = None, initial: Expr | None = None) -> Tensor:
        """Return a tensor over chunks and their steps as one over time. first, steps: the part of time; initial: its
        element where time is that of the initial state."""
        axes = [0 if d == CHUNK else d for d in x.labels if d != ROW]
        time = plus(Axis(0), first)
        step = apply("sub", integer(self.steps - 1), time) if self.linear.node.reverse else time
        place = Axis(STEP) if self.varies else step
        at = {CHUNK: apply("floordiv", place, integer(self.length)), ROW: apply("mod", place, integer(self.length))}
        e: Expr = self.sheet.read(x, at)
        if self.varies:
            e = self.sheet.read(self.sheet.lay(labels_of(e), e), {STEP: step})
        if initial is not None:
            e = choose(apply("le", integer(0), step), e, initial)
        self.sheet.extents[0] = self.steps if steps is None else steps
        return self.sheet.define(axes, e).tensor

    def last(self) -> Tensor:
        """Return the state after the last step."""
        return self.sheet.define(
            self.before.labels[1:], self.sheet.read(self.before, {BEFORE: integer(self.chunks)})
        ).tensor

    def member(self, j: int) -> Tensor:
        """Return a member that is read outside, at all steps."""
        shape = self.linear.node.results[j][1]
        form, parts = self.linear.forms[j], []
        sheet = Sheet(dict(enumerate(shape)))
        for read, x in form.items():
            x = sheet.taken(x, self.linear.node.args)
            if read is not None:
                assert read.slot != STATE
                s = reduction_slot(read.slot)
                whole = self._spread(self._read(self.queries[s], False, self.linear.reads[s].axes))
                x = product(x, Read(sheet.slot(whole), (Axis(0), *read.index), whole.dtype))
            parts.append(x)
        return sheet.define(range(len(shape)), added(parts)).tensor


def added(parts: Sequence[Expr]) -> Expr:
    """Return the sum of expressions."""
    return reduce(lambda x, y: apply("add", x, y), parts)
