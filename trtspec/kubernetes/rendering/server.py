"""The container of a server of others: its vendor's image, and the arguments of its launch configuration."""

from __future__ import annotations

from trtspec.deploy import pod as common
from trtspec.deploy.vendor import pod as facts
from trtspec.kubernetes.kinds.pods import (
    ConfigMapSource,
    Container,
    ContainerPort,
    Handler,
    KeyRef,
    Lifecycle,
    Mount,
    ObjectRef,
    Sleep,
    Variable,
    VariablesFrom,
    VariableSource,
    Volume,
)
from trtspec.kubernetes.rendering.parts import (
    NOTHING,
    SCRATCH,
    Parts,
    kept,
    kept_name,
    ports,
    probe,
    resources,
    scratch,
)
from trtspec.kubernetes.values import Server, Values
from trtspec.recipe.kubernetes import HostPath

_FILES = "launch"


def parts(values: Values, server: Server) -> Parts:
    """Returns what serves models that the server loads itself."""
    files = [Volume(_FILES, config_map=ConfigMapSource(values.config_map))] if server.files else []
    return Parts(_server(values, server), [kept(values), *files, *scratch(values)])


def _server(values: Values, server: Server) -> Container:
    volume, secret = values.volume, server.hub_secret
    # Models of one's own are where the recipe says that they are.
    models = volume.path if isinstance(volume, HostPath) else str(facts.MODELS)
    return Container(
        name="server",
        image=values.image,
        image_pull_policy="IfNotPresent",
        command=server.command,
        args=server.arguments,
        env=[
            *(Variable(name, value) for name, value in facts.ENVIRONMENT.items()),
            Variable("HF_HOME", f"{models if server.hub else common.TEMPORARY}/{facts.HUB}"),
            *(Variable(each.name, each.value) for each in server.environment),
            *_key(values, server),
        ],
        env_from=[VariablesFrom(ObjectRef(secret))] if secret else None,
        ports=[ContainerPort(name, port) for name, port in ports(values).items()],
        resources=resources(values),
        startup_probe=probe(facts.startup_probe(values.times.startup_failures)),
        readiness_probe=probe(facts.READINESS),
        liveness_probe=probe(facts.LIVENESS),
        lifecycle=Lifecycle(pre_stop=Handler(Sleep(common.PRE_STOP_S))),
        security_context=NOTHING,
        volume_mounts=[
            Mount(kept_name(values), models, read_only=None if server.hub else True),
            *([Mount(_FILES, str(facts.FILES), read_only=True)] if server.files else []),
            *SCRATCH,
        ],
    )


def _key(values: Values, server: Server) -> list[Variable]:
    if not (server.key_variable and values.api_keys_secret):
        return []
    source = VariableSource(KeyRef(values.api_keys_secret, facts.KEYS))
    return [Variable(server.key_variable, value_from=source)]
