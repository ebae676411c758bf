"""How an `Executor` decodes (`bindings.cpp`, `executorConfig.cpp`, and `executor/decodingConfig.cpp`)."""

from __future__ import annotations

from typing import Any

from tensorrt_llm.bindings.executor.errors import thrown
from tensorrt_llm.bindings.executor.request import LookaheadDecodingConfig
from tensorrt_llm.bindings.executor.strict import Bound, Int32, Unsupported, check

SOURCE = "executor/decodingConfig.cpp"
MODES = {"medusa_choices": "Medusa", "lookahead_decoding_config": "Lookahead", "eagle_config": "Eagle"}
SETTINGS = {
    "medusa_choices": "MedusaChoices are",
    "lookahead_decoding_config": "LookaheadDecodingConfig is",
    "eagle_config": "EagleConfig is",
}


class DecodingMode(Bound):
    """Its static methods alone make one; the stand-in has the modes of engines that it can run."""

    READ_ONLY = ("name",)

    name: str

    def __init__(self) -> None:
        raise TypeError("DecodingMode: no constructor defined!")

    @classmethod
    def Auto(cls) -> DecodingMode:
        return cls._of("Unknown")

    @classmethod
    def Medusa(cls) -> DecodingMode:
        return cls._of("Medusa")

    @classmethod
    def Lookahead(cls) -> DecodingMode:
        return cls._of("Lookahead")

    @classmethod
    def Eagle(cls) -> DecodingMode:
        return cls._of("Eagle")

    @classmethod
    def _of(cls, name: str) -> DecodingMode:
        mode = cls.__new__(cls)
        object.__setattr__(mode, "name", name)
        return mode

    def isAuto(self) -> bool:
        return self.name == "Unknown"

    def isMedusa(self) -> bool:
        return self.name == "Medusa"

    def isLookahead(self) -> bool:
        return self.name == "Lookahead"

    def isEagle(self) -> bool:
        return self.name == "Eagle"


class EagleConfig(Bound):
    """The stand-in has the fixed trees of EAGLE-1, and takes tokens that are the target's own."""

    READ_ONLY = (
        "eagle_choices",
        "greedy_sampling",
        "posterior_threshold",
        "use_dynamic_tree",
        "dynamic_tree_max_topK",
    )

    eagle_choices: list[list[Int32]] | None = None
    greedy_sampling: bool = True
    posterior_threshold: Unsupported | None = None
    use_dynamic_tree: bool = False
    dynamic_tree_max_topK: Int32 | None = None

    def checks(self, name: str, value: Any) -> None:
        if (name == "greedy_sampling" and not value) or (name == "use_dynamic_tree" and value):
            raise NotImplementedError(f"EagleConfig.{name}: the stand-in cannot do this")


class DecodingConfig(Bound):
    """The setter of the mode takes none of drafts inside, and those of their settings set their mode."""

    decoding_mode: DecodingMode | None = None
    lookahead_decoding_config: LookaheadDecodingConfig | None = None
    medusa_choices: list[list[Int32]] | None = None
    eagle_config: EagleConfig | None = None

    def checks(self, name: str, value: Any) -> None:
        is_made = hasattr(self, "_is_made")
        is_forbidden = value is not None and name == "decoding_mode" and value.name in ("Medusa", "Lookahead")
        if is_forbidden and is_made:
            raise thrown("Decoding mode must not be set with `setDecodingMode` for Medusa, Lookahead", SOURCE)
        if name not in MODES or value is None:
            return
        if is_made:
            object.__setattr__(self, "decoding_mode", DecodingMode._of(MODES[name]))
        mode = self.decoding_mode
        check(mode is not None, f"{SETTINGS[name]} set, but DecodingMode is not set", SOURCE)
        is_its = mode is not None and mode.name == MODES[name]
        check(is_its, f"{SETTINGS[name]} set, but DecodingMode is not set to {MODES[name]}", SOURCE)
