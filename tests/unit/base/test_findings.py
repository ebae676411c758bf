from __future__ import annotations

import json

from trtspec.base.errors import ModelError, RecipeError
from trtspec.base.findings import Finding, Severity, as_json, errors, note, ok

ERROR, NOTE, OK = Finding("a", "is torn", "mend it"), note("b", "is odd", effect="slower"), ok("c", "1.2")


def test_only_errors_are_not_ok() -> None:
    assert errors([OK, ERROR, NOTE]) == [ERROR]
    assert as_json([OK, NOTE])["ok"]
    assert not as_json([OK, ERROR])["ok"]
    assert as_json([]) == {"ok": True, "findings": []}


def test_every_finding_has_every_key_in_json() -> None:
    found = json.loads(json.dumps(as_json([ERROR, NOTE, OK])))["findings"]
    assert {tuple(finding) for finding in found} == {
        ("subject", "problem", "repair", "severity", "effect", "line")
    }
    assert [finding["severity"] for finding in found] == ["error", "note", "ok"]


def test_an_error_is_a_finding() -> None:
    assert ModelError("m", "is torn", "mend it").findings == (Finding("m", "is torn", "mend it"),)


def test_those_of_a_recipe_come_by_their_lines() -> None:
    late, early = Finding("b", "y", line=3), Finding("a", "x", line=2)
    error = RecipeError("r.yaml", [late, early])
    assert error.findings == (early, late)
    assert str(error) == "r.yaml:2: a: x"
    assert str(RecipeError("r.yaml", [Finding("", "no such file")])) == "r.yaml: no such file"


def test_severities_are_their_words() -> None:
    assert [severity.value for severity in Severity] == ["ok", "note", "error"]
