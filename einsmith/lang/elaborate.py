"""Convert syntax to formula trees, with the constructors of the Python builder, so that both give equal templates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from einsmith.base.errors import BoundsError, DtypeError, FormulaError, ShapeError
from einsmith.lang.syntax import Ast, Cast, Name, Number, ParsedApply, ParsedRead, ParsedReduction, ShapeOf, SizeOf
from einsmith.tracing import formula
from einsmith.tracing.folds import add_exponentials, reduce
from einsmith.tracing.formula import AxisVar, Form, Literal


class NotYet(Exception):
    """Raised where an extent is needed that is not known yet."""


class Elaborator:
    """A converter from an expression's syntax to its form.

    The callables resolve names, reads, `A.shape[n]` and `size(k)`; they may raise NotYet. `axis` gives the AxisVar that
    a reduction binds.
    """

    def __init__(
        self,
        text: str,
        name: Callable[[Name], Form],
        element: Callable[[ParsedRead, Sequence[Form]], Form] | None = None,
        shape: Callable[[ShapeOf, int], int] | None = None,
        size: Callable[[str], int] | None = None,
        axis: Callable[[str], AxisVar] | None = None,
    ):
        self.text, self.name, self.element = text, name, element
        self.shape, self.size, self.axis = shape, size, axis

    def form(self, root: Ast) -> Form:
        """Return the form of `root`; errors carry the line and a caret."""
        forms: dict[Ast, Form] = {}
        stack: list[tuple[Ast, bool]] = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if node in forms:
                continue
            if not ready and node.args:
                stack.append((node, True))
                stack.extend((a, False) for a in reversed(node.args))
                continue
            try:
                forms[node] = self._build_form(node, [forms[a] for a in node.args])
            except BoundsError:
                raise
            except FormulaError as e:
                if e.source is not None:
                    raise
                raise FormulaError(e.message, self.text, node.at, e.hint) from None
            except (DtypeError, ShapeError) as e:
                raise FormulaError(str(e), self.text, node.at) from None
        return forms[root]

    def integer(self, root: Ast) -> int:
        """Return the value of an expression without axes and reads. Raises FormulaError where it is not an integer."""
        form = self.form(root)
        if not isinstance(form, Literal) or isinstance(form.value, (bool, float)):
            raise FormulaError(
                "this must be an integer that is known before the program runs",
                self.text,
                root.at,
                "use // for a quotient of integers",
            )
        return form.value

    def _build_form(self, node: Ast, args: list[Form]) -> Form:
        if isinstance(node, Number):
            return Literal(node.value)
        if isinstance(node, Name):
            return self.name(node)
        if isinstance(node, ParsedRead):
            if self.element is None:
                raise FormulaError("a tensor cannot be read here")
            return self.element(node, args)
        if isinstance(node, ShapeOf):
            (dim,) = args
            if not isinstance(dim, Literal) or not isinstance(dim.value, int) or self.shape is None:
                raise FormulaError(f"{node.name}.shape needs an integer", hint=f"write {node.name}.shape[0]")
            return Literal(self.shape(node, dim.value))
        if isinstance(node, SizeOf):
            if self.size is None:
                raise FormulaError(f"size({node.axis}) is not known here", hint="write A.shape[n]")
            return Literal(self.size(node.axis))
        if isinstance(node, Cast):
            return formula.convert(args[0], node.dtype)
        if isinstance(node, ParsedReduction):
            if self.axis is None:
                raise FormulaError("a reduction cannot stand here")
            return reduce(node.combiner, [self.axis(a) for a in node.axes], args[0], (self.text, node.at))
        assert isinstance(node, ParsedApply)
        if node.fn == "logaddexp" and len(args) > 2:
            return add_exponentials(args)
        return formula.op(node.fn, *args)
