"""Makes a deployment from a build and the options of a command line or a caller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from trtspec.deployment.build import DeployedBuild
from trtspec.deployment.deployment import GRACE_S, Deployment, rollout_file
from trtspec.deployment.logs import logs_of_measurement
from trtspec.deployment.server_kind import TRITON, kind_of
from trtspec.deployment.triton_launch import TritonLaunch
from trtspec.deployment.vendor_launch import VendorLaunch, vendor_launch
from trtspec.gateway.addresses import LOOPBACK
from trtspec.gateway.openai.settings import ModelCard
from trtspec.gateway.ports import OPENAI, Ports, reserved_ports


@dataclass(frozen=True, slots=True)
class DeployOptions:
    """The options of a deployment besides its recipe and its build."""

    host: str = LOOPBACK
    ports: Ports = field(default_factory=lambda: Ports(openai=OPENAI))
    """That of OpenAI's API is left out where it is not served; another engine's server has it alone."""
    start_s: float | None = None
    """The seconds that the server has to be ready; None for what its files ask."""
    grace_s: float = GRACE_S
    api_keys: Path | None = None
    json_logs: bool = False
    logs: Path | None = None
    trace_config: tuple[str, ...] = ()
    rollout: Path | None = None
    python: Path | None = None
    """The Python of another engine's server, if PATH has not its program."""
    plain: bool = False
    """True for another engine's server without drafts."""


@contextmanager
def for_measurement(
    build: DeployedBuild, *, has_api: bool = True, python: Path | None = None, plain: bool = False
) -> Iterator[DeployOptions]:
    """Yields options for a server that only serves a measurement, on reserved ports."""
    logs = logs_of_measurement(build.folder.resolve())
    with reserved_ports(4) as (http, grpc, metrics, api):
        yield DeployOptions(
            ports=Ports(http, grpc, metrics, api if has_api or build.is_of_server else None),
            logs=logs,
            # A roll-out of the deployment's requests is none of these.
            rollout=rollout_file(logs),
            python=python,
            plain=plain,
        )


def deployment_of(
    build: DeployedBuild, options: DeployOptions
) -> tuple[Deployment, TritonLaunch | VendorLaunch]:
    """Returns the deployment of a build and how its server is started.

    Raises `UnavailableError` for keys that the server does not take.
    """
    server = build.find_launch()
    models = None
    if server:
        models = vendor_launch(build, server, plain=options.plain, api_keys=options.api_keys)
    kind, name, ports = TRITON, build.recipe.serving.triton_name, options.ports
    launch: TritonLaunch | VendorLaunch
    if models and not build.is_for_triton:
        launch, kind, name = models, kind_of(models.launch.backend), models.launch.served_model_name
    else:
        # What vLLM loads in Triton has no API of OpenAI's in front of it.
        ports = replace(ports, openai=None) if models else ports
        launch = TritonLaunch(
            ranks=build.ranks,
            loads_one_by_one=build.shares_a_server,
            trace_config=options.trace_config,
            rollout=options.rollout,
            models=models,
        )
    deployment = Deployment(
        name=build.recipe.name,
        build=build.folder.resolve(),
        model_name=name,
        card=_card(build),
        kind=kind,
        host=options.host,
        ports=ports,
        start_s=options.start_s or build.patience.seconds,
        grace_s=options.grace_s,
        is_plain=options.plain and kind is not TRITON,
        json_logs=options.json_logs,
        api_keys=options.api_keys,
        logs=options.logs,
    )
    return deployment, launch


def _card(build: DeployedBuild) -> ModelCard:
    serving = build.recipe.serving
    names = tuple(dict.fromkeys((serving.model_name, *serving.aliases)))
    return ModelCard(
        names=() if names == (serving.triton_name,) else names,
        reasoning_parser=serving.reasoning_parser,
        has_own_sampling=serving.generation_config == "auto",
        max_model_len=build.max_model_len,
    )
