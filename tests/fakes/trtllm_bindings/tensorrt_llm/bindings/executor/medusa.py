"""Engines with heads: the tree that the runtime is told of, and how many tokens a step brings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from safetensors.torch import load_file, save_file

from tensorrt_llm.bindings.executor.config import ExecutorConfig
from tensorrt_llm.bindings.executor.errors import check

MEDUSA, EAGLE = 4, 32
HEADS = ("medusa_heads.", "eagle_nets.")
MOST_RANK = 15
"""`PREFIX_CHUNK_SIZE_BITS`; the runtime itself lets 16 pass, which it then takes for the next path."""


def check_tree(document: dict[str, Any], config: ExecutorConfig) -> int:
    """Returns how many heads there are, 0 for an engine without (`gptJsonConfig.cpp`, `createDecoder`).

    What the runtime would do without a word, and nobody wants, is a NotImplementedError.
    """
    decoding, pretrained = config.decoding_config, document["pretrained_config"]
    told = decoding is not None and decoding.decoding_mode is not None and decoding.decoding_mode.isMedusa()
    if document["build_config"]["speculative_decoding_mode"] != MEDUSA:
        if told:
            raise NotImplementedError("Model is not Medusa, but decoding mode is Medusa: it is overwritten")
        return 0
    heads, drafts = pretrained.get("num_medusa_heads"), pretrained.get("max_draft_len", 0)
    message = "Both num_medusa_heads and max_draft_len have to be provided for Medusa model"
    check(heads is not None and drafts > 0, message, "runtime/gptJsonConfig.cpp")
    if not told or decoding is None or decoding.medusa_choices is None:
        raise NotImplementedError("no medusa_choices: the runtime takes mc_sim_7b_63")
    _check_choices(decoding.medusa_choices, heads, drafts)
    return int(heads)


def check_eagle(document: dict[str, Any], config: ExecutorConfig) -> int:
    """Returns how deep EAGLE's tree is, 0 for an engine without (`gptJsonConfig.cpp`)."""
    decoding, pretrained, build = (
        config.decoding_config,
        document["pretrained_config"],
        document["build_config"],
    )
    mode = decoding.decoding_mode if decoding is not None else None
    told = mode is not None and mode.isEagle()
    if build["speculative_decoding_mode"] != EAGLE:
        if told:
            raise NotImplementedError("Model is not Eagle, but decoding mode is Eagle: it is overwritten")
        return 0
    depth, wide = pretrained.get("num_eagle_layers", 0), pretrained["max_non_leaves_per_layer"]
    drafts, source = build["max_draft_len"], "runtime/gptJsonConfig.cpp"
    assert pretrained["eagle_net_config"]["num_hidden_layers"] > 0
    check(drafts > 0, "max_draft_len has to be larger than 0 for eagle decoding", source)
    check(depth > 0, "num_eagle_layers has to be larger than 0 for eagle decoding", source)
    check(wide > 0, "max_non_leaves_per_layer has to be larger than 0 for eagle decoding", source)
    tree = decoding.eagle_config if told and decoding is not None else None
    if tree is None or tree.eagle_choices is None:
        raise NotImplementedError("no eagle_choices: the runtime takes mc_sim_7b_63")
    _check_choices(tree.eagle_choices, depth, drafts)
    inner = {tuple(path[:-1]) for path in tree.eagle_choices if len(path) > 1}
    # examples/eagle/README.md asks for it, and nothing checks it.
    if any(sum(len(node) == level for node in inner) > wide for level in range(1, depth)):
        raise NotImplementedError("more nodes with children on a level than max_non_leaves_per_layer")
    return int(depth)


def _check_choices(choices: Sequence[Sequence[int]], heads: int, drafts: int) -> None:
    """`initTensorsFromChoices`."""
    source, known = "runtime/utils/speculativeChoicesUtils.cpp", {tuple(path) for path in choices}
    check(
        len(choices) <= drafts, "numChoices <= speculativeDecodingModule.getMaxDecodingDraftTokens()", source
    )
    depths = [len(path) for path in choices]
    check(set(depths) == set(range(1, max(depths) + 1)), "depth + 1 == curDepth", source)
    message = "Choices require larger maxPathLen than the engine was built with."
    check(max(depths) <= heads, message, source)
    if len(choices) < drafts or max(depths) < heads:
        raise NotImplementedError("nodes without a position, or heads that are asked for no token")
    if len(known) < len(choices) or any(max(path) > MOST_RANK for path in choices):
        raise NotImplementedError("paths that the runtime cannot tell apart")
    if any(path[:-1] not in known for path in known if len(path) > 1):
        raise NotImplementedError("a path whose beginning is no path: its parent is the root")


def without_heads(engine: Any, copy: Any) -> None:
    """Writes the target alone, which says what the engine says."""
    tensors = load_file(engine)
    save_file({name: held for name, held in tensors.items() if not name.startswith(HEADS)}, copy)
