"""`trtspec inspect` shows the kind of a folder, and its oddities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtspec.base.digest import digest_of
from trtspec.base.findings import Severity, as_json, errors
from trtspec.base.units import short, three_digits
from trtspec.cli.terminal.options import JsonOption
from trtspec.cli.terminal.output import out
from trtspec.pipeline.inspection.folder import inspect as look
from trtspec.pipeline.run import records

if TYPE_CHECKING:
    from trtspec.pipeline.inspection.report import Report

EXAMPLES = (
    "trtspec inspect meta-llama/Llama-3.1-8B-Instruct",
    "trtspec inspect build/tiny",
    "trtspec inspect build/tiny/target/checkpoint",
    "trtspec inspect build/tiny/target/engine --digest --json",
    "trtspec inspect ./my-eagle3-head --target meta-llama/Llama-3.1-8B-Instruct",
)

_KINDS = {
    "hugging_face": "Hugging Face model",
    "head": "head",
    "checkpoint": "TensorRT-LLM checkpoint",
    "engine": "engine",
    "build": "build",
}
_LABELS = {Severity.ERROR: "wrong", Severity.NOTE: "odd", Severity.OK: "ok"}
_ALWAYS = ("quant_algo", "kv_cache_quant_algo")


def inspect(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="DIR",
            help="A model, head, checkpoint, engine or build; or the id of a Hub model in the cache.",
            show_default=False,
        ),
    ],
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="DIR", help="Check whether the head or draft fits this model."),
    ] = None,
    digest: Annotated[
        bool,
        typer.Option("--digest", help="Read every byte for the SHA-256, even of files larger than 1 GB."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show a model, checkpoint, engine or build, and its oddities."""
    report = look(folder, target)
    found = _digest(report, asked=digest)
    out.show(InspectedFolder(report, found), as_json=json)
    if errors(report.findings):
        raise typer.Exit(1)


def _digest(report: Report, *, asked: bool) -> str | None:
    """Returns one digest of all files by their names; None for a gigabyte or more, unless `asked`.

    A file whose digest the build has recorded is not read again.
    """
    if report.bytes >= records.LARGE and not asked:
        return None
    folder = report.folder.resolve()
    kept = [parent / records.FOLDER / "digests.json" for parent in (folder, *folder.parents)]
    known = records.FileDigests(next((file for file in kept if file.is_file()), kept[0]), out.watch)
    return digest_of({name: known.of(file) for name, file in report.names.items()})


@dataclass(frozen=True, slots=True)
class InspectedFolder:
    """A folder and the digest of its files, which is None if they were not read."""

    report: Report
    digest: str | None

    def tell(self) -> None:
        out.result(f"{self.report.folder}: {_KINDS[self.report.kind]}")
        out.result()
        out.table([*_rows(self.report), ("digest", self.digest or "not read; --digest reads every byte")])
        if self.report.findings:
            out.result()
        for finding in self.report.findings:
            subject = f"{finding.subject}: " if finding.subject else ""
            out.result(f"{_LABELS[finding.severity]:5}  {subject}{finding.problem}")
            if finding.effect:
                out.result(f"       {finding.effect}")
            if finding.repair:
                out.result(f"       {finding.repair}")

    def as_json(self) -> dict[str, Any]:
        return {
            "folder": str(self.report.folder),
            "kind": self.report.kind,
            **self.report.facts,
            "stored": {dtype: asdict(stored) for dtype, stored in self.report.stored.items()},
            "files": {name: file.stat().st_size for name, file in self.report.names.items()},
            "bytes": self.report.bytes,
            "digest": self.digest,
            **as_json(self.report.findings),
        }


def _rows(report: Report) -> Iterator[tuple[str, str]]:
    for name, value in report.facts.items():
        if value is None and name not in _ALWAYS:
            continue
        if name == "parameters":
            yield name, short(value)
        elif value is None:
            yield name, "none"
        elif isinstance(value, dict):
            yield name, ", ".join(f"{key} {item}" for key, item in value.items())
        else:
            yield name, str(value).lower() if isinstance(value, bool) else str(value)
    for dtype, stored in report.stored.items():
        yield dtype, f"{stored.tensors} tensors, {three_digits(stored.bytes)}"
    yield "files", f"{len(report.files)}, {three_digits(report.bytes)}"
