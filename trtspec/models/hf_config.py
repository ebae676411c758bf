"""Reads configuration files of Hugging Face, and checks each value when it is read."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trtspec.base.errors import ModelError
from trtspec.models.model_file import read_file

T = TypeVar("T")
DOWNLOAD_AGAIN = "download the file again, or copy it again from an intact one"
SAME_REVISION = "use config.json and weights of the same revision"
REQUIRED: Any = object()
_POINTER = "version https://git-lfs."
LARGEST = 2**31 - 1  # the largest size: TensorRT-LLM counts with 32 bits
PICKLES, GGUF = (".bin", ".pt", ".pth"), (".gguf",)
ADAPTER = "adapter_config.json"  # of PEFT
_NOT_LLAMA_CPP = "name the model that it was made of; quantization in the recipe makes that smaller too"
UNPICKLE = "in a sandbox: AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)"


@dataclass(frozen=True, slots=True)
class HfConfig:
    """A config file. Reading a value of a wrong type, or a missing one, raises ModelError with key and value.

    A key that is null counts as missing.
    """

    file: Path
    content: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        return self.file.parent

    def section(self, key: str) -> HfConfig:
        """The object under a key; an empty one if the key is missing."""
        return HfConfig(self.file, self.get(key, dict, {}))

    def size(self, key: str, default: int = REQUIRED) -> int:
        """A whole number from 1 to `LARGEST`."""
        value = self.get(key, int, default)
        if value < 1:
            raise ModelError(self.file, f"{key} must be at least 1, not {value}")
        if value > LARGEST:
            raise ModelError(self.file, f"{key} must be at most {LARGEST}, not {value!r:.20}")
        return value

    def number(self, key: str, default: float) -> float:
        """A positive and finite number, whole or not."""
        is_int = type(self.content.get(key)) is int
        value = self.get(key, int) if is_int else self.get(key, float, default)
        if not 0 < value <= sys.float_info.max:
            raise ModelError(self.file, f"{key} must be a positive number, not {value!r:.20}")
        return float(value)

    def get(self, key: str, kind: type[T], default: Any = REQUIRED) -> T:
        """A value whose type is exactly `kind`: true is not an int."""
        value = self.content.get(key)
        if value is None:
            if default is REQUIRED:
                raise ModelError(self.file, f"has no {key}")
            return default  # type: ignore[no-any-return]
        if type(value) is not kind:
            raise ModelError(self.file, f"{key} must be {kind.__name__}, not {value!r}")
        return value

    def token(self, key: str) -> int | None:
        """The first of the token ids under a key; None if there are none."""
        ids = self.ids(key)
        return ids[0] if ids else None

    def ids(self, key: str) -> tuple[int, ...]:
        """The token ids under a key, which has one id or a list of them; empty if the key is missing."""
        value = self.content.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(token) is int and token >= 0 for token in ids):
            raise ModelError(self.file, f"{key} must be token ids, not {value!r}")
        return tuple(ids)


def read_model_config(folder: Path) -> HfConfig:
    """Reads the `config.json` of a model or head; raises ModelError, which tells what else a folder is."""
    file = folder / "config.json"
    if not folder.is_dir():
        refuse_foreign(folder, [folder.name])
        raise ModelError(folder, "is not a folder", "give the model's folder or its Hugging Face Hub id")
    if not file.is_file():
        refuse_foreign(folder, (path.name for path in folder.iterdir()), folder)
    return read_hf_config(file)


def refuse_foreign(
    model: str | Path, names: Iterable[str], configs: Path | None = None, unpickle: str = UNPICKLE
) -> None:
    """Raises ModelError if a model's files have its weights in another form than safetensors.

    `configs` is a folder that has its JSON files. `unpickle` is the repair of a pickle, and may name it:
    `{0!r}`.
    """
    files = sorted(names)
    if ADAPTER in files:
        named = read_json(configs / ADAPTER).get("base_model_name_or_path") if configs else None
        problem = f"is a LoRA adapter of {named or 'another model'}, not a model"
        merge = "PeftModel.from_pretrained(base, adapter).merge_and_unload().save_pretrained(new_folder)"
        raise ModelError(model, problem, f"name its base model, or merge the two with peft: {merge}")
    for suffixes, form, repair in (
        (PICKLES, "pickle ({0}), which can run code when read", unpickle),
        (GGUF, "GGUF ({0}), the format of llama.cpp", _NOT_LLAMA_CPP),
    ):
        if found := [name for name in files if name.endswith(suffixes)]:
            problem = f"holds its weights as {form.format(found[0])}, not as safetensors"
            raise ModelError(model, problem, repair.format(found[0]))


def read_hf_config(file: Path) -> HfConfig:
    """Reads a config file; raises ModelError if it is missing or not a JSON object."""
    return HfConfig(file, read_json(file))


def read_json(file: Path) -> Mapping[str, Any]:
    """The JSON object in a file of a model; raises ModelError if there is none, and as `read_file`."""
    try:
        text = read_file(file).decode()
        if text.startswith(_POINTER):
            raise ModelError(
                file, "is a Git LFS pointer, not the file", f"git lfs pull --include {file.name}"
            )
        content = json.loads(text)
    except FileNotFoundError as error:
        raise ModelError(file, "is missing", DOWNLOAD_AGAIN) from error
    except (ValueError, RecursionError) as error:
        raise ModelError(file, f"is not JSON: {error}", DOWNLOAD_AGAIN) from error
    if not isinstance(content, dict):
        raise ModelError(file, "is not a JSON object", DOWNLOAD_AGAIN)
    return content
