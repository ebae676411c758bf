"""Folders of heads, whole and broken, alone and beside their target."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.fakes.heads import TARGET, write_head
from tests.unit.pipeline.inspection.reports import Save, only, said
from trtspec.backends.table import load
from trtspec.base.errors import ModelError
from trtspec.base.findings import Severity
from trtspec.cli.app import app
from trtspec.pipeline.build.plan import PlanRequest, look_here
from trtspec.pipeline.inspection.folder import inspect
from trtspec.pipeline.inspection.pair import PairReport
from trtspec.pipeline.machine.host import Host

RUN = CliRunner()


def test_the_facts_of_a_head(tmp_path: Path) -> None:
    report = inspect(str(write_head(tmp_path / "head", "speculators")))
    assert (report.kind, report.findings) == ("head", ())
    assert report.facts["method"] == "eagle3"
    assert report.facts["draft_vocab_size"] == 12
    assert report.facts["aux_layers"] == [1, 2, 3]
    assert report.facts["layer_num_key_value_heads"] == 2
    assert report.stored["F32"].tensors == 14


def test_how_specforge_counts_layers_is_told(tmp_path: Path) -> None:
    report = inspect(str(write_head(tmp_path / "head", "specforge")))
    assert report.facts["aux_layers"] == [1, 2, 3]
    assert [text.partition(":")[0] for text in said(report, wrong=False)] == [
        "aux_layers",
        "embed_tokens.weight",
    ]


def test_a_head_that_cannot_be_read_is_shown(tmp_path: Path) -> None:
    report = inspect(str(write_head(tmp_path / "head", "speculators", speculators_model_type="peagle")))
    assert report.kind == "head"
    assert "it proposes all tokens at once" in only(report).problem


def test_a_table_and_json(tmp_path: Path, llama_folder: Save) -> None:
    folder = write_head(tmp_path / "head", "medusa")
    result = RUN.invoke(app, ["inspect", str(folder)])
    rows = dict(line.split(maxsplit=1) for line in result.stdout.splitlines()[2:] if line)
    assert result.stdout.splitlines()[0] == f"{folder}: head"
    assert (rows["method"], rows["num_heads"]) == ("medusa", "3")
    content = json.loads(RUN.invoke(app, ["inspect", str(folder), "--json"]).stdout)
    assert (content["kind"], content["format"], content["ok"]) == ("head", "medusa", True)


def test_inspect_says_whether_a_head_fits_its_target(tmp_path: Path, llama_folder: Save) -> None:
    folder, fits = write_head(tmp_path / "head", "speculators"), llama_folder("target", **TARGET)
    (found,) = inspect(str(folder), str(fits)).findings
    assert (found.severity, found.problem) == (Severity.OK, f"{folder} fits {fits}")
    assert (
        f"ok     target: {folder} fits"
        in RUN.invoke(app, ["inspect", str(folder), "--target", str(fits)]).stdout
    )
    other = llama_folder("other", **TARGET | {"vocab_size": 40})
    result = RUN.invoke(app, ["inspect", str(folder), "--target", str(other)])
    assert result.exit_code == 1
    assert (
        "wrong  vocabulary: the head was made for a target with 24 tokens, but this one has 40"
        in result.stdout
    )


def test_a_draft_model_beside_its_target(llama_folder: Save, tmp_path: Path) -> None:
    target, draft = llama_folder("target", hidden_size=64), llama_folder("draft", vocab_size=250)
    assert any("vocabulary" in text for text in said(inspect(str(draft), str(target)), wrong=True))


@pytest.fixture
def recipe(tmp_path: Path, llama_folder: Save, write_recipe: Callable[[str], Path]) -> Callable[[str], Path]:
    """A recipe of one method, with a head of Speculators as its draft."""
    llama_folder("target", **TARGET)
    write_head(tmp_path / "head", "speculators")

    def write(method: str) -> Path:
        return write_recipe(
            "name: toy\ntarget: {model: ./target, dtype: float32}\ndraft: {model: ./head}\n"
            f"speculation: {{method: {method}}}\nengine: {{backend: torch}}\nhardware: {{gpu: none}}\n"
        )

    return write


def look(recipe: Path) -> PairReport:
    return look_here(load(recipe), Host({}), PlanRequest())


def test_the_draft_of_a_recipe(recipe: Callable[[str], Path]) -> None:
    report = look(recipe("eagle3"))
    assert report.findings == []
    assert report.head
    assert report.head.method == "eagle3"
    result = RUN.invoke(app, ["check", str(recipe("eagle3"))])
    assert "draft: a head, eagle3, speculators format" in result.stdout
    assert "the pair fits" in result.stdout


def test_another_method_than_the_heads(recipe: Callable[[str], Path]) -> None:
    (finding,) = look(recipe("medusa")).findings
    assert (finding.subject, finding.repair) == ("speculation.method", "speculation.method: eagle3")


def test_a_head_is_no_draft_model(recipe: Callable[[str], Path]) -> None:
    with pytest.raises(ModelError, match="is a head of method eagle3, not a model"):
        look(recipe("draft_model"))
