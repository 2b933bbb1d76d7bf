"""Record the origins, names and source lines, of indices read from tensors, in a table separate from the graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from einsmith.ir.nodes import Leaf, Template, Tensor

SCATTERED = -1
"""Value of `Origin.slot` for an index at which elements are added, not read."""


@dataclass(frozen=True)
class Origin:
    """An index in a formula that is read from a tensor.

    Args:
        tensor: name of the tensor that is read, or added to, at the index.
        source: name of the tensor that the index is read from.
        shape, dimension: shape of `tensor`, and which of its dimensions is indexed.
        source_shape: shape of `source`.
        template, slot, source_slot: the template that has the index, and its arguments for both tensors.
        text, offset: the formula and the index's place in it, where it is one of the formula language.
        function: the function of `einsmith.ops` under way, or "".
    """

    tensor: str
    source: str
    shape: tuple[int, ...]
    dimension: int
    source_shape: tuple[int, ...]
    template: Template
    slot: int
    source_slot: int
    text: str | None = None
    offset: int = 0
    function: str = ""

    @property
    def message_fields(self) -> tuple:
        """Return the fields that a message about this origin shows."""
        return self.tensor, self.source, self.text, self.offset, self.function


@dataclass(frozen=True)
class Origins:
    """The origins of a graph's leaves and indices.

    `names`: of the leaves that a user passed, and of a step's parameters and state; `indices`: in the order of the
    trace; `differentiated`: tensors that were differentiated, whose indices are checked even if nothing reads the
    tensors.
    """

    names: dict[Leaf, str] = field(default_factory=dict)
    indices: tuple[Origin, ...] = ()
    differentiated: tuple[Tensor, ...] = ()

    def find(
        self,
        template: Template,
        slot: int,
        source_slot: int,
        shape: tuple[int, ...],
        dimension: int,
        source_shape: tuple[int, ...],
    ) -> Origin | None:
        """Return the origin of an index; None where there is none, or several with different messages.

        Derivatives and recurrences have templates of their own, and batches have other shapes: their indices are
        matched by shapes and by extents alone.
        """
        here = [o for o in self.indices if o.dimension == dimension]
        exact = (o for o in here if o.template is template and (o.slot, o.source_slot) == (slot, source_slot))
        alike = (o for o in here if (o.shape, o.source_shape) == (shape, source_shape))
        extent = shape[dimension]
        batched = (o for o in self.indices if (o.shape[o.dimension], o.source_shape) == (extent, source_shape))
        return _pick_unique(exact) or _pick_unique(alike) or _pick_unique(batched)


def _pick_unique(origins: Iterable[Origin]) -> Origin | None:
    by_message = {o.message_fields: o for o in origins}
    return next(iter(by_message.values())) if len(by_message) == 1 else None
