"""The steps that copy the target's tokenizer, and the draft's where it has one of its own."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from trtspec.base.progress import Advance
from trtspec.base.roles import Role
from trtspec.models.source import Source, has_file, read_json
from trtspec.models.tokenizer import copy_tokenizer
from trtspec.pipeline.plan.facts import ModelFacts, is_tokenizer, made_of
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.pipeline.run.step import Step

KIND = "copy tokenizer"
OUTPUT, DRAFT_OUTPUT = "tokenizer", "draft/tokenizer"


def step(model: ModelFacts, role: Role = Role.TARGET) -> Step:
    is_target = role is Role.TARGET
    return Step(
        kind=KIND if is_target else f"{KIND} of the {role}",
        summary=f"the {role}'s tokenizer, and the tokens that end a text",
        inputs=(model.name,),
        output=OUTPUT if is_target else DRAFT_OUTPUT,
        command=(),
        made_of=made_of(is_tokenizer, model, end_ids=model.source.end_ids),
        action=partial(run, model.source),
    )


def outputs(resolved: Resolved) -> tuple[str, ...]:
    """Returns the folders of tokenizers in a build."""
    return (OUTPUT, DRAFT_OUTPUT) if resolved.translates else (OUTPUT,)


def run(source: Source, output: Path, advance: Advance) -> None:
    """Copies the tokenizer; `generation_config.json` gets the end tokens, whichever config had them."""
    output.mkdir()
    copy_tokenizer(source.folder, output)
    generation = source.folder / "generation_config.json"
    content = dict(read_json(generation)) if has_file(generation) else {}
    if source.end_ids:
        content["eos_token_id"] = list(source.end_ids)
    else:
        content.pop("eos_token_id", None)
    (output / generation.name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
