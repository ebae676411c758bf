"""Reads a recipe's two models for a distillation."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.backends.table import runner_of
from trtspec.base.errors import ModelError, RecipeError
from trtspec.base.progress import Progress
from trtspec.base.roles import Role
from trtspec.methods.method import TRANSLATES
from trtspec.models.download import fetch
from trtspec.models.pair import compare, read_member, refuse
from trtspec.models.source import DTYPES, Source
from trtspec.pipeline.plan.resolved import MAX_DRAFT_LEN
from trtspec.recipe.loader import LoadedRecipe
from trtspec.serving.tokenizer import Tokenizer
from trtspec.train.tune.answer import tokenizer_of


@dataclass(frozen=True, slots=True)
class TrainingPair:
    """A target, and the draft to train."""

    loaded: LoadedRecipe
    target: Source
    """The target; it has its weights if a head is trained."""
    draft: Source | None
    """The draft; None if a head is trained."""
    tokenizer: Tokenizer

    @property
    def num_draft_tokens(self) -> int:
        """K: the recipe's, or else the longest draft that its target verifies."""
        speculation = self.loaded.recipe.speculation
        return speculation.num_draft_tokens or speculation.max_draft_len or MAX_DRAFT_LEN

    @property
    def max_seq_len(self) -> int:
        """The longest prompt and answer in tokens that the models support and the recipe serves."""
        own = min(model.max_position for model in (self.target, self.draft) if model)
        return min(own, self.loaded.recipe.engine.max_seq_len or own)


def read_target(loaded: LoadedRecipe, watch: Progress) -> TrainingPair:
    """Reads the target of a head, with its weights."""
    location, revision = loaded.locations[Role.TARGET], loaded.recipe.target.revision
    target = read_member(fetch(location, revision, watch)).source
    return TrainingPair(loaded, target, None, tokenizer_of(target))


def read_pair(loaded: LoadedRecipe, watch: Progress) -> TrainingPair:
    """Reads both models; the weights of a target on the Hub are not downloaded.

    Raises ModelError for a draft that cannot be trained, PairError for models that do not fit, and
    RecipeError for a draft with another vocabulary.
    """
    models = loaded.recipe.models
    if Role.DRAFT not in models:
        kind = loaded.recipe.speculation.method.kind
        raise ModelError(loaded.path, f"has no draft to train: its method is {kind}", "add a draft section")
    if loaded.recipe.speculation.method.translates:
        problem = "a draft learns the target's own tokens, but this draft has another vocabulary"
        repair = "remove this line, and use a draft with the target's tokenizer"
        raise RecipeError(loaded.path, [loaded.problem(TRANSLATES, problem, repair)])
    if loaded.recipe.draft and loaded.recipe.draft.layers_of_target:
        problem = "its draft is layers of the target, which must not change"
        raise ModelError(loaded.path, problem, "train a model of its own: `trtspec tune --layers` writes one")
    folders = {
        role: fetch(location, models[role].revision, watch, weights=role is Role.DRAFT)
        for role, location in loaded.locations.items()
    }
    target, draft = read_member(folders[Role.TARGET]), read_member(folders[Role.DRAFT])
    findings = compare(target, draft, loaded.recipe.engine.max_seq_len)
    refuse(str(loaded.path), findings, can_translate=runner_of(loaded.recipe).translates)
    _check_trainable(draft.source)
    return TrainingPair(loaded, target.source, draft.source, tokenizer_of(target.source))


def _check_trainable(source: Source) -> None:
    """Raises ModelError for a model whose weights are quantized: they have no gradients."""
    other = sorted({tensor.dtype for tensor in source.tensors.values()} - set(DTYPES))
    if source.scheme is not None or other:
        found = f"is quantized by {source.scheme.method}" if source.scheme else f"has weights of {other[0]}"
        repair = "train the unquantized model; a build quantizes the result"
        raise ModelError(source.folder, f"{found}, and cannot be trained", repair)
