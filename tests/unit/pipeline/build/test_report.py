from __future__ import annotations

import json
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest
from junitparser import JUnitXml, TestSuite
from typer.testing import CliRunner, Result

from trtspec.base.errors import ModelError
from trtspec.cli.app import app
from trtspec.pipeline.build.report import BuildFailure, BuildReport, StepReport, to_junit, to_markdown

STEPS = (
    StepReport("convert target", "a checkpoint", "kept", 0),
    StepReport("build target", "the engine", "failed", 0),
    StepReport("build draft", "the engine", "not run", 0),
)


def report(failure: BuildFailure | None = None, steps: tuple[StepReport, ...] = STEPS) -> BuildReport:
    return BuildReport("pair", "pair.yaml", "build/pair", {"backend": "torch"}, steps, 61.5, failure)


def read_as_junit(content: str) -> None:
    """The totals that the file states are those that junitparser counts."""
    (suite,) = JUnitXml.fromstring(content.encode())
    stated = {name: getattr(suite, name) for name in ("tests", "failures", "errors", "skipped")}
    assert isinstance(suite, TestSuite)
    suite.update_statistics()
    assert stated == {name: getattr(suite, name) for name in stated}


class TestBuild:
    """`trtspec build --report`."""

    @pytest.fixture(autouse=True)
    def _here(self, pair_recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(pair_recipe.parent)

    def build(self, *more: str) -> Result:
        files = [part for suffix in ("md", "xml", "json") for part in ("--report", f"report.{suffix}")]
        result = CliRunner().invoke(app, ["build", "pair.yaml", "--output", "out", *files, *more])
        read_as_junit(Path("report.xml").read_text())
        return result

    def statuses(self) -> dict[str, str]:
        return {step["name"]: step["status"] for step in json.loads(Path("report.json").read_text())["steps"]}

    def test_all_is_run_then_all_is_kept(self) -> None:
        assert self.build().exit_code == 0
        content = json.loads(Path("report.json").read_text())
        assert (content["ok"], content["failure"], content["name"]) == (True, None, "pair")
        assert content["made_for"] == {"backend": "torch", "gpu": "none", "count": 1}
        assert set(self.statuses().values()) == {"run"}
        assert all(step["seconds"] > 0 for step in content["steps"])
        (suite,) = fromstring(Path("report.xml").read_text())
        assert suite.attrib.items() >= {"tests": "10", "failures": "0", "errors": "0", "skipped": "0"}.items()

        assert self.build().exit_code == 0
        assert set(self.statuses().values()) == {"kept"}
        assert "| build target | kept |  |" in Path("report.md").read_text()

    def test_a_step_that_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise ModelError("draft", "is torn", "mend it")

        monkeypatch.setattr("trtspec.backends.torch.builder.build", fail)
        result = self.build()
        assert isinstance(result.exception, ModelError)
        statuses = self.statuses()
        assert statuses["verify draft"] == "run"
        assert statuses["build target"] == "failed"
        assert statuses["build draft"] == statuses["write manifest"] == "not run"
        content = json.loads(Path("report.json").read_text())
        expected = {"problem": "draft: is torn", "repair": "mend it", "step": "build target", "lines": []}
        assert (content["ok"], content["failure"]) == (False, expected)
        assert "**build target: draft: is torn**\n\nmend it\n" in Path("report.md").read_text()

    def test_a_recipe_that_cannot_be_read(self) -> None:
        Path("pair.yaml").write_text("name: pair\n")
        assert self.build().exit_code == 1
        content = json.loads(Path("report.json").read_text())
        assert (content["ok"], content["steps"], content["failure"]["step"]) == (False, [], None)
        (suite,) = fromstring(Path("report.xml").read_text())
        assert suite.attrib.items() >= {"tests": "1", "failures": "0", "errors": "1"}.items()
        assert "target" in Path("report.md").read_text()

    def test_ctrl_c_during_a_build_is_reported_as_interrupted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("trtspec.backends.torch.builder.build", interrupt)
        assert self.build().exit_code == 130
        assert json.loads(Path("report.json").read_text())["failure"]["problem"] == "interrupted"
        assert self.statuses()["build target"] == "not run"

    def test_a_report_that_cannot_be_written_does_not_hide_the_failure(self) -> None:
        Path("pair.yaml").write_text("name: pair\n")
        Path("file").touch()
        result = CliRunner().invoke(app, ["build", "pair.yaml", "--report", "file/report.md"])
        assert "no report: " in result.stderr
        assert "pair.yaml" in str(result.exception)

    @pytest.mark.parametrize("wrong", [["--report", "report.txt"], ["--report", "report.md", "--dry-run"]])
    def test_a_wrong_use_of_the_report_option_writes_nothing(self, wrong: list[str]) -> None:
        assert CliRunner().invoke(app, ["build", "pair.yaml", *wrong]).exit_code == 2
        assert not list(Path().glob("report.*"))
        assert not Path("build").exists()


class TestJunit:
    def test_steps_are_tests(self) -> None:
        failure = BuildFailure("it broke", "mend it", "build target", ("first", "last"))
        text = to_junit(report(failure))
        read_as_junit(text)
        (suite,) = fromstring(text)
        assert (
            suite.attrib.items() >= {"failures": "1", "errors": "0", "skipped": "1", "time": "61.500"}.items()
        )
        kept, failed, skipped = suite
        assert len(kept) == 0
        assert (failed[0].tag, failed[0].attrib) == ("failure", {"message": "it broke"})
        assert failed[0].text == "first\nlast\nmend it"
        assert skipped[0].tag == "skipped"

    def test_a_failure_outside_the_steps_is_an_error(self) -> None:
        text = to_junit(report(BuildFailure("no such file"), steps=STEPS[::2]))
        read_as_junit(text)
        (suite,) = fromstring(text)
        assert suite.attrib.items() >= {"tests": "3", "failures": "0", "errors": "1"}.items()
        assert suite[-1][0].tag == "error"

    def test_characters_that_xml_cannot_hold_are_replaced_in_the_junit_report(self) -> None:
        failure = BuildFailure("\x1b[31m<&\ud800", None, "build target", ("\x00]]>",))
        text = to_junit(report(failure))
        read_as_junit(text)
        (element,) = fromstring(text).iter("failure")
        assert element.attrib["message"] == "\ufffd[31m<&\ufffd"
        assert element.text == "\ufffd]]>"


class TestMarkdown:
    def test_a_failure_comes_with_the_last_lines(self) -> None:
        failure = BuildFailure("a *sudden* | end", "mend it", "build target", ("first", "```", "last"))
        lines = to_markdown(report(failure)).splitlines()
        assert lines[0] == "### pair: failed in 61.5 s"
        assert "**build target: a \\*sudden\\* \\| end**" in lines
        start = lines.index("````text")
        assert lines[start + 1 : start + 5] == ["first", "```", "last", "````"]
        assert lines[-3:] == [
            "| convert target | kept |  |",
            "| build target | failed |  |",
            "| build draft | not run |  |",
        ]
