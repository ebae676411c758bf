"""`trtspec selftest` as on a laptop: the torch backend, real servers, every rule of it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from tests.support.command_line import trtspec

NOT_TRIED = {"trimmed drafts", "sampled drafts that are cut", "memory as planned"}
"""The checks that the torch backend gives nothing to try."""
NOT_OF_BLS = {"block reuse"}
"""The check that a model of Triton's own gives nothing to try."""


# Two minutes. Each rule is held on the torch backend by tests/contract, and the chain on stand-ins.
@pytest.mark.sweep
def test_everything_holds_without_a_gpu(tmp_path: Path) -> None:
    bundle = tmp_path / "selftest.zip"
    done = trtspec("selftest", "--json", "--output", tmp_path / "out", "--bundle", bundle)
    found = json.loads(done.stdout)
    states = {(one["build"], one["check"]): one["state"] for one in found["outcomes"]}
    assert {name for (_, name), state in states.items() if state != "ok"} == NOT_TRIED | NOT_OF_BLS, found
    assert states["reference", "block reuse"] == states["bls", "tensors"] == "ok"
    assert (done.returncode, found["ok"], found["backend"]) == (0, True, "torch")
    assert {("reference", "in_process"), ("bls", "bls")} <= states.keys()
    assert {("reference", "lossless"), ("bls", "lossless"), ("random", "lossless")} <= states.keys()
    with zipfile.ZipFile(bundle) as file:
        names = set(file.namelist())
    for build in ("reference", "bls", "random"):
        assert {f"{build}/.trtspec/served/tritonserver.log", f"{build}.verify.json"} <= names
