from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from trtspec.base import errors
from trtspec.base.errors import PairError, RecipeError, StepError, TensorError, UnavailableError
from trtspec.base.explanation import Explanation, explain
from trtspec.base.findings import Finding


def test_a_recipe_error_prints_every_problem_as_editors_read_it() -> None:
    problems = [
        Finding("name", "is missing"),
        Finding("engine.x", "unknown key", "did you mean y?", line=7),
        Finding("", "z", line=9),
    ]
    assert explain(RecipeError("r.yaml", problems)) == Explanation(
        "r.yaml: 3 problems in this recipe",
        None,
        ("r.yaml: name: is missing", "r.yaml:7: engine.x: unknown key; did you mean y?", "r.yaml:9: z"),
    )


def test_one_problem_is_singular() -> None:
    explanation = explain(RecipeError("r.yaml", [Finding("a", "b", line=1)]))
    assert explanation is not None
    assert explanation.summary == "r.yaml: 1 problem in this recipe"


def test_known_errors_name_the_thing_and_the_repair() -> None:
    assert explain(TensorError("m.safetensors", "is truncated", "again")) == Explanation(
        "m.safetensors: is truncated", "again"
    )
    differing = [Finding("token ids", "differ", "use another", effect="wrong text"), Finding("size", "x")]
    assert explain(PairError("r.yaml", differing)) == Explanation(
        "r.yaml: the models do not fit: token ids: differ; wrong text (and 1 more)", "use another"
    )


def test_a_step_that_left_a_log_says_where() -> None:
    explanation = explain(StepError("build target", "exit status 1", "read it", Path("logs/x.log")))
    assert explanation == Explanation(
        "build target: exit status 1", "read it", ("its output is in logs/x.log",)
    )


@pytest.mark.parametrize(
    ("number", "text", "has_repair"),
    [
        (errno.ENOSPC, "file.bin: the disk is full", True),
        (errno.EDQUOT, "file.bin: the disk quota is used up", True),
        (errno.EACCES, "file.bin: permission denied", True),
        (errno.EROFS, "file.bin: the file system is read-only", False),
        (errno.ENOENT, "file.bin: no such file or folder", False),
        (errno.EEXIST, "file.bin: is in the way", True),
        (errno.EADDRINUSE, "file.bin: the port is in use", True),
        (errno.EIO, f"file.bin: {os.strerror(errno.EIO)}", False),
    ],
)
def test_errors_of_the_system(number: int, text: str, has_repair: bool) -> None:
    explanation = explain(OSError(number, os.strerror(number), "file.bin"))
    assert explanation is not None
    assert explanation.summary == text
    assert bool(explanation.repair) is has_repair


def test_an_error_of_the_system_without_a_file() -> None:
    assert explain(OSError("odd")) == Explanation("odd", None)


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("x"), AssertionError(), RuntimeError()])
def test_anything_else_is_a_defect(error: Exception) -> None:
    assert explain(error) is None


def test_every_exception_of_trtspec_is_explained() -> None:
    kinds: list[Any] = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.TrtspecError)
    ]
    assert len(kinds) >= 8
    for kind in kinds:
        has_findings = kind in (RecipeError, PairError)
        error = kind("r", [Finding("k", "p", line=1)]) if has_findings else kind("thing", "problem", "repair")
        assert explain(error) is not None


@pytest.mark.parametrize(
    ("repair", "words"),
    [
        ("trtspec build pair.yaml --output x", "trtspec.build('pair.yaml', output='x')"),
        ("trtspec deploy --container", "trtspec.deploy('RECIPE', container=True)"),
        (
            "trtspec deploy RECIPE starts a server; --url names another",
            "trtspec.deploy('RECIPE') starts a server; url names another",
        ),
        ("name one with --model-name", "name one with model_name"),
        ("free some memory", "free some memory"),
    ],
)
def test_a_trace_names_functions_where_the_command_line_names_commands(repair: str, words: str) -> None:
    error = UnavailableError("x", "is missing", repair)
    assert (error.__notes__, error.repair) == ([words], repair)
