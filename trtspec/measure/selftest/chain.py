"""Tries the whole chain on this machine: builds, the engines in a process of their own, servers, and
`verify`."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import trtspec.serving
from trtspec.backends.table import load
from trtspec.base.causes import find_cause
from trtspec.base.errors import StepError, TrtspecError, UnavailableError
from trtspec.base.files import copy_tree, remove, write_atomically
from trtspec.base.findings import Severity
from trtspec.base.progress import Progress
from trtspec.base.roles import Role
from trtspec.base.units import three_digits
from trtspec.deployment.build import DeployedBuild
from trtspec.deployment.server import GPU_CAUSES
from trtspec.measure.bench.deployed import served
from trtspec.measure.selftest.bls import try_model
from trtspec.measure.selftest.builds import LOW_LATENCY, PROMPTS, QUICK, TrialBuild, TrialPairs
from trtspec.measure.selftest.engines import Reference, TrialJob
from trtspec.measure.selftest.trial import DRAFTS, LAYOUT, WORK, Differs, Outcome, Question, Ruling
from trtspec.measure.verify.opening import ServerAddress, check_build, on_server
from trtspec.measure.verify.prompts import VerifyPrompt, Vocabulary, asked, built_in
from trtspec.measure.verify.sides import VerificationSettings
from trtspec.measure.verify.tolerance import FLOORS
from trtspec.measure.verify.verification import verify
from trtspec.pipeline.build.build import build as build_recipe
from trtspec.pipeline.build.plan import BuildPlan
from trtspec.pipeline.containers.container import name_for
from trtspec.pipeline.containers.engine import find_engine
from trtspec.pipeline.containers.state import ensure_image, is_here
from trtspec.pipeline.machine.devices import container_gpus, find_gpus
from trtspec.pipeline.machine.doctor import examine
from trtspec.pipeline.machine.survey import look
from trtspec.pipeline.plan.memory import KV_FRACTION, budget
from trtspec.pipeline.run.launcher import ContainerLauncher, Launcher, LocalLauncher
from trtspec.pipeline.store.store import Store
from trtspec.recipe.releases import release_of
from trtspec.serving.guides.compiler import is_installed
from trtspec.serving.tokenizer import Tokenizer

_ENGINES_S = 600.0
_IMAGE_BYTES = 55e9
"""The room that pulling NVIDIA's image needs: 15.3 GB compressed, and about 40 unpacked."""
_LONG_LINES = 260
"""The lines of a long prompt, each of about twelve tokens."""
_LOOKED_AT = ("GPU", "MIG", "compute mode", "driver", "GPU memory", "disk")
_STOPS = "nothing is built or served here before that is mended"
RULES = {
    "build": (
        "Checkpoints are converted, and engines are built from them.",
        "§2 to §4: commands/build.py, builder.py",
    ),
    "engines": ("The engines load, and run to the end.", "serving/triton/engines.py"),
    "in_process": ("Triton loads the coordinator with both engines in it.", "docs/explanation/engines.md"),
    "bls": (
        "Triton loads each engine as a model of its own.",
        "§7.4: model_instance_state.cc, model_state.cc",
    ),
    "lossless": ("Drafts change neither a greedy answer nor a distribution.", "docs/explanation/lossless.md"),
}
_MEANS = {"build": "recipes with what this build adds do not build here", "lossless": DRAFTS}


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Builds the pairs below `folder`, and tries what trtspec relies on; the builds stay there."""

    folder: Path
    pairs: TrialPairs
    in_container: bool
    quick: bool
    """True to try only what breaks for most users."""
    watch: Progress
    say: Callable[[str], None]
    _known: dict[float, list[Question]] = field(default_factory=dict, init=False)

    def run(self) -> Iterator[Outcome]:
        """Yields the outcomes as they come; raises `TrtspecError` if this machine lacks something."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._copy_code()
        builds = [one for one in self.pairs.builds(self.folder) if one.name in QUICK or not self.quick]
        if self.pairs.gpu is not None:
            yield from (looked := list(self._machine(builds[1])))
            if any(one.state is Ruling.DIFFERS for one in looked):
                return
        start, times, tried = time.monotonic(), dict[str, Mapping[str, float]](), dict[str, bool]()
        for number, build in enumerate(builds):
            left = (time.monotonic() - start) / number * (len(builds) - number) / 60 if number else 0.0
            about = f", about {max(1, round(left))} min left" if left else ""
            self.say(f"build {number + 1} of {len(builds)}{about}: {build.name}")
            for found in self._tried(build):
                if found.measured:
                    times[build.name] = found.measured
                tried[found.check] = tried.get(found.check, False) or found.state is not Ruling.NOT_TRIED
                yield found
        yield from _compared(times)
        if self.pairs.gpu is not None and not self.quick:
            for name in (name for name, is_tried in tried.items() if not is_tried):
                said, unknown = f"no build gave {name!r} anything to try", "nothing is known of it"
                rule = "Some build on a GPU tries each check."
                yield Outcome("all", name, rule, "selftest", unknown, Ruling.LEFT_OUT, said)

    def _machine(self, build: TrialBuild) -> Iterator[Outcome]:
        """Looks at what stops a build or a server before it begins."""
        start, loaded = time.monotonic(), load(build.write(self.folder))
        machine = look(loaded, self.folder / build.name, None)
        for found in examine(machine, loaded.recipe):
            if found.subject in _LOOKED_AT:
                state = Ruling.DIFFERS if found.severity is Severity.ERROR else Ruling.OK
                said = f"{found.problem}; {found.repair}" if found.repair else found.problem
                rule = "The machine has what the builds and the servers need."
                seconds = time.monotonic() - start
                yield Outcome("machine", found.subject, rule, "trtspec doctor", _STOPS, state, said, seconds)
        free = machine.disk.free
        if self.in_container and free < _IMAGE_BYTES and not is_here(find_engine().program, self._image):
            said = f"{three_digits(free)} free, and NVIDIA's image takes 55 GB while it is pulled"
            rule = "The disk has room for the image."
            yield Outcome("machine", "image", rule, "trtspec doctor", _STOPS, Ruling.DIFFERS, said)

    def _tried(self, build: TrialBuild) -> Iterator[Outcome]:
        """Builds, and tries what was built."""
        start, recipe, store = time.monotonic(), build.write(self.folder), Store(str(self.folder / "store"))
        if lacks := _lacking_scales(build):
            yield _outcome(build, "build", Ruling.LEFT_OUT, lacks)
            return
        try:
            in_container = self.in_container and build.numbers != "float32"
            output = self.folder / build.name
            # By the store two layouts have the same engines, and each keeps its own configurations and logs.
            result = build_recipe(
                recipe, output=output, container=in_container, store=store, progress=self.watch
            )
        except StepError as error:
            yield _outcome(build, "build", Ruling.DIFFERS, _words(error), start)
            return
        yield _outcome(build, "build", Ruling.OK, f"{time.monotonic() - start:.0f} s", start)
        if self.pairs.gpu is not None and build.numbers == "float32":
            return  # This build is only the reference.
        if build.layout == "in_process" and not (build.is_random and self.pairs.gpu is None):
            yield from self._beside_the_engines(build, result.plan)
        yield from self._served(build)

    def _beside_the_engines(self, build: TrialBuild, made: BuildPlan) -> Iterator[Outcome]:
        """Tries the engines in a process of their own, since an engine may end its process."""
        output, results = self.folder / build.name, self.folder / f"{build.name}.jsonl"
        model = load(self.folder / f"{build.name}.yaml").recipe.serving.triton_name
        plan = budget(made.resolved)
        draft = plan.engines.get(Role.DRAFT) if plan else None
        job = TrialJob(
            build=build.name,
            parameters=check_build(output, model),
            folder=str(output / "model_repository" / model),
            reference=str(self._reference),
            questions=[] if build.is_random else [(q.prompt, q.text) for q in self._questions(build)],
            release=self.pairs.release,
            planned={
                "engines": plan.weights + plan.workspace if plan else 0,
                "draft_cache": draft.kv_per_token if draft else 0,
                "fraction": KV_FRACTION,
            },
            results=str(results),
        )
        remove(results)
        file, log = self.folder / f"{build.name}.job.json", self.folder / f"{build.name}.log"
        write_atomically(file, json.dumps(asdict(job), indent=1))
        launcher, python = self._launcher()
        argv, start = (python, "-m", "trtspec.measure.selftest.engines", str(file)), time.monotonic()
        with self.watch(f"{build.name}: the engines, rule by rule", None), log.open("wb") as said:
            running = launcher.start(argv, said, self._code)
            try:
                status = running.wait(_ENGINES_S)
            finally:
                running.kill()
        lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
        found = [Outcome.of_dict(json.loads(line)) for line in lines]
        yield from found
        if status != 0 and not any(one.check == "engines" for one in found):
            said_ = log.read_text(errors="replace")
            last = "; ".join(find_cause(GPU_CAUSES, said_) or said_.splitlines()[-1:]).strip()
            ended = f"ended with {status}" if status is not None else f"did not end within {_ENGINES_S:g} s"
            found_ = f"{ended} after {len(found)} checks: {last} ({log})"
            yield _outcome(build, "engines", Ruling.DIFFERS, found_, start)

    def _launcher(self) -> tuple[Launcher, str]:
        if not self.in_container:
            return LocalLauncher(sys.executable), "python"
        engine, image = find_engine(), self._image
        ensure_image(engine.program, image, self.watch)
        found = container_gpus(find_gpus(), 1, engine.devices)
        name = name_for("selftest", self.folder)
        return ContainerLauncher(image, name, (self.folder,), found, engine), "python3"

    @property
    def _image(self) -> str:
        return release_of(self.pairs.release).image

    @property
    def _reference(self) -> Path:
        """The reference's engine directory."""
        return self.folder / "reference" / "target" / "engine"

    def _questions(self, build: TrialBuild) -> list[Question]:
        """Returns the questions to the tiny pair, which the reference answers once for a type of numbers."""

        async def answered() -> list[Question]:
            reference, words = Reference(self._reference), Tokenizer.load(self.folder / "reference/tokenizer")
            try:
                return await reference.questions([words.encode(prompt) for prompt in PROMPTS], clear)
            finally:
                reference.close()

        if (clear := 2 * FLOORS[build.numbers]) not in self._known:
            try:
                self._known[clear] = asyncio.run(answered())
            except Differs as error:
                raise UnavailableError(self.pairs.tiny, str(error), "leave --pair out") from None
        return self._known[clear]

    @property
    def _code(self) -> Path:
        """The folder with the modules for NVIDIA's image, for `python -m`."""
        return self.folder / "code"

    def _copy_code(self) -> None:
        remove(self._code)
        for source, place in (
            (Path(trtspec.serving.__path__[0]), "serving"),
            (Path(__file__).parent, "measure/selftest"),
        ):
            copy_tree(source, self._code / "trtspec" / place, "__pycache__", "*.pyc")
        for package in ("trtspec", "trtspec/measure"):
            (self._code / package / "__init__.py").touch()

    def _served(self, build: TrialBuild) -> Iterator[Outcome]:
        """Serves the build under Triton, and runs `verify` on it."""
        start, folder, is_up = time.monotonic(), self.folder / build.name, False
        deployed = DeployedBuild(folder, load(self.folder / f"{build.name}.yaml"))
        try:
            with served(
                deployed, chat=False, python=None, say=self.say, in_container=self.in_container
            ) as target:
                is_up, ready = True, f"ready in {time.monotonic() - start:.0f} s"
                yield _outcome(build, build.layout, Ruling.OK, ready, start)
                if build.layout == "bls":
                    yield from self._by_http(build, deployed, target.url)
                yield self._verified(build, folder, target.url, target.model_name)
        except TrtspecError as error:
            yield _outcome(build, "lossless" if is_up else build.layout, Ruling.DIFFERS, _words(error), start)

    def _by_http(self, build: TrialBuild, deployed: DeployedBuild, url: str) -> Iterator[Outcome]:
        """Tries the rules on the target's own model."""
        name = deployed.loaded.recipe.serving.triton_name
        config = deployed.folder / "model_repository" / name / "config.pbtxt"
        # What is installed here compiles guides if xgrammar is; trtspec's image has it.
        may_guide = self.in_container or is_installed()
        guides = may_guide and "guided_decoding_backend" in config.read_text(encoding="utf-8")
        questions = self._questions(build)

        async def collect() -> list[Outcome]:
            tried = try_model(url, deployed.folder, self._reference, questions, build.name, guides=guides)
            return [one async for one in tried]

        with self.watch(f"{build.name}: the target's model, rule by rule", None):
            yield from asyncio.run(collect())

    def _verified(self, build: TrialBuild, folder: Path, url: str, model: str) -> Outcome:
        start, vocabulary = time.monotonic(), Vocabulary.load(folder / "tokenizer")
        if build.has_engine_draft:
            return _outcome(build, "lossless", Ruling.NOT_TRIED, "it needs a second server without drafts")
        draws = 0 if build.is_random else 40  # Of a random model every token is about as rare.
        settings = VerificationSettings((None, 1, 8), max_tokens=24, dtype=build.numbers, draws=draws)
        prompts = asked(built_in(vocabulary), vocabulary)[::3]
        if build.is_random:
            prompts = [*prompts[:2], _long(vocabulary)]

        async def ask() -> Outcome:
            with self.watch(f"{build.name}: verify", None):
                async with on_server(ServerAddress(url, model), vocabulary) as sides:
                    found = await verify(sides, vocabulary, prompts, settings, lambda _: None)
            write_atomically(self.folder / f"{build.name}.verify.json", json.dumps(found.as_dict(), indent=1))
            texts = f"{sum(way.texts for way in found.comparisons)} texts and {settings.draws} draws a prompt"
            state = Ruling.OK if found.is_lossless else Ruling.DIFFERS
            return _outcome(build, "lossless", state, "; ".join(found.reasons) or texts, start)

        return asyncio.run(ask())


def _long(vocabulary: Vocabulary) -> VerifyPrompt:
    """Returns a prompt of thousands of tokens, none of whose lines repeats another."""
    lines = (f"value_{number} = {number * number % 9973}\n" for number in itertools.count())
    text = "".join(itertools.islice(lines, _LONG_LINES))
    return VerifyPrompt("long", text, vocabulary.encode(text))


def _compared(times: Mapping[str, Mapping[str, float]]) -> Iterator[Outcome]:
    """Says which of two builds with the same weights is faster."""
    usual, other = times.get("random-fp8"), times.get(LOW_LATENCY)
    if not usual or not other:
        return
    shares = {name: usual[name] / other[name] for name in usual}
    found = f"prefill {shares['prefill_ms']:.2f} times as fast, a batch {shares['batch_ms']:.2f} times"
    pays = "they pay" if shares["batch_ms"] > 1.0 else "they do not pay"
    rule = "Low-latency GEMM plugins make a batch of verifications faster: a person must judge the numbers."
    said = f"{found}: {pays}"
    yield Outcome(LOW_LATENCY, "low-latency plugins", rule, "plugin/plugin.py", WORK, Ruling.OK, said)


def _lacking_scales(build: TrialBuild) -> str | None:
    """Returns which FP8 scales are missing, without which a build would need ModelOpt; None if none are."""
    sections = [
        build.values[role].get("quantization") for role in ("target", "draft") if role in build.values
    ]
    files = [Path(section["calibration"]["dataset"]) for section in sections if section]
    missing = next((file for file in files if not file.is_file()), None)
    return f"{missing} is missing, so the FP8 scales are not known" if missing else None


def _outcome(build: TrialBuild, check: str, state: Ruling, found: str, start: float | None = None) -> Outcome:
    seconds = 0.0 if start is None else time.monotonic() - start
    return Outcome(build.name, check, *RULES[check], _MEANS.get(check, LAYOUT), state, found, seconds)


def _words(error: TrtspecError) -> str:
    return f"{error}; {error.repair}" if error.repair else str(error)
