"""The engines of a model, loaded by the parameters of its `config.pbtxt`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from trtspec.serving.adaptive.policy import Policy
from trtspec.serving.admission import ServingBounds
from trtspec.serving.assembly import assemble
from trtspec.serving.coordinator import Coordinator
from trtspec.serving.drafters.source import Drafting
from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import Executor
from trtspec.serving.executors.tensorrt_llm.runtime_draft import Choices, RuntimeDraft, read_choices
from trtspec.serving.executors.validation import read_limits
from trtspec.serving.guides.guides import Guides
from trtspec.serving.rollout.rollout import Rollout
from trtspec.serving.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Parameters:
    """Reads the parameters. Each method raises `EngineLoadError` for a missing or invalid one."""

    values: Mapping[str, str]
    folder: Path
    """The model's folder. Paths among the parameters are relative to it."""

    def text(self, key: str) -> str:
        if not self.values.get(key):
            raise EngineLoadError(key, "missing from the parameters of config.pbtxt")
        return self.values[key]

    def path(self, key: str) -> Path:
        return (self.folder / self.text(key)).resolve()

    def number(self, key: str) -> int:
        text = self.text(key)
        if not text.isdecimal():
            raise _wrong(key, text, "not a number")
        return int(text)

    def amount(self, key: str) -> int | float:
        """Returns an int or a float, 0 or more."""
        if self.text(key).isdecimal():
            return int(self.text(key))
        value = self._real(key)
        if not 0 <= value < math.inf:
            raise _wrong(key, self.text(key), "not a number")
        return value

    def seconds(self, key: str, default: float) -> float:
        """Returns the seconds of a parameter in microseconds; `default` without the key."""
        return self.number(key) / 1e6 if key in self.values else default

    def flag(self, key: str) -> bool:
        text = self.text(key)
        if text not in ("true", "false"):
            raise _wrong(key, text, "not true or false")
        return text == "true"

    def device(self, key: str) -> str | None:
        """Returns PyTorch's name of the CPU or a GPU; None without the key."""
        if key not in self.values:
            return None
        text = self.text(key)
        kind, _, number = text.partition(":")
        if text != "cpu" and not (kind == "cuda" and number.isdecimal()):
            raise _wrong(key, text, "neither cpu nor a GPU, such as cuda:0")
        return text

    def choices(self, key: str) -> Choices:
        """Returns the paths of a tree."""
        try:
            return read_choices(self.text(key))
        except ValueError:
            raise _wrong(key, self.text(key), "not a tree, such as {0}, {1}, {0, 0}") from None

    def schedule(self, key: str) -> dict[int, int]:
        """Returns K from so many completions on; nothing without the key."""
        text = self.text(key) if key in self.values else "{}"
        try:
            return {int(least): int(length) for least, length in json.loads(text).items()}
        except (AttributeError, TypeError, ValueError):
            raise _wrong(key, text, 'not a schedule, such as {"1": 4, "9": 0}') from None

    def fraction(self, key: str) -> float:
        """Returns a number above 0 and below 1, as `KvCacheConfig` demands."""
        value = self._real(key)
        if not 0 < value < 1:
            raise _wrong(key, self.text(key), "not a number between 0 and 1")
        return value

    def share(self, key: str) -> float:
        """Returns a number from 0 to 1; 1 without the key."""
        value = self._real(key) if key in self.values else 1.0
        if not 0 <= value <= 1:
            raise _wrong(key, self.text(key), "not a number from 0 to 1")
        return value

    def _real(self, key: str) -> float:
        try:
            return float(self.text(key))
        except ValueError:
            return math.nan


def _wrong(key: str, text: str, problem: str) -> EngineLoadError:
    return EngineLoadError(key, f"{text!r} in the parameters of config.pbtxt is {problem}")


@dataclass(frozen=True, slots=True)
class EnginePair:
    """The parts of a coordinator. Without `draft` and `drafting` the target decodes alone."""

    target: Executor
    draft: Executor | None
    tokenizer: Tokenizer
    num_draft_tokens: int | None = None
    in_process: bool = True
    """False if the engines are their own models, which may be loaded later."""
    bounds: ServingBounds | None = None
    drafting: Drafting | None = None
    policy: Policy = "fixed"
    guides: Guides | None = None
    rollout: Rollout = field(default_factory=Rollout)
    draft_tokenizer: Tokenizer | None = None
    """Given if the draft's vocabulary differs from the target's."""

    def coordinator(self) -> Coordinator:
        return assemble(
            self.target,
            self.draft,
            self.tokenizer,
            self.num_draft_tokens,
            self.bounds,
            self.drafting,
            self.policy,
            self.guides,
            self.rollout,
            self.draft_tokenizer,
        )

    def shutdown(self) -> None:
        for executor in (self.draft, self.target):
            if executor is not None:
                executor.shutdown()
        if self.guides is not None:
            self.guides.close()


def load(values: Mapping[str, str], folder: Path) -> EnginePair:
    """Loads the engines, or connects to the models that run them.

    Paths in `values` are relative to `folder`, which is the model's. It is called on the loop that the
    executors will use. Raises `EngineLoadError` or `TokenizerError`.
    """
    parameters = Parameters(values, folder)
    backend = parameters.text("engine_backend")
    if backend not in _LOADERS:
        raise EngineLoadError("engine_backend", f"{backend!r} is none of {', '.join(_LOADERS)}")
    longest = parameters.number("num_draft_tokens") if "num_draft_tokens" in values else None
    tokenizer = Tokenizer.load(parameters.path("tokenizer_dir"))
    roles = ["target", "draft"] if "draft_engine_dir" in values else ["target"]
    translates = "draft_tokenizer_dir" in values
    draft_tokenizer = Tokenizer.load(parameters.path("draft_tokenizer_dir")) if translates else None
    # Over the larger vocabulary guides are compiled once for both engines. Engines of TensorRT-LLM follow
    # guides by themselves, but get only those that were compiled here.
    followers = roles[:1] if translates else roles
    sizes = [read_limits(parameters.path(f"{role}_engine_dir")).vocab_size for role in followers]
    guides = Guides(tokenizer.vocabulary, max(sizes))
    engines = _LOADERS[backend](parameters, roles, tokenizer, guides)
    return EnginePair(
        engines[0],
        engines[1] if len(engines) > 1 else None,
        tokenizer,
        longest,
        backend != "bls",
        _bounds(parameters, engines),
        _drafting(parameters),
        _policy(parameters),
        guides,
        Rollout(parameters.share("speculation_share")),
        draft_tokenizer,
    )


def _policy(parameters: Parameters) -> Policy:
    policies: dict[str, Policy] = {"adaptive": "adaptive", "fixed": "fixed"}
    name = parameters.values.get("draft_policy", "fixed")
    if name not in policies:
        raise EngineLoadError("draft_policy", f"{name!r} is none of {', '.join(policies)}")
    return policies[name]


def _drafting(parameters: Parameters) -> Drafting | None:
    """Returns the method of drafting with its options; None for the default one."""
    if "draft_method" not in parameters.values:
        return None
    prefix = "draft_method."
    own = [key for key in parameters.values if key.startswith(prefix)]
    options = {key.removeprefix(prefix): parameters.amount(key) for key in own}
    return Drafting(parameters.text("draft_method"), options)


def _bounds(parameters: Parameters, engines: Sequence[Executor]) -> ServingBounds:
    """Returns the bounds of the plan, with the KV cache size of the loaded engines."""
    caches = [executor.kv_tokens for executor in engines if executor.kv_tokens is not None]
    usual = ServingBounds(min(executor.limits.max_batch_size for executor in engines))
    has, number = parameters.values.keys(), parameters.number
    return ServingBounds(
        max_places=number("max_places") if "max_places" in has else usual.max_places,
        kv_tokens=min(caches, default=None),
        max_queue_size=number("max_queue_size") if "max_queue_size" in has else usual.max_queue_size,
        max_queue_delay_s=parameters.seconds("max_queue_delay_microseconds", usual.max_queue_delay_s),
        default_timeout_s=parameters.seconds("default_timeout_microseconds", usual.default_timeout_s),
        draft_timeout_s=parameters.seconds("draft_timeout_microseconds", usual.draft_timeout_s),
        target_timeout_s=parameters.seconds("target_timeout_microseconds", usual.target_timeout_s),
        draft_schedule=parameters.schedule("draft_schedule"),
    )


def _bls(
    parameters: Parameters, roles: Sequence[str], tokenizer: Tokenizer, guides: Guides | None
) -> Sequence[Executor]:
    """Connects to the models. Limits come from the engine directories, the cache size from the plan."""
    from trtspec.serving.executors.bls_executor import BlsExecutor
    from trtspec.serving.triton.bls import TritonModel

    names = {"target": "tensorrt_llm_model_name", "draft": "tensorrt_llm_draft_model_name"}
    kv_tokens = parameters.number("kv_tokens") if "kv_tokens" in parameters.values else None
    guide_end_id = None
    if parameters.values.get("guided_decoding_backend") == "xgrammar" and guides is not None and guides.types:
        guide_end_id = next(iter(tokenizer.end_ids), None)
    return [
        BlsExecutor(
            TritonModel(parameters.text(names[role])),
            read_limits(parameters.path(f"{role}_engine_dir")),
            kv_tokens,
            guide_end_id if role == "target" else None,
        )
        for role in roles
    ]


def _tensorrt_llm(
    parameters: Parameters, roles: Sequence[str], tokenizer: Tokenizer, guides: Guides | None
) -> Sequence[Executor]:
    from trtspec.serving.executors.tensorrt_llm.bindings import load_bindings
    from trtspec.serving.executors.tensorrt_llm.guided import guided_vocabulary
    from trtspec.serving.executors.tensorrt_llm.trtllm_executor import EngineLocation, load_engines

    device = parameters.device("draft_device")
    locations = [
        EngineLocation(
            parameters.path(f"{role}_engine_dir"),
            parameters.number(f"{role}_gpu_device_id"),
            parameters.flag(f"{role}_enable_chunked_context"),
            _runtime_draft(parameters) if role == "target" else None,
        )
        for role in roles
        if role == "target" or device is None
    ]
    fraction = parameters.fraction("kv_cache_free_gpu_mem_fraction")
    guided = None
    if guides is not None and guides.types:
        guided = guided_vocabulary(tokenizer, read_limits(locations[0].folder).vocab_size)
    bindings = load_bindings(parameters.text("image"))
    if device is None:
        return load_engines(bindings, locations, fraction, guided)
    from trtspec.serving.executors.torch.torch_executor import load_beside

    draft = parameters.path("draft_engine_dir")
    return load_beside(lambda: load_engines(bindings, locations, fraction, guided), draft, device)


def _runtime_draft(parameters: Parameters) -> RuntimeDraft | None:
    """Returns the method by which the target's engine drafts itself, by NVIDIA's parameters; else None."""
    from trtspec.serving.executors.tensorrt_llm.runtime_draft import EagleTree, LookaheadSizes, MedusaTree

    for tree in (MedusaTree, EagleTree):
        if tree.key in parameters.values:
            return tree(parameters.choices(tree.key))
    if LookaheadSizes.key in parameters.values:
        names = (f"lookahead_{field.name}" for field in fields(LookaheadSizes))
        return LookaheadSizes(*map(parameters.number, names))
    return None


def _torch(
    parameters: Parameters, roles: Sequence[str], tokenizer: Tokenizer, guides: Guides | None
) -> Sequence[Executor]:
    from trtspec.serving.executors.torch.torch_executor import load_engines

    folders = [parameters.path(f"{role}_engine_dir") for role in roles]
    return load_engines(folders, parameters.device("draft_device"), guides)


_LOADERS: Mapping[
    str, Callable[[Parameters, Sequence[str], Tokenizer, Guides | None], Sequence[Executor]]
] = {"bls": _bls, "tensorrt_llm": _tensorrt_llm, "torch": _torch}
"""Functions by backend that load the engines of the roles, in the order of the roles."""
