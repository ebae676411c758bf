"""Runs one `trtspec tune`, from prompts or recorded answers to a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trtspec.backends.table import runner_of
from trtspec.base.digest import digest_of
from trtspec.base.errors import DatasetError, RecipeError, TrtspecError, UnavailableError
from trtspec.base.progress import Progress
from trtspec.measure.workloads.workload import Prompt, read_recorded
from trtspec.methods.method import TRANSLATES
from trtspec.models.layers import spread
from trtspec.models.source import read_source
from trtspec.recipe.loader import LoadedRecipe, model_location
from trtspec.recipe.schema import Recipe
from trtspec.serving.executors.torch.device import find_device
from trtspec.serving.executors.torch.torch_executor import load_engines
from trtspec.train.tune.answer import RecordedAnswer, in_tokens, mixed, tokenizer_of
from trtspec.train.tune.builds import ALONE, TuneBuilds
from trtspec.train.tune.cache import CachedChoices, TuneCache
from trtspec.train.tune.candidate import Candidate, CandidateDraft, Precision, candidates
from trtspec.train.tune.costs import ForecastCosts, MeasuredCosts
from trtspec.train.tune.race import PLAIN, CandidateResult, Replays, run
from trtspec.train.tune.recording import Asking, Encode, record
from trtspec.train.tune.replay import Choices, replay
from trtspec.train.tune.result import TuneResult, result_of
from trtspec.train.tune.score import DraftLengthCosts
from trtspec.train.tune.teacher_forcing import TeacherForcing

Costing = Callable[[Candidate], DraftLengthCosts]
"""Returns the costs of a candidate's rounds; raises what building it raises."""


class DraftOracle:
    """Runs drafts one after the other, with one at a time in memory."""

    def __init__(
        self, builds: TuneBuilds, cache: TuneCache, device: str, vocab_size: int, end_ids: tuple[int, ...]
    ) -> None:
        self._builds, self._cache = builds, cache
        self._device, self._vocab_size, self._end_ids = device, vocab_size, end_ids
        self._draft: CandidateDraft | None = None
        self._forcing: TeacherForcing | None = None
        self._known: CachedChoices | None = None

    def choices(self, draft: CandidateDraft, answers: Sequence[RecordedAnswer]) -> list[Choices]:
        """Returns the draft's choices for each answer; raises what building it raises."""
        built = self._builds.draft(draft)
        if draft != self._draft:
            self._draft, self._forcing = draft, None
            self._known = self._cache.choices(built.digest, self._end_ids[:1])
        assert self._known is not None
        found = []
        for answer in answers:
            choices = self._known.get(answer.digest)
            if choices is None:
                if self._forcing is None:
                    self._forcing = TeacherForcing(
                        built.engine, self._device, self._vocab_size, self._end_ids
                    )
                choices = self._forcing.choices(answer)
                self._known.put(answer.digest, choices)
            found.append(choices)
        return found

    def forget(self) -> None:
        """Frees the memory of the last draft."""
        self._draft = self._forcing = self._known = None


@dataclass(frozen=True, slots=True)
class Tuner:
    """Measures candidates for a recipe on recorded answers, with every K up to `longest`."""

    recipe: Recipe
    answers: Sequence[RecordedAnswer]
    longest: int
    costing: Costing
    oracle: DraftOracle
    watch: Progress

    def standings(self, candidates: Sequence[Candidate]) -> list[CandidateResult]:
        """Returns the result of each candidate, in the order of measurement.

        One that cannot be built or does not fit the target is refused. A missing disk, GPU or package ends
        the tuning.
        """
        found: list[CandidateResult] = []
        lead = PLAIN.low
        for candidate in candidates:
            try:
                standing = self._standing(candidate, lead)
            except UnavailableError:
                raise
            except TrtspecError as error:
                standing = CandidateResult(candidate, refused=str(error))
            found.append(standing)
            if standing.run and not standing.was_stopped:
                lead = max(lead, standing.run.best.speedup.low)
        self.oracle.forget()
        return found

    def _standing(self, candidate: Candidate, lead: float) -> CandidateResult:
        self.oracle.forget()
        costs, drafting = self.costing(candidate), candidate.drafting(self.recipe)
        with self.watch(f"{candidate.name}: running the draft", len(self.answers)) as advance:

            def measure(answers: Sequence[RecordedAnswer]) -> Replays:
                chosen: Sequence[Choices | None] = [None] * len(answers)
                if candidate.draft is not None:
                    chosen = self.oracle.choices(candidate.draft, answers)
                advance(len(answers))
                return {
                    length: [
                        replay(answer, drafting, None if own is None else [own] * length, length)
                        for answer, own in zip(answers, chosen, strict=True)
                    ]
                    for length in range(1, self.longest + 1)
                }

            return CandidateResult(candidate, run(self.answers, costs, lead, measure))


LONGEST = 8


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """The candidates to try, and how they are timed."""

    drafts: tuple[str, ...] = ()
    """Drafts besides the recipe's own."""
    layers: tuple[str, ...] = ()
    """Layers of the target that make a draft."""
    precisions: tuple[Precision, ...] = ()
    """Precisions to try; if empty, each draft keeps its own."""
    methods: tuple[str, ...] = ()
    """Methods to try; if empty, all that the recipe's backend runs."""
    longest: int | None = None
    """The longest draft; None takes the recipe's, or else `LONGEST`."""
    streams: int = 1
    is_measured: bool | None = None
    """True times rounds here;

    False takes a plan's costs. None times them if the recipe has the torch backend or is for a CPU, since no
    plan knows the times of a CPU.
    """


class Session:
    """Tunes one recipe; `work` keeps the measurements, so that an interrupted session can resume.

    `watch` shows progress in bytes, and `count` in answers. Before it builds anything, it raises ModelError
    for a draft folder without a model, and RecipeError for a recipe that cannot be tuned.
    """

    def __init__(
        self, loaded: LoadedRecipe, wanted: TuneOptions, work: Path, watch: Progress, count: Progress
    ) -> None:
        recipe = loaded.recipe
        if recipe.speculation.method.translates:
            problem = (
                "tune compares drafts with answers token by token, which another vocabulary does not allow"
            )
            repair = "remove this line to tune other methods; trtspec bench measures this one"
            raise RecipeError(loaded.path, [loaded.problem(TRANSLATES, problem, repair)])
        if recipe.speculation.method.is_head:
            problem = "a head reads its target's states, so tune cannot measure it alone"
            finding = loaded.problem("speculation.method", problem, "trtspec bench measures it")
            raise RecipeError(loaded.path, [finding])
        # A command line names folders relative to the current one.
        self._drafts = [CandidateDraft(model_location(each, Path.cwd())) for each in wanted.drafts]
        for draft in self._drafts:
            if isinstance(draft.location, Path):
                read_source(draft.location)
        longest = wanted.longest or recipe.speculation.max_draft_len or LONGEST
        self._loaded, self._wanted, self._longest, self._count = loaded, wanted, longest, count
        self._cache, self._builds = TuneCache(work), TuneBuilds(loaded, work, longest, watch)
        plan = self._builds.plan(ALONE)
        self._work, self._commit, self._source = work, plan.facts.target.revision, plan.facts.target.source
        self._tokenizer = tokenizer_of(self._source)
        options = plan.resolved.target.options
        self._max_seq_len = options.max_seq_len
        if wanted.streams > options.max_batch_size:
            problem = f"serves {options.max_batch_size} texts at once, not {wanted.streams}"
            finding = loaded.problem("engine.max_batch_size", problem, "raise it, or lower --streams")
            raise RecipeError(loaded.path, [finding])

    def recorded(self, file: Path, most: int, *, chat: bool) -> list[RecordedAnswer]:
        """Returns recorded answers; those longer than the engines' limit are left out.

        With `chat`, prompts without tokens are put into the chat template.
        """
        found = read_recorded(file)
        encode = self._encoder(chat)
        for number, one in enumerate(found if chat else ()):
            if not one.prompt_token_ids and one.prompt is not None:
                found[number] = replace(one, prompt_token_ids=tuple(encode(one.prompt)))
        answers = in_tokens(found, self._tokenizer, file)
        size = self._source.vocab_size
        for answer in answers:
            if (largest := max((*answer.prompt, *answer.tokens))) >= size:
                problem = f"has token id {largest}, but the target has {size} tokens"
                raise DatasetError(f"{file}: {answer.name}", problem, "record answers of the target itself")
        return self._chosen(answers, file, most)

    def asked(
        self, prompts: Sequence[Prompt], max_tokens: int, temperature: float, *, chat: bool
    ) -> list[RecordedAnswer]:
        """Returns the target's answers, computed here, to the first turns of prompts."""
        target = self._builds.target()
        asking = Asking(self._loaded.recipe.target.model, self._encoder(chat), max_tokens, temperature)
        file = self._cache.answers(target.digest, max_tokens, temperature)
        with self._count("the target's own answers", len(prompts)) as advance:
            (engine,) = load_engines([target.engine])
            try:
                found = record(file, prompts, asking, engine, self._tokenizer, advance)
            finally:
                engine.shutdown()
        return self._chosen(in_tokens(found, self._tokenizer, file), file, len(found))

    def tune(self, answers: Sequence[RecordedAnswer]) -> TuneResult:
        """Measures every candidate on the answers; raises what building the target raises."""
        wanted, is_measured = self._wanted, self._wanted.is_measured
        if is_measured is None:
            recipe = self._loaded.recipe
            is_measured = runner_of(recipe).gpu(recipe) is None
        drafts = [*self._drafts, *(self._of_layers(layers) for layers in wanted.layers)]
        standing = candidates(self._loaded, drafts, wanted.precisions, wanted.methods)
        costing: MeasuredCosts | ForecastCosts
        if is_measured:
            load = answers, wanted.streams, self._longest
            costing = MeasuredCosts(self._builds, self._cache, *load, self._count)
        else:
            costing = ForecastCosts(self._builds, answers, wanted.streams, self._longest)
        size, end_ids = self._source.vocab_size, self._tokenizer.end_ids
        oracle = DraftOracle(self._builds, self._cache, find_device(None), size, end_ids)
        tuner = Tuner(self._loaded.recipe, answers, self._longest, costing, oracle, self._count)
        found = tuner.standings(standing)
        return result_of(found, len(answers), wanted.streams, is_measured=is_measured)

    def _chosen(self, answers: Sequence[RecordedAnswer], source: Path, most: int) -> list[RecordedAnswer]:
        """Returns one answer for each prompt: several would count as independent and make intervals too
        narrow."""
        fitting = {
            answer.prompt: answer
            for answer in answers
            if answer.tokens and len(answer.prompt) + len(answer.tokens) <= self._max_seq_len
        }
        if len(fitting) < 2:
            least = f"answers of at most {self._max_seq_len} tokens to {len(fitting)} prompts"
            raise DatasetError(source, f"has {least}, but two are needed", "record more")
        return mixed(fitting.values())[:most]

    def _encoder(self, chat: bool) -> Encode:
        if not chat:
            return self._tokenizer.encode
        from trtspec.checkpoint.calibrate.texts import Encoder

        return Encoder(self._source.folder, Path("workload"), self._max_seq_len + 1, chat_template=True)

    def _of_layers(self, written: str) -> CandidateDraft:
        """Returns the draft made of some layers, given their count or their numbers.

        The name of its folder tells the targets apart that the recipe had.
        """
        count = self._source.num_hidden_layers
        layers = tuple(map(int, written.split(",")))
        if "," not in written:
            layers = spread(min(layers[0], count), count)
        stats = [(file.name, file.stat()) for file in self._source.files]
        files = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
        target = digest_of(self._commit or [str(self._source.folder), files])[:8]
        return CandidateDraft(self._work / f"layers-{'-'.join(map(str, layers))}-of-{target}", layers=layers)
