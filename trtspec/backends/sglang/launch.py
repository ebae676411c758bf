"""SGLang's OpenAI server (`sglang.launch_server`): its arguments, as `ServerArgs` of 0.5.23 has them.

SGLang has trees of drafts, of which each step proposes several tokens, and a recipe has no key for them.
Their flags are in `engine.extra_args`, and override those of a chain, which stand before them. The number
of steps stays K. `_handle_eagle_family` in arg_groups/speculative_hook.py of 0.5.23 needs all three
numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trtspec.backends.shared.servers import LaunchInputs
from trtspec.base.findings import Finding
from trtspec.pipeline.plan.resolved import Chooser
from trtspec.recipe.migration.command import Option, Syntax, as_words, options
from trtspec.recipe.migration.reading import is_whole
from trtspec.recipe.schema import Recipe

METHODS = {
    "draft_model": "STANDALONE",
    "ngram": "NGRAM",
    "eagle3": "EAGLE3",
    "eagle": "EAGLE",
    "mtp": "NEXTN",
    "dflash": "DFLASH",
    "dspark": "DSPARK",
}
"""SGLang's name of each method (`SpeculativeAlgorithm` in sglang/srt/speculative/spec_info.py)."""
STEPWISE = ("STANDALONE", "EAGLE", "EAGLE3", "NEXTN")
"""Those that draft a token a step."""
ADAPTIVE, ADAPTIVE_FILE = "--speculative-adaptive", "--speculative-adaptive-config"
FILE, TOKENS = "speculative_adaptive.json", "--speculative-num-draft-tokens"
_UNQUANTIZED = "unquant"


def arguments(wanted: LaunchInputs) -> tuple[str, ...]:
    target = wanted.target
    options: dict[str, Any] = {
        "--model-path": target.place,
        "--revision": target.revision,
        "--served-model-name": wanted.names[0],
        "--load-format": "safetensors",
        "--dtype": wanted.checkpoint.dtype,
        "--quantization": "fp8" if target.quantize else None,
        "--kv-cache-dtype": "fp8_e4m3" if wanted.checkpoint.fp8_kv_cache else None,
        "--tp-size": wanted.checkpoint.mapping.tp_size,
        "--max-running-requests": wanted.options.max_batch_size,
        "--context-length": wanted.options.max_seq_len,
        "--chunked-prefill-size": wanted.options.max_num_tokens if wanted.enable_chunked_context else -1,
        "--enable-metrics": True,
        **speculation(wanted),
    }
    return as_words(options)


def speculation(wanted: LaunchInputs) -> dict[str, Any]:
    """Returns the options on drafts, which are chains of K tokens: SGLang counts the one before them too.

    Its n-grams would be a tree, which costs more rows to verify and asks for FlashInfer. They are of as many
    tokens as are looked up and drafted together. Without its own option, a draft would be quantized like the
    target. Without a path, NEXTN drafts with the target's own layers. A block of DFlash or DSpark takes no
    steps. DSpark gets the number of tokens that it proposes; otherwise its configuration decides.
    """
    method, draft, length = wanted.method, wanted.draft, wanted.num_draft_tokens
    algorithm = METHODS[method.kind]
    options: dict[str, Any] = {
        "--speculative-algorithm": algorithm,
        TOKENS: length + 1,
    }
    if algorithm in STEPWISE:
        options |= {"--speculative-num-steps": length, "--speculative-eagle-topk": 1}
        if wanted.schedule:  # It starts with a number of steps of the file, and changes both numbers.
            largest = max(wanted.schedule.values())
            options |= {TOKENS: largest + 1, "--speculative-num-steps": largest, ADAPTIVE: True}
            options[ADAPTIVE_FILE] = f"{{build}}/{FILE}"
    elif algorithm == "DSPARK":
        options["--speculative-dspark-block-size"] = length
    elif algorithm == "NGRAM":
        options["--speculative-ngram-max-bfs-breadth"] = 1
        options["--speculative-ngram-max-trie-depth"] = int(method.options["prompt_lookup_max"]) + length
    if draft is None:
        return options
    quantization = None
    if draft.quantize != wanted.target.quantize:
        quantization = "fp8" if draft.quantize else _UNQUANTIZED
    return {
        **options,
        "--speculative-draft-model-path": draft.place,
        "--speculative-draft-model-revision": draft.revision,
        "--speculative-draft-model-quantization": quantization,
    }


TOPK = "--speculative-eagle-topk"


@dataclass(frozen=True, slots=True)
class DraftTree:
    """The shape of a tree."""

    topk: int
    """The tokens that each step proposes after one of the step before."""
    verified: int
    """The tokens that the target verifies in a round; one of them is the token before the draft."""

    def num_nodes(self, longest: int) -> int:
        """Returns the proposed tokens that a round has room for (`spec_decode_alloc_len_per_request`)."""
        return max(self.topk * longest, self.verified) - 1

    def check(self, choose: Chooser, steps: int) -> None:
        """Raises RecipeError for more tokens than the steps propose, with which SGLang does not start.

        The first step proposes `topk` tokens, each later one `topk` after each of `topk` tokens
        (`organize_draft_results` in srt/speculative/eagle_utils.py).
        """
        most = 1 + self.topk + (steps - 1) * self.topk**2
        if self.verified > most:
            shape = f"{TOPK} {self.topk} and speculation.num_draft_tokens: {steps}"
            problem = f"{TOKENS} {self.verified} is more than the {most} that {shape} make"
            repair = f"at most {most} there, or a larger speculation.num_draft_tokens"
            raise choose.error("engine.extra_args", problem, repair)


def tree(topk: str | None, verified: str | None) -> DraftTree | None:
    """Returns the tree of two flags' values; None if they are no tree's."""
    if not (topk and verified and is_whole(topk) and is_whole(verified)):
        return None
    return DraftTree(int(topk), int(verified)) if int(topk) > 1 and int(verified) > 1 else None


def tree_of(recipe: Recipe, syntax: Syntax) -> DraftTree | None:
    """Returns the tree that a recipe passes on; None if its drafts are chains."""
    if METHODS.get(recipe.speculation.method.kind) not in STEPWISE:
        return None
    found = {item.name: item.value for item in _flags(recipe, syntax)}
    return tree(found.get(TOPK), found.get(TOKENS))


def misplaced(recipe: Recipe, syntax: Syntax) -> Iterator[Finding]:
    """Finds flags of a tree where drafts are chains, which are as long as `speculation` says."""
    if tree_of(recipe, syntax) is None:
        for item in _flags(recipe, syntax):
            problem = f"{item.name} is not passed on: speculation says it, unless both flags make a tree"
            yield Finding("engine.extra_args", problem, "remove it")


def _flags(recipe: Recipe, syntax: Syntax) -> Iterator[Option]:
    for item in options(recipe.engine.extra_args, syntax):
        if isinstance(item, Option) and item.name in (TOPK, TOKENS):
            yield item
