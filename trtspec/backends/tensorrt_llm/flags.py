"""Commands that make engines of TensorRT-LLM 1.0 to 1.2: converters, `quantize.py` and `trtllm-build`.

Their options are those of `examples/models/core/llama/convert_checkpoint.py`,
`examples/quantization/quantize.py` and `tensorrt_llm/commands/build.py`. A pair is two chains of them, each a
converter and a build, which are tied together by the folder of the checkpoint.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, field

from trtspec.base.roles import Role
from trtspec.recipe.build_options import OPTIONS, SIZES, Flag, Whole, option_problem
from trtspec.recipe.migration.command import Option, Syntax, names_in, options
from trtspec.recipe.migration.reading import (
    FlagKey,
    FlagReading,
    Value,
    dtype,
    is_whole,
    kv_cache,
    weights,
    whole,
)
from trtspec.recipe.migration.tool import MigrationTool

_MODE, _LENGTH = "--speculative_decoding_mode", "--max_draft_len"
_MODES = {"draft_tokens_external": "draft_model", "medusa": "medusa", "eagle": "eagle"}
_OTHER_MODES = {
    "medusa": "write speculation: {method: medusa}, and the folder of the heads as draft.model",
    "eagle": "write speculation: {method: eagle}, and the folder of the head as draft.model",
    "explicit_draft_tokens": "trtspec has no ReDrafter: NVIDIA knows of no public drafter to prove one with"
    " (examples/redrafter/README.md)",
    "lookahead_decoding": "write speculation: {method: {kind: lookahead, window_size: W, ngram_size: N,"
    " verification_set_size: G}} with the sizes that the server was given: max_draft_len does not say them",
}
_CONVERTED = {
    "--model_dir": FlagKey("model"),
    "--dtype": FlagKey("dtype", dtype),
    "--tp_size": FlagKey("parallel.tensor", whole),
    "--pp_size": FlagKey("parallel.pipeline", whole),
    "--qformat": FlagKey("quantization.weights", weights),
    "--kv_cache_dtype": FlagKey("quantization.kv_cache", kv_cache),
}
_CONVERTER_LOST = {
    "--calib_size": "write it as quantization.calibration.samples, beside a dataset",
    "--calib_dataset": "write a file of texts as quantization.calibration.dataset",
    "--calib_max_seq_length": "write it as quantization.calibration.max_length, beside a dataset",
    "--batch_size": "write it as quantization.calibration.batch_size, beside a dataset",
    "--num_medusa_heads": "the heads' own folder says how many there are",
    "--num_medusa_layers": "the heads' own folder says how many there are",
    "--max_medusa_token_len": "speculation.max_draft_len sets it for conversion and build",
    "--num_eagle_layers": "the tree is as deep as its nodes are likely, 4 tokens at most",
    "--max_non_leaves_per_layer": "the tree says it",
    "--workers": "trtspec converts every rank by itself",
    "--load_model_on_cpu": "weights are read a few rows at a time",
    "--use_weight_only": "a recipe has no weights of 4 or 8 bits that are integers",
    "--weight_only_precision": "a recipe has no weights of 4 or 8 bits that are integers",
    "--int8_kv_cache": "a recipe's KV cache is fp8 or the model's dtype",
    "--ckpt_type": "recipes name checkpoints of Hugging Face (hf)",
    **dict.fromkeys(("--enable_fp8", "--fp8_kv_cache"), "write quantization of the model and its KV cache"),
    "--use_fp8": "write quantization: {weights: fp8} with texts to calibrate with, or name an FP8 model",
}
_HEADS = {"--medusa_model_dir": "medusa", "--eagle_model_dir": "eagle"}
"""The methods by the option of the converter that names their heads."""
_FLAGS = frozenset(f"--{name}" for name, kind in OPTIONS.items() if isinstance(kind, Flag))
_BUILD_SWITCHES = frozenset(
    ("--gather_context_logits", "--gather_all_token_logits", "--strip_plan", "--dry_run", *_FLAGS)
)
_BUILD_LISTS = frozenset(("--lora_target_modules",))
_CONVERTER_SWITCHES = names_in(
    "--use_weight_only --int8_kv_cache --use_fp8 --load_model_on_cpu --use_parallel_embedding --enable_fp8 "
    "--fp8_kv_cache --use_int8_weight_only_embedding --use_smooth_quant --calibrate_kv_cache --per_channel "
    "--per_token -kv"
)
_OF_GEMMA = {"--output_model_dir": "--output_dir", "--world_size": "--tp_size"}  # Its own converter's words.
_PLACES = {
    "--output_dir": "a build has its own folders",
    "--engine_dir": "a build has its own folders",
    "--model_config": "the checkpoint says it",
}
_ALIASES = {
    "--max_decoder_seq_len": "--max_seq_len",
    "--max_multimodal_len": "--max_prompt_embedding_table_size",
}


@dataclass(slots=True)
class _Chain:
    """The commands that make one engine."""

    checkpoint: str = ""
    is_built: bool = False
    mode: Option | None = None
    length: Option | None = None
    heads: Option | None = None
    """The folder of heads, by an option of `_HEADS`."""
    keys: list[tuple[str, Value, str]] = field(default_factory=list)
    """The converter's keys below `target` or `draft`, each with its value and flag."""
    built: list[Option] = field(default_factory=list)
    """The options of the build."""


class BuildChains:
    """The chains of all commands of a text, which become a recipe when all are read."""

    def __init__(self) -> None:
        self._chains: list[_Chain] = []

    def read_converter(self, words: Sequence[str], reading: FlagReading) -> None:
        """Reads the words after `convert_checkpoint.py` or `quantize.py`."""
        chain = _Chain()
        for item in options(words, Syntax(_OF_GEMMA, _CONVERTER_SWITCHES, dash="_", folds=True)):
            if isinstance(item, str):
                reading.lose(item, "a word that belongs to no option")
            elif item.name == "--output_dir":
                chain.checkpoint = _folder(item.value)
                reading.lose(item.written, _PLACES[item.name])
            elif item.name in _HEADS:
                chain.heads = item
            elif item.name == _LENGTH:
                chain.length = item
            elif key := _CONVERTED.get(item.name):
                try:
                    chain.keys.append((key.name, key.convert(item.value or ""), item.written))
                except ValueError as error:
                    reading.lose(item.written, str(error))
            else:
                reading.lose(item.written, _CONVERTER_LOST.get(item.name, "trtspec converts without it"))
        self._chains.append(chain)

    def read_build(self, words: Sequence[str], reading: FlagReading) -> None:
        """Reads the words after `trtllm-build`."""
        found = _Chain(is_built=True)
        for item in options(words, Syntax(_ALIASES, _BUILD_SWITCHES, _BUILD_LISTS, dash="_", folds=True)):
            if isinstance(item, str):
                reading.lose(item, "a word that belongs to no option")
            elif item.name == "--checkpoint_dir":
                found.checkpoint = _folder(item.value)
                found.keys.append(("model", item.value or "", item.written))
            elif item.name == _MODE:
                found.mode = item
            elif item.name == _LENGTH:
                found.length = item
            elif item.name in _PLACES:
                reading.lose(item.written, _PLACES[item.name])
            else:
                found.built.append(item)
        for chain in self._chains:
            if not chain.is_built and chain.checkpoint == found.checkpoint:
                flag = next(flag for key, _, flag in found.keys if key == "model")
                reading.lose(flag, "the converter's model is named, and converted to a build's own folder")
                found.keys, found.heads = chain.keys, chain.heads
                found.length = found.length or chain.length
                self._chains.remove(chain)
                break
        else:
            if found.checkpoint:
                reading.say("the model", f"write the Hugging Face model that {found.checkpoint} was made of")
        self._chains.append(found)

    def carry(self, reading: FlagReading) -> None:
        """Writes the chains into the recipe: the one with a speculative mode, or the first, is the target."""
        chains = sorted(self._chains, key=lambda chain: chain.mode is None)
        for role, chain in zip((Role.TARGET, Role.DRAFT), chains, strict=False):
            for key, value, flag in chain.keys:
                reading.set(f"{role}.{key}", value, flag)
            for option in chain.built:
                _build_option(role, option, reading)
        for chain in chains[2:]:
            for flag in [*(flag for _, _, flag in chain.keys), *(option.written for option in chain.built)]:
                reading.lose(flag, "a recipe has two engines, and this is of a third")
        if chains:
            _speculate(chains[0], len(chains) > 1, reading)


def _speculate(target: _Chain, has_draft: bool, reading: FlagReading) -> None:
    mode, heads = target.mode, target.heads
    method = _MODES.get(mode.value or "", "") if mode else "draft_model" if has_draft else ""
    if heads and (mode is None or method == _HEADS[heads.name]):
        reading.set("speculation.method", _HEADS[heads.name], heads.written)
        reading.set("draft.model", heads.value or "", heads.written)
    elif method == "draft_model":
        flag = mode.written if mode else "trtllm-build"
        if has_draft:
            reading.set("speculation.method", method, flag)
        reading.set("speculation.mode", "draft_tokens_external", flag)
    elif mode:
        for option in filter(None, (mode, target.length)):
            reading.miss(option.written, _OTHER_MODES.get(mode.value or "", "a recipe has no such engine"))
        return
    if target.length:
        reading.convert(target.length, FlagKey("speculation.max_draft_len", whole))


def _build_option(role: Role, option: Option, reading: FlagReading) -> None:
    name, text = option.name.removeprefix("--"), option.value or ""
    kind = OPTIONS.get(name)
    value: Value = text
    if isinstance(kind, Flag) or (kind is None and option.value is None):
        value = text != "false"
    elif (isinstance(kind, Whole) or name == "max_beam_width") and is_whole(text):
        value = int(text)
    if flaw := option_problem(name, value):
        reading.lose(option.written, f"{flaw.problem}{'; ' + flaw.repair if flaw.repair else ''}")
    elif name in SIZES and role is Role.TARGET:
        reading.set(f"engine.{name}", value, option.written)
    elif name in SIZES and reading.values.get(f"engine.{name}") == value:
        reading.lose(option.written, f"engine.{name} counts for both engines")
    else:
        reading.set(f"{role}.build.{name}", value, option.written)


def _folder(path: str | None) -> str:
    return posixpath.normpath(path or ".")


def tools() -> tuple[MigrationTool, ...]:
    """Returns the tools of one text, whose commands are read together."""
    engines = BuildChains()
    programs = ("convert_checkpoint.py", "quantize.py")
    converters = tuple((program,) for program in programs)
    return (
        MigrationTool(
            "TensorRT-LLM's converter", "tensorrt_llm", converters, engines.read_converter, is_part=True
        ),
        MigrationTool(
            "trtllm-build",
            "tensorrt_llm",
            (("trtllm-build",), ("-m", "tensorrt_llm.commands.build")),
            engines.read_build,
            serves="2,048 requests at once",
            num_tokens=lambda _: 8192,
            finish=engines.carry,
            is_part=True,
        ),
    )
