"""`trtspec draft`: which drafts and heads there are for a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtspec.base.errors import UnavailableError
from trtspec.base.units import short
from trtspec.cli.terminal.options import JsonOption
from trtspec.cli.terminal.output import out
from trtspec.models.candidates import KNOWN, find_candidates
from trtspec.models.download import fetch, local_folder
from trtspec.pipeline.inspection.drafts import ACCEPTANCES, DraftTarget, JudgedDraft
from trtspec.recipe.gpus import GPUS, NONE
from trtspec.recipe.loader import model_location

if TYPE_CHECKING:
    from trtspec.models.candidates import DraftCandidate

HELP = "Find drafts and heads for a model."
EXAMPLES = (
    "trtspec draft find Qwen/Qwen3-8B",
    "trtspec draft find meta-llama/Llama-3.3-70B-Instruct --gpu h200 --streams 8 --json",
    "trtspec draft find Qwen/Qwen3-8B --offline",
)


def find(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="The target: a model of the Hub, or a folder.", show_default=False
        ),
    ],
    gpu: Annotated[
        str, typer.Option("--gpu", metavar="GPU", help="Forecast the gain on this GPU; none leaves it out.")
    ] = "h100",
    streams: Annotated[
        int, typer.Option("--streams", min=1, help="Forecast it with so many requests at once.")
    ] = 1,
    most: Annotated[int, typer.Option("--most", min=1, help="Look at no more than so many candidates.")] = 30,
    offline: Annotated[
        bool,
        typer.Option(
            "--offline", help="Ask nobody: use the list that trtspec ships, and what is on this machine."
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """List the drafts and heads of the Hub that fit a model, the best first.

    No weights are downloaded: configurations, tokenizers and the headers of weights tell whether a pair
    fits, and on which backends. The exit status is 1 if none fits.
    """
    if gpu not in (*GPUS, NONE):
        raise typer.BadParameter(f"known are {', '.join(GPUS)}, {NONE}", param_hint="--gpu")
    location = model_location(model, Path.cwd())
    found = (
        _offline(model, location, gpu, streams, most)
        if offline
        else _online(model, location, gpu, streams, most)
    )
    out.show(found, as_json=json)
    if not found.fitting and not found.unseen:
        raise typer.Exit(1)


COMMANDS = (find,)


def _online(model: str, location: Path | str, gpu: str, streams: int, most: int) -> FoundDrafts:
    target = DraftTarget(model, fetch(location, watch=out.watch, weights=False), gpu, streams)
    name = location.name if isinstance(location, Path) else location
    candidates = find_candidates(name, target.source)
    judged = target.judge_all(candidates[:most], out.watch, asks=True)
    return FoundDrafts(model, gpu, streams, judged, candidates[most:])


def _offline(model: str, location: Path | str, gpu: str, streams: int, most: int) -> FoundDrafts:
    name = location.name if isinstance(location, Path) else location
    known = next((each for target, each in KNOWN.items() if name in (target, target.rpartition("/")[2])), ())
    if not known:
        raise UnavailableError(model, "trtspec's own list has no draft of it", "leave out --offline")
    try:
        target = DraftTarget(model, local_folder(location), gpu, streams)
    except UnavailableError as error:
        judged = [JudgedDraft(each, problem=f"the target {error.problem}", is_unseen=True) for each in known]
    else:
        judged = target.judge_all(known[:most], out.watch, asks=False)
    return FoundDrafts(model, gpu, streams, judged, known[most:])


@dataclass(frozen=True, slots=True)
class FoundDrafts:
    """The candidates of a target, judged."""

    model: str
    gpu: str
    streams: int
    judged: Sequence[JudgedDraft]
    left_out: Sequence[DraftCandidate]
    """Those that were not looked at."""

    @property
    def fitting(self) -> list[JudgedDraft]:
        return [each for each in self.judged if each.runs]

    @property
    def unseen(self) -> list[JudgedDraft]:
        return [each for each in self.judged if each.is_unseen]

    @property
    def refused(self) -> list[JudgedDraft]:
        return [each for each in self.judged if not each.runs and not each.is_unseen]

    def tell(self) -> None:
        fitting = self.fitting
        out.result(f"{self.model}: {len(fitting)} of {len(self.judged)} candidates fit")
        if fitting:
            out.result()
            low, high = (f"{each:.0%}" for each in ACCEPTANCES)
            at = f"gain at {low} to {high}"
            out.table(map(_row, fitting), ("draft", "method", "size", "context", "licence", at, "backends"))
            out.result()
            out.result(f"for a recipe, the first of them on {fitting[0].runs[0]}:")
            for line in fitting[0].lines:
                out.result(f"  {line}")
            for note in fitting[0].notes:
                out.result(f"  # {note.subject}: {note.problem}")
        unseen = [(one.candidate.name, _licence(one), " ".join(one.lines)) for one in self.unseen]
        refused = [(one.candidate.name, one.problem) for one in self.refused]
        if unseen:
            out.result()
            out.table(unseen, ("not on this machine, so not looked at", "licence", ""))
        if refused:
            out.result()
            out.table(refused, ("does not fit", ""))
        if left := len(self.left_out):
            out.status(f"{left} more were not looked at: --most {len(self.judged) + left}")
        if fitting and self.gpu != NONE:
            load = "1 request" if self.streams == 1 else f"{self.streams} requests"
            out.hint(f"the gain is a forecast for {self.gpu} with {load} at once; trtspec tune measures it")

    def as_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "gpu": self.gpu,
            "streams": self.streams,
            "drafts": [each.as_json() for each in self.fitting],
            "not_seen": [each.as_json() for each in self.unseen],
            "refused": [each.as_json() for each in self.refused],
            "left_out": [each.name for each in self.left_out],
        }


def _row(one: JudgedDraft) -> tuple[str, ...]:
    gain = "unknown"
    if one.gain:
        low, high = one.gain
        gain = f"{low.speedup:.1f}x to {high.speedup:.1f}x, K {low.length} to {high.length}"
    method = f"{one.method}, translated" if one.translates else one.method
    context = str(one.context) if one.context else "unknown"
    runs = ", ".join(one.runs)
    return one.candidate.name, method, short(one.parameters), context, _licence(one), gain, runs


def _licence(one: JudgedDraft) -> str:
    return one.candidate.licence or "none named"
