"""Defines what the servers have in common that load the models themselves."""

from __future__ import annotations

import json
import shutil
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from trtspec.backends.backend import Backend, MachineNeed
from trtspec.backends.launch import FILE, ServerLaunch
from trtspec.backends.planner import Planner
from trtspec.base.environment import is_secret
from trtspec.base.findings import Finding, errors
from trtspec.base.progress import Advance
from trtspec.base.roles import Role
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.checkpoint.convert_options import Mapping as RankMapping
from trtspec.methods.method import TRANSLATES, Method
from trtspec.models.families import longrope
from trtspec.models.heads.head import HeadDescription
from trtspec.models.heads.reading import read_model
from trtspec.models.masked import check_parallel
from trtspec.models.mtp import MtpLayers, mtp_layers
from trtspec.models.pair import Member, member_of
from trtspec.models.source import INDEX, Source, has_file, read_hf_config
from trtspec.models.tokenizer import TokenizerTraits
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.pipeline.plan.depending import depending
from trtspec.pipeline.plan.facts import HeadFacts, ModelFacts, PlanFacts, is_weight, made_of
from trtspec.pipeline.plan.memory import are_reckoned, budget_of, kv_of_layer
from trtspec.pipeline.plan.resolved import (
    Choice,
    Chooser,
    EnginePlan,
    Origin,
    Resolved,
    TextBound,
    choose_checkpoint,
    choose_fp8_weights,
    choose_max_seq_len,
)
from trtspec.pipeline.repository.spec import Placement, place
from trtspec.pipeline.run.step import Step
from trtspec.pipeline.steps import check_pair, choose_layers, copy_tokenizer, write_layers
from trtspec.pipeline.steps.write_layers import OUTPUT
from trtspec.recipe import gpus
from trtspec.recipe.loader import LoadedRecipe, lacking
from trtspec.recipe.migration.command import Option, Syntax, options
from trtspec.recipe.migration.reading import FlagTable, is_whole, object_of
from trtspec.recipe.migration.tool import LongerTexts
from trtspec.recipe.schema import Recipe


@dataclass(frozen=True, slots=True)
class ServerRelease:
    """A release of a server that is on PyPI, and whose own configuration classes were read or asked."""

    version: str
    image: str
    cpu_image: str | None = None
    """An image that runs without a GPU; None if there is no such image."""
    metrics_path: str | None = "/metrics"
    """The path of the server's metrics for Prometheus; None if there is none."""


@dataclass(frozen=True, slots=True)
class LaunchModel:
    """A model as a server loads it."""

    place: str
    """The folder of the model, or its Hub id."""
    revision: str | None = None
    """The commit of the Hub id."""
    quantize: bool = False
    """True if the server quantizes the weights to FP8 while it loads them."""

    @property
    def is_folder(self) -> bool:
        return Path(self.place).is_absolute()


@dataclass(frozen=True, slots=True)
class LaunchInputs:
    """All inputs of a launch configuration."""

    release: ServerRelease
    names: tuple[str, ...]
    """The names that clients call the model by, where the server has names; it answers by the first."""
    target: LaunchModel
    draft: LaunchModel | None
    method: Method
    num_draft_tokens: int
    checkpoint: ConvertOptions
    """The ranks, and the precision of all models. Weights that are quantized stay as they are."""
    options: BuildOptions
    """The sizes."""
    enable_chunked_context: bool
    kv_bytes: int | None
    """The bytes of the KV caches where the server cannot choose them itself, on a CPU; None on a GPU."""
    schedule: Mapping[int, int] = field(default_factory=dict)
    """The largest K from so many running requests on; empty if their number does not bound it."""

    @property
    def image(self) -> str:
        """The vendor's image, without a GPU that for a CPU."""
        of_cpu = self.release.cpu_image if self.kv_bytes is not None else None
        return of_cpu or self.release.image

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders of the models; those of the Hub have none."""
        models = (self.target, self.draft)
        return tuple(model.place for model in models if model and model.is_folder)


_ON_CPU = TextBound(8192, "the server reserves the host's memory for all requests at once")
_ROUND = 256  # tokens to which a length that memory bounds is rounded down


def with_texts(
    choose: Chooser,
    engines: Mapping[Role, EnginePlan],
    head: HeadDescription | None,
    longer: LongerTexts | None,
) -> dict[Role, EnginePlan]:
    """Returns the engines with the longest sequence of each.

    A `head` bounds it if the server needs a variable for `longer` sequences than the head was made for, and
    the recipe does not set that.

    Raises RecipeError for longer sequences than a server takes of the target, or than its iterations read.
    """
    own = {role: engine.model.source.served_length for role, engine in engines.items()}
    target = engines[Role.TARGET]
    longest = choose_max_seq_len(choose, own, [*_of_head(choose, head, longer), *_bounds(choose, engines)])
    options = replace(target.options, max_input_len=longest - 1, max_seq_len=longest)
    if not target.enable_chunked_context and options.max_num_tokens < longest:
        problem = (
            f"{options.max_num_tokens} is less than the longest sequence, which is read in one iteration"
        )
        repair = f"at least {longest}, or enable_chunked_context: true"
        raise choose.error("engine.max_num_tokens", problem, repair)
    return {role: replace(engine, options=options) for role, engine in engines.items()}


def _of_head(
    choose: Chooser, head: HeadDescription | None, longer: LongerTexts | None
) -> Iterator[TextBound]:
    environment = choose.loaded.recipe.engine.environment
    if head and head.layer and longer and not longer.are_allowed(environment):
        longest = head.layer["max_position_embeddings"]
        yield TextBound(longest, f"what the head was made for: the server needs {longer.variable} for more")


def _bounds(choose: Chooser, engines: Mapping[Role, EnginePlan]) -> list[TextBound]:
    """Returns what bounds the length if the recipe sets none."""
    hardware, target = choose.loaded.recipe.hardware, engines[Role.TARGET].model.source
    found = []
    if original := longrope.original(target):
        found.append(TextBound(original, "vLLM's own: beyond it longrope reads short sequences worse"))
    gpu = gpus.GPUS.get(hardware.gpu)
    if gpu is None:
        return [*found, _ON_CPU]
    if are_reckoned(engines):
        held = budget_of(gpu, engines, hardware.count).tokens - engines[Role.TARGET].options.max_draft_len
        if held >= _ROUND:
            own = target.served_length
            reason = f"what the KV cache of {gpu.label} holds, of {own:,} that the target was made for"
            found.append(TextBound(held // _ROUND * _ROUND, reason))
    return found


KIND = "write launch"
_CONFIG = "config.json"


def launch_steps(launch: ServerLaunch) -> Iterator[Step]:
    """Yields the steps that write a server's files, and `launch.json` that names them."""
    for name, text in launch.files.items():
        yield Step(
            kind=f"write {name}",
            summary=f"what {launch.program[0]} reads",
            inputs=(),
            output=name,
            command=(),
            made_of=text,
            action=partial(_write, text),
        )
    yield Step(
        kind=KIND,
        summary=f"how {launch.backend} {launch.release} is started",
        inputs=launch.models,
        output=FILE,
        command=(),
        made_of=asdict(launch),
        action=partial(_write, launch.to_json()),
    )


def _write(text: str, output: Path, _: Advance) -> None:
    output.write_text(text, encoding="utf-8")


def _head_step(resolved: Resolved, found: HeadFacts) -> Step:
    """Returns the step that writes Medusa's heads with all that vLLM reads of them."""
    return Step(
        kind="write head",
        summary=f"the head, with the keys that {resolved.backend} reads: {', '.join(found.head.unsaid)}",
        inputs=(found.name,),
        output=OUTPUT,
        command=(),
        made_of=made_of(is_weight, found, unsaid=dict(found.head.unsaid)),
        action=partial(_write_head, found.head),
    )


def _write_head(head: HeadDescription, output: Path, advance: Advance) -> None:
    """Writes a folder that trtspec and TensorRT-LLM read as before."""
    output.mkdir(parents=True)
    config = {**read_hf_config(head.folder / _CONFIG).content, **head.unsaid}
    (output / _CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    files = {tensor.file for tensor in head.tensors.values()}
    if has_file(index := head.folder / INDEX):
        files.add(index)
    for file in sorted(files):
        shutil.copyfile(file, output / file.name)


_SUBJECT = "MTP layers"
_NOTHING = "nothing proposes"
_TAKE_OTHER = "take a model that was trained with them, or another method"


@dataclass(frozen=True, slots=True)
class MtpSupport:
    """The targets whose own layers a server drafts with."""

    names: frozenset[str]
    """The `model_type` or the class of each, as `config.json` has it."""
    source: str
    """Where that is written."""
    in_whole_turns: bool = False
    """True if a draft longer than the number of layers must be a multiple of it."""

    def check(self, target: Source, num_draft_tokens: int | None) -> Iterator[Finding]:
        """Finds why the server cannot draft so many tokens with the target; None stands for the default."""
        found = mtp_layers(target)
        if found is None:
            problem = "the target has none: neither config.json nor a tensor names one"
            yield Finding(_SUBJECT, problem, _TAKE_OTHER, effect=_NOTHING)
        elif not found.size:
            problem = f"config.json says {found.count}, and their weights are missing, as in many copies"
            yield Finding(_SUBJECT, problem, "take the publisher's own weights", effect=_NOTHING)
        elif self.names.isdisjoint((target.model_type, target.architecture)):
            problem = f"the server cannot draft with those of {target.architecture} ({self.source})"
            yield Finding(_SUBJECT, problem, "take another method, or another engine", effect=_NOTHING)
        elif self.in_whole_turns and found.is_said and num_draft_tokens:
            count = found.count
            if num_draft_tokens > count and num_draft_tokens % count:
                problem = (
                    f"a draft of {num_draft_tokens} tokens is not a multiple of the target's {count} layers"
                )
                repair = f"write num_draft_tokens: {num_draft_tokens // count * count}"
                yield Finding(_SUBJECT, problem, repair, effect="the server does not start")


_REMOVE = "remove this line"
_COORDINATOR = "only trtspec's own coordinator has it, and that serves engines"
_TOTAL = "it limits prompt and answer together alone: engine.max_seq_len"
_NO_BUILD = "no engine is built, for which these are options of trtllm-build"
_OWN_API = "its server has an API of its own, with its own options"
_LACKING = {
    "serving.reasoning_parser": _OWN_API,
    "serving.generation_config": _OWN_API,
    "serving.max_queue_size": _COORDINATOR,
    "serving.max_queue_delay_microseconds": _COORDINATOR,
    "serving.default_timeout_microseconds": _COORDINATOR,
    "serving.draft_timeout_microseconds": _COORDINATOR,
    "serving.target_timeout_microseconds": _COORDINATOR,
    "speculation.share": _COORDINATOR,
    "speculation.method.earlier_answers": "it keeps no answers by tenant",
    "engine.max_input_len": _TOTAL,
    "target.build": _NO_BUILD,
    "draft.build": _NO_BUILD,
    "target.quantization.calibration": "it takes scales from the weights as it loads them, or from the model",
    "draft.quantization.calibration": "it takes scales from the weights as it loads them, or from the model",
    "draft.device": "it runs the draft on the target's GPUs",
}
"""Keys that no server has, with what it does instead."""

_LACKING_ON_CLUSTERS = {
    "kubernetes.store": "it loads the models itself, and no engine is in a store",
    "kubernetes.secrets.store": "it loads the models itself, and no engine is in a store",
    "kubernetes.hosts": "its ranks are on one host",
    "kubernetes.autoscaling": "replicas follow the gauges of trtspec's own coordinator",
    "kubernetes.monitoring.dashboard": "it is made of trtspec's own metrics, and the server has others",
}


def passed_on(recipe: Recipe, flags: FlagTable) -> Iterator[Finding]:
    """Finds flags of `engine.extra_args` that trtspec sets, and secrets, which do not belong in a recipe."""
    key, sets = "engine.extra_args", flags.sets
    for word in recipe.engine.extra_args:
        written = word.partition("=")[0]
        name = flags.syntax.name(written).partition(".")[0]
        if reason := sets.get(name):
            yield Finding(key, f"{name} is not passed on: {reason}", "remove it")
        elif len(meant := flags.syntax.meant(written)) > 1:
            yield Finding(key, f"{written} may be {', '.join(meant)}", "write the whole flag")
    if recipe.serving.layout and recipe.engine.extra_args:
        yield Finding(key, "under Triton vLLM has no command line", _REMOVE)
    for name, value in recipe.engine.environment.items():
        if is_secret(name, value):
            problem = f"{name} looks like a secret, and a recipe is read by many"
            yield Finding("engine.environment", problem, "set it where trtspec deploy runs")


def _draft_findings(recipe: Recipe) -> Iterator[Finding]:
    """Finds a draft that should not be loaded like the target.

    vLLM's draft has the target's tensor ranks (vllm/v1/spec_decode/draft_model.py), and dtype and KV cache
    (vllm/config/speculative.py); SGLang's are those of one `ServerArgs`, TensorRT-LLM's of one `LlmArgs`.
    """
    target, draft = recipe.target, recipe.draft
    if draft is None:
        return
    same = f"{recipe.backend} loads the draft like the target"
    ranks = draft.parallel
    if recipe.written("draft.parallel") and (ranks.tensor, ranks.pipeline) != (target.parallel.tensor, 1):
        problem = f"{same}, on {target.parallel.tensor} tensor ranks, and in one part"
        yield Finding("draft.parallel", problem, _REMOVE)
    if recipe.written("draft.dtype") and draft.dtype != target.dtype:
        yield Finding("draft.dtype", f"{same}, whose dtype is {target.dtype}", _REMOVE)
    cache = "draft.quantization.kv_cache"
    if recipe.written(cache) and draft.quantization.kv_cache != target.quantization.kv_cache:
        yield Finding(cache, f"{same}, whose KV cache is {target.quantization.kv_cache}", _REMOVE)


ONE_SOURCE = "drafts come from one source for the whole server, which the configuration names"
"""The reason why a server does not run a method that has two."""


class ServerBackend(Planner):
    """Another engine's server: it loads the models, and no engine is built for it."""

    builds_engines = False
    k_by_request = False
    split_alike = (Role.TARGET, Role.DRAFT)
    fp8 = (
        "weights are quantized as they are loaded, and activations with scales of each step;"
        " an FP8 model keeps its own scales"
    )
    longest_text = "the model's own, where memory allows"
    releases: ClassVar[tuple[ServerRelease, ...]]
    """The releases that serve a recipe, the default first."""
    module: ClassVar[str]
    """The module that Python runs."""
    module_words: ClassVar[tuple[str, ...]] = ()
    """The words between the module and the arguments."""
    program: ClassVar[tuple[str, ...]]
    """The words that stand for `python -m module` in the image."""
    lacking: ClassVar[Mapping[str, str]] = {}
    """The keys of a recipe that it lacks and others have, with what it does instead."""
    override: ClassVar[str | None] = None
    """The flag that overrides keys of `config.json`; None if it has none."""
    longer_than_head: ClassVar[LongerTexts | None] = None
    """The variable that it needs to start with longer sequences than a head was made for; None if it needs
    none.
    """
    mtp: ClassVar[MtpSupport]
    """The targets whose own layers it drafts with."""
    layouts: ClassVar[tuple[str, ...]] = ()
    """The values of `serving.layout` that it has beside a server of its own."""

    data_parallel: ClassVar[tuple[str, ...]] = ("", "")
    """The flag with the number of data parallel ranks, and the one with which they are tensor ranks."""

    flags: ClassVar[FlagTable] = FlagTable(Syntax(), {}, {})
    """The flags of its command that are not passed on as they are."""

    @property
    def versions(self) -> tuple[str, ...]:
        return tuple(release.version for release in self.releases)

    @property
    def translates(self) -> bool:
        return TRANSLATES not in self.lacking

    def release_of(self, version: str | None) -> ServerRelease:
        """Returns the release of a recipe's `engine.release`; None stands for the default."""
        return next(release for release in self.releases if version in (None, release.version))

    def served_name(self, loaded: LoadedRecipe) -> str:
        """Returns the recipe's name for clients, or else the name that the server's own command would use."""
        serving, has_none = loaded.recipe.serving, loaded.recipe.written("serving.model_name") is None
        return loaded.recipe.target.model if has_none and serving.layout is None else serving.model_name

    def num_tokens(self, gpu: str) -> str:
        return f"{MAX_NUM_TOKENS_CPU if gpu == gpus.NONE else MAX_NUM_TOKENS:,}"

    def image(self, recipe: Recipe) -> str:
        return self.release_of(recipe.engine.release).image

    def release_flaw(self, version: str) -> tuple[str, str] | None:
        if version in self.versions:
            return None
        known = f"known are {', '.join(self.versions)}"
        return f"found {version!r:.80}: no release of {self.name} that was tried", known

    def contradictions(self, recipe: Recipe) -> Iterator[Finding]:
        yield from lacking(recipe, {**_LACKING, **self.lacking})
        if recipe.speculation.policy == "adaptive":
            problem = f"{recipe.backend} drafts as much in every round; the adaptive policy is trtspec's own"
            yield Finding("speculation.policy", problem, "remove this line, or write policy: fixed")
        layout = recipe.serving.layout
        if layout and layout not in self.layouts:
            alone = "of these servers Triton has a backend of vLLM alone"
            reason = alone if layout == "triton" else _COORDINATOR
            yield Finding("serving.layout", f"{recipe.backend} has no layout {layout}: {reason}", _REMOVE)
        yield from _draft_findings(recipe)
        yield from passed_on(recipe, self.flags)
        copies, count = self.data_ranks(recipe.engine.extra_args), recipe.hardware.count
        needed = copies * recipe.target.parallel.ranks
        if copies > 1 and needed > count and recipe.hardware.gpu != gpus.NONE:
            problem = f"{self.data_parallel[0]} {copies} makes {needed} ranks, one GPU each, not {count}"
            yield Finding("hardware.count", problem, f"write count: {needed}")
        if recipe.speculation.schedule and (flaw := self.schedule_flaw(recipe)):
            yield Finding("speculation.schedule", flaw, "remove this line, or what stands against it")

    def schedule_flaw(self, recipe: Recipe) -> str | None:
        """Returns why the server would not change K by the recipe's schedule; None if it would."""
        return None

    def data_ranks(self, arguments: Sequence[str]) -> int:
        items, (flag, shares) = options(arguments, self.flags.syntax), self.data_parallel
        found = {item.name: item.value or "" for item in items if isinstance(item, Option)}
        return int(size) if is_whole(size := found.get(flag, "")) and shares not in found else 1

    def ranks(self, recipe: Recipe) -> dict[Role, int]:
        """Returns the ranks; the draft is loaded on as many tensor ranks as the target."""
        found = super().ranks(recipe)
        return {**found, Role.DRAFT: recipe.target.parallel.tensor} if Role.DRAFT in found else found

    def place(self, ranks: Mapping[Role, int], count: int, draft: tuple[int, ...] | None) -> Placement:
        """Returns the GPUs of the target, which its server runs the draft on too."""
        return place(ranks, ranks[Role.TARGET], draft)

    def machine_needs(self, recipe: Recipe) -> tuple[MachineNeed, ...]:
        on_gpu: tuple[MachineNeed, ...] = ("gpus", "server", "containers")
        return on_gpu[1:] if recipe.hardware.gpu == gpus.NONE else on_gpu

    def read(self, folder: Path) -> Source:
        return read_model(folder, whole=True)

    def member(
        self, source: Source, recipe: Recipe, role: Role, like: TokenizerTraits | None = None
    ) -> Member:
        overrides = self.overrides(recipe) if role is Role.TARGET else {}
        return member_of(source, for_engines=False, overrides=overrides, like=like)

    def weight_bytes(self, source: Source, checkpoint: ConvertOptions) -> int:
        return source.size

    def misfits(self, recipe: Recipe, target: Source) -> Iterator[Finding]:
        speculation = recipe.speculation
        if speculation.method.in_target:
            written = speculation.num_draft_tokens or speculation.max_draft_len
            yield from self.mtp.check(target, written or speculation.largest)

    def overrides(self, recipe: Recipe) -> Mapping[str, Any]:
        """Returns the keys of the flag's JSON, and those that stand behind its dots, as vLLM reads them."""
        found: dict[str, Any] = {}
        for item in options(recipe.engine.extra_args, self.flags.syntax):
            if isinstance(item, Option) and item.name.partition(".")[0] == self.override:
                text = item.value or ""
                for part in reversed(item.name.split(".")[1:]):
                    text = f'{{"{part}": {text}}}'
                found = _merged(found, object_of(text) or {})
        return found

    def lacking_on_clusters(self, recipe: Recipe) -> Iterator[Finding]:
        yield from lacking(recipe, _LACKING_ON_CLUSTERS)
        if recipe.kubernetes.form != "deployment":
            problem = (
                f"the manifests for KServe describe trtspec's own server, and {recipe.backend} is another one"
            )
            yield Finding("kubernetes.form", problem, "write form: deployment")

    def resolve(
        self, choose: Chooser, facts: PlanFacts, output: Path, runners: Mapping[Role, Backend]
    ) -> Resolved:
        """Returns the recipe with every default filled in, and how the server is started.

        A head is not among the engines: the plan does not count its memory and time.
        """
        loaded, recipe = choose.loaded, choose.loaded.recipe
        on_cpu = recipe.hardware.gpu == gpus.NONE
        version = choose("engine.release", self.versions[0], "the newest that trtspec knows")
        for found in errors(list(self.misfits(recipe, facts.target.source))):
            raise choose.error("speculation.method", f"{found.subject}: {found.problem}", found.repair)
        served = replace(facts.target, source=facts.target.source.overridden(self.overrides(recipe)))
        length = _num_draft_tokens(choose, facts)
        schedule = recipe.speculation.schedule and choose("speculation.schedule", None, "")
        engines = {Role.TARGET: _target(choose, self, served, _sizes(choose, self.num_nodes(choose, length)))}
        if draft := facts.models.get(Role.DRAFT):
            engines[Role.DRAFT] = _draft(choose, self, draft, engines[Role.TARGET])
            engines = depending(choose, engines, None)
        engines = with_texts(choose, engines, facts.head.head if facts.head else None, self.longer_than_head)
        target = engines[Role.TARGET]
        _choose_method(choose)
        name = choose("serving.model_name", self.served_name(loaded), "the model, as its own server names it")
        places = _places(choose, facts, engines, output)
        drafting = places.get(Role.DRAFT)
        if drafting and drafting.revision and not self.pins_drafts:
            problem = f"{self.name} takes a draft of the Hub at its latest commit, and at no other"
            download = f"hf download {drafting.place} --revision {drafting.revision} --local-dir draft"
            raise choose.error("draft.model", problem, f"{download}, and model: ./draft")
        wanted = LaunchInputs(
            release=self.release_of(version),
            names=tuple(dict.fromkeys((name, *recipe.serving.aliases))),
            target=places[Role.TARGET],
            draft=drafting,
            method=recipe.speculation.method,
            num_draft_tokens=length,
            checkpoint=target.checkpoint,
            options=target.options,
            enable_chunked_context=target.enable_chunked_context,
            kv_bytes=_kv_bytes(engines, _own_layers(recipe, facts)) if on_cpu else None,
            schedule={least: min(tokens, length) for least, tokens in (schedule or {}).items()},
        )
        launch = _launch(self, wanted, recipe, facts)
        return Resolved(
            loaded,
            output,
            self.name,
            None,
            launch.served_model_name,
            length,
            engines,
            tuple(choose.choices),
            launch=launch,
        )

    def steps(self, resolved: Resolved, facts: PlanFacts, only: Role | None) -> list[Step]:
        """Returns the steps; it has no engines, so there is none to build alone."""
        assert resolved.launch is not None
        found = [check_pair.step(resolved, facts), copy_tokenizer.step(facts.target)]
        found += choose_layers.searches(resolved.engines, facts)
        of_layers = [role for role, engine in resolved.engines.items() if engine.layers]
        found += [write_layers.step(resolved, role) for role in of_layers]
        if facts.head and facts.head.head.unsaid:
            found.append(_head_step(resolved, facts.head))
        return [*found, *launch_steps(resolved.launch)]

    def num_nodes(self, choose: Chooser, longest: int) -> int:
        """Returns the tokens that a round proposes; they are more than the `longest` draft in a tree.

        Raises RecipeError for a tree that the server could not make.
        """
        return longest

    def launch(self, wanted: LaunchInputs) -> ServerLaunch:
        """Returns how the server is started; pure."""
        return ServerLaunch(
            backend=self.name,
            release=wanted.release.version,
            module=self.module,
            module_words=self.module_words,
            program=self.program,
            arguments=self.arguments(wanted),
            image=wanted.image,
            served_model_name=wanted.names[0],
            files=self.files(wanted),
            models=wanted.folders,
            kv_bytes=wanted.kv_bytes or 0,
            metrics_path=wanted.release.metrics_path,
        )

    @abstractmethod
    def arguments(self, wanted: LaunchInputs) -> tuple[str, ...]:
        """Returns the server's arguments but host and port; pure."""

    def files(self, wanted: LaunchInputs) -> Mapping[str, str]:
        """Returns the texts of files by their names, which `arguments` have as `{build}/NAME`; pure."""
        return {}


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys of both; `other` overrides."""
    found = dict(one)
    for key, value in other.items():
        own = found.get(key)
        found[key] = _merged(own, value) if isinstance(own, dict) and isinstance(value, dict) else value
    return found


NUM_DRAFT_TOKENS = 4
MAX_NUM_TOKENS, MAX_NUM_TOKENS_CPU = 8192, 2048
_CPU_BLOCK = 128  # tokens of a block of vLLM's KV cache on a CPU (`CpuPlatform`)


def _launch(backend: ServerBackend, wanted: LaunchInputs, recipe: Recipe, facts: PlanFacts) -> ServerLaunch:
    """Returns how the server is started, with what the recipe adds to its command and environment."""
    own = backend.launch(wanted)
    return replace(
        own,
        arguments=(*own.arguments, *recipe.engine.extra_args),
        environment=recipe.engine.environment,
        weights=sum(model.source.size for model in facts.all_models.values()),
    )


def _choose_method(choose: Chooser) -> None:
    """Says which method drafts, by which options, and whether the recipe wrote that."""
    recipe = choose.loaded.recipe
    method = recipe.speculation.method
    is_written = recipe.written("speculation.method") is not None
    origin: tuple[Origin, str] = ("recipe", "as written") if is_written else ("default", "text of any kind")
    choose.choices.append(Choice("speculation.method", method.kind, *origin))
    for name, value in method.options.items():
        choose(f"speculation.method.{name}", value, "what is usual")


def _sizes(choose: Chooser, nodes: int) -> BuildOptions:
    """Returns the sizes except the length of sequences, which depends on the memory that the models leave."""
    recipe, on_cpu = choose.loaded.recipe, choose.loaded.recipe.hardware.gpu == gpus.NONE
    batch = choose("engine.max_batch_size", recipe.engine.max_batch_size, "drafts pay at low load")
    tokens = choose(
        "engine.max_num_tokens",
        MAX_NUM_TOKENS_CPU if on_cpu else MAX_NUM_TOKENS,
        "a CPU reads no faster in larger steps" if on_cpu else "what the servers take of a large GPU",
    )
    return BuildOptions(batch, 0, 0, tokens, nodes)


def _num_draft_tokens(choose: Chooser, facts: PlanFacts) -> int:
    """Returns the longest draft, which is K: servers change it from round to round only by a schedule.

    Raises RecipeError for more tokens than a head proposes in one step; vLLM would invent the rest.
    """
    recipe = choose.loaded.recipe
    key, most = "speculation.num_draft_tokens", recipe.written("speculation.max_draft_len")
    at_once = facts.head.head.longest if facts.head else None
    own = _own_layers(recipe, facts)
    usual, reason = NUM_DRAFT_TOKENS, "about what the servers' own examples have"
    if recipe.speculation.largest:
        usual, reason = recipe.speculation.largest, "the largest K of speculation.schedule"
    elif at_once:
        usual, reason = at_once, "what the head proposes in one step"
    elif own:
        usual, reason = own.count, "a token of each of the target's layers for it"
    length: int = choose(key, most or usual, "max_draft_len, in every round" if most else reason)
    if at_once and length > at_once:
        wrong = next(filter(recipe.written, (key, "speculation.max_draft_len", "speculation.schedule")))
        problem = f"{length} is more than the {at_once} tokens that the head proposes in one step"
        raise choose.error(wrong, problem, f"at most {at_once}")
    return length


def _own_layers(recipe: Recipe, facts: PlanFacts) -> MtpLayers | None:
    """Returns the target's own layers that draft, if they do."""
    return mtp_layers(facts.target.source) if recipe.speculation.method.in_target else None


def _target(choose: Chooser, backend: ServerBackend, facts: ModelFacts, options: BuildOptions) -> EnginePlan:
    checkpoint = choose_checkpoint(choose, Role.TARGET, facts.source, backend)
    _check_quantization(choose, backend, Role.TARGET, facts.source, fp8=checkpoint.fp8)
    _check_heads(choose, Role.TARGET, facts.source, checkpoint.mapping.tp_size)
    chunked = choose("engine.enable_chunked_context", True, "a long prompt does not hold up the others")
    return EnginePlan(facts, None, checkpoint, options, backend, chunked)


def _draft(choose: Chooser, backend: ServerBackend, facts: ModelFacts, target: EnginePlan) -> EnginePlan:
    """Returns the plan of the draft, which a server loads like the target but for the weights' precision."""
    is_at_once = choose.loaded.recipe.speculation.method.is_at_once
    for found in check_parallel(facts.source) if is_at_once else ():
        raise choose.error("draft.model", f"{found.subject}: {found.problem}", found.repair)
    fp8, like = choose_fp8_weights(choose, Role.DRAFT, facts.source), target.checkpoint
    _check_quantization(choose, backend, Role.DRAFT, facts.source, fp8=fp8)
    mapping = RankMapping(like.mapping.tp_size, 1)
    _check_heads(choose, Role.DRAFT, facts.source, mapping.tp_size)
    checkpoint = ConvertOptions(like.dtype, mapping, fp8, like.fp8_kv_cache)
    return EnginePlan(facts, None, checkpoint, target.options, backend, target.enable_chunked_context)


def _check_quantization(
    choose: Chooser, backend: ServerBackend, role: Role, source: Source, *, fp8: bool
) -> None:
    if fp8 and source.scheme is None and not backend.quantizes:
        problem = f"{backend.name} quantizes nothing, and the model is not FP8"
        repair = "name a model that is FP8 already, such as NVIDIA's with hf_quant_config.json"
        raise choose.error(f"{role}.quantization.weights", problem, repair)


def _check_heads(choose: Chooser, role: Role, source: Source, tensor: int) -> None:
    """Raises RecipeError for attention heads that tensor ranks cannot share, which all servers refuse."""
    if source.num_attention_heads % tensor:
        heads = f"the {source.num_attention_heads} attention heads of the {role}"
        problem = f"{heads} do not divide among {tensor} ranks"
        raise choose.error("target.parallel.tensor", problem)


def _places(
    choose: Chooser, facts: PlanFacts, engines: dict[Role, EnginePlan], output: Path
) -> dict[Role, LaunchModel]:
    """Returns where the server finds each model, and the head."""
    places = {role: _served(choose, role, engine, output) for role, engine in engines.items()}
    if facts.head:
        made = str((output / write_layers.OUTPUT).absolute()) if facts.head.head.unsaid else None
        named = LaunchModel(_place(choose, Role.DRAFT), facts.head.revision)
        places[Role.DRAFT] = LaunchModel(made) if made else named
    return places


def _served(choose: Chooser, role: Role, engine: EnginePlan, output: Path) -> LaunchModel:
    """Returns where the server finds a model: on the Hub at its commit, in its folder, or in the build.

    It is in the build if the draft is layers of the target, because only the build makes a model of them.
    """
    quantize = engine.checkpoint.fp8 and engine.model.source.scheme is None
    if engine.layers:
        return LaunchModel(str((output / write_layers.OUTPUT).absolute()), quantize=quantize)
    return LaunchModel(_place(choose, role), engine.model.revision, quantize)


def _place(choose: Chooser, role: Role) -> str:
    location = choose.loaded.locations[role]
    return str(location.absolute()) if isinstance(location, Path) else location


def _kv_bytes(engines: dict[Role, EnginePlan], own: MtpLayers | None) -> int:
    """Returns the bytes of the KV caches that hold the longest sequence for every request at once."""
    options = engines[Role.TARGET].options
    blocks = -(-(options.max_seq_len + options.max_draft_len) // _CPU_BLOCK)
    tokens = options.max_batch_size * blocks * _CPU_BLOCK
    sizes = {role: kv_of_layer(engine.model.source, engine.checkpoint) for role, engine in engines.items()}
    layers = [(engine.model.source.num_hidden_layers, sizes[role]) for role, engine in engines.items()]
    if own:
        layers.append((own.count, sizes[Role.TARGET]))
    return tokens * sum(count * size for count, size in layers)
