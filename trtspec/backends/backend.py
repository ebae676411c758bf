"""The protocol of a backend: all that the rest of trtspec asks of any engine, beside its part of a plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from trtspec.base.findings import Finding
from trtspec.base.roles import Role
from trtspec.recipe import gpus

if TYPE_CHECKING:
    from pathlib import Path

    from trtspec.base.errors import TrtspecError
    from trtspec.checkpoint.convert_options import ConvertOptions
    from trtspec.checkpoint.engine_draft import EngineDraft
    from trtspec.models.pair import Member
    from trtspec.models.source import Source
    from trtspec.models.tokenizer import TokenizerTraits
    from trtspec.pipeline.engine.engine_options import BuildOptions
    from trtspec.pipeline.machine.host import Host
    from trtspec.pipeline.repository.spec import EngineModel, Placement
    from trtspec.recipe.gpus import GpuProduct
    from trtspec.recipe.loader import LoadedRecipe
    from trtspec.recipe.migration.tool import MigrationTool
    from trtspec.recipe.releases import Release
    from trtspec.recipe.schema import Recipe, RecipeModel
    from trtspec.serving.executors.torch.budget import KvNeed


PYTHON = "python"
"""Triton's backend for models that are written in Python."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The reason why a backend, or some of its releases, does not run a method, and its source."""

    reason: str
    source: str
    releases: tuple[str, ...] = ()
    """The releases that run the method all the same, the newest first."""


MachineNeed = Literal[
    "gpus", "server", "builder", "containers", "torch", "torch_draft", "triton_image", "triton_wheel"
]
"""A part of a machine that a recipe's build or server uses.

The builder is `trtllm-build`, and the server is another engine's. Triton is NVIDIA's image, or a package.
"""


@runtime_checkable
class BuildsHere(Protocol):
    """A backend that makes an engine in this process."""

    def build(self, checkpoint: Path, options: BuildOptions, output: Path) -> None:
        """Makes the engine directory `output`, which must not exist, from a checkpoint of any ranks.

        Raises EngineError for a model that the backend would compute wrongly.
        """


class Backend(ABC):
    """An engine of recipes: a builder of engines, or a server that loads the models itself."""

    name: ClassVar[str]
    """The name in recipes, which is that of the folder."""
    title: ClassVar[str]
    """The name for people."""
    methods: ClassVar[Mapping[str, Unsupported | None]]
    """The methods of drafting. The value is None if all releases run the method, and else the reason why
    not."""
    builds_engines: ClassVar[bool]
    """True if trtspec builds engines for it, which its own coordinator serves under Triton."""
    engine_drafts: ClassVar[Mapping[str, type[EngineDraft]]] = {}
    """The methods whose draft is built into the target's engine, and what is built."""
    packages: ClassVar[tuple[str, ...]] = ()
    """The names that pip may know it by."""
    drain_option: ClassVar[str | None] = None
    """The option for the seconds that requests in flight have when the server is stopped. None if it waits
    for them by itself.
    """
    key_variable: ClassVar[str | None] = None
    """The variable that has the one key of its API. None if it takes a key only on its command line, which
    every user of the machine can read, or takes none.
    """
    quantizes: ClassVar[bool] = True
    """True if it makes FP8 weights of another model: by a calibration, or while it loads them."""
    fp8: ClassVar[str]
    """The origin of the scales of a recipe's FP8 weights."""
    k_by_request: ClassVar[bool] = True
    """True if each request may name its K; False if a server has one K from its start to its end."""
    longest_text: ClassVar[str]
    """The longest sequence if the recipe sets none."""
    pins_drafts: ClassVar[bool] = True
    """True if it can load a draft of the Hub at a commit."""
    needs_gpu: ClassVar[str | None] = None
    """The reason why it does not run, nor build engines, without a GPU; None if it does."""
    triton_backend: ClassVar[str] = PYTHON
    """Triton's backend that loads its engines as models of their own."""
    float32_flaw: ClassVar[str | None] = None
    """The reason why it does not run float32; None if it does."""
    emulates_fp8: ClassVar[bool] = True
    """True if it runs FP8 weights on GPUs without FP8 too."""
    takes_any_recipe: ClassVar[bool] = False
    """True if it runs recipes for other backends, and ignores keys that only those have."""
    copies: ClassVar[int] = 0
    """How often a build has a model's weights on its disk."""
    rank_suffix: ClassVar[str] = ".safetensors"
    """The suffix of the file that an engine has for each rank."""
    lends_layers: ClassVar[bool] = False
    """True if a draft of the target's layers can live in the target's engine."""
    no_forecast: ClassVar[str | None] = None
    """The reason why no data sheet tells how fast its engines are; None if that of the GPU does."""
    split_alike: ClassVar[tuple[Role, ...]] = (Role.TARGET,)
    """The models that have the target's tensor ranks."""

    @property
    def translates(self) -> bool:
        """True if a draft may have another vocabulary than its target."""
        return True

    @property
    @abstractmethod
    def versions(self) -> tuple[str, ...]:
        """The releases that a recipe may name, the default first; none where there is only one."""

    def refusal(self, method: str, release: str | None) -> Unsupported | None:
        """Returns why a release does not run the method; None if it does.

        Without a release the default is meant.
        """
        unknown = Unsupported(f"trtspec starts it with no {method}", "its folder in trtspec/backends")
        cell = self.methods.get(method, unknown)
        if cell and cell.releases and (release or self.versions[0]) in cell.releases:
            return None
        return cell

    def served_name(self, loaded: LoadedRecipe) -> str:
        """Returns the name that clients of OpenAI's API call a recipe's target by."""
        return loaded.recipe.serving.model_name

    @abstractmethod
    def num_tokens(self, gpu: str) -> str:
        """Describes the tokens of an iteration on a GPU if the recipe sets none."""

    @abstractmethod
    def image(self, recipe: Recipe) -> str:
        """Returns the vendor's image that serves a recipe's build."""

    @abstractmethod
    def release_flaw(self, version: str) -> tuple[str, str] | None:
        """Returns why it has no such release, and the repair; None if it has."""

    @abstractmethod
    def contradictions(self, recipe: Recipe) -> Iterator[Finding]:
        """Finds keys that it does not have, or that contradict each other there."""

    def unsupported(self, recipe: Recipe) -> Iterator[Finding]:
        """Finds a method that it or its release does not run, an unknown release, and a missing GPU."""
        version, method = recipe.engine.release, recipe.speculation.method.kind
        flaw = self.release_flaw(version) if version else None
        if flaw:
            yield Finding("engine.release", *flaw)
        found = self.refusal(method, version)
        if found and not found.releases:
            problem = f"{self.name} does not run {method}: {found.reason}"
            yield Finding("speculation.method", problem, "write another method, or another engine.backend")
        elif found and not flaw:
            problem = f"{self.name} {version or self.versions[0]} does not run {method}: {found.reason}"
            yield Finding("engine.release", problem, f"write release: {found.releases[0]}, or another method")
        if recipe.hardware.gpu == gpus.NONE and self.needs_gpu:
            problem = f"gpu is none, but {self.needs_gpu}"
            yield Finding("engine.backend", problem, "write backend: torch, or name a GPU in hardware.gpu")

    def precision_flaws(self, model: RecipeModel, role: Role, gpu_name: str) -> Iterator[Finding]:
        """Finds a precision of a model that it does not run, or not on this GPU."""
        quantization = model.quantization
        if quantization.calibration and quantization.weights != "fp8":
            yield Finding(
                f"{role}.quantization.calibration",
                "there is nothing to calibrate without fp8 weights",
                "write weights: fp8",
            )
        if self.float32_flaw and model.dtype == "float32":
            repair = "write float16, bfloat16 or auto, or backend: torch"
            yield Finding(f"{role}.dtype", self.float32_flaw, repair)
        gpu = gpus.GPUS.get(gpu_name)
        if not self.emulates_fp8 and gpu and quantization.weights == "fp8" and not gpu.fp8:
            problem = f"{gpu.label} (SM {gpu.sm}) has no FP8; it came with SM 89"
            yield Finding(
                f"{role}.quantization.weights", problem, f"write weights: {gpus.NONE}, or name another GPU"
            )

    def flaws_of_engines(self, recipe: Recipe) -> Iterator[Finding]:
        """Finds what engines of its own cannot have, even of a recipe for another backend."""
        return iter(())

    def lacking_on_clusters(self, recipe: Recipe) -> Iterator[Finding]:
        """Finds keys of `kubernetes` that it does not have; they are no part of a build."""
        return iter(())

    def has_engine_draft(self, recipe: Recipe) -> bool:
        """Says whether the draft is built into the target's engine."""
        return recipe.speculation.method.kind in self.engine_drafts

    def engines(self, recipe: Recipe) -> dict[Role, RecipeModel]:
        """Returns the models that have an engine, the target first; one with the draft in it is of both."""
        return {Role.TARGET: recipe.target} if self.has_engine_draft(recipe) else recipe.models

    def ranks(self, recipe: Recipe) -> dict[Role, int]:
        """Returns the number of ranks of each engine, each on a GPU of its own."""
        return {role: model.parallel.ranks for role, model in self.engines(recipe).items()}

    @abstractmethod
    def place(self, ranks: Mapping[Role, int], count: int, draft: tuple[int, ...] | None) -> Placement:
        """Returns the GPUs of engines with so many ranks, on a server with `count` GPUs.

        `draft` are those that the recipe names for the draft.
        """

    def gpu(self, recipe: Recipe) -> GpuProduct | None:
        """Returns the GPU by which a plan reckons memory and speed; None if it reckons with none."""
        return gpus.GPUS.get(recipe.hardware.gpu)

    def engine_release(self, recipe: Recipe) -> Release | None:
        """Returns the release of TensorRT-LLM that alone loads a recipe's engines; None if any does."""
        return None

    @abstractmethod
    def machine_needs(self, recipe: Recipe) -> tuple[MachineNeed, ...]:
        """Returns what a recipe's build and server use of a machine, in the order in which they need it."""

    def host_obstacle(self, host: Host, recipe: Recipe) -> TrtspecError | None:
        """Returns what keeps a machine from a build, as far as the recipe tells; None if nothing does."""
        return None

    @abstractmethod
    def read(self, folder: Path) -> Source:
        """Reads a model's folder as `read_model`; raises ModelError or TensorError."""

    @abstractmethod
    def member(
        self, source: Source, recipe: Recipe, role: Role, like: TokenizerTraits | None = None
    ) -> Member:
        """Returns the facts by which a model is compared with the other one of its pair.

        `like` is a tokenizer whose file may be the same.
        Raises ModelError or TensorError for one that it does not take.
        """

    @abstractmethod
    def weight_bytes(self, source: Source, checkpoint: ConvertOptions) -> int:
        """Returns the bytes of a model's weights as it loads them."""

    def host_need(
        self, source: Source, dtype: str, options: BuildOptions, dependent: str | None
    ) -> KvNeed | None:
        """Returns the KV cache of an engine in the host's own memory; None if it has none there.

        `dependent` is the method of a draft that lives in the target's engine, and `layers` for its layers.
        """
        return None

    def device(self, wanted: str | None) -> str | None:
        """Returns the device that an engine's process is told; None if the placement says it."""
        return None

    def triton_model(self, model: EngineModel) -> EngineModel:
        """Returns what Triton reads of an engine that is a model of its own; paths begin at the build."""
        return model

    def overrides(self, recipe: Recipe) -> Mapping[str, Any]:
        """Returns the keys of the target's `config.json` that a recipe overrides."""
        return {}

    def data_ranks(self, arguments: Sequence[str]) -> int:
        """Returns how many copies of the target's ranks its server has on one host, each on its own GPUs."""
        return 1

    def tools(self) -> tuple[MigrationTool, ...]:
        """Returns the programs whose commands `trtspec init --from` makes recipes of."""
        return ()

    def misfits(self, recipe: Recipe, target: Source) -> Iterator[Finding]:
        """Finds what the recipe's method needs of its target and the target lacks."""
        return iter(())

    def doubt(self, gpu: str) -> str | None:
        """Returns a known defect with drafts on this hardware; None if there is none."""
        return None
