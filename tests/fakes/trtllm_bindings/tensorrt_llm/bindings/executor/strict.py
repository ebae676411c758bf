"""Classes that are as strict as nanobind's: argument names, argument types, attributes.

A class is a dataclass whose annotations are the C++ types of its arguments, `KW_ONLY` where the real one has
`nb::kw_only()`. Every assignment is checked. `checks` is what the C++ constructor or setter checks.
"""

from __future__ import annotations

import enum
import types
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

from torch import Tensor

from tensorrt_llm.bindings.executor.errors import check

Int32 = Annotated[int, (-(2**31), 2**31 - 1)]
UInt64 = Annotated[int, (0, 2**64 - 1)]
Size = UInt64


class Unsupported:
    """An argument that the real class has and this one takes only when it is left out."""


class Bound:
    """The base of all classes; `DYNAMIC` ones take unknown attributes (`nb::dynamic_attr`)."""

    DYNAMIC: ClassVar[bool] = False
    READ_ONLY: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        dataclass(eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_is_made", True)

    def __setattr__(self, name: str, value: Any) -> None:
        known = _hints(type(self))  # type: ignore[arg-type]
        if name not in known:
            if not self.DYNAMIC:
                raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
            object.__setattr__(self, name, value)
            return
        if name in self.READ_ONLY and hasattr(self, "_is_made"):
            raise AttributeError(f"property of '{type(self).__name__}' object has no setter")
        object.__setattr__(self, name, convert(value, known[name], f"{type(self).__name__}.{name}"))
        self.checks(name, getattr(self, name))

    def checks(self, name: str, value: Any) -> None:
        """The `TLLM_CHECK`s of one member."""


@cache
def _hints(kind: type) -> dict[str, Any]:
    """The types of the members, by their names."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


def convert(value: Any, hint: Any, where: str) -> Any:
    """The value as C++ would have it; TypeError where no overload takes it."""
    origin = get_origin(hint)
    if origin is Annotated:
        low, high = get_args(hint)[1]
        return _expect(value, type(value) is int and low <= value <= high, where)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        hint = next(option for option in get_args(hint) if option is not type(None))
        return convert(value, hint, where)
    if origin is list:
        _expect(value, isinstance(value, (list, tuple)), where)
        return [convert(item, get_args(hint)[0], where) for item in value]
    if hint is float:
        return float(_expect(value, type(value) in (int, float), where))
    if hint in (bool, str):
        return _expect(value, type(value) is hint, where)
    if hint is Unsupported:
        raise NotImplementedError(f"{where}: the stand-in cannot do this")
    if isinstance(hint, type) and issubclass(hint, (enum.Enum, Bound, Tensor)):
        return _expect(value, isinstance(value, hint), where)
    raise AssertionError(f"{where}: no rule for {hint}")


def _expect(value: Any, is_right: bool, where: str) -> Any:
    if not is_right:
        raise TypeError(
            f"{where}: incompatible function arguments. The following argument types are supported:\n"
            f"    1. ...\n\nInvoked with types: {type(value).__name__} ({value!r})"
        )
    return value


__all__ = ["Bound", "Int32", "Size", "UInt64", "Unsupported", "check", "convert"]
