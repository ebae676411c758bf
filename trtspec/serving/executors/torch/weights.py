"""The weights of an engine: the tensors that it must have, and their reading.

The ranks of a parallel engine have shares of the weights, which are joined for one device. The shares are
those of TensorRT-LLM's checkpoints (`tensorrt_llm/mapping.py`): the rank is `pipeline * tp_size + tensor`,
layers are counted from zero on every pipeline rank and split as by `torch.tensor_split`, and q, k and v are
each split by heads before they are stacked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executors.torch.engine import ExpertConfig, TorchEngineConfig

_FC = ".fc.weight"
_ROWS = (_FC, ".gate.weight")
_COLUMNS = (".dense.weight", ".proj.weight")
_HEADS = ("attention.qkv.weight", "attention.qkv.bias")
_VOCABULARY = ("lm_head.weight", "vocab_embedding.weight")


class Form(NamedTuple):
    """The dtype and shape that a tensor must have."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def forms(config: TorchEngineConfig) -> dict[str, Form]:
    """Returns the tensors that the engine must have, by TensorRT-LLM's names (`models/llama/convert.py`)."""
    hidden, dtype = config.hidden_size, config.dtype
    vocabulary = Form(dtype, (config.vocab_size, hidden))
    result = {
        "transformer.vocab_embedding.weight": vocabulary,
        "transformer.ln_f.weight": Form(dtype, (hidden,)),
        "lm_head.weight": vocabulary,
    }
    return result | layer_forms(config)


def layer_forms(config: TorchEngineConfig) -> dict[str, Form]:
    """Returns the tensors of the decoder layers alone."""
    return {
        f"transformer.layers.{index}.{name}": form
        for index in range(config.num_layers)
        for name, form in _layer(config)
    }


def read_tensors(engine_dir: Path, config: TorchEngineConfig, device: torch.device) -> dict[str, Tensor]:
    """Returns every tensor of `forms(config)`; raises `EngineLoadError` for a missing or different one."""
    tensors = {}
    with ExitStack() as stack:
        files = [
            Rank(engine_dir / f"rank{rank}.safetensors", device, stack)
            for rank in range(config.tp_size * config.pp_size)
        ]
        for name, form in forms(config).items():
            pipeline_rank, local_name = place(config, name)
            ranks = files[pipeline_rank * config.tp_size :][: config.tp_size]
            shares = [rank.read(local_name) for rank in ranks]
            try:
                tensor = tensors[name] = _joined(config, name, shares)
            except RuntimeError as error:
                problem = f"the ranks' {name} do not fit together: {error}"
                raise EngineLoadError(ranks[0].path, problem) from error
            _check(ranks[0].path, name, tensor, form)
            if name.endswith("scaling_factor") and not bool(((tensor > 0) & tensor.isfinite()).all()):
                wrong = ", ".join(f"{scale:g}" for scale in tensor.flatten().tolist())
                raise EngineLoadError(ranks[0].path, f"{name} is {wrong}, not a positive number")
    return tensors


def read_rank(engine_dir: Path, wanted: Mapping[str, Form], device: torch.device) -> dict[str, Tensor]:
    """Returns the tensors `wanted` of an engine of one rank; raises `EngineLoadError`."""
    tensors = {}
    with ExitStack() as stack:
        rank = Rank(engine_dir / "rank0.safetensors", device, stack)
        for name, form in wanted.items():
            tensors[name] = rank.read(name)
            _check(rank.path, name, tensors[name], form)
    return tensors


def _check(path: Path, name: str, tensor: Tensor, form: Form) -> None:
    if (tensor.dtype, tuple(tensor.shape)) != form:
        found, wanted = f"{tensor.dtype} {list(tensor.shape)}", f"{form.dtype} {list(form.shape)}"
        raise EngineLoadError(path, f"tensor {name} is {found}, not {wanted}")


def place(config: TorchEngineConfig, name: str) -> tuple[int, str]:
    """Returns the pipeline rank of a tensor of the whole model, and the tensor's name there."""
    if name.startswith("transformer.vocab_embedding"):
        return 0, name
    if not name.startswith("transformer.layers."):
        return config.pp_size - 1, name
    _, _, layer, rest = name.split(".", 3)
    for rank, layers in enumerate(torch.arange(config.num_layers).tensor_split(config.pp_size)):
        if int(layer) in layers:
            return rank, f"transformer.layers.{int(layer) - int(layers[0])}.{rest}"
    raise ValueError(name)


def _joined(config: TorchEngineConfig, name: str, shares: Sequence[Tensor]) -> Tensor:
    """Returns a tensor of the whole model, from the shares of all tensor-parallel ranks.

    Rows and columns are the last two dimensions; experts have one before them.
    """
    if len(shares) == 1:
        return shares[0]
    if name.endswith(_FC) and config.fused_gate:
        firsts, seconds = zip(*(share.chunk(2, -2) for share in shares), strict=True)
        return torch.cat([*firsts, *seconds], -2)
    if name.endswith(_ROWS):
        return torch.cat(list(shares), -2)
    if name.endswith(_COLUMNS):
        return torch.cat(list(shares), -1)
    if name.endswith(_VOCABULARY) and shares[0].shape[0] < config.vocab_size:
        return torch.cat(list(shares))[: config.vocab_size]
    if name.endswith(_HEADS):
        return _heads(config, shares)
    return shares[0]


def _heads(config: TorchEngineConfig, shares: Sequence[Tensor]) -> Tensor:
    """Returns the stacked q, k and v. With more ranks than heads of keys, neighbours have the same head."""
    copies = max(len(shares) // config.num_kv_heads, 1)
    keys = max(config.num_kv_heads // len(shares), 1) * config.head_size
    queries = config.num_heads // len(shares) * config.head_size
    q, k, v = zip(*(torch.split(share, [queries, keys, keys]) for share in shares), strict=True)
    return torch.cat([*q, *k[::copies], *v[::copies]])


class Rank:
    """The file of one rank, which is open as long as the `stack`. Reading raises `EngineLoadError`."""

    def __init__(self, path: Path, device: torch.device, stack: ExitStack) -> None:
        self.path = path
        try:
            self._file = stack.enter_context(safe_open(path, framework="pt", device=str(device)))
        except FileNotFoundError:
            raise EngineLoadError(path, "no such file") from None
        except (OSError, SafetensorError) as error:
            raise EngineLoadError(path, f"not a whole safetensors file ({error})") from error
        self._names = set(self._file.keys())

    def read(self, name: str) -> Tensor:
        if name not in self._names:
            raise EngineLoadError(self.path, f"tensor {name} is missing")
        tensor: Tensor = self._file.get_tensor(name)
        return tensor


def _layer(config: TorchEngineConfig) -> Iterator[tuple[str, Form]]:
    hidden, width = config.hidden_size, config.num_heads * config.head_size
    rows = width + 2 * config.num_kv_heads * config.head_size
    norm, head = Form(config.dtype, (hidden,)), Form(config.dtype, (config.head_size,))
    yield "input_layernorm.weight", norm
    yield from _linear(config, "attention.qkv", rows, hidden)
    if config.qkv_bias:
        yield "attention.qkv.bias", Form(config.dtype, (rows,))
    if config.qk_norm:
        yield "attention.q_layernorm.weight", head
        yield "attention.k_layernorm.weight", head
    if config.fp8_kv_cache:
        yield "attention.kv_cache_scaling_factor", Form(torch.float32, (1,))
    yield from _linear(config, "attention.dense", hidden, width)
    yield "post_layernorm.weight", norm
    if config.norms_after:
        yield "pre_feedforward_layernorm.weight", norm
        yield "post_feedforward_layernorm.weight", norm
    yield from _mlp(config) if config.experts is None else _experts(config, config.experts)


def _mlp(config: TorchEngineConfig) -> Iterator[tuple[str, Form]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    if config.fused_gate:
        yield from _linear(config, "mlp.fc", 2 * inner, hidden)
    else:
        yield from _linear(config, "mlp.fc", inner, hidden)
        yield from _linear(config, "mlp.gate", inner, hidden)
    yield from _linear(config, "mlp.proj", hidden, inner)


def _experts(config: TorchEngineConfig, experts: ExpertConfig) -> Iterator[tuple[str, Form]]:
    hidden, count = config.hidden_size, experts.count
    yield "mlp.router.weight", Form(torch.float32, (count, hidden))
    yield from _linear(config, "mlp.fc", 2 * experts.width, hidden, count)
    yield from _linear(config, "mlp.proj", hidden, experts.width, count)
    if width := experts.shared_width:
        yield from _linear(config, "mlp.shared_expert.fc", 2 * width, hidden)
        yield from _linear(config, "mlp.shared_expert.proj", hidden, width)
        yield "mlp.shared_expert_gate.weight", Form(config.dtype, (1, hidden))


def _linear(
    config: TorchEngineConfig, name: str, rows: int, columns: int, experts: int | None = None
) -> Iterator[tuple[str, Form]]:
    """Yields the tensors of a matrix with its scales, or of one for each expert."""
    each = () if experts is None else (experts,)
    yield f"{name}.weight", Form(torch.float8_e4m3fn if config.fp8 else config.dtype, (*each, rows, columns))
    if config.fp8:
        yield f"{name}.weights_scaling_factor", Form(torch.float32, (*each, 1))
        yield f"{name}.activation_scaling_factor", Form(torch.float32, (1,))
