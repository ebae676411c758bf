"""Reads the workflows that `trtspec ci init` writes: files of this package, for this version of trtspec."""

from __future__ import annotations

from importlib.metadata import version
from importlib.resources import files
from string import Template


class _Workflow(Template):
    """Has holes of the form `@@{name}`: `$` and `{{` are the shell's and GitHub's own."""

    delimiter = "@@"


def read_template(name: str) -> str:
    """Returns the workflow of this file, which installs this version; raises KeyError for a second hole."""
    text = files("trtspec.cluster.ci").joinpath(name).read_text(encoding="utf-8")
    return _Workflow(text).substitute(version=version("trtspec"))
