"""Provide operators and losses under torch.nn.functional's names, tensor functions under torch's: those of `ops`."""

from typing import TYPE_CHECKING, Any

from einsmith.ops.operator import all_operators, find
from einsmith.tracing.refused import missing_name

if TYPE_CHECKING:
    from einsmith.ops import *  # noqa: F403
    from einsmith.ops import __all__ as __all__


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(all_operators())
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    try:
        value = globals()[name] = find(name)
    except AttributeError:
        raise missing_name(__name__, ["torch.nn.functional", "torch"], name, all_operators()) from None
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *all_operators()})
