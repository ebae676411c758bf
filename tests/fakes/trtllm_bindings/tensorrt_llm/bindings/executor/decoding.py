"""How an `Executor` decodes (`bindings.cpp`, `executorConfig.cpp`, and `executor/decodingConfig.cpp`)."""

from __future__ import annotations

from typing import Any

from tensorrt_llm.bindings.executor.errors import thrown
from tensorrt_llm.bindings.executor.request import LookaheadDecodingConfig
from tensorrt_llm.bindings.executor.strict import Bound, Int32, Unsupported, check

SOURCE = "executor/decodingConfig.cpp"
MODES = {"medusa_choices": "Medusa", "lookahead_decoding_config": "Lookahead"}
SETTINGS = {"medusa_choices": "MedusaChoices are", "lookahead_decoding_config": "LookaheadDecodingConfig is"}


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


class DecodingConfig(Bound):
    """The setter of the mode takes none of drafts inside, and those of their settings set their mode."""

    decoding_mode: DecodingMode | None = None
    lookahead_decoding_config: LookaheadDecodingConfig | None = None
    medusa_choices: list[list[Int32]] | None = None
    eagle_config: Unsupported | None = None

    def checks(self, name: str, value: Any) -> None:
        is_made = hasattr(self, "_is_made")
        if name == "decoding_mode" and is_made and value is not None and value.name in MODES.values():
            raise thrown("Decoding mode must not be set with `setDecodingMode` for Medusa, Lookahead", SOURCE)
        if name not in MODES or value is None:
            return
        if is_made:
            object.__setattr__(self, "decoding_mode", DecodingMode._of(MODES[name]))
        mode = self.decoding_mode
        check(mode is not None, f"{SETTINGS[name]} set, but DecodingMode is not set", SOURCE)
        is_its = mode is not None and mode.name == MODES[name]
        check(is_its, f"{SETTINGS[name]} set, but DecodingMode is not set to {MODES[name]}", SOURCE)
