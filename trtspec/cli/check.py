"""`trtspec check`: the recipe, and the pair as far as this machine has the models."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtspec.cli.numbers import short
from trtspec.cli.options import JsonOption, RecipeArgument
from trtspec.cli.output import out
from trtspec.errors import ModelError, RecipeError, TrtspecError

if TYPE_CHECKING:
    from trtspec.checkpoint.pair import Finding
    from trtspec.checkpoint.side import Side
    from trtspec.recipe.loader import LoadedRecipe

EXAMPLES = ("trtspec check recipe.yaml", "trtspec check recipe.yaml --json")


@dataclass(frozen=True, slots=True)
class Report:
    """What was found; `unseen` says of each model that could not be looked at why."""

    loaded: LoadedRecipe
    sides: dict[str, Side]
    unseen: dict[str, str]
    findings: list[Finding]


def check(recipe: RecipeArgument, json: JsonOption = False) -> None:
    """Check a recipe, and whether its models fit together."""
    from trtspec.checkpoint.pair import refuse
    from trtspec.recipe.loader import load

    try:
        report = _examine(load(recipe))
    except TrtspecError as error:
        if json:
            out.json({"recipe": str(recipe), "ok": False, "problems": _problems(error)})
        raise
    if json:
        out.json(_as_json(report))
    else:
        _print(report)
    refuse(str(recipe), report.findings)


def _examine(loaded: LoadedRecipe) -> Report:
    from trtspec.checkpoint.hub import cached_folder
    from trtspec.checkpoint.pair import compare
    from trtspec.checkpoint.side import read_side

    sides: dict[str, Side] = {}
    unseen: dict[str, str] = {}
    for role, model in loaded.recipe.models.items():
        location = loaded.model_location(model)
        folder = location if isinstance(location, Path) else cached_folder(location, model.revision)
        if folder is None:
            unseen[role] = f"{location} is on the Hub and not on this machine"
            continue
        try:
            sides[role] = read_side(folder)
        except ModelError as error:
            if folder == location:
                raise
            unseen[role] = f"{location} is not whole in this machine's Hub cache: {error.problem}"
    if unseen:
        return Report(loaded, sides, unseen, [])
    findings = compare(sides["target"], sides["draft"], loaded.recipe.engine.max_seq_len)
    return Report(loaded, sides, unseen, findings)


def _print(report: Report) -> None:
    recipe, sides = report.loaded.recipe, report.sides
    out.result(f"{recipe.name}: {recipe.backend} backend, gpu {recipe.hardware.gpu}")
    facts = {role: _facts(side) for role, side in sides.items()}
    if facts:
        out.result()
        names = next(iter(facts.values()))
        out.table([(name, *(fact[name] for fact in facts.values())) for name in names], header=("", *facts))
    if report.findings:
        out.result()
    for finding in report.findings:
        label = "refused" if finding.refused else "differs"
        out.result(f"{label}  {finding.subject}: {finding.difference}")
        out.result(f"         {finding.effect}")
    for role, reason in report.unseen.items():
        out.warning(f"the pair was not checked: the {role} {reason}")
    if not any(finding.refused for finding in report.findings):
        out.result()
        out.result("the recipe is valid" if report.unseen else "the recipe is valid, and the pair fits")


def _facts(side: Side) -> dict[str, str]:
    source = side.source
    heads = f"{source.num_attention_heads} heads, {source.num_key_value_heads} of keys and values"
    return {
        "family": side.family,
        "parameters": short(source.parameters),
        "dtype": source.dtype,
        "layers": f"{source.num_hidden_layers} x {source.hidden_size} ({heads})",
        "vocabulary": f"{source.vocab_size} (tokenizer {side.tokenizer.size})",
        "context": str(side.max_position),
        "end tokens": ", ".join(map(str, source.end_ids)) or "none",
    }


def _as_json(report: Report) -> dict[str, Any]:
    models = {
        role: {
            "folder": str(side.source.folder),
            "family": side.family,
            "parameters": side.source.parameters,
            "dtype": side.source.dtype,
            "vocab_size": side.source.vocab_size,
            "tokenizer_size": side.tokenizer.size,
            "max_position": side.max_position,
            "end_ids": list(side.source.end_ids),
        }
        for role, side in report.sides.items()
    }
    return {
        "recipe": str(report.loaded.path),
        "ok": not any(finding.refused for finding in report.findings),
        "models": models,
        "findings": [asdict(finding) for finding in report.findings],
        "not_checked": report.unseen,
    }


def _problems(error: TrtspecError) -> list[dict[str, Any]]:
    if isinstance(error, RecipeError):
        return [asdict(problem) for problem in error.problems]
    return [{"subject": error.subject, "problem": error.problem, "repair": error.repair}]
