"""A decorator that compiles a loop with numba at its first call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class compiled(Generic[_Arguments, _Result]):  # noqa: N801 - a decorator
    """The function in machine code; numba, whose import takes 0.3 s, is imported when it is first called.

    Sums may be reordered, so that they use vector instructions; NaN and infinity keep their meaning.
    """

    def __init__(self, function: Callable[_Arguments, _Result]) -> None:
        self._function, self._lock = function, threading.Lock()
        self._machine_code: Callable[..., Any] | None = None
        update_wrapper(self, function)

    def __call__(self, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        """Call the compiled function."""
        with self._lock:
            code = self._machine_code = self._machine_code or _compile(self._function)
        result: _Result = code(*args, **kwargs)
        return result


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    import numba

    decorate = partial(numba.njit, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
    try:
        return decorate(cache=True)(function)
    except RuntimeError:  # neither the folder of this file nor the user's cache folder can be written
        return decorate()(function)
