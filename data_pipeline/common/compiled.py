"""Decorators that compile a function with numba at its first call; system calls for compiled functions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial, update_wrapper
from types import FunctionType
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class compiled(Generic[_Arguments, _Result]):  # noqa: N801 - a decorator
    """Compile a function at its first call; numba is imported only then, because its import takes 0.3 s.

    The function may call other functions with this decorator. The compiler may reorder sums to use vector instructions;
    NaN and infinity keep their meaning.
    """

    fastmath: ClassVar[frozenset[str]] = frozenset({"reassoc", "contract"})
    """Changes of floating-point operations that the compiler may make, by their names in LLVM."""

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
    """Like `compiled`, but operations keep their order and rounding, so that results equal NumPy's bit for bit."""

    fastmath = frozenset()


class system_call:  # noqa: N801 - used like a function
    """A function of the C library that compiled functions call without the interpreter's lock.

    `result` and `arguments` are numba's names of types. The function is found by its name when the code is loaded.
    """

    def __init__(self, name: str, result: str, *arguments: str) -> None:
        self._name, self._result, self._arguments = name, result, arguments

    def machine_code(self) -> Any:
        """Return numba's function, which other compiled functions can call."""
        from numba import types

        signature = getattr(types, self._result)(*(getattr(types, each) for each in self._arguments))
        return types.ExternalFunction(self._name, signature)

    def __call__(self, *arguments: Any) -> Any:
        """Raise an error, because only compiled functions may call it."""
        raise TypeError(f"{self._name} is only called by compiled functions")


pread = system_call("pread", "intp", "int32", "voidptr", "uintp", "int64")
"""`pread(descriptor, array.ctypes, size, offset)` returns the number of bytes that were read, -1 after an error."""


def _compile(function: Callable[..., Any], fastmath: frozenset[str]) -> Callable[..., Any]:
    import numba

    called = {
        name: value.machine_code()
        for name in function.__code__.co_names
        if isinstance(value := function.__globals__.get(name), compiled | system_call)
    }
    if called:
        function = update_wrapper(FunctionType(function.__code__, function.__globals__ | called), function)
        del function.__wrapped__
    decorate = partial(numba.njit, nogil=True, error_model="numpy", fastmath=set(fastmath))
    try:
        return decorate(cache=True)(function)
    except RuntimeError:  # neither the folder of this file nor the user's cache folder can be written
        return decorate()(function)
