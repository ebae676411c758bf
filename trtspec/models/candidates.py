"""Finds models that may draft for a target: heads that were made for it, and small models of its family.

The Hub's lists tell names, tags and a little of each configuration. Whether a pair fits is judged elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from trtspec.models.download import explained
from trtspec.models.source import Source


@dataclass(frozen=True, slots=True)
class DraftCandidate:
    """A model or a head of the Hub, as its list shows it."""

    name: str
    revision: str | None = None
    """The commit that the list tells."""
    licence: str | None = None
    """None if the model's card names none."""
    downloads: int = 0
    """The downloads of the last month."""
    method: str | None = None
    """The method that uses it, where trtspec's own list tells it."""


def _known(licence: str, method: str, *names: str) -> tuple[DraftCandidate, ...]:
    return tuple(DraftCandidate(name, licence=licence, method=method) for name in names)


_QWEN3 = _known("apache-2.0", "draft_model", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B")
_LLAMA3 = _known("llama3.2", "draft_model", "meta-llama/Llama-3.2-1B-Instruct")
_QWEN25 = _known("apache-2.0", "draft_model", "Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-1.5B-Instruct")
KNOWN: Mapping[str, tuple[DraftCandidate, ...]] = {
    "meta-llama/Llama-3.1-8B-Instruct": (
        *_known("llama3.1", "eagle3", "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3"),
        *_known("mit", "dflash", "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat"),
        *_LLAMA3,
    ),
    "meta-llama/Llama-3.3-70B-Instruct": (
        *_known("llama3.3", "eagle3", "RedHatAI/Llama-3.3-70B-Instruct-speculator.eagle3"),
        *_LLAMA3,
        *_known("llama3.2", "draft_model", "meta-llama/Llama-3.2-3B-Instruct"),
    ),
    "Qwen/Qwen3-4B": (*_known("mit", "dflash", "z-lab/Qwen3-4B-DFlash-b16"), *_QWEN3),
    "Qwen/Qwen3-8B": (
        *_known("apache-2.0", "eagle3", "RedHatAI/Qwen3-8B-speculator.eagle3"),
        *_known("mit", "dflash", "z-lab/Qwen3-8B-DFlash-b16"),
        *_QWEN3,
    ),
    "Qwen/Qwen3-14B": (*_known("apache-2.0", "eagle3", "RedHatAI/Qwen3-14B-speculator.eagle3"), *_QWEN3),
    "Qwen/Qwen3-32B": (*_known("apache-2.0", "eagle3", "RedHatAI/Qwen3-32B-speculator.eagle3"), *_QWEN3),
    "Qwen/Qwen2.5-32B-Instruct": _QWEN25,
    "Qwen/Qwen2.5-72B-Instruct": _QWEN25,
    "mistralai/Mistral-Large-Instruct-2407": _known(
        "apache-2.0", "draft_model", "mistralai/Mistral-7B-Instruct-v0.3"
    ),
    "mistralai/Mistral-Small-24B-Instruct-2501": _known(
        "apache-2.0", "draft_model", "alamios/Mistral-Small-3.1-DRAFT-0.5B"
    ),
}
"""Drafts of often served models, by the names that their publishers gave them; as of 2026-11."""

_WORDS = ("eagle", "dflash", "dspark", "medusa", "speculator", "draft")
"""Words in the names and tags of heads and drafts."""
_OTHER_FORMATS = {"gguf", "mlx", "onnx"}
_USUAL = {"instruct", "chat", "it", "hf", "base", "fp8", "bf16", "fp16"}
"""Parts of a model's name that the name of its draft may lack."""
_EXPAND: Any = ["config", "downloads", "safetensors", "sha", "tags"]
_LISTED = 200
_BASE = "base_model:"
_LICENCE = "license:"


def find_candidates(model: str, target: Source) -> list[DraftCandidate]:
    """Asks the Hub for what may draft for a target, the likeliest first; raises ModelError.

    `model` is the target's name on the Hub, or that of its folder. About ten lists are asked for.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    with explained(model, None):
        own = set(_bases(api.model_info(model, expand=_EXPAND).tags)) if "/" in model else set()
        names = sorted({model, *own})

        def ask(query: dict[str, Any]) -> list[Any]:
            return list(api.list_models(**query, sort="downloads", limit=_LISTED, expand=_EXPAND))

        with ThreadPoolExecutor() as pool:
            lists = list(pool.map(ask, _queries(names)))
    found = {info.id: info for infos in lists for info in infos}
    ranks = {name: rank for name, info in found.items() if (rank := _rank(info, names, target)) is not None}
    return [_candidate(found[name]) for name in sorted(ranks, key=lambda name: (ranks[name], name))]


def _queries(names: list[str]) -> Iterator[dict[str, Any]]:
    for name in names:
        if "/" in name:
            yield {"filter": _BASE + name}
    for author in sorted({name.partition("/")[0] for name in names if "/" in name}):
        yield {"author": author, "filter": "text-generation"}
    for word in _WORDS:
        yield {"search": word}


def _rank(info: Any, names: list[str], target: Source) -> tuple[bool, int] | None:
    """Returns the place of a listed model among the candidates; None for one that is none."""
    tags, downloads = set(info.tags or ()), info.downloads or 0
    if info.id in names or tags & _OTHER_FORMATS:
        return None
    squeezed = re.sub("[-_]", "", info.id.lower())
    if any(word in text.lower() for word in _WORDS for text in (info.id, *tags)):
        is_made_for_it = bool(set(names) & set(_bases(tags))) or any(
            all(part in squeezed for part in _parts(name)) for name in names
        )
        is_small_one = "draft" in squeezed and any(
            re.split("[^a-z]", name.rpartition("/")[2].lower())[0] in squeezed for name in names
        )
        return (not is_made_for_it, -downloads) if is_made_for_it or is_small_one else None
    authors = {name.partition("/")[0] for name in names if "/" in name}
    is_relative = (info.config or {}).get("model_type") == target.model_type
    parameters = info.safetensors.total if info.safetensors else 0
    if info.id.partition("/")[0] in authors and is_relative and parameters < target.parameters / 2:
        return True, -downloads
    return None


def _candidate(info: Any) -> DraftCandidate:
    licences = [tag.removeprefix(_LICENCE) for tag in info.tags or () if tag.startswith(_LICENCE)]
    return DraftCandidate(info.id, info.sha, licences[0] if licences else None, info.downloads or 0)


def _bases(tags: Any) -> Iterator[str]:
    """Yields the models that a model was made of, which a tag names after its kind: quantized, finetune."""
    for tag in tags or ():
        if tag.startswith(_BASE):
            yield tag.rpartition(":")[2]


def _parts(name: str) -> list[str]:
    """Returns the parts of a model's name that name this one: family, generation, size."""
    parts = re.split("[-_]", name.rpartition("/")[2].lower())
    return [part for part in parts if part and part not in _USUAL]
