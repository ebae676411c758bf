"""Builds the torch backend's engines of a target and of the drafts to try."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtspec.base.digest import digest_of
from trtspec.base.files import write_atomically
from trtspec.base.progress import Progress
from trtspec.base.roles import Role
from trtspec.checkpoint.layers.chosen import write_model
from trtspec.methods.any_method import WITHOUT_MODEL
from trtspec.models.download import fetch
from trtspec.models.layers import of_layers
from trtspec.models.source import read_source
from trtspec.pipeline.build.plan import BuildPlan, make_plan
from trtspec.pipeline.run.runner import run
from trtspec.pipeline.steps import build, check_pair, choose_layers, convert, copy_tokenizer
from trtspec.pipeline.steps.calibrate import KIND as CALIBRATE
from trtspec.recipe.edit import edit, places
from trtspec.recipe.loader import LoadedRecipe
from trtspec.serving.drafters.source import DRAFT_MODEL
from trtspec.train.tune.candidate import Candidate, CandidateDraft

ALONE = Candidate(WITHOUT_MODEL[0], None)
"""The target without a draft."""
_ENGINE = (choose_layers.KIND, CALIBRATE, convert.KIND, build.KIND)


@dataclass(frozen=True, slots=True)
class Built:
    """An engine that was built."""

    folder: Path
    """The build folder."""
    engine: Path
    """The engine's directory in the build folder."""
    digest: str
    """The digest of the engine's inputs."""


class TuneBuilds:
    """Builds engines below `folder` that verify, or propose, up to `longest` tokens.

    Existing builds are reused. Models of the Hub are downloaded as far as needed.
    """

    def __init__(self, loaded: LoadedRecipe, folder: Path, longest: int, watch: Progress) -> None:
        self._loaded, self._folder, self._longest, self._watch = loaded, folder, longest, watch
        self._known: dict[Candidate, Built] = {}

    def plan(self, candidate: Candidate) -> BuildPlan:
        """Returns the plan of a candidate as its recipe would be, engines and all; builds nothing."""
        return make_plan(self._recipe(candidate), progress=self._watch)

    def target(self) -> Built:
        """Builds the target's engine; raises what a build raises."""
        return self._built(ALONE, Role.TARGET, copy_tokenizer.KIND)

    def draft(self, draft: CandidateDraft) -> Built:
        """Builds a draft's engine; raises PairError for one that does not fit, and what a build raises."""
        return self._built(Candidate(DRAFT_MODEL.kind, draft), Role.DRAFT, check_pair.KIND)

    def _built(self, candidate: Candidate, role: Role, other: str) -> Built:
        if candidate in self._known:
            return self._known[candidate]
        recipe = self._recipe(candidate)
        # In the bls layout no engine is inside another, so each can run alone.
        made = make_plan(
            recipe,
            output=recipe.with_suffix(""),
            backend="torch",
            layout="bls",
            to_run=True,
            progress=self._watch,
        )
        own = [step for step in made.steps if step.role is role and step.kind in _ENGINE]
        steps = [step for step in made.steps if step in own or step.kind == other]
        run(steps, made.output, made.digests, self._watch)
        engine = next(step for step in own if step.kind == build.KIND)
        digest = digest_of([made.digests.of_step(step) for step in own])
        built = self._known[candidate] = Built(made.output, made.output / str(engine.output), digest)
        return built

    def _recipe(self, candidate: Candidate) -> Path:
        """Writes the recipe of a candidate, with the original paths of models and texts."""
        loaded, draft = self._loaded, candidate.draft
        if draft and draft.layers and isinstance(draft.location, Path):
            # A plan has only the headers of a Hub model that no step has read yet.
            target = fetch(loaded.locations[Role.TARGET], loaded.recipe.target.revision, self._watch)
            write_model(of_layers(read_source(target), draft.layers), draft.location)
        name = digest_of([candidate.method, draft and [str(draft.location), draft.precision]])[:16]
        path = self._folder / f"{name}.yaml"
        changes = {
            "speculation.max_draft_len": self._longest,
            "speculation.num_draft_tokens": None,
            **places(loaded, None),
            **candidate.changes(loaded.recipe, None),
        }
        write_atomically(path, edit(loaded.path.read_text(encoding="utf-8-sig"), changes, loaded.path))
        return path
