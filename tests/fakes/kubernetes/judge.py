"""Whether an object is what Kubernetes takes, by its own schemas, which kubernetes-validate carries."""

from __future__ import annotations

import json
from functools import cache

from tests.fakes.kubernetes.objects import Json


def problem_of(manifest: Json) -> str | None:
    """Says what is wrong with it; kinds that are no part of Kubernetes itself are not judged here."""
    return _problem(json.dumps(manifest, sort_keys=True))


@cache
def _problem(text: str) -> str | None:
    import kubernetes_validate

    try:
        kubernetes_validate.validate(json.loads(text), kubernetes_validate.latest_version(), strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{'.'.join(map(str, error.path))}: {error.message}"
    except kubernetes_validate.SchemaNotFoundError:
        return None
    return None
