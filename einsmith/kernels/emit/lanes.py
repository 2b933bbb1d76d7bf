"""What a LaneCursor emits: values of expressions at its lanes under its mask, and stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from einsmith.errors import CompileError
from einsmith.expr.nodes import Apply, Axis, Const, Expr, Read, postorder
from einsmith.kernels.emit.access import OperandAccess
from einsmith.kernels.emit.walk import blocks
from einsmith.loops.nest import Builder, Value, elem_of

_INT32 = 2**31 - 1


def add_to(b: Builder, x: Value | None, y: Value | None) -> Value | None:
    return x if y is None else y if x is None else b.add(x, y)


def both(b: Builder, x: Value | None, y: Value | None) -> Value | None:
    return x if y is None else y if x is None else b.op("and", x, y)


class LaneEmitter:
    """The part of a State that needs no more than its lanes, sums and masks."""

    s: OperandAccess
    mask: Value | None
    pending: list[int]
    kinds: dict[int, str]
    sums: dict[int, Value]
    opaque: dict[int, Value]
    lane_digits: dict[int, Value]
    lane_forms: dict[int, Value]
    run_masks: list[Value | None]
    run_offsets: dict[int, list[Value]]
    final_mask: Value | None
    aligned: bool

    def offset(self, form: int) -> Value:
        """The scalar part of an address."""
        b, const = self.s.b, self.s.forms[form].const
        total = self.sums.get(form)
        if total is None:
            return b.const(const)
        return b.add(total, b.const(const)) if const else total

    def _load(self, r: Read, mask: Value | None) -> Value:
        s, b = self.s, self.s.b
        form = s.reads[r]
        p = s.pointers[r.slot]
        assert p.value is not None
        elem, kind, n = elem_of(p.dtype), self.kinds[form], s.lanes
        at = self.offset(form)
        if kind == "uniform":
            return b.load(p.value, at, elem, 0, None if mask is None else b.any(mask))
        if mask is not None and not mask.type.lanes:
            mask = b.splat(mask, n)
        if kind == "unit":
            return self._stretches(p.value, [(at, mask)], elem, s.step(form))
        if kind == "runs":
            rows = zip(self.run_offsets[form], self.run_masks, strict=True)
            return self._stretches(p.value, [(b.add(at, x), both(b, run, mask)) for x, run in rows], elem, s.step(form))
        if prod(p.shape) > _INT32:
            return b.gather(p.value, b.add(b.cast(self.lane_forms[form], "i64"), b.splat(at, n)), elem, mask)
        return b.gather(b.address(p.value, at, elem), self.lane_forms[form], elem, mask)

    def _stretches(
        self, pointer: Value, rows: Sequence[tuple[Value, Value | None]], elem: str, step: int
    ) -> Value:
        """Elements at, at + step, ... of the lanes that are on, of each of some rows (`at` and lanes); 0 in lanes that
        are off in all of them. A load takes what every row has of it, so that one shuffle serves them."""
        b, n = self.s.b, self.s.lanes
        parts = []
        for first in (0, n - 1)[:step]:  # the second load ends at the last lane's element: nothing past it is touched
            out: Value | None = None
            for at, mask in rows:
                where = b.add(at, b.const(first)) if first else at
                out = b.load(pointer, where, elem, n, mask if step == 1 else self._spread(mask, first), out)
            assert out is not None
            parts.append(out)
        return parts[0] if step == 1 else b.shuffle(*parts, [2 * i if 2 * i < n else 2 * i + 1 for i in range(n)])

    def _spread(self, mask: Value | None, first: int) -> Value | None:
        """The mask of elements first, first + 1, ... of a stretch of which lane i is element 2*i."""
        if mask is None:
            return None
        b, n = self.s.b, self.s.lanes
        lanes = [(first + e) // 2 if (first + e) % 2 == 0 else n for e in range(n)]
        return b.shuffle(mask, b.const(False, "i1", n), lanes)

    def _store_stretch(self, value: Value, pointer: Value, at: Value, step: int, mask: Value | None) -> None:
        """The lanes that are on to elements at, at + step, ..."""
        b, n = self.s.b, self.s.lanes
        if step == 1:
            b.store(value, pointer, at, mask)
            return
        mask = b.const(True, "i1", n) if mask is None else mask
        for first in (0, n - 1):
            spread = b.shuffle(value, value, [(first + e) // 2 for e in range(n)])
            b.store(spread, pointer, b.add(at, b.const(first)), self._spread(mask, first))

    def _loose(self, r: Read, index: Sequence[Value], mask: Value | None) -> Value:
        """A read whose index is computed."""
        b, p = self.s.b, self.s.pointers[r.slot]
        assert p.value is not None
        at: Value | None = None
        for x, stride in zip(index, p.strides, strict=True):
            at = add_to(b, at, b.mul(b.cast(x, "i64"), b.const(stride)))
        at = b.const(0) if at is None else at
        if not at.type.lanes:
            return b.load(p.value, at, elem_of(p.dtype), 0, None if mask is None else b.any(mask))
        if mask is not None:
            mask = b.splat(mask, self.s.lanes)
        return b.gather(p.value, at, elem_of(p.dtype), mask)

    def values(self, exprs: Sequence[Expr] | None = None, given: Mapping[int, Value] | None = None) -> list[Value]:
        """The expressions (default: the sampler's own) where the mask holds; elsewhere any value.

        A scalar may stand for equal lanes. `given` holds the values of reads of the `given_slots`."""
        if self.pending:
            raise CompileError("a guard mentions an axis without value")
        mask = self.mask
        memo: dict[tuple[Expr, int], Value] = {}
        for g in self.s.generic:
            mask = both(self.s.b, mask, self._evaluate(g, mask, memo, given or {}))
        self.final_mask = mask
        return [self._evaluate(e, mask, memo, given or {}) for e in (self.s.exprs if exprs is None else exprs)]

    def product(self) -> Value:
        """The sampler's one expression, zero where a guard does not hold, in every lane."""
        b = self.s.b
        (x,) = self.values()
        x = b.splat(x, self.s.lanes)
        e, mask = self.s.exprs[0], self.final_mask
        uniform = isinstance(e, Read) and e in self.s.reads and self.kinds[self.s.reads[e]] == "uniform"
        if mask is not None and (not isinstance(e, Read) or (uniform and mask.type.lanes)):
            x = b.select(mask, x, b.const(0.0, x.type.elem))
        return x

    def _evaluate(self, root: Expr, top: Value | None, memo: dict, given: Mapping[int, Value]) -> Value:
        b = self.s.b
        stack: list[tuple[Expr, Value | None]] = [(root, top)]
        while stack:
            e, mask = stack[-1]
            key = (e, 0 if mask is None else mask.id)
            if key in memo:
                stack.pop()
                continue
            if isinstance(e, Read) and (e in self.s.reads or e.slot in self.s.given_slots):
                memo[key] = given[e.slot] if e.slot in self.s.given_slots else self._load(e, mask)
                stack.pop()
                continue
            kids = [(a, mask) for a in e.args]
            if isinstance(e, Apply) and e.fn == "where":
                head = (e.args[0], key[1])
                if head not in memo:
                    stack.append(kids[0])
                    continue
                c = memo[head]
                for i in (1, 2):
                    if self._needs_mask(e.args[i]):
                        side = (e, key[1], i)
                        if side not in memo:
                            memo[side] = both(b, mask, c if i == 1 else b.op("not", c))
                        kids[i] = (e.args[i], memo[side])
            missing = [k for k in kids if (k[0], 0 if k[1] is None else k[1].id) not in memo]
            if missing:
                stack.extend(reversed(missing))
                continue
            args = [memo[(a, 0 if m is None else m.id)] for a, m in kids]
            memo[key] = self._apply(e, args, mask)
            stack.pop()
        return memo[(root, 0 if top is None else top.id)]

    def _needs_mask(self, side: Expr) -> bool:
        """Whether a side of a `where` reads what may lie out of bounds at points that are on the other side."""
        reads = (x for x in postorder([side]) if isinstance(x, Read))
        return any(x.slot not in self.s.given_slots and x not in self.s.safe for x in reads)

    def _apply(self, e: Expr, args: list[Value], mask: Value | None) -> Value:
        b = self.s.b
        if isinstance(e, Const):
            return b.const(e.value, elem_of(e.dtype))
        if isinstance(e, Axis):
            if e.position in self.lane_digits:
                return b.cast(self.lane_digits[e.position], "i32")
            if self.s.extents[e.position] == 1:
                return b.const(0, "i32")
            return b.cast(self.opaque[e.position], "i32")
        if isinstance(e, Read):
            return self._loose(e, args, mask)
        if e.fn == "cast":
            x = e.args[0]
            if isinstance(x, Axis) and e.dtype.is_int:  # of the axis, which its own type may not hold
                exact = self.lane_digits.get(x.position, self.opaque.get(x.position))
                return b.cast(args[0] if exact is None else exact, elem_of(e.dtype))
            return b.cast(args[0], elem_of(e.dtype))
        if e.fn == "stop_gradient":
            return args[0]
        return b.op(e.fn, *args)

    def store(self, extra: int, pointer: Value, value: Value, far: bool = False) -> None:
        """`value` to the address form `extra` of the sampler, in the lanes that are on. far: past the caches, where
        whole vectors lie at multiples of their length from `pointer`."""
        s, b = self.s, self.s.b
        form, n = s.extra[extra], s.lanes
        value, at, kind, mask = b.splat(value, n), self.offset(form), self.kinds[form], self.mask
        if mask is not None and n:
            mask = b.splat(mask, n)
        if kind == "uniform":
            # One point: only the first lane is an element.
            b.store(b.extract(value, 0) if n else value, pointer, at)
        elif kind == "unit" and far and mask is None and self.aligned and s.on_vectors(form):
            b.stream(value, pointer, at)
        elif kind == "unit":
            self._store_stretch(value, pointer, at, s.step(form), mask)
        elif kind == "runs":
            for run, more in zip(self.run_masks, self.run_offsets[form], strict=True):
                self._store_stretch(value, pointer, b.add(at, more), s.step(form), both(b, run, mask))
        else:
            offsets = b.add(b.cast(self.lane_forms[form], "i64"), b.splat(at, n))
            b.scatter(value, pointer, offsets, mask)

    def store_stacked(self, extra: int, pointer: Value, rows: Sequence[Value]) -> None:
        """The lanes of as many rows as a vector has runs, of which this is the first, to the address form `extra` of
        the sampler: each run's rows follow each other in memory."""
        s, b = self.s, self.s.b
        form, n = s.extra[extra], s.lanes
        at, width = self.offset(form), n // len(rows)
        whole = blocks(b, [b.splat(x, n) for x in rows], n, width)
        for j, (value, more) in enumerate(zip(whole, self.run_offsets[form], strict=True)):
            b.store(value, pointer, b.add(at, b.add(more, b.const(j * width))))

    def store_interleaved(self, first: int, second: int, pointer: Value, even: Value, odd: Value) -> None:
        """`even` to the address form `first` of the sampler, whose lanes are two elements apart, and `odd` to the form
        `second`: the elements after each of those."""
        s, b = self.s, self.s.b
        form, n = s.extra[first], s.lanes
        even, odd, at, kind, mask = b.splat(even, n), b.splat(odd, n), self.offset(form), self.kinds[form], self.mask
        if kind == "unit":
            stretches: list[tuple[Value, Value | None]] = [(at, None)]
        elif kind == "runs":
            stretches = list(zip([b.add(at, x) for x in self.run_offsets[form]], self.run_masks, strict=True))
        else:
            self.store(first, pointer, even)
            self.store(second, pointer, odd)
            return
        for half in (0, n):
            lanes = [(half + e) // 2 + (half + e) % 2 * n for e in range(n)]
            value = b.shuffle(even, odd, lanes)
            for place, run in stretches:
                on = both(b, run, None if mask is None else b.splat(mask, n))
                if on is not None:
                    on = b.shuffle(on, on, [(half + e) // 2 for e in range(n)])
                b.store(value, pointer, b.add(place, b.const(half)), on)
