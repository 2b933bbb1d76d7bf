"""Find where a formula's indices that are checked at run time come from, for the messages of failed checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from einsmith.ir.nodes import Compute
from einsmith.ir.origins import SCATTERED, Origin
from einsmith.tracing.formula import Convert, Form, FormulaOp, Index, Literal, Load, is_integer, postorder


def find_bound(nodes: Sequence[Form]) -> Load | None:
    """Return the first read of an integer tensor that a formula compares with an integer; None where it compares
    none."""
    compared = (a for n in nodes if isinstance(n, FormulaOp) and n.fn in ("lt", "le", "eq", "ne") for a in n.args)
    loads = (n for a in compared if is_integer(a.ty) and a.loads for n in reversed(postorder(a)))
    return next((n for n in loads if isinstance(n, Load) and not n.weak), None)


def origins_of(
    node: Compute, indexed: Sequence[Load], destinations: Sequence[Form], name: str, bound: Load | None
) -> Iterator[Origin]:
    """Yield the origin of each index of a tensor's formula that is read from another tensor, or that a guard compares
    with elements of one.

    Args:
        node: the tensor
        indexed: the reads of its formula that have such an index
        bound: the read with which guards compare indices; None: none does
        destinations: of a scatter, the indices at which elements are combined
        name: of a scatter, the name of the tensor, or ""
    """
    slots = {t: s for s, t in enumerate(node.args)}
    indices = [(n.name, n.tensor.shape, slots.get(n.tensor), d, i) for n in indexed for d, i in enumerate(n.args)]
    indices += [(name or "the result", node.shape, SCATTERED, d, i) for d, i in enumerate(destinations)]
    for tensor, shape, slot, d, i in indices:
        while isinstance(i, Convert):
            (i,) = i.args
        inner = None if isinstance(i, (Index, Literal)) else bound
        source = i if isinstance(i, Load) else next((n for n in postorder(i) if isinstance(n, Load)), inner)
        if source is not None and slot is not None and source.tensor in slots:
            text, offset = source.at or (None, 0)
            yield Origin(
                tensor,
                source.name,
                shape,
                d,
                source.tensor.shape,
                node.template,
                slot,
                slots[source.tensor],
                text,
                offset,
            )
