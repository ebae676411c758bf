"""Tries the whole chain on this machine: builds, the engines in a process of their own, servers, and
`verify`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

import trtspec.serving
from trtspec.backends.recipes import load
from trtspec.base.atomic import remove, write_atomically
from trtspec.base.errors import StepError, TrtspecError
from trtspec.base.progress import Progress
from trtspec.base.roles import Role
from trtspec.base.tree import copy_tree
from trtspec.deployment.build import DeployedBuild
from trtspec.measure.bench.deployed import served
from trtspec.measure.selftest.builds import PROMPTS, TinyBuild, TinyPair
from trtspec.measure.selftest.engines import TrialJob
from trtspec.measure.selftest.trial import Outcome, Ruling
from trtspec.measure.verify.opening import ServerAddress, check_build, on_servers
from trtspec.measure.verify.prompts import Vocabulary, asked, built_in
from trtspec.measure.verify.sides import VerificationSettings
from trtspec.measure.verify.tolerance import FLOORS
from trtspec.measure.verify.verification import verify
from trtspec.pipeline.build.build import build as build_recipe
from trtspec.pipeline.build.plan import BuildPlan
from trtspec.pipeline.containers.container import name_for
from trtspec.pipeline.containers.engine import find_engine
from trtspec.pipeline.containers.state import ensure_image
from trtspec.pipeline.machine.devices import container_gpus, find_gpus
from trtspec.pipeline.plan.memory import KV_FRACTION, budget
from trtspec.pipeline.run.launcher import ContainerLauncher, Launcher, LocalLauncher
from trtspec.recipe.releases import release_of

_ENGINES_S = 600.0
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


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Builds the pair below `folder`, and tries what trtspec relies on; the builds stay there."""

    folder: Path
    pair: TinyPair
    in_container: bool
    watch: Progress
    say: Callable[[str], None]

    def run(self) -> Iterator[Outcome]:
        """Yields the outcomes as they come; raises `TrtspecError` if this machine lacks something."""
        self.folder.mkdir(parents=True, exist_ok=True)
        texts = self.folder / "calibration.jsonl"
        write_atomically(texts, "".join(json.dumps({"text": text}) + "\n" for text in PROMPTS))
        self._copy_code()
        for build in self.pair.builds(texts):
            start = time.monotonic()
            if build.numbers == "fp8" and find_spec("modelopt") is None:
                why = "calibration on this machine needs the extra fp8"
                yield _outcome(build, "build", Ruling.NOT_TRIED, why)
                continue
            try:
                recipe, output = build.write(self.folder), self.folder / build.name
                in_container = self.in_container and build.numbers != "float32"
                made = build_recipe(recipe, output=output, container=in_container, progress=self.watch).plan
            except StepError as error:
                yield _outcome(build, "build", Ruling.DIFFERS, _words(error), start)
                continue
            yield _outcome(build, "build", Ruling.OK, f"{time.monotonic() - start:.0f} s", start)
            if self.pair.gpu is not None and build.numbers == "float32":
                continue  # This build is only the reference.
            if build.layout == "in_process":
                yield from self._beside_the_engines(build, made)
            yield from self._served(build)

    def _beside_the_engines(self, build: TinyBuild, made: BuildPlan) -> Iterator[Outcome]:
        """Tries the engines in a process of their own, since an engine may end its process."""
        output, results = self.folder / build.name, self.folder / f"{build.name}.jsonl"
        model = load(self.folder / f"{build.name}.yaml").recipe.serving.triton_name
        plan = budget(made.resolved)
        draft = plan.engines.get(Role.DRAFT) if plan else None
        job = TrialJob(
            build=build.name,
            parameters=check_build(output, model),
            folder=str(output / "model_repository" / model),
            reference=str(self.folder / "reference" / "target" / "engine"),
            prompts=PROMPTS,
            clear=2 * FLOORS[build.numbers],
            release=self.pair.release,
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
            last = "".join(log.read_text(errors="replace").splitlines(keepends=True)[-1:]).strip()
            ended = f"ended with {status}" if status is not None else f"did not end within {_ENGINES_S:g} s"
            found_ = f"{ended} after {len(found)} checks: {last} ({log})"
            yield _outcome(build, "engines", Ruling.DIFFERS, found_, start)

    def _launcher(self) -> tuple[Launcher, str]:
        if not self.in_container:
            return LocalLauncher(sys.executable), "python"
        engine, image = find_engine(), release_of(self.pair.release).image
        ensure_image(engine.program, image, self.watch)
        found = container_gpus(find_gpus(), 1, engine.devices)
        name = name_for("selftest", self.folder)
        return ContainerLauncher(image, name, (self.folder,), found, engine), "python3"

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

    def _served(self, build: TinyBuild) -> Iterator[Outcome]:
        """Serves the build under Triton, and runs `verify` on it."""
        start, folder, is_up = time.monotonic(), self.folder / build.name, False
        deployed = DeployedBuild(folder, load(self.folder / f"{build.name}.yaml"))
        try:
            with served(
                deployed, chat=False, python=None, say=self.say, in_container=self.in_container
            ) as target:
                is_up, ready = True, f"ready in {time.monotonic() - start:.0f} s"
                yield _outcome(build, build.layout, Ruling.OK, ready, start)
                yield self._verified(build, folder, target.url, target.model_name)
        except TrtspecError as error:
            yield _outcome(build, "lossless" if is_up else build.layout, Ruling.DIFFERS, _words(error), start)

    def _verified(self, build: TinyBuild, folder: Path, url: str, model: str) -> Outcome:
        start, vocabulary = time.monotonic(), Vocabulary.load(folder / "tokenizer")
        if build.drafts_inside:
            return _outcome(build, "lossless", Ruling.NOT_TRIED, "it needs a second server without drafts")
        settings = VerificationSettings((None, 1, 8), max_tokens=24, dtype=build.numbers, draws=40)
        prompts = asked(built_in(vocabulary), vocabulary)[::3]

        async def ask() -> Outcome:
            with self.watch(f"{build.name}: verify", None):
                async with on_servers(ServerAddress(url, model), None, vocabulary) as sides:
                    found = await verify(sides, vocabulary, prompts, settings, lambda _: None)
            texts = f"{sum(way.texts for way in found.comparisons)} texts and {settings.draws} draws a prompt"
            state = Ruling.OK if found.is_lossless else Ruling.DIFFERS
            return _outcome(build, "lossless", state, "; ".join(found.reasons) or texts, start)

        return asyncio.run(ask())


def _outcome(build: TinyBuild, check: str, state: Ruling, found: str, start: float | None = None) -> Outcome:
    seconds = 0.0 if start is None else time.monotonic() - start
    return Outcome(build.name, check, *RULES[check], state, found, seconds)


def _words(error: TrtspecError) -> str:
    return f"{error}; {error.repair}" if error.repair else str(error)
