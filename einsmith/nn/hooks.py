"""Register and call functions before and after a module's forward, while it is traced."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from einsmith.base.errors import ArgumentError, EinsmithWarning
from einsmith.tracing.trace import touch

_numbers = itertools.count()


class _Hook(NamedTuple):
    number: int
    function: Callable
    before: bool
    with_kwargs: bool
    always: bool = False

    def after(self, module: Any, args: tuple, kwargs: dict[str, Any], output: Any) -> Any:
        """Call this hook after `forward` and return its output, or `output` where it returns None."""
        rest = (kwargs, output) if self.with_kwargs else (output,)
        changed = self.function(module, args, *rest)
        return output if changed is None else changed


class Handle:
    """The handle of a registered hook: `remove()` removes the hook. As a context, it does so at the end."""

    def __init__(self, hooks: Hooks, number: int):
        self._hooks, self._number = hooks, number

    def remove(self) -> None:
        """Remove the hook; it is not called any more."""
        self._hooks.remove(self._number)

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *error: Any) -> None:
        self.remove()


class Hooks:
    """The hooks of one module, in the order in which they are called."""

    code_parts = ("_all",)

    def __init__(self) -> None:
        self._all: list[_Hook] = []

    def copy(self) -> Hooks:
        """Return a copy, to which hooks can be added without changing this one."""
        new = Hooks()
        new._all = list(self._all)
        return new

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def key(self) -> tuple[int, ...]:
        """Key of the hooks that a trace depends on; every registration has a number of its own."""
        return tuple(h.number for h in self._all)

    def add(self, function: Callable, before: bool, prepend: bool, with_kwargs: bool, always: bool = False) -> Handle:
        """Add a hook and return its handle.

        Args:
            function: the hook
            before: call it before the module instead of after it
            prepend: call it before the hooks that are there already
            with_kwargs: pass keyword arguments too
            always: call it also when the module raises an error

        Raises:
            ArgumentError: `function` cannot be called.
        """
        if not callable(function):
            raise ArgumentError(f"a hook must be a function, not {function!r}")
        hook = _Hook(next(_numbers), function, before, with_kwargs, always)
        self._all.insert(0 if prepend else len(self._all), hook)
        touch()
        return Handle(self, hook.number)

    def remove(self, number: int) -> None:
        """Remove the hook with this number."""
        self._all = [h for h in self._all if h.number != number]
        touch()

    def call(self, module: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call `module.forward` between its hooks and return the output.

        Where forward or a hook raises, the remaining hooks with `always` are called, and the first error is raised."""
        waiting, output = [h for h in self._all if not h.before], None
        try:
            args, kwargs = self._arguments(module, args, kwargs)
            output = module._forward(args, kwargs)
            while waiting:
                output = waiting.pop(0).after(module, args, kwargs, output)
            return output
        except BaseException:
            for h in waiting:
                if h.always:
                    try:
                        output = h.after(module, args, kwargs, output)
                    except Exception as e:  # the first error is the one to be raised
                        warnings.warn(
                            f"a forward hook of {type(module).__name__} with always_call=True raised "
                            f"{type(e).__name__}: {e}; the earlier error is raised instead",
                            EinsmithWarning,
                            stacklevel=2,
                        )
            raise

    def _arguments(self, module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Call the hooks before `forward` and return the arguments, as the hooks have changed them."""
        for h in [h for h in self._all if h.before]:
            changed = h.function(module, args, kwargs) if h.with_kwargs else h.function(module, args)
            if changed is None:
                continue
            if h.with_kwargs:
                if not isinstance(changed, tuple) or len(changed) != 2:
                    raise ArgumentError("a forward pre-hook with keywords must return None, or (args, kwargs)")
                args, kwargs = changed
            else:
                args = changed if isinstance(changed, tuple) else (changed,)
        return args, kwargs


class Hookable:
    """What has hooks: base of modules."""

    _hooks: Hooks

    def register_forward_pre_hook(self, hook: Callable, *, prepend: bool = False, with_kwargs: bool = False) -> Handle:
        """Register a hook that is called before `forward`, as `hook(self, args)`; return its handle, which removes it.

        A result other than None replaces the arguments. Like `forward`, hooks are called with traced tensors while a
        trace is made, and not when the compiled program runs.

        prepend: whether the hook is called before those registered earlier, instead of after them. with_kwargs: whether
        it is called as `hook(self, args, kwargs)`; it then returns None or (args, kwargs).
        """
        return self._hooks.add(hook, True, prepend, with_kwargs)

    def register_forward_hook(
        self, hook: Callable, *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> Handle:
        """Register a hook that is called after `forward`, as `hook(self, args, output)`; return its handle, which
        removes it.

        A result other than None replaces the output. Like `forward`, hooks are called with traced tensors while a
        trace is made, and not when the compiled program runs.

        Args:
            hook: the function to call
            prepend: whether it is called before the hooks registered earlier, instead of after them
            with_kwargs: whether it is called as `hook(self, args, kwargs, output)`
            always_call: whether it is called also after an error, with the last output computed, or None
        """
        return self._hooks.add(hook, False, prepend, with_kwargs, always_call)
