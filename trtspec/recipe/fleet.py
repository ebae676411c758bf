"""The section `fleet`: the load that `trtspec plan --fleet` reckons for, what a start takes, prices."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trtspec.base.section import Section
from trtspec.recipe.section import Amount, GpuName, Positive, Share, Text

Rate = Annotated[int | float, Field(ge=0.001, le=10**6, allow_inf_nan=False)]
Speed = Annotated[int | float, Field(ge=0.001, le=10**5, allow_inf_nan=False)]
Times = Annotated[int | float, Field(ge=1, le=100, allow_inf_nan=False)]


class BurstSection(Section):
    """A time in which more requests come than usual, again and again."""

    factor: Times = Field(description="How many times the usual requests a second come meanwhile.")
    seconds: Positive = Field(default=60, description="How long it lasts.")
    every: Positive = Field(default=900, description="The seconds from the beginning of one to the next.")


class Start(Section):
    """The waits of a new replica; the plan states its assumption for each that is left out."""

    node_seconds: Amount = Field(default=0, description="Until there is a node; 0 where nodes wait.")
    image_gb: Amount = Field(
        default=20, description="Bytes of the image that the node pulls, in GB; 0 where it has it."
    )
    image_gb_per_second: Speed = Field(default=0.2, description="At which a node pulls and unpacks it.")
    pull_gb_per_second: Speed = Field(
        default=1.25, description="At which a node reads from the store: 1.25 is 10 Gbit/s."
    )
    store_gb_per_second: Speed = Field(
        default=12.5, description="That the store gives to all nodes together."
    )
    verify_gb_per_second: Speed = Field(
        default=0.9, description="At which one core of a node checks what comes: SHA-256; a pull uses eight."
    )
    load_gb_per_second: Speed = Field(
        default=2, description="At which a GPU takes its part of the engines from the disk."
    )
    warm_up_seconds: Amount = Field(default=20, description="From loaded engines to a server that is ready.")


class FleetSection(Section):
    """A load, the latencies that it must have, and what GPUs cost."""

    requests_per_second: Rate | None = Field(default=None, description="What the replicas are to bear.")
    burstiness: Annotated[int | float, Field(ge=0, le=100, allow_inf_nan=False)] = Field(
        default=1, description="Of the requests: 1 is Poisson, 0 a clock, more comes in bunches."
    )
    burst: BurstSection | None = Field(default=None, description="More requests than usual, now and then.")
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
        default=None, description="What 95 of 100 requests may wait for their first token."
    )
    inter_token_ms: Rate | None = Field(
        default=None, description="The mean time of a token after the first that 95 of 100 may have."
    )
    acceptance: Share = Field(
        default=0.7,
        description="How likely a draft token is accepted where those before it were; a result of "
        "trtspec bench knows better.",
    )
    start: Start = Field(default=Start(), description="What a new replica waits for.")
    price_per_gpu_hour: dict[GpuName, Amount] = Field(
        default={}, description="What an hour of a GPU costs, by its name: {h200: 3.5}."
    )
    currency: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=8)] = Field(
        default="USD", description="Of the prices."
    )
