"""The containers of engines: one pulls the build, and the other serves it."""

from __future__ import annotations

from trtspec.deploy import pod as facts
from trtspec.kubernetes.kinds.pods import (
    ConfigMapSource,
    Container,
    Mount,
    ObjectRef,
    Resources,
    SecretSource,
    Variable,
    VariablesFrom,
    Volume,
)
from trtspec.kubernetes.rendering.parts import (
    NOTHING,
    TEMPORARY,
    Parts,
    Probes,
    kept,
    kept_name,
    scratch,
    server,
)
from trtspec.kubernetes.values import Engines, Values

_RECIPE, _ROLLOUT, _KEYS = "recipe", "rollout", "api-keys"


def parts(values: Values, engines: Engines) -> Parts:
    """Returns what serves engines of a store."""
    return Parts(_server(values, engines), _volumes(values), [_puller(values, engines)])


def _puller(values: Values, engines: Engines) -> Container:
    secret, folder = engines.store_secret, facts.folder(engines.platform, values.digest)
    return Container(
        name="pull",
        image=values.image,
        image_pull_policy="IfNotPresent",
        args=facts.pull_arguments(engines.store, values.digest, folder),
        env=[Variable("HOME", str(facts.TEMPORARY))],
        env_from=[VariablesFrom(ObjectRef(secret))] if secret else None,
        resources=Resources(requests={"cpu": "1", "memory": "2Gi"}, limits={"memory": "2Gi"}),
        security_context=NOTHING,
        volume_mounts=[Mount(kept_name(values), str(facts.ENGINES)), TEMPORARY],
    )


def _server(values: Values, engines: Engines) -> Container:
    folder, has_keys = facts.folder(engines.platform, values.digest), bool(values.api_keys_secret)
    return server(
        values,
        Probes(facts.startup_probe(values.times.startup_failures), facts.READINESS, facts.LIVENESS),
        args=facts.serve_arguments(folder, values.times.grace_s, has_keys=has_keys),
        env=[Variable(name, value) for name, value in facts.ENVIRONMENT.items()],
        mounts=[
            Mount(kept_name(values), str(facts.ENGINES), read_only=True),
            Mount(_RECIPE, str(facts.RECIPE.parent), read_only=True),
            Mount(_ROLLOUT, str(facts.ROLLOUT.parent), read_only=True),
            *([Mount(_KEYS, str(facts.API_KEYS.parent), read_only=True)] if has_keys else []),
        ],
    )


def _volumes(values: Values) -> list[Volume]:
    secret = values.api_keys_secret
    return [
        kept(values),
        Volume(_RECIPE, config_map=ConfigMapSource(values.config_map)),
        Volume(_ROLLOUT, config_map=ConfigMapSource(f"{values.name}-rollout", optional=True)),
        *([Volume(_KEYS, secret=SecretSource(secret, default_mode=0o440))] if secret else []),
        *scratch(values),
    ]
