"""Reads a model from the files of its Hugging Face folder: configuration, tensors, quantization.

Each value of a configuration is checked when it is read. Tensors are found from the headers of the
safetensors files alone (https://huggingface.co/docs/safetensors): eight bytes of header length, little
endian; a JSON object of `name: {dtype, shape, data_offsets}`; the data. Every claim of a header is checked
against the file's size, so that an incomplete download is found before an hour of conversion.

`quantization_config` or `hf_quant_config.json` tells how a model was quantized. Only one scheme is the same
as TensorRT-LLM's `FP8`: E4M3 weights and inputs of every linear layer, each with one static scale. Three
tools publish it: NVIDIA ModelOpt (`modelopt`; convert_hf_config.py), llm-compressor (`compressed-tensors`;
quant_config.py and quant_args.py) and AutoFP8 (`fp8`; quantize.py).

Of a multimodal model, engines are built of the text model within it; other servers load the whole.
transformers leaves keys of `text_config` out that have the defaults of the text model's class, and has named
the tensors in two ways: `language_model.model.*` with `language_model.lm_head`, and `model.language_model.*`
with `lm_head`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from stat import S_ISDIR, S_ISFIFO, S_ISSOCK
from types import MappingProxyType
from typing import Any, BinaryIO, TypeAlias, TypeVar

from trtspec.base.errors import ModelError, TensorError
from trtspec.base.units import three_digits
from trtspec.models.sizes import ExpertSizes, Sizes

MAX_TEXT = 256 << 20
"""The most bytes of a JSON file or a chat template; the largest tokenizers have a tenth of it."""
_KINDS = {S_ISDIR: "folder", S_ISFIFO: "named pipe", S_ISSOCK: "socket"}


def has_file(file: Path) -> bool:
    """Says whether a file is there; raises ModelError for something else in its place."""
    if file.is_file() or not file.exists():
        return file.is_file()
    mode = file.stat().st_mode
    kind = next((kind for is_kind, kind in _KINDS.items() if is_kind(mode)), "device")
    raise ModelError(file, f"is a {kind}, not a file", "put the file itself there, or a link to it")


def open_file(file: Path) -> BinaryIO:
    """Opens a file to read its bytes; raises ModelError for anything but a regular file, and OSError."""
    has_file(file)
    # It is not waited for either if a pipe takes its place now.
    return open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK))


Stamp: TypeAlias = tuple[str, int]
"""What tells a file from another in its place: what its digest is kept by, and the time of its status."""


def stamp_of(file: Path) -> Stamp | None:
    """Returns the stamp of a file; None for one that is not there."""
    try:
        stat = file.stat()
    except OSError:
        return None
    return key_of(stat), stat.st_ctime_ns


def key_of(stat: os.stat_result) -> str:
    """Returns what a file's digest is kept by."""
    return f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}"


def read_file(file: Path) -> bytes:
    """Returns the bytes of a file of text; raises ModelError for more than `MAX_TEXT`, and as `open_file`."""
    with open_file(file) as stream:
        content = stream.read(MAX_TEXT + 1)
    if len(content) > MAX_TEXT:
        problem = f"has more than {three_digits(MAX_TEXT)}, which no such file of a model has"
        raise ModelError(file, problem, "download the file again, or copy it again from an intact one")
    return content


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
        return json_of(read_file(file), file)
    except FileNotFoundError as error:
        raise ModelError(file, "is missing", DOWNLOAD_AGAIN) from error


def json_of(content: bytes, file: Path) -> Mapping[str, Any]:
    """The JSON object in the bytes of a file; raises ModelError if there is none."""
    try:
        text = content.decode()
        if text.startswith(_POINTER):
            raise ModelError(
                file, "is a Git LFS pointer, not the file", f"git lfs pull --include {file.name}"
            )
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(file, f"is not JSON: {error}", DOWNLOAD_AGAIN) from error
    if not isinstance(found, dict):
        raise ModelError(file, "is not a JSON object", DOWNLOAD_AGAIN)
    return found


QUANTIZE_IT = "use the unquantized model, with quantization: {weights: fp8, calibration: …} in the recipe"
SERVE_IT = f"{QUANTIZE_IT}; or use a backend that reads it unchanged, such as engine.backend: vllm"
_FORMATS = ("float-quantized", "naive-quantized")


@dataclass(frozen=True, slots=True)
class Scheme:
    """Static FP8 with one scale for each tensor."""

    method: str
    """The tool's `quant_method`."""
    kv_cache: bool
    """True if the KV cache is to be FP8 too."""


def read_scheme(file: Path, content: Mapping[str, Any]) -> Scheme:
    """The scheme that `content` of `file` describes; raises ModelError unless it is static FP8."""
    method = _method(content)
    read = _READERS.get(method)
    try:
        if read is None:
            known = ", ".join(_READERS)
            raise _refusal(file, f"quant_method is {method}; trtspec converts FP8 of {known}")
        return Scheme(method, read(file, content))
    except ModelError as error:
        raise ModelError(file, f"is quantized to {name_of(content)}: {error.problem}", SERVE_IT) from None
    except (AttributeError, KeyError, TypeError) as error:
        raise ModelError(file, f"the quantization in it cannot be read: {error}") from error


def name_of(content: Mapping[str, Any]) -> str:
    """Returns the common name of the quantization scheme that a config describes, as far as known."""
    method, settings = _method(content), content.get("quantization", content)
    if method == "modelopt" and isinstance(settings, dict):
        return str(settings.get("quant_algo")).upper()
    if method == "compressed-tensors":
        return _name_of_groups(content)
    if method == "fp8" and (block := content.get("weight_block_size")):
        return f"FP8 in blocks of {'x'.join(map(str, block)) if isinstance(block, list) else block}"
    if method in ("gptq", "awq"):
        group = content.get("group_size")
        in_groups = f" in groups of {group}" if type(group) is int and group > 0 else ""
        return f"{method.upper()}, INT{content.get('bits')}{in_groups}"
    return "an unknown scheme" if method == "none" else method.upper()


def _name_of_groups(content: Mapping[str, Any]) -> str:
    form, groups = str(content.get("format")), content.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    if form.startswith("nvfp4") or not isinstance(weights, dict):
        return "NVFP4" if form.startswith("nvfp4") else f"compressed-tensors ({form})"
    kind = "FP" if weights.get("type") == "float" else "INT"
    return f"{kind}{weights.get('num_bits', 8)} by {weights.get('strategy') or 'tensor'}"


def _method(content: Mapping[str, Any]) -> str:
    return str(content.get("quant_method", "modelopt" if "quantization" in content else None)).lower()


def _modelopt(file: Path, content: Mapping[str, Any]) -> bool:
    """Returns True if the KV cache is FP8; reads `hf_quant_config.json` and its translation in
    `config.json`.
    """
    settings = content.get("quantization", content)
    algorithm = str(settings.get("quant_algo")).upper()
    if algorithm != "FP8":
        raise _refusal(file, f"quant_algo is {algorithm}, not FP8")
    scheme = settings.get("kv_cache_scheme")
    cache = settings.get("kv_cache_quant_algo", "FP8" if _is_fp8(scheme) else scheme)
    if cache not in (None, "FP8"):
        raise _refusal(file, f"the KV cache is quantized to {cache}, not FP8")
    return bool(cache == "FP8")


def _compressed_tensors(file: Path, content: Mapping[str, Any]) -> bool:
    if content.get("format") not in _FORMATS:
        raise _refusal(file, f"format is {content.get('format')}, not one of {', '.join(_FORMATS)}")
    sparsity = (content.get("sparsity_config") or {}).get("format", "dense")
    if sparsity != "dense":
        raise _refusal(file, f"the weights are stored sparse ({sparsity})")
    if content.get("transform_config"):
        raise _refusal(file, "transform_config demands transforms at run time")
    for name, group in content["config_groups"].items():
        for key in ("weights", "input_activations"):
            problem = _flaw(group.get(key))
            if problem:
                raise _refusal(file, f"{name}.{key}: {problem}")
    cache = content.get("kv_cache_scheme")
    if cache and _flaw(cache):
        raise _refusal(file, f"kv_cache_scheme: {_flaw(cache)}")
    return bool(cache)


def _fp8(file: Path, content: Mapping[str, Any]) -> bool:
    block = content.get("weight_block_size")
    if block:
        raise _refusal(file, f"the weights have a scale for each block of {block}, not one per tensor")
    if content.get("activation_scheme") != "static":
        raise _refusal(
            file, f"activation_scheme is {content.get('activation_scheme')}: no input scale is stored"
        )
    return content.get("kv_cache_scheme") == "static"


def _flaw(settings: Mapping[str, Any] | None) -> str | None:
    """Returns why `QuantizationArgs` of compressed-tensors are not one static FP8 scale; None if they are."""
    if not settings:
        return "not quantized"
    if not _is_fp8(settings):
        return f"{settings.get('num_bits', 8)} bits of {settings.get('type', 'int')}, not FP8"
    if settings.get("dynamic"):
        return "dynamic: no scale is stored"
    if settings.get("strategy") not in (None, "tensor") or settings.get("group_size"):
        return f"a scale for each {settings.get('strategy') or 'group'}, not one per tensor"
    if settings.get("symmetric") is False:
        return "asymmetric"
    return None


def _is_fp8(settings: Any) -> bool:
    return isinstance(settings, dict) and (settings.get("num_bits"), settings.get("type")) == (8, "float")


def _refusal(file: Path, problem: str) -> ModelError:
    return ModelError(file, f"{problem}; TensorRT-LLM's FP8 has static scales, one per tensor", QUANTIZE_IT)


_READERS = {"modelopt": _modelopt, "compressed-tensors": _compressed_tensors, "fp8": _fp8}


ITEM_SIZE = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("BF16", "F16", "I16", "U16"), 2),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL"), 1),
}
MAX_HEADER = 100_000_000  # the limit of the safetensors library
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a safetensors file."""

    name: str
    file: Path
    dtype: str
    """The safetensors name."""
    shape: tuple[int, ...]
    start: int
    """The first byte, from the beginning of the file."""
    end: int
    """The byte after the last one, from the beginning of the file."""

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def read(self) -> bytes:
        """The data, little endian; for small tensors. Raises TensorError if the file was cut off."""
        with open_file(self.file) as stream:
            stream.seek(self.start)
            data = stream.read(self.end - self.start)
        if len(data) < self.end - self.start:
            raise TensorError(
                self.file, f"{self.name}: the file was cut off while it was read", DOWNLOAD_AGAIN
            )
        return data


def read_tensors(folder: Path, single: str = SINGLE, repair: str = UNPICKLE) -> dict[str, Tensor]:
    """Every tensor of a model folder by name, from the files of its weights.

    Raises TensorError, and what `weight_files` raises, whose arguments these are.
    """
    tensors: dict[str, Tensor] = {}
    for file, names in weight_files(folder, single, repair).items():
        found = read_header(file)
        if twice := sorted(found.keys() & tensors.keys()):
            problem = f"{twice[0]}: is also in {tensors[twice[0]].file.name}"
            raise TensorError(file, problem, DOWNLOAD_AGAIN)
        if missing := sorted(names - found.keys()):
            problem = f"{missing[0]}: is missing here, although the index names this file"
            raise TensorError(file, problem, DOWNLOAD_AGAIN)
        tensors |= found
    return tensors


def weight_files(folder: Path, single: str = SINGLE, repair: str = UNPICKLE) -> dict[Path, set[str]]:
    """The files of a model's weights, unread, each with the tensors that the index says it has.

    That is the file `single`, of which no index says anything, or the shards that the index names. Raises
    ModelError if one is missing. `repair` is that of a pickle (`refuse_foreign`).
    """
    index, shards = folder / INDEX, dict[Path, set[str]]()
    if has_file(folder / single):
        return {folder / single: set()}
    if not has_file(index):
        refuse_foreign(folder, (path.name for path in folder.iterdir()), folder, repair)
        raise ModelError(folder, f"holds no {single} and no {INDEX}", DOWNLOAD_AGAIN)
    for name, shard in sorted(read_index(index).items(), key=lambda of: of[1]):
        shards.setdefault(folder / shard, set()).add(name)
    for file in shards:
        if not has_file(file):
            raise ModelError(file, "the index names this shard, but it is missing", DOWNLOAD_AGAIN)
    return shards


def read_header(file: Path) -> dict[str, Tensor]:
    """The tensors of one safetensors file, in the order of their data; raises TensorError."""
    with open_file(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        prefix = stream.read(8)
        if prefix == b"version ":
            raise TensorError(
                file, "is a Git LFS pointer, not the weights", f"git lfs pull --include {file.name}"
            )
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or length > min(MAX_HEADER, size - 8):
            problem = (
                f"is truncated or not safetensors: it has {size} bytes, but its header alone claims {length}"
            )
            raise TensorError(file, problem, DOWNLOAD_AGAIN)
        raw = stream.read(length)
    try:
        header = json.loads(raw, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise TensorError(file, f"has a header that is not JSON: {error}", DOWNLOAD_AGAIN) from error
    if not isinstance(header, dict):
        raise TensorError(file, "has a header that is not a JSON object", DOWNLOAD_AGAIN)
    header.pop("__metadata__", None)
    tensors = sorted(
        (_tensor(file, name, entry, 8 + length) for name, entry in header.items()), key=_position
    )
    _check_layout(file, tensors, 8 + length, size)
    return {tensor.name: tensor for tensor in tensors}


def data_start(file: Path) -> int:
    """Returns the first byte of the data in a safetensors file that was read before."""
    with open_file(file) as stream:
        return 8 + int.from_bytes(stream.read(8), "little")


def _position(tensor: Tensor) -> tuple[int, int]:
    return tensor.start, tensor.end


def _tensor(file: Path, name: str, entry: Any, base: int) -> Tensor:
    """The tensor of a header entry; raises TensorError unless its dtype, shape and offsets agree."""
    try:
        dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise TensorError(
            file, f"{name}: a header entry without dtype, shape or offsets", DOWNLOAD_AGAIN
        ) from error
    numbers = [*shape, start, end] if isinstance(shape, list) else [None]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise TensorError(file, f"{name}: shape {shape} at {start}..{end} is not possible", DOWNLOAD_AGAIN)
    if not isinstance(dtype, str) or dtype not in ITEM_SIZE:
        raise TensorError(file, f"{name}: dtype {dtype} is not one that trtspec knows")
    if end - start != prod(shape) * ITEM_SIZE[dtype]:
        claim = f"{dtype} {shape} takes {prod(shape) * ITEM_SIZE[dtype]} bytes"
        raise TensorError(file, f"{name}: {claim}, but the header gives it {end - start}", DOWNLOAD_AGAIN)
    return Tensor(name, file, dtype, tuple(shape), base + start, base + end)


def _check_layout(file: Path, tensors: list[Tensor], base: int, size: int) -> None:
    """Raises TensorError unless the data follows the header without holes and ends where the file ends."""
    end = base
    for tensor in tensors:
        if tensor.start != end:
            raise TensorError(
                file, f"{tensor.name}: its data overlaps another's or leaves a hole", DOWNLOAD_AGAIN
            )
        end = tensor.end
        if end > size:
            problem = f"{tensor.name}: is cut off: its data ends at byte {end}, but the file has {size}"
            raise TensorError(file, problem, DOWNLOAD_AGAIN)
    if end != size:
        raise TensorError(file, f"has {size - end} bytes after its last tensor", DOWNLOAD_AGAIN)


def read_index(index: Path) -> dict[str, str]:
    """The file name of each tensor, from an index; raises ModelError for one outside of its folder."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise ModelError(index, "has no weight_map from tensor names to files", DOWNLOAD_AGAIN)
    for shard in weight_map.values():
        if Path(shard).name != shard:
            raise ModelError(index, f"names a shard outside of its folder: {shard}")
    return weight_map


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name occurs twice")
    return result


DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
YARN = "yarn"  # whose factor multiplies the length that the model was trained with before
STRETCHED = ("linear", "dynamic")  # rope types whose factor multiplies max_position_embeddings
TIES = {
    **dict.fromkeys(("gemma2", "gemma3_text"), True),
    **dict.fromkeys(("granite", "llama", "mistral", "mixtral", "phi3"), False),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), False),
}
"""Says of a type whether transformers ties its head to the embedding unless the config says otherwise."""
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
CONFIGS = ("config.json", "generation_config.json", "hf_quant_config.json")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""The files of a tokenizer on the Hub, besides its named templates (`tokenizer_files`)."""
_OVERRIDES = Path("engine.extra_args")
_ROPE = ("rope_scaling", "rope_parameters")


@dataclass(frozen=True, slots=True)
class Source(Sizes):
    """A model, read from `config.json`, `generation_config.json` and the headers of the weights."""

    folder: Path
    config: HfConfig
    """All of `config.json`, for keys that only one family needs."""
    model_type: str
    dtype: str
    """TensorRT-LLM's name: `bfloat16`, `float16` or `float32`."""
    hidden_act: str
    norm_epsilon: float
    max_position_embeddings: int
    rotary_base: float
    rotary_scaling: Mapping[str, Any] | None
    """The section `rope_scaling`; None for the default type."""
    partial_rotary_factor: float
    """The share of each head that rotary positions rotate."""
    attention_bias: bool
    mlp_bias: bool
    bos_id: int | None
    pad_id: int | None
    end_ids: tuple[int, ...]
    """The tokens that end a text: the generation config's, or else the model config's."""
    scheme: Scheme | None
    """The quantization; None for an unquantized model, and for a quantization of which trtspec builds no
    engine.
    """
    foreign: ModelError | None
    """The reason why trtspec builds no engine of this quantization; None otherwise."""
    tensors: Mapping[str, Tensor]
    """The tensors by Hugging Face's names."""
    ends_past: tuple[int, ...] = ()
    """The end tokens of the configs that are past the embedding, and so end no text."""
    left_out: tuple[Tensor, ...] = ()
    """The tensors of a multimodal model that are not of its text model, which this is."""
    layers: tuple[int, ...] | None = None
    """The layers of the folder's model that this one consists of; None for all of them."""

    @property
    def parameters(self) -> int:
        """The number of parameters; a tied embedding counts once."""
        return sum(tensor.elements for tensor in self.tensors.values())

    @property
    def size(self) -> int:
        """The bytes of the weights, as they are stored."""
        return sum(tensor.end - tensor.start for tensor in self.tensors.values())

    @property
    def active_parameters(self) -> int:
        """The number of parameters that compute one token: all except the experts that the router does not
        choose.
        """
        if self.experts is None:
            return self.parameters
        routed = sum(tensor.elements for name, tensor in self.tensors.items() if ".experts." in name)
        return self.parameters - routed * (self.experts.count - self.experts.chosen) // self.experts.count

    @property
    def max_position(self) -> int:
        """The longest sequence that the model supports, in tokens; a factor counts as in TensorRT-LLM.

        A `yarn` without an original length takes max_position_embeddings for it, as in transformers. In Gemma
        3 the length in `config.json` is the stretched one already. Raises ModelError for scaling values that
        are not numbers.
        """
        longest = self.max_position_embeddings
        if self.rope_type != YARN:
            return self._stretched(longest)
        before = self._rotation.number("original_max_position_embeddings", longest)
        return int(min(max(before * self._rotation.number("factor", 1.0), longest), LARGEST))

    @property
    def served_length(self) -> int:
        """The longest sequence that another engine's server takes of the model, in tokens.

        Where positions turn by `yarn`, the length in `config.json` is the stretched one already. Command R
        has a `model_max_length`, which counts in place of its positions. Raises ModelError for numbers of a
        scaling that are none.
        """
        named = self.config.content.get("model_max_length")
        longest = min(named, LARGEST) if type(named) is int and named > 0 else self.max_position_embeddings
        return self._stretched(longest)

    def _stretched(self, longest: int) -> int:
        if self.rope_type not in STRETCHED or self.model_type.startswith("gemma3"):
            return longest
        return int(min(max(longest * self._rotation.number("factor", 1.0), longest), LARGEST))

    @property
    def rope_type(self) -> object:
        """The type of the rotary scaling; None for the default type."""
        return self._rotation.content.get("rope_type", self._rotation.content.get("type"))

    @property
    def _rotation(self) -> HfConfig:
        return HfConfig(self.config.file, self.rotary_scaling or {})

    def overridden(self, keys: Mapping[str, Any]) -> Source:
        """Returns the model with other keys of `config.json`, as far as the length of its texts needs them.

        The keys are those of a recipe's `engine.extra_args`. A scaling that names its type replaces the
        model's own, and else adds to it. Raises ModelError.
        """
        keys = {**keys, **HfConfig(_OVERRIDES, keys).section("text_config").content}
        config, scaling = HfConfig(_OVERRIDES, {**self.config.content, **keys}), self.rotary_scaling
        for key in (key for key in _ROPE if key in keys):
            section = config.section(key)
            is_whole = not section.content or not section.content.keys().isdisjoint(("rope_type", "type"))
            own = {} if is_whole else scaling or {}
            scaling = _scaling(HfConfig(_OVERRIDES, {**own, **section.content}))
        return replace(
            self,
            config=replace(config, file=self.config.file),
            max_position_embeddings=config.size("max_position_embeddings"),
            rotary_scaling=scaling,
        )

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that a build reads: those configs that exist, the weights, and the tokenizer."""
        configs = tuple(self.folder / name for name in CONFIGS)
        weights = sorted({tensor.file for tensor in self.tensors.values()})
        tokenizer = (self.folder / name for name in tokenizer_files(self.folder))
        return (*(path for path in configs if has_file(path)), *weights, *tokenizer)


def tokenizer_files(folder: Path) -> list[str]:
    """Returns the files of a tokenizer in a folder, as paths in it; raises ModelError for what is no file."""
    named = sorted(folder.glob("additional_chat_templates/*.jinja"))
    names = (*TOKENIZER_FILES, *(file.relative_to(folder).as_posix() for file in named))
    return [name for name in names if has_file(folder / name)]


def stamps_of(folder: Path) -> dict[Path, Stamp | None]:
    """Returns the stamps of the files that make a model what it is: configs, tokenizer, weights."""
    names = sorted({*CONFIGS, INDEX, *TOKENIZER_FILES, *tokenizer_files(folder)})
    files = [*(folder / name for name in names), *folder.glob("*.safetensors")]
    return {file: stamp_of(file) for file in files}


def read_source(folder: Path, *, whole: bool = False, written: HfConfig | None = None) -> Source:
    """Reads configs and headers, a few hundred kilobytes for any model; raises ModelError or TensorError.

    Of a multimodal model it is the text model within, unless it is to be `whole`, as other servers load it.
    `written` is its `config.json`, if that was read before.
    """
    written = written or read_model_config(folder)
    text = None if whole else text_of(written)
    config = text or whole_of(written)
    generation, beside = folder / "generation_config.json", folder / "hf_quant_config.json"
    ends = HfConfig(generation, read_json(generation)) if has_file(generation) else config
    tensors, quantization = read_tensors(folder), read_json(beside) if has_file(beside) else None
    is_text = text or not (whole or is_multimodal(written))
    tensors, others = split(tensors) if is_text else (tensors, ())
    try:
        source = replace(source_of(config, ends, quantization, tensors), left_out=others)
    except ModelError:
        if is_multimodal(written) and not (text or whole):
            raise refusal(written) from None
        raise
    if (layers := source.num_hidden_layers) > len(tensors):
        problem = f"num_hidden_layers is {layers}, but there are only {len(tensors)} tensors"
        raise ModelError(config.file, problem, SAME_REVISION)
    _check_head(source)
    return source


def _check_head(source: Source) -> None:
    """Raises TensorError for a model that lacks its head, which the embedding is not in place of."""
    is_said = source.config.content.get("tie_word_embeddings") is not None or source.model_type in TIES
    lacks = EMBEDDING in source.tensors and not any(name.startswith("lm_head.") for name in source.tensors)
    if lacks and is_said and not source.tie_word_embeddings:
        problem = f"has no {HEAD}, although the head is not the embedding: tie_word_embeddings is false"
        repair = "copy the whole model again; if its head is its embedding, write tie_word_embeddings: true"
        raise TensorError(source.folder, problem, f"{repair} in config.json")


def source_of(
    config: HfConfig, ends: HfConfig, quantization: Mapping[str, Any] | None, tensors: Mapping[str, Tensor]
) -> Source:
    """Returns the model that these contents describe; no file is read.

    `config` is that of the text model, `ends` names the end tokens, and `quantization` is the content of
    `hf_quant_config.json`, if there is one. Raises ModelError.
    """
    config = _in_keys_of_4(config)
    scheme, foreign = _scheme(config, quantization)
    architectures = config.get("architectures", list)
    if len(architectures) != 1 or not isinstance(architectures[0], str):
        raise ModelError(config.file, f"architectures must name one class, not {architectures}")
    hidden_size = config.size("hidden_size")
    heads = config.size("num_attention_heads")
    model_type = config.get("model_type", str)
    rotary_base, rotary_scaling, partial_rotary_factor = read_rope(config)
    rows, listed = config.size("vocab_size"), (ends.ids("eos_token_id"), config.ids("eos_token_id"))
    reached = [tuple(token for token in tokens if token < rows) for tokens in listed]
    return Source(
        folder=config.folder,
        config=config,
        architecture=architectures[0],
        model_type=model_type,
        dtype=_dtype(config, tensors),
        vocab_size=rows,
        hidden_size=hidden_size,
        intermediate_size=config.size("intermediate_size"),
        num_hidden_layers=config.size("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=config.size("num_key_value_heads", heads),
        head_size=config.size("head_dim", hidden_size // heads),
        experts=_experts(config),
        hidden_act=config.get("hidden_activation", str, config.get("hidden_act", str, "silu")),
        norm_epsilon=config.number("rms_norm_eps", 1e-6),
        max_position_embeddings=config.size("max_position_embeddings"),
        rotary_base=rotary_base,
        rotary_scaling=rotary_scaling,
        partial_rotary_factor=partial_rotary_factor,
        tie_word_embeddings=config.get("tie_word_embeddings", bool, TIES.get(model_type, False)),
        attention_bias=config.get("attention_bias", bool, False),
        mlp_bias=config.get("mlp_bias", bool, False),
        bos_id=config.token("bos_token_id"),
        pad_id=config.token("pad_token_id"),
        end_ids=reached[0] or reached[1],
        ends_past=tuple(dict.fromkeys(token for tokens in listed for token in tokens if token >= rows)),
        scheme=scheme,
        foreign=foreign,
        tensors=MappingProxyType(tensors),
    )


def _dtype(config: HfConfig, tensors: Mapping[str, Tensor]) -> str:
    """The dtype that the config names (`torch_dtype`; `dtype` since transformers 4.56), else the weights'."""
    named = config.content.get("dtype") or config.content.get("torch_dtype")
    if named is None:
        found = {DTYPES[tensor.dtype] for tensor in tensors.values() if tensor.dtype in DTYPES}
        return found.pop() if len(found) == 1 else "float32"
    if named not in DTYPES.values():
        raise ModelError(config.file, f"dtype {named!r} is not one of {', '.join(DTYPES.values())}")
    return str(named)


def _scheme(
    config: HfConfig, quantization: Mapping[str, Any] | None
) -> tuple[Scheme | None, ModelError | None]:
    """The scheme in `config.json`, or in `hf_quant_config.json`, which older ModelOpt wrote alone, and the
    reason why a scheme is not converted.
    """
    written = config.get("quantization_config", dict, None) or config.get("compression_config", dict, None)
    try:
        if written:
            return read_scheme(config.file, written), None
        beside = config.file.with_name("hf_quant_config.json")
        return (read_scheme(beside, quantization) if quantization is not None else None), None
    except ModelError as error:
        return None, error


def _experts(config: HfConfig) -> ExpertSizes | None:
    """The experts of each layer, by the keys of Mixtral and of Qwen; None for a model without."""
    key = next((key for key in ("num_local_experts", "num_experts") if config.content.get(key)), None)
    if key is None:
        return None
    count, chosen = config.size(key), config.size("num_experts_per_tok")
    if chosen > count:
        raise ModelError(config.file, f"num_experts_per_tok is {chosen}, of {count} experts")
    width = config.size("moe_intermediate_size", config.size("intermediate_size"))
    return ExpertSizes(count, chosen, width, config.get("shared_expert_intermediate_size", int, 0))


def _in_keys_of_4(config: HfConfig) -> HfConfig:
    """Returns a Gemma's config with the rotations of each kind of layers in the keys of transformers 4.

    Raises ModelError for layers with a window whose positions are scaled.
    """
    rope = config.section("rope_parameters")
    if not rope.content or not config.get("model_type", str).startswith("gemma"):
        return config
    full = HfConfig(config.file, rope.get("full_attention", dict, rope.content))
    local, base = rope.section("sliding_attention"), config.content.get("rope_theta")
    if _scaling(local) is not None:
        raise ModelError(config.file, "rope_parameters: layers with a sliding window have scaled positions")
    found = {"rope_parameters": full.content, "rope_theta": base or full.number("rope_theta", 1e4)}
    if local.content:
        found["rope_local_base_freq"] = local.number("rope_theta", 1e4)
    return HfConfig(config.file, {**config.content, **found})


def read_rope(config: HfConfig) -> tuple[float, Mapping[str, Any] | None, float]:
    """Returns the rotary base, the scaling, and the share of each head that is rotated.

    They are `rope_theta`, `rope_scaling` and `partial_rotary_factor`, or stand in transformers 5's
    `rope_parameters`. Raises ModelError for a key with two different values, since versions of transformers
    differ in which one they use.
    """
    sections = [section for key in _ROPE if (section := config.section(key)).content]
    found = []
    for name, default in (("rope_theta", 10000.0), ("partial_rotary_factor", 1.0)):
        numbers = {at.number(name, default) for at in (config, *sections) if at.content.get(name) is not None}
        if len(numbers) > 1:
            raise ModelError(config.file, f"{name} must be one number, not {sorted(numbers)}")
        found.append(numbers.pop() if numbers else default)
    scalings = [_scaling(section) for section in sections]
    if any(scaling != scalings[0] for scaling in scalings):
        raise ModelError(config.file, f"{' and '.join(_ROPE)} have different values")
    return found[0], scalings[0] if scalings else None, found[1]


def _scaling(section: HfConfig) -> Mapping[str, Any] | None:
    """The section without the keys that every rotation has; None for the default type."""
    others = ("rope_theta", "partial_rotary_factor")
    known = ((key, value) for key, value in section.content.items() if value is not None)
    scaling = {key: value for key, value in known if key not in others}
    is_default = not scaling or scaling.get("rope_type", scaling.get("type")) == "default"
    return None if is_default else MappingProxyType(scaling)


SERVED = "serve it with a backend that loads models itself: engine.backend: vllm or sglang"
HOLDERS = {
    "Gemma3ForConditionalGeneration": "gemma3_text",
    "LlavaForConditionalGeneration": "llama",
    "LlavaNextForConditionalGeneration": "llama",
    "Mistral3ForConditionalGeneration": "mistral",
}
"""The classes whose text part is an ordinary model, with its usual type.

Of those TensorRT-LLM's own conversion reads the text of all but Gemma 3 (`models/llama/config.py`)."""
_OF_LLAMA: Mapping[str, Any] = {
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "max_position_embeddings"),
)
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma3_text": {
        "architectures": ["Gemma3ForCausalLM"],
        **dict(zip(_SIZES, (262208, 2304, 9216, 26, 8, 4, 131072), strict=True)),
        "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
        "query_pre_attn_scalar": 256, "sliding_window": 4096, "tie_word_embeddings": True,
        "rope_theta": 1e6, "rope_local_base_freq": 1e4,
        "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
    },
    "llama": {
        "architectures": ["LlamaForCausalLM"], **_OF_LLAMA,
        **dict(zip(_SIZES, (32000, 4096, 11008, 32, 32, 32, 2048), strict=True)),
    },
    "mistral": {
        "architectures": ["MistralForCausalLM"], **_OF_LLAMA, "sliding_window": 4096,
        **dict(zip(_SIZES, (32000, 4096, 14336, 32, 32, 8, 131072), strict=True)),
    },
}  # fmt: skip
"""The values that transformers' classes have for what a `text_config` leaves out, by `model_type`."""
_OUTER = ("dtype", "torch_dtype", "quantization_config", "bos_token_id", "eos_token_id", "pad_token_id")
_PARTS = (
    *("text_config", "vision_config", "audio_config", "llm_config", "language_config", "thinker_config"),
    *("img_processor", "embd_layer", "mm_vision_tower", "visual"),
)
_NAMES = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
    "lm_head.": "lm_head.",
}
"""How names of tensors begin, in the whole and in the text model."""


def is_multimodal(config: HfConfig) -> bool:
    """Says whether a config has sections of models for other things than text."""
    return not config.content.keys().isdisjoint(_PARTS)


def refusal(config: HfConfig) -> ModelError:
    """Returns the reason why trtspec builds no engine of a multimodal model that is not among `HOLDERS`."""
    text = config.section("text_config").content.get("model_type", "another model")
    named = " ".join(map(str, config.get("architectures", list, [])))
    known = f"of {', '.join(HOLDERS)}, if it is {', '.join(DEFAULTS)}"
    problem = f"{named} is multimodal, with {text} for text; trtspec builds engines of the text {known}"
    return ModelError(config.file, problem, SERVED)


def whole_of(config: HfConfig) -> HfConfig:
    """Returns the config; of a multimodal model such as Llama 4, with the section for text."""
    if "num_hidden_layers" in config.content:
        return config
    part = config.section("text_config").content
    return HfConfig(config.file, {**DEFAULTS.get(_kind(config), {}), **part, **config.content})


def text_of(config: HfConfig) -> HfConfig | None:
    """Returns the config of the text model within a multimodal one; None if there is none to build of."""
    kind = _kind(config)
    if kind not in DEFAULTS:
        return None
    part = {**DEFAULTS[kind], **config.section("text_config").content, "model_type": kind}
    outer = {key: config.content[key] for key in _OUTER if config.content.get(key) is not None}
    return HfConfig(config.file, {**part, **outer, "architectures": DEFAULTS[kind]["architectures"]})


def _kind(config: HfConfig) -> str:
    """The type of the text model within one of `HOLDERS`; empty for any other config."""
    named = config.content.get("architectures")
    usual = HOLDERS.get(named[0]) if isinstance(named, list) and named and type(named[0]) is str else None
    return config.section("text_config").get("model_type", str, usual) if usual else ""


def split(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
    """Returns the tensors of the text model by their names in it, and those of the other parts.

    A folder with the names of a text model has no other parts.
    """
    named = {
        alone + name.removeprefix(whole): name
        for whole, alone in _NAMES.items()
        for name in tensors
        if name.startswith(whole)
    }
    if not any(name.startswith("model.") for name in named):
        return dict(tensors), ()
    others = tensors.keys() - named.values()
    text = {name: tensors[whole] for name, whole in named.items()}
    return text, tuple(tensor for name, tensor in tensors.items() if name in others)
