"""The container of a server of others: its vendor's image, and the arguments of its launch configuration."""

from __future__ import annotations

from trtspec.deploy import pod as common
from trtspec.deploy.vendor import pod as facts
from trtspec.kubernetes.kinds.pods import (
    ConfigMapSource,
    Container,
    KeyRef,
    Mount,
    Variable,
    VariableSource,
    Volume,
)
from trtspec.kubernetes.rendering.parts import (
    Parts,
    Probes,
    kept,
    kept_name,
    scratch,
    server,
)
from trtspec.kubernetes.values import Server, Values
from trtspec.recipe.kubernetes import HostPath

_FILES = "launch"


def parts(values: Values, served: Server) -> Parts:
    """Returns what serves models that the server loads itself."""
    files = [Volume(_FILES, config_map=ConfigMapSource(values.config_map))] if served.files else []
    return Parts(_server(values, served), [kept(values), *files, *scratch(values)])


def _server(values: Values, served: Server) -> Container:
    volume = values.volume
    # Models of one's own are where the recipe says that they are.
    models = volume.path if isinstance(volume, HostPath) else str(facts.MODELS)
    return server(
        values,
        Probes(facts.startup_probe(values.times.startup_failures), facts.READINESS, facts.LIVENESS),
        command=served.command,
        args=served.arguments,
        env=[
            *(Variable(name, value) for name, value in facts.ENVIRONMENT.items()),
            Variable("HF_HOME", f"{models if served.hub else common.TEMPORARY}/{facts.HUB}"),
            *(Variable(each.name, each.value) for each in served.environment),
            *_key(values, served),
        ],
        secret=served.hub_secret,
        mounts=[
            Mount(kept_name(values), models, read_only=None if served.hub else True),
            *([Mount(_FILES, str(facts.FILES), read_only=True)] if served.files else []),
        ],
    )


def _key(values: Values, served: Server) -> list[Variable]:
    if not (served.key_variable and values.api_keys_secret):
        return []
    source = VariableSource(KeyRef(values.api_keys_secret, facts.KEYS))
    return [Variable(served.key_variable, value_from=source)]
