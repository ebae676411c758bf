"""Defines the recipe: a pair and the hardware that it runs on. Frozen, strict, every key described.

The keys are TensorRT-LLM's and Triton's own where those have a name for the thing. A value that the
recipe leaves out is None here where its default depends on something else (the GPU, the models); a plan
fills it in. `loader.py` finds what contradicts something else in the recipe.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from trtspec.base.digest import digest_of
from trtspec.base.roles import Role
from trtspec.base.section import Section
from trtspec.methods.any_method import WITHOUT_MODEL, AnyMethod
from trtspec.methods.table import DraftModelMethod
from trtspec.recipe import devices, gpus
from trtspec.recipe.kubernetes import Kubernetes
from trtspec.recipe.section import (
    Amount,
    BackendName,
    GpuName,
    Positive,
    ReasoningParser,
    Share,
    Text,
    TextSelection,
)

Rate = Annotated[int | float, Field(ge=0.001, le=10**6, allow_inf_nan=False)]


class FleetSection(Section):
    """A load, its latency bounds, and the price of GPUs."""

    requests_per_second: Rate | None = Field(
        default=None, description="The requests per second of all replicas together."
    )
    burstiness: Annotated[int | float, Field(ge=0, le=100, allow_inf_nan=False)] = Field(
        default=1,
        description="The burstiness of arrivals: 0 is even, 1 is Poisson, and above 1 they come in bunches.",
    )
    input_tokens: Positive = Field(default=512, description="Tokens of a prompt, on average.")
    output_tokens: Positive = Field(default=256, description="Tokens of an answer, on average.")
    spread: Annotated[int | float, Field(ge=0, le=5, allow_inf_nan=False)] = Field(
        default=0.5, description="The standard deviation of both over their mean."
    )
    workload: Text | None = Field(
        default=None,
        description="A file with the lengths instead: prompts, recorded answers, or a trace; relative to "
        "the recipe.",
    )
    time_to_first_token_ms: Rate | None = Field(
        default=None, description="The bound on the wait for the first token, for 95 of 100 requests."
    )
    inter_token_ms: Rate | None = Field(
        default=None,
        description="The bound on the mean time per token after the first, for 95 of 100 requests.",
    )
    acceptance: Share = Field(
        default=0.7,
        description="The probability that a draft token is accepted if all before it were; a result of "
        "trtspec bench is better.",
    )
    price_per_gpu_hour: dict[GpuName, Amount] = Field(
        default={}, description="The price of an hour of a GPU, by its name: {h200: 3.5}."
    )
    currency: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=8)] = Field(
        default="USD", description="The currency of the prices."
    )


AUTO = "auto"
_SKIPPED = 0.45
"""The share of the layers between the first and the last that SWIFT leaves out (its section 5.1)."""


def usual_count(num_layers: int) -> int:
    """Returns how many of the layers are kept by default."""
    return max(num_layers - max(int(_SKIPPED * (num_layers - 2)), 1), 1)


def check_layers(value: object) -> object:
    """Returns `auto` or a list of layers; raises ValueError with problem and repair for what is neither."""
    is_list = isinstance(value, list) and value and all(type(layer) is int and layer >= 0 for layer in value)
    if value != AUTO and not is_list:
        problem = f"found {value!r:.80}; allowed: auto, or the numbers of layers, from 0 on"
        raise ValueError(problem, "write auto, or a list: [0, 1, 5, 9]")
    if isinstance(value, list) and value != sorted(set(value)):
        wanted = ", ".join(map(str, sorted(set(value))))
        raise ValueError("layers are written in their order, each once", f"write [{wanted}]")
    return value


LayersOfTarget = Annotated[
    Literal["auto"] | list[int],
    BeforeValidator(check_layers),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": AUTO},
                {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
            ]
        }
    ),
]


class LayerSearch(TextSelection):
    """The options of the search for layers, which compares a draft of them with the target."""

    count: Positive | None = Field(
        default=None,
        description="Number of layers that are kept; if left out, 45 % of the layers between the first and"
        " the last are removed, as in SWIFT.",
    )
    dataset: Text | None = Field(
        default=None,
        description="The texts that the target answers, in the forms of calibration.dataset; if left out, "
        "the target's calibration texts, or else a few of trtspec's own.",
    )
    samples: Positive = Field(default=16, description="The number of texts that the target answers.")
    max_length: Positive = Field(default=256, description="Tokens of each text that are used.")
    max_tokens: Positive = Field(
        default=64, description="Tokens of each answer that drafts are compared with."
    )
    tries: Positive = Field(default=300, description="The largest number of sets of layers that are tried.")


SLURM_WORD = r"^[^\s\x00-\x1f\x7f]+$"
SlurmWord = Annotated[str, Field(max_length=256, pattern=SLURM_WORD)]
# What sbatch takes, but for the bare number of minutes: YAML 1.1 has 4:00:00 for a number too.
SLURM_TIME = r"^([0-9]+-[0-9]{1,2}(:[0-9]{2}){0,2}|[0-9]+:[0-9]{2}(:[0-9]{2})?)$"
SLURM_MOUNT = r"^/[^,:\x00-\x1f\x7f]*:/[^,:\x00-\x1f\x7f]*(:[a-z]+)?$"
SLURM_ANY = "any"

SBATCH_OWN = frozenset(
    {
        *("account", "array", "chdir", "clusters", "comment", "dependency", "error", "export", "gpus"),
        *("gpus-per-node", "help", "hold", "input", "job-name", "kill-on-invalid-dep", "nodes", "ntasks"),
        *("open-mode", "output", "parsable", "partition", "requeue", "test-only", "time", "usage"),
        *("version", "wait", "wrap"),
    }
)
"""The options of sbatch that trtspec sets itself, or whose effect it would not know of."""


def check_sbatch_option(name: str) -> str:
    """Returns the long name of an option of sbatch; raises ValueError(problem, repair)."""
    if name.startswith("-") or not name.replace("-", "").isalnum() or name != name.lower():
        raise ValueError(f"found {name!r:.80}, which is no long option", "write its name without the dashes")
    if name in SBATCH_OWN:
        raise ValueError(f"trtspec sets --{name} itself", "remove this line")
    return name


SbatchOption = Annotated[str, AfterValidator(check_sbatch_option), WithJsonSchema({"type": "string"})]
SbatchOptions = dict[SbatchOption, bool | int | Text]


class SlurmSection(Section):
    """The options of Slurm jobs.

    Memory and processors follow from the model, unless `options` have `mem`, `cpus-per-task` or their like.
    """

    partition: SlurmWord | None = Field(
        default=None,
        description="The partition of all jobs; cpu_partition overrides it for jobs without a GPU.",
    )
    cpu_partition: SlurmWord | None = Field(
        default=None, description="The partition of jobs without a GPU, so that they need not wait for one."
    )
    account: SlurmWord | None = Field(default=None, description="The account that pays for the time.")
    time: Annotated[str, Field(pattern=SLURM_TIME)] | None = Field(
        default=None,
        description="The time limit of each job, in quotes: '4:00:00', '1-12:00:00'; if left out, 2 hours or"
        " more, by the size of the model.",
    )
    gpu_type: SlurmWord | None = Field(
        default=None,
        description="The cluster's name of the recipe's GPU; if left out, hardware.gpu, or any GPU if the "
        "cluster has no names for them.",
    )
    container_image: SlurmWord | None = Field(
        default=None,
        description="An image with the recipe's release and trtspec, in which pyxis runs each job: "
        "registry#name:tag, or the path of a squashfs file.",
    )
    mpi: SlurmWord | None = Field(
        default=None,
        description="srun's --mpi for the container: pmix, if its MPI needs that. Without it, the"
        " container is not an MPI rank.",
    )
    container_mounts: list[Annotated[str, Field(pattern=SLURM_MOUNT)]] = Field(
        default=[],
        description="Further folders of the container, /from:/to, beside those of recipe, builds and store.",
    )
    options: SbatchOptions = Field(
        default={}, description="Further options of sbatch by their long names: {mem: 64G, exclusive: true}."
    )
    gpu_options: SbatchOptions = Field(default={}, description="The same, only for jobs with GPUs.")


_FORM = {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 64}}


def check_schedule(value: object) -> dict[int, int]:
    """Returns a schedule; raises ValueError with problem and repair. Keys of YAML and JSON are texts."""
    pairs = value.items() if isinstance(value, dict) else ()
    found = {int(key): k for key, k in pairs if str(key).isdecimal() and type(k) is int and 0 <= k <= 64}
    if [*found] != sorted(found) or 1 not in found or len(found) < len(pairs) or not any(found.values()):
        problem = "maps numbers of requests, 1 first and then rising, to K of 0 to 64, and not always 0"
        raise ValueError(problem, "write for example {1: 4, 5: 2, 9: 0}")
    return found


Schedule = Annotated[
    dict[int, int], BeforeValidator(check_schedule), WithJsonSchema({**_FORM, "required": ["1"]})
]
"""K by the least number of running requests that it holds for."""


SERVED_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9._-]+)*$"
ServedName = Annotated[str, Field(max_length=100, pattern=SERVED_NAME)]
Microseconds = Annotated[int, Field(ge=1_000, le=7 * 86_400 * 10**6)]  # up to a week

BLS_MODELS = {Role.TARGET: "tensorrt_llm", Role.DRAFT: "tensorrt_llm_draft"}
"""The Triton models of the engines in the bls layout, as NVIDIA's own are called."""


class Serving(Section):
    """The model that clients call."""

    model_name: ServedName = Field(
        default="speculative_llm",
        description="Name of the model that clients call; Triton's own name has `--` for each slash. If left "
        "out, vLLM, SGLang and trtllm-serve have the target's id, as with their own commands.",
    )
    aliases: Annotated[list[ServedName], Field(max_length=64)] = Field(
        default=[],
        description="Further names of the model in OpenAI's API, such as `Qwen/Qwen3-32B`; SGLang and"
        " trtllm-serve allow only one name.",
    )
    reasoning_parser: ReasoningParser | None = Field(
        default=None,
        description="The form of the model's reasoning, by vLLM's names; OpenAI's API separates it from "
        "the answer. If left out, the chat template decides; `none`: the reasoning is "
        "part of the text.",
    )
    generation_config: Literal["auto", "none"] = Field(
        default="auto",
        description="auto: OpenAI's API takes defaults of sampling from the model's generation_config.json;"
        " none: from OpenAI's documentation.",
    )
    layout: Literal["in_process", "bls", "triton"] | None = Field(
        default=None,
        description="in_process: one Triton model runs both engines; bls: each engine is a model of its own;"
        " triton: for backend vllm, a model of Triton's vLLM backend. If left out, vllm is its own server.",
    )
    max_queue_size: Positive | None = Field(
        default=None,
        description="The largest number of completions that wait for a slot; a full queue refuses new ones "
        "at once.",
    )
    max_queue_delay_microseconds: Microseconds | None = Field(
        default=None,
        description="The longest wait of a completion for a slot; after it the completion is refused, and "
        "the client may try again.",
    )
    default_timeout_microseconds: Microseconds = Field(
        default=600 * 10**6,
        description="Time limit of a completion whose request sets none, from arrival to its last token.",
    )
    draft_timeout_microseconds: Microseconds | None = Field(
        default=None,
        description="The longest wait of a round for the draft engine; after it the target continues alone.",
    )
    target_timeout_microseconds: Microseconds = Field(
        default=120 * 10**6,
        description="The longest time without progress while the target has requests; after it they "
        "fail, and the server ends.",
    )

    @property
    def triton_name(self) -> str:
        """The name of the Triton model, whose folder has it too."""
        return triton_name(self.model_name)


def triton_name(name: str) -> str:
    """Returns the name of a model as Triton can have it."""
    return name.replace("/", "--")


Device = Annotated[
    str, BeforeValidator(devices.check), WithJsonSchema({"type": "string", "pattern": devices.PATTERN})
]
VariableName = Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Word = Annotated[str, Field(max_length=4096, pattern=r"^[^\x00-\x1f\x7f]*$")]
BuildOption = bool | int | float | Text


class Calibration(TextSelection):
    """The texts that FP8 scales are computed from."""

    dataset: Text = Field(
        description="A file relative to the recipe: .jsonl, .txt (a text per line) or .parquet; or one of a "
        "Hub dataset: owner/name/file or owner/name@commit/file. The result of an earlier calibration, whose "
        "name ends with calibration.json, is used as it is."
    )
    samples: Positive = Field(default=512, description="The number of texts that run through the model.")
    max_length: Positive = Field(default=2048, description="Tokens of each text that are used.")
    batch_size: Positive = Field(default=1, description="Texts run at once.")


class Quantization(Section):
    """Precision of the weights and of the KV cache; if left out, both stay in the model's dtype."""

    weights: Literal["none", "fp8"] = Field(
        default="none", description="Precision of weights and activations."
    )
    kv_cache: Literal["none", "fp8"] = Field(
        default="none", description="Precision of the KV cache; fp8 needs fp8 weights."
    )
    calibration: Calibration | None = Field(
        default=None,
        description="Required for fp8 unless the model is FP8 already; a draft uses the target's by default.",
    )


class Parallel(Section):
    """The parallelism of one engine: `tensor` x `pipeline` ranks, each on a GPU."""

    tensor: Positive = Field(default=1, description="Tensor parallel size (tp_size).")
    pipeline: Positive = Field(default=1, description="Pipeline parallel size (pp_size).")

    @property
    def ranks(self) -> int:
        """The number of ranks of this engine, each on a GPU of its own."""
        return self.tensor * self.pipeline


class RecipeModel(Section):
    """A model of the recipe, which gets an engine."""

    model: Text = Field(description="Hugging Face Hub id, or a folder relative to the recipe.")
    revision: Text | None = Field(
        default=None, description="Commit, tag or branch of the Hub model; pin a commit in production."
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        default="auto", description="Dtype of the unquantized weights; auto keeps the model's own."
    )
    quantization: Quantization = Field(default=Quantization(), description="FP8 for H100 and H200.")
    parallel: Parallel = Field(default=Parallel(), description="Ranks of this engine.")
    build: dict[str, BuildOption] = Field(
        default={},
        description="Any trtllm-build option of this engine alone, by its name without the dashes: "
        "gemm_plugin: auto, max_batch_size: 256.",
    )


def _without_model(schema: dict[str, Any]) -> None:
    """Lets a draft of the target's layers be one without a model."""
    schema["required"].remove("model")
    schema["anyOf"] = [{"required": ["model"]}, {"required": ["layers_of_target"]}]


class Draft(RecipeModel):
    """The small model, or the head, that proposes tokens; or layers of the target itself."""

    model_config = ConfigDict(json_schema_extra=_without_model)

    layers_of_target: LayersOfTarget | None = Field(
        default=None,
        description="Instead of a model: the layers of the target that are the draft, [0, 1, 5, 9]; auto "
        "chooses those that agree most often with the target.",
    )
    layer_search: LayerSearch = Field(
        default=LayerSearch(), description="The options of layers_of_target: auto."
    )
    device: Device | None = Field(
        default=None,
        description="The device of the draft; if left out, the plan chooses. cpu runs it on the torch "
        "backend; cuda:0, cuda:1 and so on are GPUs of the server, by CUDA's number.",
    )


class Speculation(Section):
    """The source of drafts, and their length."""

    method: AnyMethod = Field(
        default=DraftModelMethod(),
        description="Where drafts come from: the name of a method, or its section.",
    )
    mode: Literal["draft_tokens_external"] = Field(
        default="draft_tokens_external", description="TensorRT-LLM's speculative_decoding_mode of the target."
    )
    max_draft_len: Positive | None = Field(
        default=None,
        le=64,
        description="The longest draft that the target can verify.",
    )
    num_draft_tokens: Positive | None = Field(
        default=None,
        description="K in every round, unless the request sets it; if left out, the policy chooses K.",
    )
    policy: Literal["adaptive", "fixed"] | None = Field(
        default=None,
        description="adaptive: K follows acceptance and load, round by round; fixed: num_draft_tokens, or"
        " max_draft_len. adaptive if left out, and fixed with num_draft_tokens.",
    )
    schedule: Schedule | None = Field(
        default=None,
        description="The largest K by the number of requests that run, each from so many on: "
        "{1: 4, 5: 2, 9: 0} is 4 for up to 4 requests, 2 for 5 to 8, and no drafts for 9 or more.",
    )
    share: Share | None = Field(
        default=None,
        description="The share of requests that have drafts, 0 to 1, until trtspec rollout changes it; if "
        "left out, all have drafts.",
    )

    @property
    def largest(self) -> int:
        """The largest K of the schedule; 0 without one."""
        return max((self.schedule or {}).values(), default=0)


class Engine(Section):
    """The backend of the engines, and the limits that they are built for."""

    backend: BackendName | None = Field(
        default=None,
        description="What builds and runs the engines; torch if left out on a machine without a GPU. vllm, "
        "sglang and tensorrt_llm_pytorch (trtllm-serve) are servers that load the models themselves.",
    )
    release: Text | None = Field(
        default=None,
        description="Release of TensorRT-LLM that builds and serves, or of the server that backend names; "
        "if left out, the newest that trtspec knows.",
    )
    max_batch_size: Positive = Field(default=16, description="Requests in flight at once.")
    max_input_len: Positive | None = Field(default=None, description="Longest prompt, in tokens.")
    max_seq_len: Positive | None = Field(
        default=None,
        description="The longest sequence, prompt and answer together, in tokens. If left out, that of the "
        "models: for vLLM, SGLang and trtllm-serve as far as memory allows, for engines up to 8,192.",
    )
    max_num_tokens: Positive | None = Field(
        default=None, description="Tokens that one iteration of an engine may process."
    )
    enable_chunked_context: bool | None = Field(
        default=None,
        description="Whether TensorRT-LLM may read a prompt in several iterations; the target then "
        "discards drafts that do not fit one.",
    )
    extra_args: Annotated[list[Word], Field(max_length=256)] = Field(
        default=[],
        description="Further arguments for vLLM, SGLang or trtllm-serve: "
        "[--reasoning-parser, qwen3]. trtspec refuses a flag that it sets itself, and "
        "names the key that sets it.",
    )
    environment: dict[VariableName, str] = Field(
        default={},
        description="Environment variables of vLLM, SGLang or trtllm-serve: {VLLM_LOGGING_LEVEL: DEBUG}.",
    )


class Hardware(Section):
    """The hardware that the engines run on."""

    gpu: GpuName = Field(
        description="h100, h200 and so on, or none for a machine without a GPU (torch backend)."
    )
    count: Positive = Field(default=1, description="GPUs of one server; ignored for gpu: none.")


OF_TARGET = ("model", "revision", "dtype", "quantization")
"""The keys of the target that are its draft's too where that is some of its layers."""
NOT_OF_HEADS = ("dtype", "quantization", "parallel", "build", "device", "layers_of_target")
"""Keys of a draft that a head has not, since it runs in its target's engine, as the target does."""

_NOT_BUILT = {"fleet", "kubernetes", "slurm"}
"""The sections of a recipe that say nothing of what is built."""


class Recipe(Section):
    """A recipe names a target, the source of its drafts, and the hardware."""

    version: Literal[1] = Field(default=1, description="Version of this schema.")
    name: Annotated[str, Field(max_length=100, pattern=r"^[a-z0-9][a-z0-9._-]*$")] = Field(
        description="Name of the build; its folder is build/<name>."
    )
    target: RecipeModel = Field(description="The large model, whose text is served.")
    draft: Draft | None = Field(
        default=None,
        description=f"The small model that proposes tokens; {', '.join(WITHOUT_MODEL)} have none.",
    )
    hardware: Hardware = Field(description="The hardware that the engines run on.")
    speculation: Speculation = Field(
        default=Speculation(), description="The source of drafts, and their length."
    )
    engine: Engine = Field(default=Engine(), description="The backend of the engines, and their limits.")
    serving: Serving = Field(default=Serving(), description="The Triton model that clients call.")
    kubernetes: Kubernetes = Field(
        default=Kubernetes(), description="The options of trtspec kubernetes deploy."
    )
    slurm: SlurmSection = Field(
        default=SlurmSection(), description="The options of trtspec build --on slurm."
    )
    fleet: FleetSection = Field(
        default=FleetSection(), description="The load and the prices of trtspec plan --fleet."
    )

    @model_validator(mode="before")
    @classmethod
    def _of_target(cls, values: Any) -> Any:
        """Makes a draft of the target's layers the target's model, in its precision."""
        draft, target = (
            (values.get(role) for role in ("draft", "target")) if isinstance(values, dict) else ("", "")
        )
        if not (isinstance(draft, dict) and isinstance(target, dict) and draft.get("layers_of_target")):
            return values
        own = {key: target[key] for key in OF_TARGET if key in target}
        return {**values, "draft": {**own, **draft}}

    def written(self, key: str) -> Any:
        """Returns the value that the recipe writes for a dotted key; None if it writes none."""
        value: Any = self
        for name in key.split("."):
            if name not in getattr(value, "model_fields_set", ()):
                return None
            value = getattr(value, name)
        return value

    @property
    def models(self) -> dict[Role, RecipeModel]:
        """The models, the target first."""
        return {Role.TARGET: self.target, **({Role.DRAFT: self.draft} if self.draft else {})}

    @property
    def draft_gpus(self) -> tuple[int, ...] | None:
        """The GPUs that the recipe names for the draft, none for the CPU; None if the plan chooses."""
        return devices.gpus_of(self.draft.device) if self.draft else None

    @property
    def digest(self) -> str:
        """The digest of the recipe with its defaults, by which manifests and stores name it.

        A key that was added later is left out if its value is what was so before: old digests stay valid. So
        is a section that changes nothing of what is built.
        """
        values, usual = self.model_dump(mode="json", exclude=_NOT_BUILT), Speculation().method
        for *sections, key, before in (
            *(("speculation", "method", *option) for option in self.speculation.method.added.items()),
            ("speculation", "method", usual.model_dump(exclude=set(usual.added))),
            ("engine", "extra_args", []),
            ("engine", "environment", {}),
            ("serving", "aliases", []),
            ("serving", "reasoning_parser", None),
            ("serving", "generation_config", "auto"),
            ("speculation", "policy", None),
            ("speculation", "schedule", None),
            ("speculation", "share", None),
            ("draft", "device", None),
            ("draft", "layers_of_target", None),
            ("draft", "layer_search", LayerSearch().model_dump()),
        ):
            section: Any = values
            for name in sections:
                section = section and section.get(name)
            if section and key in section and section[key] == before:
                del section[key]
        return digest_of(values)

    def calibration(self, model: RecipeModel) -> Calibration | None:
        """The calibration of a model that is to be FP8, its own or else the target's; None if it has none."""
        if model.quantization.weights != "fp8":
            return None
        return model.quantization.calibration or self.target.quantization.calibration

    @property
    def layer_texts(self) -> str | None:
        """The dataset of texts by which layers of the target are chosen; None for trtspec's own texts."""
        own = self.draft.layer_search.dataset if self.draft else None
        calibration = self.target.quantization.calibration
        is_text = calibration is not None and not calibration.dataset.endswith("calibration.json")
        return own or (calibration.dataset if calibration and is_text else None)

    @property
    def backend(self) -> str:
        """`engine.backend`; if that is left out, `torch` for `gpu: none` and else `tensorrt_llm`."""
        return self.engine.backend or ("torch" if self.hardware.gpu == gpus.NONE else "tensorrt_llm")

    def on(self, backend: str) -> Recipe:
        """Returns this recipe for another backend."""
        return self.model_copy(update={"engine": self.engine.model_copy(update={"backend": backend})})

    def backend_of(self, role: Role, of_target: str | None = None) -> str:
        """Returns the backend of one engine: TensorRT-LLM has no CPU, so a draft there is of `torch`.

        `of_target` is the target's where that is not the recipe's.
        """
        return "torch" if role is Role.DRAFT and self.draft_gpus == () else of_target or self.backend


def json_schema(releases: Iterable[str]) -> dict[str, Any]:
    """Returns the JSON Schema of a recipe, for editors and other tools, with these `releases` of backends."""
    schema = Recipe.model_json_schema()
    release = schema["$defs"]["Engine"]["properties"]["release"]
    release["anyOf"][0] = {"type": "string", "enum": list(dict.fromkeys(releases))}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "trtspec recipe",
        "if": _is_any_of(WITHOUT_MODEL),
        "then": {"properties": {"draft": {"type": "null"}}},
        "else": {"required": ["draft"], "properties": {"draft": {"$ref": "#/$defs/Draft"}}},
    }


def _is_any_of(methods: Iterable[str]) -> dict[str, Any]:
    """Returns the JSON Schema of the recipes with one of these methods, by its name or with a section."""
    names = {"enum": list(methods)}
    section = {"type": "object", "required": ["kind"], "properties": {"kind": names}}
    speculation = {"required": ["method"], "properties": {"method": {"anyOf": [names, section]}}}
    return {"required": ["speculation"], "properties": {"speculation": speculation}}
