"""The files of the chart that follow from the renderer: templates, the schema of values, their defaults."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path as File
from typing import Any

from charts.writer.conditions import Conditions
from charts.writer.defaults import defaults
from charts.writer.marks import Path, pieces, text
from charts.writer.samples import Samples, sample
from charts.writer.schema import schema
from charts.writer.templates import Writer
from trtspec.kubernetes.kinds.base import document
from trtspec.kubernetes.manifests import manifests
from trtspec.kubernetes.values import Values

CHART = File(__file__).parents[1] / "trtspec"
_HEAD = "{{- /* Written by `make chart` from trtspec/kubernetes/rendering; change it there. */}}\n"
_FINGERPRINTED: tuple[Path, ...] = (("engines", "recipe"), ("digest",))
"""The texts whose digests are in names."""

BUILTINS: dict[Path, str] = {
    ("name",): ".Release.Name",
    ("namespace",): ".Release.Namespace",
    ("version",): ".Chart.AppVersion",
    ("managedBy",): ".Release.Service",
    **{(*path, "digest"): f".Values.{'.'.join(path)} | sha256sum | trunc 8" for path in _FINGERPRINTED},
}
"""What Helm knows better than values."""

FORMS: tuple[Mapping[Path, bool], ...] = (
    {("engines",): True, ("server",): False},
    {("engines",): False, ("server",): True, ("group",): False, ("kserve",): False, ("scaling",): False},
)
"""What a deployment serves; `templates/validation.yaml` refuses what is none of these."""


def write() -> None:
    """Writes the files, and removes templates of what there is no longer."""
    files = written()
    for old in CHART.glob("templates/*.yaml"):
        if old.read_text(encoding="utf-8").startswith(_HEAD):
            old.unlink()
    for name, content in files.items():
        file = CHART / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(content, encoding="utf-8")


def written() -> dict[str, str]:
    """Returns the files by their paths in the chart."""
    samples = samples_of_values()
    found = dict[str, list[tuple[int, Any]]]()
    for number, values in enumerate(samples.values):
        for thing in manifests(values):
            content = _marked(document(thing))
            found.setdefault(_place(content), []).append((1 << number, content))
    writer = Writer(Conditions(samples), BUILTINS)
    files = {
        f"templates/{place}.yaml": _HEAD + writer.template(place, variants)
        for place, variants in found.items()
    }
    return {**files, **writer.files, "values.schema.json": schema(), "values.yaml": defaults()}


def samples_of_values() -> Samples[Values]:
    """Returns samples of the values of deployments."""
    return sample(Values, {path: text(path) for path in BUILTINS}, FORMS)


def _place(content: dict[str, Any]) -> str:
    """Returns the kind of an object, with what its name has beside that of the deployment."""
    letters = "".join(piece.letters for piece in pieces(content["metadata"]["name"]))
    return "-".join(filter(None, (content["kind"].lower(), letters.strip("-"))))


def _marked(content: dict[str, Any]) -> dict[str, Any]:
    """Returns an object in which the digest of a text's mark is a mark itself."""
    for path in _FINGERPRINTED:
        digest = hashlib.sha256(text(path).encode()).hexdigest()[:8]
        content = _replaced(content, re.compile(digest), text((*path, "digest")))
    return content


def _replaced(part: Any, old: re.Pattern[str], new: str) -> Any:
    if isinstance(part, dict):
        return {key: _replaced(inner, old, new) for key, inner in part.items()}
    if isinstance(part, list):
        return [_replaced(inner, old, new) for inner in part]
    return old.sub(new, part) if isinstance(part, str) else part
