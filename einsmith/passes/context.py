"""Define the context that passes share: the machine, predicted costs of kernels, and an observer."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from einsmith.base.dtypes import DType
from einsmith.cost.facts import Target
from einsmith.ir.nodes import Compute, Graph, Template, Tensor
from einsmith.schedule.kernel import Kernel
from einsmith.schedule.kernel_calls import kernel_call
from einsmith.schedule.limited_positions import RowLimit
from einsmith.schedule.plan import Cost


def no_cost(kernel: Kernel, target: Target) -> float:
    """Raise NotImplementedError: the default `cost` of contexts in which no kernels are chosen."""
    raise NotImplementedError("a pass needs the predicted cost of a kernel, but PassContext.cost is not set")


class Products(NamedTuple):
    """Facts about products for passes. is_product: whether a template is a sum of products of two operands;
    round_operands: returns a template with the operands of its products rounded to a type."""

    is_product: Callable[[Template], bool]
    round_operands: Callable[[Template, DType], Template]


NO_PRODUCTS = Products(lambda t: False, lambda t, dtype: t)
"""The products of contexts in which there are none."""


@dataclass(frozen=True)
class PassContext:
    """Context that passes are given. target: the machine; cost: predicted seconds of a kernel on it; observe(name,
    before, after, seconds): called after each pass; stored: the type of 16 bits in which activations are stored, None
    for float32; products: what is known of products; limits: those of rows and of other positions; is_step: whether the
    graph is that of a loop's step; circular: whether loops may store members in circular buffers."""

    target: Target = Target()
    cost: Cost = no_cost
    observe: Callable[[str, Graph, Graph, float], None] | None = None
    stored: DType | None = None
    products: Products = NO_PRODUCTS
    limits: tuple[RowLimit, ...] = ()
    is_step: bool = False
    circular: bool = True

    @property
    def can_price(self) -> bool:
        """Return whether kernels can be priced (`price`)."""
        return self.cost is not no_cost

    def price(self, *nodes: Compute, stored: Collection[Tensor] | None = None) -> float:
        """Return the predicted seconds of a kernel that computes these tensors, and stores all or some of them; each
        may read the ones before it."""
        return self.cost(kernel_call(nodes, nodes if stored is None else stored, {}, ()).kernel, self.target)
