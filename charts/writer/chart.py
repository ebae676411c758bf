"""The files of the chart that follow from the renderer: templates, the schema of values, their defaults."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path as File
from typing import Any

from charts.writer.conditions import Conditions
from charts.writer.defaults import defaults
from charts.writer.marks import Path, pieces, text
from charts.writer.samples import sample
from charts.writer.schema import schema
from charts.writer.templates import Writer
from trtspec.kubernetes.kinds.base import document
from trtspec.kubernetes.manifests import manifests
from trtspec.kubernetes.values import Values

CHART = File(__file__).parents[1] / "trtspec"
_HEAD = "{{- /* Written by `make chart` from trtspec/kubernetes/rendering; change it there. */}}\n"
_RECIPE, _FINGERPRINT = ("recipe",), ("recipe", "fingerprint")
BUILTINS: dict[Path, str] = {
    ("name",): ".Release.Name",
    ("namespace",): ".Release.Namespace",
    ("version",): ".Chart.AppVersion",
    ("managedBy",): ".Release.Service",
    _FINGERPRINT: ".Values.recipe | sha256sum | trunc 8",
}
"""What Helm knows better than values."""


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
    samples = sample(Values, {path: text(path) for path in BUILTINS})
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


def _place(content: dict[str, Any]) -> str:
    """Returns the kind of an object, with what its name has beside that of the deployment."""
    letters = "".join(piece.letters for piece in pieces(content["metadata"]["name"]))
    return "-".join(filter(None, (content["kind"].lower(), letters.strip("-"))))


def _marked(content: dict[str, Any]) -> dict[str, Any]:
    """Returns an object in which the digest of the mark of the recipe is a mark itself."""
    digest = hashlib.sha256(text(_RECIPE).encode()).hexdigest()[:8]
    marked: dict[str, Any] = _replaced(content, re.compile(digest), text(_FINGERPRINT))
    return marked


def _replaced(part: Any, old: re.Pattern[str], new: str) -> Any:
    if isinstance(part, dict):
        return {key: _replaced(inner, old, new) for key, inner in part.items()}
    if isinstance(part, list):
        return [_replaced(inner, old, new) for inner in part]
    return old.sub(new, part) if isinstance(part, str) else part
