"""Decorators that compile a loop with numba at its first call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial, update_wrapper
from types import FunctionType
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class compiled(Generic[_Arguments, _Result]):  # noqa: N801 - a decorator
    """The function in machine code; numba, whose import takes 0.3 s, is imported when it is first called.

    It may call other functions with this decorator. Sums may be reordered, so that they use vector instructions; NaN
    and infinity keep their meaning.
    """

    fastmath: ClassVar[frozenset[str]] = frozenset({"reassoc", "contract"})
    """Liberties of the compiler with floating-point operations, by their names in LLVM."""

    def __init__(self, function: Callable[_Arguments, _Result]) -> None:
        self._function, self._lock = function, threading.Lock()
        self._machine_code: Callable[..., Any] | None = None
        update_wrapper(self, function)

    def __call__(self, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        """Call the compiled function."""
        result: _Result = self.machine_code()(*args, **kwargs)
        return result

    def machine_code(self) -> Callable[..., Any]:
        """Return numba's function, which other compiled functions can call."""
        with self._lock:
            self._machine_code = self._machine_code or _compile(self._function, self.fastmath)
            return self._machine_code


class compiled_as_written(compiled[_Arguments, _Result]):  # noqa: N801 - a decorator
    """Like `compiled`, but every operation is rounded as in the source, so that results equal NumPy's bit for bit."""

    fastmath = frozenset()


def _compile(function: Callable[..., Any], fastmath: frozenset[str]) -> Callable[..., Any]:
    import numba

    called = {
        name: value.machine_code()
        for name in function.__code__.co_names
        if isinstance(value := function.__globals__.get(name), compiled)
    }
    if called:
        function = update_wrapper(FunctionType(function.__code__, function.__globals__ | called), function)
        del function.__wrapped__
    decorate = partial(numba.njit, nogil=True, error_model="numpy", fastmath=set(fastmath))
    try:
        return decorate(cache=True)(function)
    except RuntimeError:  # neither the folder of this file nor the user's cache folder can be written
        return decorate()(function)
