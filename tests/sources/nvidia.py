"""TensorRT-LLM's own Python, imported from its sources where neither its libraries nor a GPU are.

Modules are NVIDIA's own text. What is compiled, what runs only on a GPU, and the packages of its image that
are not installed are stand-ins, in which every name is a class that does nothing.
"""

from __future__ import annotations

import enum
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import torch

_PACKAGE = "tensorrt_llm"
_STAND_INS = (
    "_tensorrt_engine", "_torch", "bindings", "executor", "inputs", "llmapi", "runtime", "serve",
    "quantization.quantize_by_modelopt", "quantization.utils.fp8_utils",
)  # fmt: skip
_TEXTS = ("llmapi.disagg_utils", "llmapi.kv_cache_type", "llmapi.llm_args")
"""The modules among those that are NVIDIA's all the same."""


class _StrEnum(str, enum.Enum):
    """That of the package `strenum`, whose values are the names as they are."""

    __str__ = str.__str__

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[Any]) -> str:
        return name


_PACKAGES: dict[str, dict[str, Any]] = {
    "accelerate": {}, "cuda": {}, "datasets": {}, "h5py": {}, "mpi4py": {}, "nvtx": {}, "onnx": {},
    "onnx_graphsurgeon": {}, "polygraphy": {}, "sentencepiece": {}, "strenum": {"StrEnum": _StrEnum},
    "tensorrt": {"__version__": "10.14.1.48"},
}  # fmt: skip
"""The packages that may not be installed, and what is known of them."""


class _Open(type):
    """The type of a class that has an attribute of any name."""

    __members__: ClassVar[dict[str, Any]] = {}

    def __getattr__(cls, name: str) -> Any:
        return _made(cls, name)

    def __or__(cls, other: Any) -> Any:
        return cls

    def __index__(cls) -> int:
        return 0


class _Nothing(metaclass=_Open):
    """What can be called, inherited from, counted and asked for anything."""

    def __init__(self, *arguments: object, **keywords: object) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return _made(self, name)

    def __call__(self, *arguments: object, **keywords: object) -> None: ...

    def __index__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def _made(holder: Any, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    made = _Open(name, (_Nothing,), {})
    setattr(holder, name, made)
    return made


class _Empty(ModuleType):
    def __getattr__(self, name: str) -> Any:
        return _made(self, name)


class _Sources(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of the package that its folder does not have, or that cannot be imported."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        if _is_among(name, _TEXTS):
            file = self._root / f"{name.replace('.', '/')}.py"
            return importlib.util.spec_from_file_location(name, file)
        return self._stand_in(name) if _is_among(name, _STAND_INS) else None

    def _stand_in(self, name: str) -> importlib.machinery.ModuleSpec:
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(_PACKAGES.get(module.__name__, {}))


class _Lacking(_Sources):
    """Finds, after everybody else, the packages that are not installed."""

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        return self._stand_in(name) if name.partition(".")[0] in _PACKAGES else None


def _is_among(name: str, modules: Sequence[str]) -> bool:
    return any(f"{name}.".startswith(f"{_PACKAGE}.{module}.") for module in modules)


def install(root: Path, **names: object) -> None:
    """Makes `tensorrt_llm` of this checkout importable, with these names, on a machine with made-up H100s."""
    importlib.import_module("transformers")  # It looks for some of the packages, which must not be found.
    sys.meta_path.insert(0, _Sources(root))
    sys.meta_path.append(_Lacking(root))
    package = ModuleType(_PACKAGE)
    package.__path__ = [str(root / _PACKAGE)]
    sys.modules[_PACKAGE] = package
    release = importlib.import_module(f"{_PACKAGE}.version").__version__
    vars(package).update(names, __version__=release)
    made_up: dict[str, Any] = {
        "get_device_properties": lambda *_: SimpleNamespace(major=9, minor=0),
        "get_device_capability": lambda *_: (9, 0),
        "device_count": lambda: 8,
    }
    vars(torch.cuda).update(made_up)
