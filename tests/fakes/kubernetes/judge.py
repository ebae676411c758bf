"""Whether an object is what Kubernetes takes, by its own schemas and by those of custom resources."""

from __future__ import annotations

import json
from functools import cache

import kubernetes_validate
from jsonschema import ValidationError

from tests.fakes.kubernetes.objects import Json
from tests.unit.cluster.kubernetes.schemas import check


def problem_of(manifest: Json) -> str | None:
    """Says what is wrong with it."""
    return _problem(json.dumps(manifest, sort_keys=True))


@cache
def _problem(text: str) -> str | None:
    try:
        check(json.loads(text))
    except (ValidationError, kubernetes_validate.ValidationError) as error:
        return f"{'.'.join(map(str, error.path))}: {error.message}"
    return None
