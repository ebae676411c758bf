"""Recipes that nothing may be built of, each with the words that say so.

Each begins as the tiny pair of `pair_recipe`, and one thing is then made wrong: a line, a model, or what two
models have to agree on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer

from tests.fakes.heads import write_head, write_head_for

Change = Callable[[Path], object]
"""Changes the folder of a recipe, in which the models are `target` and `draft`."""

VLLM = {"backend: torch": "backend: vllm", "./draft, dtype: float32": "./draft"}
_DRAFT = "draft: {model: ./draft, dtype: float32}\n"
ALONE = {
    _DRAFT: "",
    "hardware:": "speculation: {method: ngram}\nhardware:",
}
VLLM_ALONE = ALONE | {"backend: torch": "backend: vllm"}
GPU = {
    "backend: torch": "backend: tensorrt_llm",
    "gpu: none": "gpu: h100",
    "dtype: float32": "dtype: float16",
}


@dataclass(frozen=True, slots=True)
class BrokenRecipe:
    """One wrong thing."""

    says: str
    """A part of the refusal."""
    lines: Mapping[str, str]
    """The words of the recipe that are replaced."""
    change: Change = lambda _: None

    def write(self, recipe: Path) -> None:
        text = recipe.read_text()
        for old, new in self.lines.items():
            assert old in text, old
            text = text.replace(old, new)
        recipe.write_text(text)
        self.change(recipe.parent)


def edit(name: str, **values: Any) -> Change:
    """Changes keys of a JSON file; None removes one."""

    def change(folder: Path) -> None:
        file = folder / name
        content = {**(json.loads(file.read_text()) if file.is_file() else {}), **values}
        file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))

    return change


def write(name: str, content: str) -> Change:
    return lambda folder: (folder / name).write_text(content)


def swap(name: str, first: str, second: str) -> Change:
    """Exchanges the ids of two tokens."""

    def change(folder: Path) -> None:
        file = folder / name
        content = json.loads(file.read_text())
        words = content["model"]["vocab"]
        words[first], words[second] = words[second], words[first]
        file.write_text(json.dumps(content))

    return change


def add(name: str, *, special: bool) -> Change:
    """Adds tokens until one has the id 264, which the toys' embeddings of 264 rows lack."""

    def change(folder: Path) -> None:
        tokenizer = Tokenizer.from_file(str(folder / name))
        tokenizer.add_tokens([f"w{n}" for n in range(264 - tokenizer.get_vocab_size())])
        tokenizer.add_tokens([AddedToken("<image_soft_token>", special=special, normalized=False)])
        assert tokenizer.token_to_id("<image_soft_token>") == 264
        tokenizer.save(str(folder / name))

    return change


def tensors(name: str, change_them: Callable[[dict[str, Any]], object]) -> Change:
    def change(folder: Path) -> None:
        file = folder / name
        found = load_file(file)
        change_them(found)
        save_file(found, file)

    return change


def head(name: str) -> Change:
    return lambda folder: write_head_for(folder / "target", folder / "head", name)


def end(line: str) -> dict[str, str]:
    return {"hardware:": f"{line}\nhardware:"}


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 17209920\n"
_NORM = "model.norm.weight"
_FLOAT32 = {"model: ./target": "model: ./target, dtype: float32"}
_HEAD = _FLOAT32 | {"model: ./draft, dtype: float32": "model: ./head"}

BROKEN: Mapping[str, BrokenRecipe] = {
    # Its lines.
    "unknown_key": BrokenRecipe("unknown key", end("engin: {}")),
    "longer_than_verified": BrokenRecipe(
        "is more than the target verifies", end("speculation: {num_draft_tokens: 5, max_draft_len: 4}")
    ),
    "no_draft": BrokenRecipe("proposes tokens", {_DRAFT: ""}),
    "unknown_release": BrokenRecipe("no release of", VLLM | {"vllm": "vllm, release: 0.0.1"}),
    # Its lines with what the plan chooses, and with its models.
    "longer_than_the_default": BrokenRecipe("num_draft_tokens", end("speculation: {num_draft_tokens: 99}")),
    "longer_than_the_model": BrokenRecipe(
        "the target supports", {"backend: torch": "backend: torch, max_seq_len: 4096"}
    ),
    "longer_than_the_server_says": BrokenRecipe(
        "the target supports", VLLM | {"backend: torch": "backend: vllm, max_seq_len: 4096"}
    ),
    "no_room_for_an_answer": BrokenRecipe(
        "leaves no room for an answer", {"backend: torch": "backend: torch, max_input_len: 256"}
    ),
    "heads_that_do_not_divide": BrokenRecipe(
        "cannot be divided among 3 ranks",
        GPU | {"./target": "./target, parallel: {tensor: 3}", "gpu: none": "gpu: h100, count: 3"},
    ),
    "float32_on_tensorrt": BrokenRecipe(
        "float32",
        {key: value for key, value in GPU.items() if "dtype" not in key},
        edit("target/config.json", dtype="float32"),
    ),
    "fp8_without_texts": BrokenRecipe(
        "fp8 needs texts", GPU | {"./target": "./target, quantization: {weights: fp8}"}
    ),
    "texts_that_are_not_there": BrokenRecipe(
        "texts.jsonl",
        GPU | {"./target": "./target, quantization: {weights: fp8, calibration: {dataset: texts.jsonl}}"},
    ),
    "adapter_that_is_not_there": BrokenRecipe(
        "is not a folder", GPU | {"./target": "./target, build: {lora_dir: ./adapter, lora_plugin: auto}"}
    ),
    "layers_beyond_the_last": BrokenRecipe(
        "has no layer 7",
        {_DRAFT: "draft: {model: ./target, layers_of_target: [0, 7]}\n"},
    ),
    "mtp_without_layers": BrokenRecipe("MTP layers", VLLM_ALONE | {"method: ngram": "method: mtp"}),
    "no_mask_token": BrokenRecipe(
        "no mask token",
        VLLM | end("speculation: {method: {kind: draft_model, parallel_drafting: true}}"),
    ),
    # Its models.
    "no_folder": BrokenRecipe("is not a folder", {"./draft": "./nothing"}),
    "no_config": BrokenRecipe("is missing", {}, lambda f: (f / "draft/config.json").unlink()),
    "config_is_text": BrokenRecipe("is not JSON", {}, write("target/config.json", "hello")),
    "no_size": BrokenRecipe("has no hidden_size", {}, edit("target/config.json", hidden_size=None)),
    "unknown_class": BrokenRecipe(
        "MambaForCausalLM", {}, edit("draft/config.json", architectures=["MambaForCausalLM"])
    ),
    "cut_off": BrokenRecipe(
        "safetensors",
        {},
        lambda folder: (folder / "target/model.safetensors").write_bytes(
            (folder / "target/model.safetensors").read_bytes()[:-9]
        ),
    ),
    "weights_are_a_pointer": BrokenRecipe("Git LFS pointer", {}, write("target/model.safetensors", POINTER)),
    "tensor_is_missing": BrokenRecipe(
        "this tensor is missing", {}, tensors("target/model.safetensors", lambda found: found.pop(_NORM))
    ),
    "tensor_of_another_shape": BrokenRecipe(
        "config.json demands",
        {},
        tensors("draft/model.safetensors", lambda found: found.update({_NORM: found[_NORM][1:]})),
    ),
    "no_tokenizer": BrokenRecipe(
        "has no tokenizer.json", {}, lambda folder: (folder / "target/tokenizer.json").unlink()
    ),
    "tokenizer_is_text": BrokenRecipe("is not JSON", {}, write("draft/tokenizer.json", "hello")),
    "tokenizer_is_another_thing": BrokenRecipe(
        "is not a tokenizer", {}, write("target/tokenizer.json", '{"model": {"vocab": {"a": -1}}}')
    ),
    "tokenizer_is_a_pointer": BrokenRecipe("Git LFS pointer", {}, write("target/tokenizer.json", POINTER)),
    "tokenizer_is_a_pointer_alone": BrokenRecipe(
        "Git LFS pointer", ALONE, write("target/tokenizer.json", POINTER)
    ),
    "words_past_the_embedding": BrokenRecipe(
        "ids up to 264", {}, add("target/tokenizer.json", special=False)
    ),
    "words_past_the_embedding_alone": BrokenRecipe(
        "ids up to 264", ALONE, add("target/tokenizer.json", special=False)
    ),
    "words_past_the_embedding_on_vllm": BrokenRecipe(
        "ids up to 264", VLLM_ALONE, add("target/tokenizer.json", special=False)
    ),
    "a_head_as_the_draft": BrokenRecipe("is a head of method", _HEAD, head("speculators")),
    # What two models have to agree on.
    "another_tokenizer": BrokenRecipe("token ids", {}, swap("draft/tokenizer.json", "a", "b")),
    "another_tokenizer_on_vllm": BrokenRecipe("token ids", VLLM, swap("draft/tokenizer.json", "a", "b")),
    "another_tokenizer_on_tensorrt": BrokenRecipe("token ids", GPU, swap("draft/tokenizer.json", "a", "b")),
    "another_end": BrokenRecipe(
        "end tokens",
        {},
        lambda folder: (folder / "draft/tokenizer.json").write_text(
            (folder / "draft/tokenizer.json").read_text().replace("</s>", "<turn>")
        ),
    ),
    "swapped": BrokenRecipe(
        "swap target and draft",
        {"target: {model: ./target": "target: {model: ./draft", _DRAFT: "draft: {model: ./target}\n"},
    ),
    "a_head_of_another_method": BrokenRecipe(
        "the draft is a head of method", _HEAD | end("speculation: {method: medusa}"), head("speculators")
    ),
    "a_head_of_another_size": BrokenRecipe(
        "the head reads states of width 16",
        _HEAD | end("speculation: {method: eagle3}"),
        lambda folder: write_head(folder / "head", "speculators"),
    ),
}
"""The broken recipes by name."""
