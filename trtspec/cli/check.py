"""`trtspec check`: the recipe, and its models as far as this machine has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtspec.backends.table import runner_of
from trtspec.base.errors import TrtspecError, UnavailableError
from trtspec.base.findings import Severity, as_json, errors
from trtspec.base.roles import Role
from trtspec.base.units import short, three_digits
from trtspec.cli.terminal.options import JsonOption, RecipeArgument
from trtspec.cli.terminal.output import out
from trtspec.models.pair import refuse
from trtspec.pipeline.build.plan import PlanRequest, look_here, read_request
from trtspec.pipeline.machine.host import find_host

if TYPE_CHECKING:
    from trtspec.models.pair import Member
    from trtspec.pipeline.inspection.pair import PairReport

EXAMPLES = ("trtspec check recipe.yaml", "trtspec check recipe.yaml --json")


_LABELS = {Severity.ERROR: "refused", Severity.NOTE: "differs"}


def check(recipe: RecipeArgument, json: JsonOption = False) -> None:
    """Check a recipe, and whether its models fit together.

    The exit status is 1 if something does not fit, and if a model is not on this machine: then the recipe
    alone was checked.
    """
    request = PlanRequest()
    try:
        loaded = read_request(recipe, request)
        release = runner_of(loaded.recipe).engine_release(loaded.recipe)
        report = look_here(loaded, find_host(release, container=False), request)
    except TrtspecError as error:
        if json:
            out.json({"recipe": str(recipe), **as_json(error.findings)})
        raise
    out.show(CheckedRecipe(report), as_json=json)
    refuse(str(recipe), report.findings, can_translate=runner_of(report.loaded.recipe).translates)
    if report.unseen:
        models = report.loaded.recipe.models
        reasons = "; ".join(f"the {role} {reason}" for role, reason in report.unseen.items())
        downloads = " and ".join(f"hf download {models[role].model}" for role in report.unseen)
        problem = f"the {'pair' if len(models) > 1 else 'model'} was not checked: {reasons}"
        raise UnavailableError(recipe, problem, f"{downloads}, or write a model's folder in the recipe")


@dataclass(frozen=True, slots=True)
class CheckedRecipe:
    """A recipe and what is known of its models."""

    report: PairReport

    def tell(self) -> None:
        recipe, sides = self.report.loaded.recipe, self.report.sides
        out.result(f"{recipe.name}: {recipe.backend} backend, gpu {recipe.hardware.gpu}")
        facts = {role: _facts(side) for role, side in sides.items()}
        if facts:
            out.result()
            names = next(iter(facts.values()))
            out.table(
                [(name, *(fact[name] for fact in facts.values())) for name in names], header=("", *facts)
            )
        if head := self.report.head:
            out.result(
                f"draft: a head, {head.method}, {head.form} format, {short(head.parameters)} parameters"
            )
        if own := self.report.own_layers:
            layers = "1 layer" if own.count == 1 else f"{own.count} layers"
            out.result(f"draft: {layers} of the target for multi-token prediction, {three_digits(own.size)}")
        if self.report.findings:
            out.result()
        for finding in self.report.findings:
            out.result(f"{_LABELS[finding.severity]}  {finding.subject}: {finding.problem}")
            out.result(f"         {finding.effect}")
        if not errors(self.report.findings):
            out.result()
            fits = len(recipe.models) > 1 and not self.report.unseen
            out.result("the recipe is valid, and the pair fits" if fits else "the recipe is valid")

    def as_json(self) -> dict[str, Any]:
        models: dict[Role, dict[str, Any]] = {
            role: {
                "folder": str(side.source.folder),
                "family": side.source.model_type,
                "parameters": side.source.parameters,
                "dtype": side.source.dtype,
                "vocab_size": side.source.vocab_size,
                "tokenizer_size": side.tokenizer.size,
                "max_position": side.max_position,
                "end_ids": list(side.source.end_ids),
            }
            for role, side in self.report.sides.items()
        }
        if head := self.report.head:
            models[Role.DRAFT] = {
                "folder": str(head.folder),
                "method": head.method,
                "format": head.form,
                "parameters": head.parameters,
                "vocab_size": head.vocab_size,
                "draft_vocab_size": head.draft_vocab_size,
            }
        own = self.report.own_layers
        return {
            "recipe": str(self.report.loaded.path),
            "mtp_layers": own.count if own else None,
            "models": models,
            "not_checked": dict(self.report.unseen),
            **as_json(self.report.findings),
        }


def _facts(side: Member) -> dict[str, str]:
    source = side.source
    heads = f"{source.num_attention_heads} heads, {source.num_key_value_heads} of keys and values"
    return {
        "family": side.source.model_type,
        "parameters": short(source.parameters),
        "dtype": source.dtype,
        "layers": f"{source.num_hidden_layers} x {source.hidden_size} ({heads})",
        "vocabulary": f"{source.vocab_size} (tokenizer {side.tokenizer.size})",
        "context": str(side.max_position),
        "end tokens": ", ".join(map(str, source.end_ids)) or "none",
    }
