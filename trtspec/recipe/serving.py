"""The part of a recipe on the model that clients call: its names, and how it takes requests."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trtspec.base.roles import Role
from trtspec.base.section import Section
from trtspec.recipe.section import Positive, ReasoningParser

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
