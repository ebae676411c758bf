"""The `torch` backend's engine: TensorRT-LLM's `config.json` keys beside the checkpoint's weights.

`config.json` is `{version, pretrained_config, build_config}`. `version` is `trtspec-torch <version of
trtspec>`. `pretrained_config` is the checkpoint's `config.json`. `build_config` has the keys of
TensorRT-LLM 1.2's `BuildConfig`, counted as `trtllm-build` counts them: `max_seq_len` of an engine that
verifies drafts includes `max_draft_len`, and its `max_num_tokens` covers a verification of every request at
once. `rank<N>.safetensors` are the checkpoint's own files, hard links of them where the file system has
those; the executor puts the shares of several ranks together again.

A draft that lives in its target, a head or layers of it, has an engine directory too.
`pretrained_config.draft` says what it is: its `method`, that of a recipe or `layers`, and that method's
options. The limits are the target's, which must be built before. `rank0.safetensors` has a head's tensors in
the target's dtype: decoder layers under TensorRT-LLM's names, all else under the head's own. Layers have none
there.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trtspec.base.errors import EngineError
from trtspec.checkpoint.tensors import DTYPES, Reader, SafetensorsFile, TensorEntry, caster, chunks
from trtspec.models.families import FAMILIES, decoder
from trtspec.models.heads.head import HeadDescription
from trtspec.models.sizes import layer_sizes
from trtspec.models.source import Tensor
from trtspec.pipeline.engine.directory import NO_DRAFTS, check_engine, write_config
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.recipe.build_options import is_on
from trtspec.serving.executors.validation import DRAFT_TOKENS_EXTERNAL, TORCH_VERSION

FORMAT = 1  # version of what is written: raised when the same checkpoint and options give other bytes
_CHUNK = 16 << 20
_MAPPINGS = {"d2t", "t2d"}
_OTHER_HEAD = "take a head that was trained for this target"
PLUGINS: dict[str, Any] = {
    "dtype": None,
    "bert_attention_plugin": None,
    "gpt_attention_plugin": None,
    "gemm_plugin": None,
    "gemm_swiglu_plugin": None,
    "fp8_rowwise_gemm_plugin": None,
    "low_latency_gemm_plugin": None,
    "low_latency_gemm_swiglu_plugin": None,
    "gemm_allreduce_plugin": None,
    "nccl_plugin": None,
    "lora_plugin": None,
    "context_fmha": True,
    "paged_kv_cache": True,
    "remove_input_padding": True,
    "norm_quant_fusion": False,
    "reduce_fusion": False,
    "user_buffer": False,
    "tokens_per_block": 32,
    "use_paged_context_fmha": True,
    "use_fp8_context_fmha": False,
    "multiple_profiles": False,
    "paged_state": True,
    "streamingllm": False,
    "use_fused_mlp": True,
    "pp_reduce_scatter": False,
}


def build(checkpoint: Path, options: BuildOptions, output: Path) -> None:
    """Makes the engine directory `output`, which must not exist, from a checkpoint of any number of ranks.

    Raises EngineError for a model that the executor would compute wrongly.
    """
    pretrained = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    _check_family(checkpoint / "config.json", pretrained)
    output.mkdir(parents=True)
    for rank in range(pretrained["mapping"]["world_size"]):
        link_or_copy(checkpoint / f"rank{rank}.safetensors", output / f"rank{rank}.safetensors")
    write_config(
        output,
        f"{TORCH_VERSION} {version('trtspec')}",
        pretrained,
        build_config(options, pretrained["dtype"]),
    )
    check_engine(output, options.max_draft_len)


def _check_family(file: Path, pretrained: Mapping[str, Any]) -> None:
    architecture = pretrained.get("architecture")
    family = FAMILIES.get(str(architecture))
    if family is None:
        problem = f"architecture is {architecture}; the torch backend runs only {', '.join(FAMILIES)}"
        raise EngineError(file, problem, "build it with backend: tensorrt_llm")
    for key in family.keys:
        if pretrained.get(key.name) != key.value:
            problem = f"{key.name} is {pretrained.get(key.name)}, which for {architecture} is {key.value}"
            raise EngineError(file, problem, "convert the model again")
    if missing := [name for name in family.needs if pretrained.get(name) is None]:
        problem = f"has no {', '.join(missing)}, without which it is not a model of {architecture}"
        raise EngineError(file, problem, "convert the model again")


def build_config(options: BuildOptions, dtype: str) -> dict[str, Any]:
    """Returns `BuildConfig.to_dict()` as `trtllm-build` would leave it with these options (builder.py,
    `_common.py`).
    """
    drafts, batch = options.max_draft_len, options.max_batch_size
    max_seq_len = options.max_seq_len + drafts
    max_num_tokens = max(options.max_num_tokens, options.num_verified_tokens if drafts else 0)
    max_num_tokens = min(max_num_tokens, max_seq_len * batch)
    return {
        "max_input_len": min(options.max_input_len, max_seq_len),
        "max_seq_len": max_seq_len,
        "opt_batch_size": 8,
        "max_batch_size": batch,
        "max_beam_width": 1,
        "max_num_tokens": max_num_tokens,
        "opt_num_tokens": min(int(options.extra.get("opt_num_tokens", batch)), max_num_tokens),
        "max_prompt_embedding_table_size": 0,
        "kv_cache_type": "PAGED",
        "gather_context_logits": False,
        "gather_generation_logits": is_on(options.extra.get("gather_generation_logits")),
        "strongly_typed": True,
        "force_num_profiles": None,
        "profiling_verbosity": options.extra.get("profiling_verbosity", "layer_names_only"),
        "enable_debug_output": False,
        "max_draft_len": drafts,
        "speculative_decoding_mode": DRAFT_TOKENS_EXTERNAL if drafts else NO_DRAFTS,
        "use_refit": False,
        "input_timing_cache": None,
        "output_timing_cache": None,
        "lora_config": {
            "lora_dir": [],
            "lora_ckpt_source": "hf",
            "max_lora_rank": 64,
            "lora_target_modules": [],
            "trtllm_modules_to_hf_modules": {},
        },
        "weight_sparsity": False,
        "weight_streaming": False,
        "plugin_config": _plugin_config(options, dtype),
        "use_strip_plan": False,
        "max_encoder_input_len": 1024,
        "monitor_memory": False,
        "use_mrope": False,
    }


def _plugin_config(options: BuildOptions, dtype: str) -> dict[str, Any]:
    """The plugin options as `PluginConfig` writes them: switches are booleans, a disabled plugin null."""
    chosen = {name: value for name, value in options.extra.items() if name in PLUGINS}
    for name, value in chosen.items():
        if type(PLUGINS[name]) is bool:
            chosen[name] = is_on(value)
    return (
        PLUGINS
        | {"dtype": dtype}
        | {name: None if value == "disable" else value for name, value in chosen.items()}
    )


def link_or_copy(source: Path, target: Path) -> None:
    """Makes `target` a hard link of `source`, or a copy if the file system has no hard links between them."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def build_head(head: HeadDescription, target_engine: Path, output: Path) -> None:
    """Makes the engine directory `output`, which must not exist, of a head.

    The target's embedding and output stand for those that it lacks. Raises EngineError for a head that does
    not fit the target.
    """
    target = _read(target_engine)
    model = target["pretrained_config"]
    flaw = _misfit(head, model)
    if flaw is not None:
        raise EngineError(target_engine, flaw, _OTHER_HEAD)
    config = _config(head, model)
    parts = {name: [tensor] for name, tensor in head.tensors.items() if name not in _MAPPINGS}
    if head.layer:
        parts = _renamed(parts, head.layer, keeps_norm=head.has_first_norm)
    if head.draft_vocab_size < head.vocab_size:
        parts["d2t"] = [head.tensors["d2t"]]
    _write(output, target, config, parts)


def build_layers(layers: Sequence[int], target_engine: Path, output: Path) -> None:
    """Makes the engine directory `output`, which must not exist, of a draft of these layers of the target.

    They are counted from 0, and rise. Raises EngineError for layers that the target lacks.
    """
    target = _read(target_engine)
    model, named = target["pretrained_config"], ", ".join(map(str, layers)) or "none"
    count = model["num_hidden_layers"]
    if list(layers) != sorted({*layers} & {*range(count)}) or not layers:
        problem = f"has the layers 0 to {count - 1}, and a draft is to be of {named}"
        raise EngineError(target_engine, problem, "name some of them, each once and in their order")
    draft = {"method": "layers", "layers": list(layers)}
    _write(output, target, model | {"num_hidden_layers": len(layers), "draft": draft}, {})


def _read(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return content


def _misfit(head: HeadDescription, model: Mapping[str, Any]) -> str | None:
    """Returns why the head cannot be computed on the target, None if it can."""
    for name, own in (("hidden_size", head.hidden_size), ("vocab_size", head.vocab_size)):
        if own != model[name]:
            return f"has {name} {model[name]}, and the head is for a target with {own}"
    if not head.layer:
        return None
    if head.layer["hidden_act"] != "silu":
        return f"has a head whose hidden_act is {head.layer['hidden_act']}; the torch backend runs only silu"
    if head.layer["hidden_size"] != head.hidden_size and "embed_tokens.weight" not in head.tensors:
        width = head.layer["hidden_size"]
        return (
            f"has an embedding that is {head.hidden_size} wide, and the head, {width} wide, none of its own"
        )
    lacking = next(head.misfits(model["num_hidden_layers"]), None)
    return f"is no target of it: {lacking.problem}" if lacking else None


def _config(head: HeadDescription, model: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the configuration of a head, and the target's where they share it."""
    same = ("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_size", "norm_epsilon")
    sizes = {"num_hidden_layers": 0} | {key: model[key] for key in same}
    return {
        "architecture": head.architecture,
        "dtype": model["dtype"],
        "logits_dtype": "float32",
        "vocab_size": model["vocab_size"],
        "hidden_size": head.hidden_size,
        "hidden_act": "silu",
        "position_embedding_type": "rope_gpt_neox",
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        "draft": {"method": head.method, **head.engine_draft(model["num_hidden_layers"])},
        **(_layered(head.layer) if head.layer else sizes),
    }


def _layered(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sizes of a head's decoder layers."""
    return {
        "hidden_size": layer["hidden_size"],
        "intermediate_size": layer["intermediate_size"],
        "num_hidden_layers": layer["num_hidden_layers"],
        "num_attention_heads": layer["num_attention_heads"],
        "num_key_value_heads": layer["num_key_value_heads"],
        "head_size": layer["head_dim"],
        "norm_epsilon": layer["rms_norm_eps"],
        "max_position_embeddings": layer["max_position_embeddings"],
        "rotary_base": layer["rope_theta"],
        "rotary_scaling": layer["rope_scaling"],
        "attn_bias": layer["attention_bias"],
        **({"qwen_type": "qwen3"} if layer["model_type"] == "qwen3" else {}),
    }


def _renamed(
    parts: Mapping[str, list[Tensor]], layer: Mapping[str, Any], *, keeps_norm: bool
) -> dict[str, list[Tensor]]:
    """Returns the tensors with those of decoder layers like `layer` under TensorRT-LLM's names.

    With `keeps_norm` the first layer's input norm, which is then of the embedding alone, keeps its own.
    """
    result = dict(parts)
    sizes = layer_sizes(layer)
    for tensor in decoder.weights(sizes, qkv_bias=True, qk_norm=True):
        is_kept = keeps_norm and (tensor.layer, tensor.name) == (0, "input_layernorm.weight")
        if tensor.layer is None or is_kept:
            continue
        stack = [result.pop(part.name.removeprefix("model."), []) for part in tensor.parts]
        if all(stack):
            name = f"transformer.layers.{tensor.layer}.{tensor.name}"
            result[name] = [part for one in stack for part in one]
    return result


def _write(
    output: Path, target: Mapping[str, Any], config: Mapping[str, Any], parts: Mapping[str, list[Tensor]]
) -> None:
    build, output_dtype = dict(target["build_config"]), DTYPES[config["dtype"]]
    build["max_seq_len"] -= build["max_draft_len"]
    build |= {"max_draft_len": 0, "speculative_decoding_mode": NO_DRAFTS}
    mapping = {"world_size": 1, "tp_size": 1, "pp_size": 1}
    output.mkdir(parents=True)
    _write_tensors(output / "rank0.safetensors", output_dtype, parts)
    write_config(output, f"{TORCH_VERSION} {version('trtspec')}", {**config, "mapping": mapping}, build)
    check_engine(output, 0)


def _write_tensors(file: Path, dtype: str, parts: Mapping[str, list[Tensor]]) -> None:
    """Writes each tensor, floats in `dtype`, from its parts, one below the other."""
    entries = [
        TensorEntry(
            name,
            dtype if own[0].dtype in DTYPES.values() else own[0].dtype,
            (sum(part.shape[0] for part in own), *own[0].shape[1:]),
        )
        for name, own in parts.items()
    ]
    sources = {part.file for own in parts.values() for part in own}
    with Reader(sources) as reader, SafetensorsFile(file, entries) as written:
        for entry in entries:
            position = written.starts[entry.name]
            for part in parts[entry.name]:
                cast = caster(part.dtype, entry.dtype)
                for rows in chunks(range(part.shape[0]), part, _CHUNK):
                    data = cast(reader.finite_rows(part, rows)).tobytes()
                    written.write(data, position)
                    position += len(data)
