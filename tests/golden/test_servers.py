"""How servers of others are started for recipes, to the letter; UPDATE_GOLDEN=1 writes them anew.

Recipes are taken as they are for engines, so that what a server refuses of them is there too.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.heads import TARGET, write_head
from tests.fakes.mtp import DEEPSEEK, make_mtp
from tests.support.servers_of_others import SERVERS
from trtspec.base.errors import RecipeError
from trtspec.pipeline.build.plan import make_plan

RECIPES = Path(__file__).parents[2] / "recipes"
GOLDEN = Path(__file__).with_name("servers")
PAIR = """
name: pair
target: {model: ./target, quantization: {weights: fp8, kv_cache: fp8}, parallel: {tensor: 2}}
draft: {model: ./draft}
speculation: {num_draft_tokens: 3}
engine: {max_batch_size: 64, max_seq_len: 128, max_num_tokens: 4096, enable_chunked_context: false}
hardware: {gpu: h100, count: 2}
"""
LOOKUP = """
name: lookup
target: {model: ./target, dtype: float16}
speculation: {method: {kind: ngram, prompt_lookup_max: 5}, max_draft_len: 6}
hardware: {gpu: l4}
"""
USUAL = """
name: usual
target: {model: ./target}
draft: {model: ./draft}
hardware: {gpu: h100}
"""
SUFFIX = """
name: suffix
target: {model: ./target}
speculation:
  num_draft_tokens: 8
  method: {kind: suffix, suffix_decoding_max_tree_depth: 32, suffix_decoding_max_cached_requests: 0}
hardware: {gpu: h100}
"""
TRANSLATED = """
name: translated
target: {model: ./target}
draft: {model: ./draft}
speculation: {method: {kind: draft_model, use_heterogeneous_vocab: true}}
hardware: {gpu: h100}
"""
LAYERS = """
name: layers
target: {model: ./target}
draft: {layers_of_target: [1]}
hardware: {gpu: h100}
"""
LOOKUP_ON_GPU = LOOKUP.replace("kind: ngram", "kind: ngram_gpu")
OF_FOLDERS = {
    "pair": PAIR, "lookup": LOOKUP, "usual": USUAL,
    "suffix": SUFFIX, "translated": TRANSLATED, "layers": LAYERS, "lookup_on_gpu": LOOKUP_ON_GPU,
}  # fmt: skip
HEAD = """
name: head
target: {model: ./target, dtype: bfloat16}
draft: {model: ./head}
speculation: {method: eagle3, num_draft_tokens: 5}
hardware: {gpu: h100}
"""


MEDUSA = HEAD.replace("eagle3, num_draft_tokens: 5", "medusa, num_draft_tokens: 3")


def golden(name: str, output: str) -> None:
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(output)
    assert output == file.read_text()


def shown(recipe: Path, backend: str) -> str:
    """The command line and its files, or why there is none."""
    try:
        launch = make_plan(recipe, backend=backend, output=recipe.parent / "build").resolved.launch
    except RecipeError as error:
        return "\n".join(
            f"{backend} refuses {found.subject}: {found.problem}\n    {found.repair}"
            for found in error.findings
        )
    assert launch
    options = " ".join(shlex.quote(word) for word in launch.arguments).replace(" --", " \\\n    --")
    files = "".join(f"\n{name}:\n{text}" for name, text in launch.files.items())
    return f"# {launch.image}\n{shlex.join(launch.program)} {options}\n{files}"


@pytest.mark.parametrize("name", ["llama-3.1-8b-h100", "llama-3.3-70b-2xh100", "llama-3.3-70b-h200-ngram"])
@pytest.mark.usefixtures("hub_cache")
def test_models_of_the_hub(name: str) -> None:
    recipe = RECIPES / f"{name}.yaml"
    golden(name, "\n\n".join(shown(recipe, backend).strip() for backend in SERVERS) + "\n")


@pytest.mark.parametrize(("name", "recipe"), OF_FOLDERS.items())
def test_models_in_folders(llama_folder: Callable[..., Path], tmp_path: Path, name: str, recipe: str) -> None:
    llama_folder("target", hidden_size=64)
    llama_folder("draft", num_hidden_layers=1)
    (tmp_path / "recipe.yaml").write_text(recipe)
    output = "\n\n".join(shown(tmp_path / "recipe.yaml", backend).strip() for backend in SERVERS) + "\n"
    golden(name, output.replace(str(tmp_path), "/models"))


def test_a_head(llama_folder: Callable[..., Path], tmp_path: Path) -> None:
    llama_folder("target", **TARGET)
    write_head(tmp_path / "head", "speculators")
    recipe, found = tmp_path / "recipe.yaml", []
    for backend in SERVERS:
        recipe.write_text(f"{HEAD}engine: {{backend: {backend}}}\n")
        found.append(shown(recipe, backend).strip())
    golden("head", "\n\n".join(found).replace(str(tmp_path), "/models") + "\n")


OWN_LAYERS = """
name: own
target: {model: ./target, dtype: bfloat16}
speculation: {method: mtp, num_draft_tokens: 2}
hardware: {gpu: h100}
"""
AT_ONCE = USUAL + "speculation: {method: {kind: draft_model, parallel_drafting: true}, num_draft_tokens: 8}\n"


def shown_for_each(folder: Path, recipe: str) -> str:
    (folder / "recipe.yaml").write_text(recipe)
    every = (*SERVERS, "tensorrt_llm")
    output = "\n\n".join(shown(folder / "recipe.yaml", backend).strip() for backend in every)
    return output.replace(str(folder), "/models") + "\n"


def test_layers_of_the_target_for_multi_token_prediction(
    llama_folder: Callable[..., Path], tmp_path: Path
) -> None:
    make_mtp(llama_folder("target"), "model.layers.2.eh_proj.weight", **DEEPSEEK)
    golden("mtp", shown_for_each(tmp_path, OWN_LAYERS))


@pytest.mark.parametrize("name", ["dflash", "dspark"])
def test_commands_for_heads_that_fill_a_block_are_as_recorded(
    llama_folder: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    llama_folder("target", **TARGET)
    write_head(tmp_path / "head", name)
    golden(name, shown_for_each(tmp_path, HEAD.replace("eagle3, num_draft_tokens: 5", name)))


def test_commands_for_a_parallel_draft_model_are_as_recorded(
    llama_folder: Callable[..., Path], tmp_path: Path
) -> None:
    llama_folder("target", hidden_size=64)
    make_mtp(llama_folder("draft", num_hidden_layers=1), pard_token=255)
    golden("parallel", shown_for_each(tmp_path, AT_ONCE))


def test_heads_of_medusa(llama_folder: Callable[..., Path], tmp_path: Path) -> None:
    llama_folder("target", **TARGET)
    write_head(tmp_path / "head", "medusa")
    recipe, found = tmp_path / "recipe.yaml", []
    for release in ("0.33.0", "0.32.0"):
        recipe.write_text(f"{MEDUSA}engine: {{backend: vllm, release: {release}}}\n")
        found.append(shown(recipe, "vllm").strip())
    golden("medusa", "\n\n".join(found).replace(str(tmp_path), "/models") + "\n")
