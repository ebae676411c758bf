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
    """A time in which more requests than usual arrive."""

    factor: Times = Field(description="The rate of requests during a burst, as a multiple of the usual one.")
    seconds: Positive = Field(default=60, description="The length of a burst.")


class Start(Section):
    """The waits of a new replica; the plan states its assumption for each that is left out."""

    node_seconds: Amount = Field(default=0, description="The wait for a node; 0 if nodes are ready.")
    image_gb: Amount = Field(
        default=20, description="The size of the image that the node pulls; 0 if the node has it."
    )
    image_gb_per_second: Speed = Field(
        default=0.2, description="The rate at which a node pulls and unpacks the image."
    )
    pull_gb_per_second: Speed = Field(
        default=1.25, description="The rate at which a node reads from the store: 1.25 is 10 Gbit/s."
    )
    store_gb_per_second: Speed = Field(
        default=12.5, description="The rate of the store for all nodes together."
    )
    verify_gb_per_second: Speed = Field(
        default=0.9,
        description="The rate at which one core of a node computes SHA-256; a pull uses eight cores.",
    )
    load_gb_per_second: Speed = Field(
        default=2, description="The rate at which a GPU loads its part of the engines from the disk."
    )
    warm_up_seconds: Amount = Field(default=20, description="The time from loaded engines to a ready server.")


class FleetSection(Section):
    """A load, its latency bounds, and the price of GPUs."""

    requests_per_second: Rate | None = Field(
        default=None, description="The requests per second of all replicas together."
    )
    burstiness: Annotated[int | float, Field(ge=0, le=100, allow_inf_nan=False)] = Field(
        default=1,
        description="The burstiness of arrivals: 0 is even, 1 is Poisson, and above 1 they come in bunches.",
    )
    burst: BurstSection | None = Field(default=None, description="Times with more requests than usual.")
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
    start: Start = Field(default=Start(), description="The waits of a new replica.")
    price_per_gpu_hour: dict[GpuName, Amount] = Field(
        default={}, description="The price of an hour of a GPU, by its name: {h200: 3.5}."
    )
    currency: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=8)] = Field(
        default="USD", description="The currency of the prices."
    )
