"""`trtspec selftest` tries the whole chain on this machine with a tiny pair, before anything large is
built."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from zipfile import ZIP_DEFLATED, ZipFile

import typer

from trtspec.base.environment import is_secret
from trtspec.base.errors import UnavailableError
from trtspec.base.extras import require
from trtspec.base.files import publish, remove, temporary
from trtspec.cli.terminal.options import JsonOption
from trtspec.cli.terminal.output import out
from trtspec.cli.terminal.signals import ended_by_sigterm
from trtspec.recipe.shipped import TINY

if TYPE_CHECKING:
    from trtspec.measure.selftest.builds import TrialPairs
    from trtspec.measure.selftest.trial import Outcome

EXAMPLES = (
    "trtspec selftest --container    # in NVIDIA's image of the release, on one GPU",
    "trtspec selftest    # what is installed; without a GPU the torch backend",
    "trtspec selftest --container --bundle selftest.zip    # for a bug report",
)
_NAMES = ("*.yaml", "*.jsonl", "*.json", "*.log", "*.pbtxt")
_LEFT_OUT = {"tokenizer", "code", "checkpoint", "store", "1"}
"""Folders that are left out: the builds or the pair's repository have their files, or they are weights."""
_MOST = 4 << 20
LEFT_OUT = 3
"""The exit status of a self-test that found no difference, and left out what this machine could try."""
# Strangers read a bundle, so it hides more variables than servers do not get.
_SOUNDS_SECRET = re.compile(r"TOKEN|KEY", re.IGNORECASE)
_HEADERS = re.compile(r"(trtspec-key[:=]|authorization:\s*bearer\s+|hf_)[\w.\-]+", re.IGNORECASE)


def selftest(
    container: Annotated[
        bool, typer.Option("--container", help="Use NVIDIA's image of the release, with docker or podman.")
    ] = False,
    release: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="The release of TensorRT-LLM.", show_default="the newest"),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="Build the engines in this folder.")
    ] = Path("build/selftest"),
    pair: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="The folder of the tiny pair.", show_default="the one that trtspec ships"
        ),
    ] = TINY,
    quick: Annotated[
        bool, typer.Option("--quick", help="Try only what breaks for most users, in about ten minutes.")
    ] = False,
    bundle: Annotated[
        Path | None, typer.Option(metavar="FILE.zip", help="Write a file for a bug report, without secrets.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Try the whole chain on this machine with a tiny pair.

    It builds the pair's engines in every way that recipes use, serves them, and checks all that trtspec
    relies on, in the order of how many users it breaks for. That takes about half an hour on a GPU, and one
    to five minutes without one. The exit status is 1 if something differs, and 3 if nothing does but
    something was left out that this machine could have tried.
    """
    require("trtspec selftest", "yarl", "scipy", "torch", extra="measure,torch")
    from trtspec.measure.selftest.chain import SelfTest

    start, pairs = time.monotonic(), _pairs(pair, release, in_container=container)
    outcomes: list[Outcome] = []
    with ended_by_sigterm():
        for found in SelfTest(output.resolve(), pairs, container, quick, out.watch, out.status).run():
            outcomes.append(found)
            what = f"{found.build}: {found.check}, {found.seconds:.1f} s"
            out.status(f"{found.state.value:9}  {what}: {found.words}")
    result = SelfTestResult(tuple(outcomes), pairs, round(time.monotonic() - start, 1))
    out.show(result, as_json=json)
    if bundle:
        write_bundle(bundle, output.resolve(), result.as_json())
        out.status(f"{bundle} contains versions, logs, configurations and results")
    if result.wrong or result.left_out:
        raise typer.Exit(1 if result.wrong else LEFT_OUT)


def _pairs(pair: Path, release: str | None, *, in_container: bool) -> TrialPairs:
    """Looks at the GPU and the installed release; raises `UnavailableError` for what is missing."""
    from trtspec.measure.selftest.builds import TrialPairs
    from trtspec.pipeline.machine.devices import find_gpus, product_of
    from trtspec.pipeline.machine.host import engine_versions
    from trtspec.recipe import releases

    if not (pair / "target" / "config.json").is_file():
        raise UnavailableError(pair, "has no tiny pair", "--pair DIR names recipes/tiny of a clone")
    found = find_gpus()
    if not found:
        if in_container or release:
            raise UnavailableError("GPU", "no GPU is here, and --container and --release need one")
        return TrialPairs(pair.resolve(), None, 0, None)
    installed = None if in_container else engine_versions().get("tensorrt_llm")
    wanted = release or installed or releases.DEFAULT
    if flaw := releases.flaw(wanted):
        raise UnavailableError("TensorRT-LLM", *flaw)
    return TrialPairs(pair.resolve(), product_of(found[0]), len(found), wanted)


@dataclass(frozen=True, slots=True)
class SelfTestResult:
    """The verdicts of all checks."""

    outcomes: tuple[Outcome, ...]
    pairs: TrialPairs
    seconds: float

    @property
    def wrong(self) -> list[Outcome]:
        return [one for one in self.outcomes if one.state == "differs"]

    @property
    def left_out(self) -> list[Outcome]:
        return [one for one in self.outcomes if one.state == "left out"]

    def tell(self) -> None:
        """Prints what was left out, the table, each broken rule with its source, and the totals."""
        for one in self.left_out:
            out.sentence(f"left out, though this machine could try it: {one.build}: {one.found}")
        rows = [
            (one.build, one.check, one.state.value, f"{one.seconds:.1f}", one.words) for one in self.outcomes
        ]
        out.table(rows, header=("build", "check", "", "s", "found"))
        for one in self.wrong:
            out.result()
            out.sentence(f"{one.build}, {one.check}: {one.rule} ({one.source})")
            out.sentence(f"differs: {one.found}")
        untried = sum(one.state == "not tried" for one in self.outcomes)
        wrong, left_out = len(self.wrong), len(self.left_out)
        right = len(self.outcomes) - wrong - left_out - untried
        left = f", {left_out} left out" if left_out else ""
        out.result()
        out.result(f"{right} ok, {wrong} differ{left}, {untried} not tried, in {self.seconds:.0f} s")

    def as_json(self) -> dict[str, Any]:
        from trtspec.pipeline.machine.host import all_packages

        gpu = self.pairs.gpu
        return {
            "ok": not (self.wrong or self.left_out),
            "backend": "torch" if gpu is None else "tensorrt_llm",
            "gpu": gpu and gpu.label,
            "release": self.pairs.release,
            "date": str(date.today()),
            "seconds": self.seconds,
            "versions": all_packages(),
            "outcomes": [one.as_dict() for one in self.outcomes],
        }


def write_bundle(path: Path, folder: Path, result: Mapping[str, Any]) -> None:
    """Writes the zip atomically; raises OSError.

    It contains `result` and every small text file of the self-test's folder. In all of them it replaces
    values of variables with secret-sounding names, keys of servers, and this user's home.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    made = temporary(path)
    try:
        with ZipFile(made, "w", ZIP_DEFLATED) as bundle:
            bundle.writestr("selftest.json", without_secrets(json.dumps(result, indent=2)))
            for file in _files(folder):
                text = file.read_text(encoding="utf-8", errors="replace")[-_MOST:]
                bundle.writestr(str(file.relative_to(folder)), without_secrets(text))
        publish(made, path)
    finally:
        remove(made)


def without_secrets(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Returns the text with secrets and this user's home replaced."""
    for name, value in environment.items():
        if len(value) >= 8 and (_SOUNDS_SECRET.search(name) or is_secret(name, value)):
            text = text.replace(value, f"<{name}>")
    text = _HEADERS.sub(lambda found: f"{found[1]}<hidden>", text)
    home = environment.get("HOME", "")
    return text.replace(home, "~") if len(home) > 1 else text


def _files(folder: Path) -> Iterator[Path]:
    for name in _NAMES:
        for file in sorted(folder.rglob(name)):
            if not _LEFT_OUT & set(file.relative_to(folder).parts):
                yield file
