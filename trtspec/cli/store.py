"""`trtspec store`: engines that are built once and kept for every machine that they fit."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import trtspec
from trtspec.base.errors import StoreError, UnavailableError
from trtspec.base.findings import as_json
from trtspec.base.units import three_digits
from trtspec.cli.terminal.options import DryRunOption, JsonOption, OutputOption, RecipeArgument
from trtspec.cli.terminal.output import out
from trtspec.cli.terminal.signals import ended_by_sigterm
from trtspec.pipeline.machine.host import this_runtime
from trtspec.pipeline.store import upkeep
from trtspec.pipeline.store.lease import builders
from trtspec.pipeline.store.reuse import keep, remembered
from trtspec.pipeline.store.sbom import cyclonedx
from trtspec.pipeline.store.store import find_entry
from trtspec.pipeline.store.upkeep import PruneRules

if TYPE_CHECKING:
    from trtspec.pipeline.store.store import Entry, Store

HELP = "Keep engines in a folder, S3, GCS or elsewhere."
EXAMPLES = (
    "trtspec store list s3://engines/llama",
    "trtspec store pull s3://engines/llama llama-3.1-8b-h100 --output build/llama-3.1-8b-h100",
    "trtspec store prune s3://engines/llama --older-than 30 --keep 2",
)

_DAYS = 36_500
"""A hundred years, within which every time can be reckoned."""

UrlArgument = Annotated[
    str, typer.Argument(metavar="URL", help="A folder, or a URL of fsspec.", show_default=False)
]
EntryArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="A recipe's name, or the beginning of an entry's digest.", show_default=False
    ),
]


def push(url: UrlArgument, recipe: RecipeArgument, output: OutputOption = None) -> None:
    """Put a finished build into the store."""
    # What plans takes half a second to import, and no other of these commands plans.
    from trtspec.cli.terminal.engines import require_engines
    from trtspec.pipeline.build.build import push_build

    require_engines(recipe, "no engine to store")
    store, made = trtspec.Store(url), trtspec.plan(recipe, output=output, progress=out.watch)
    if undone := made.pending():
        problem = f"is not a finished build of {recipe}: {sorted(undone)[0]} is to be done"
        raise UnavailableError(made.output, problem, f"trtspec build {recipe} --store URL")
    print_pushed(push_build(store, made, out.watch))
    name = made.resolved.loaded.recipe.name
    out.next(shlex.join(["store", "pull", str(store), name, "--output", f"build/{name}"]))


def pull(
    url: UrlArgument,
    name: EntryArgument,
    output: Annotated[
        str, typer.Option("--output", metavar="DIR", help="Write the build into this new folder.")
    ],
    reuse: Annotated[
        bool, typer.Option("--reuse", help="Keep the folder if it is this entry to the last byte.")
    ] = False,
) -> None:
    """Fetch a build that is ready to be served, or one engine.

    With --reuse, several pods may share the folder, on one node or on a volume: one pod pulls, the others
    wait and verify the result. An interrupted pull resumes.
    """
    store, folder = trtspec.Store(url), Path(output)
    if folder.exists() and not reuse:
        raise UnavailableError(folder, "is there already", "choose another --output, or --reuse it")
    try:
        entry = find_entry(store, name)
    except StoreError as error:
        kept = remembered(folder, name) if reuse else None
        if kept is None:
            raise
        out.warning(f"{error}; {folder} was pulled before")
        entry = kept
    if misfit := entry.platform.misfit(this_runtime()):
        problem = f"{entry.name} {entry.digest[:12]} would not load here: {misfit}"
        raise StoreError(str(store), problem, "trtspec store list URL shows those for other machines")
    with ended_by_sigterm():
        keep(store, entry, folder, out.watch, out.status, remembers=reuse)
    out.result(str(folder))


def list_(url: UrlArgument, json: JsonOption = False) -> None:
    """Show what is in the store, the newest first, and who builds for it."""
    store = trtspec.Store(url)
    store.require()
    entries = store.entries()
    out.show(StoreList(store, entries), as_json=json)


def show(
    url: UrlArgument,
    name: EntryArgument,
    files: Annotated[bool, typer.Option("--files", help="List each file with its size and digest.")] = False,
    sbom: Annotated[bool, typer.Option("--sbom", help="Print the bill of materials, CycloneDX.")] = False,
    json: JsonOption = False,
) -> None:
    """Show an entry's inputs, and the versions that built it."""
    entry = find_entry(trtspec.Store(url), name)
    if sbom:
        out.json(cyclonedx(entry.manifest, entry.digest, entry.created))
        return
    out.show(ShownEntry(entry, files), as_json=json)


def prune(
    url: UrlArgument,
    older_than: Annotated[
        float | None,
        typer.Option(
            metavar="DAYS", min=0, max=_DAYS, help="Remove entries that are older than this many days."
        ),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(min=0, help="Keep this many of the newest entries of each recipe and platform."),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            metavar="HOURS",
            min=1,
            max=24 * _DAYS,
            help="Remove what a killed push has left after this many hours.",
        ),
    ] = 24,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Remove entries by age and number, and files that no entry needs."""
    store = trtspec.Store(url)
    store.require()
    days = None if older_than is None else timedelta(days=older_than)
    # Pushes wait for the end of a prune, so one that is told to end says so.
    with ended_by_sigterm(), out.watch("prune", None) as advance:
        gone = upkeep.prune(store, PruneRules(days, keep, timedelta(hours=grace)), advance, dry_run=dry_run)
    out.show(PrunedStore(gone, dry_run), as_json=json)


def verify(
    url: UrlArgument,
    remove: Annotated[bool, typer.Option("--remove", help="Remove entries that cannot be used.")] = False,
    json: JsonOption = False,
) -> None:
    """Read every byte of the store.

    The exit status is 1 if something in it cannot be used.
    """
    store = trtspec.Store(url)
    store.require()
    found = upkeep.verify(store, out.watch)
    if remove and found.findings:
        with ended_by_sigterm():
            upkeep.drop(store, found)
    out.show(VerifiedStore(found), as_json=json)
    if found.findings:
        removed = "; what could not be used was removed with the entries that need it" if remove else ""
        out.status(f"{len(found.findings)} file(s) are missing or damaged{removed}")
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class StoreList:
    """The entries of a store."""

    store: Store
    entries: list[Entry]

    def tell(self) -> None:
        """Prints who builds for the store, and its entries."""
        for builder in builders(self.store):
            out.status(f"{builder.what}: {builder}")
        if not self.entries:
            out.status("the store is empty")
            return
        rows = [
            (one.digest[:12], one.name, one.role, str(one.platform), three_digits(one.size), one.created)
            for one in self.entries
        ]
        out.table(rows, header=("digest", "name", "what", "for", "size", "created"))

    def as_json(self) -> list[dict[str, Any]]:
        return [_entry_as_json(entry) for entry in self.entries]


@dataclass(frozen=True, slots=True)
class ShownEntry:
    """An entry with its inputs, and with its files if these are asked for."""

    entry: Entry
    has_files: bool

    def tell(self) -> None:
        entry = self.entry
        models = entry.manifest["models"].items()
        rows = [
            ("name", entry.name),
            ("what", entry.role),
            ("for", str(entry.platform)),
            ("created", entry.created),
            ("digest", entry.digest),
            ("key", entry.key),
            ("size", three_digits(entry.size)),
            ("files", str(len(entry.files))),
            *(
                (role, " @ ".join(filter(None, (model["model"], model["revision"]))))
                for role, model in models
            ),
            *((f"quality of {role}", cost) for role, cost in entry.manifest["quality"].items()),
            *sorted(entry.manifest["tools"].items()),
        ]
        out.table(rows)
        if self.has_files:
            out.result()
            out.table(((path, three_digits(file.size), file.sha256) for path, file in entry.files.items()))

    def as_json(self) -> dict[str, Any]:
        entry = self.entry
        files = {path: {"size": file.size, "sha256": file.sha256} for path, file in entry.files.items()}
        return _entry_as_json(entry) | {"key": entry.key, "files": files, "manifest": entry.manifest}


@dataclass(frozen=True, slots=True)
class PrunedStore:
    """The entries and files that are gone, or would go."""

    gone: upkeep.Prune
    dry_run: bool

    def tell(self) -> None:
        gone = self.gone
        for entry in gone.entries:
            out.result(f"{entry.digest[:12]}  {entry.name}  {entry.role}  {entry.platform}")
        verb = "would go" if self.dry_run else "are gone"
        size = three_digits(gone.size)
        out.status(f"{len(gone.entries)} entries and {len(gone.names)} files of {size} {verb}")

    def as_json(self) -> dict[str, Any]:
        entries, files = [_entry_as_json(entry) for entry in self.gone.entries], len(self.gone.names)
        return {"entries": entries, "files": files, "size": self.gone.size, "dry_run": self.dry_run}


@dataclass(frozen=True, slots=True)
class VerifiedStore:
    """A store whose every byte was read."""

    found: upkeep.Verified

    def tell(self) -> None:
        for finding in self.found.findings:
            name, problem = finding.subject, finding.problem
            out.result(problem if name in problem else f"{name}: {problem}")
        for entry in self.found.damaged():
            out.result(f"{entry.digest[:12]} {entry.name} {entry.role}: cannot be pulled")
        intact = "" if self.found.findings else ", intact"
        out.status(f"{len(self.found.entries)} entries of {three_digits(self.found.size)}{intact}")

    def as_json(self) -> dict[str, Any]:
        damaged = [entry.digest for entry in self.found.damaged()]
        content = {"entries": len(self.found.entries), "size": self.found.size, "damaged": damaged}
        return content | as_json(self.found.findings)


def print_pushed(entries: Sequence[Entry]) -> None:
    """Prints what a push has put into the store."""
    for entry in entries:
        out.status(f"pushed {entry.role} {entry.digest[:12]}, {three_digits(entry.size)}")
    if not entries:
        out.status("the store has it all")


def _entry_as_json(entry: Entry) -> dict[str, Any]:
    platform = {key: getattr(entry.platform, key) for key in ("backend", "sm", "tensorrt", "tensorrt_llm")}
    return {
        "digest": entry.digest,
        "name": entry.name,
        "role": entry.role,
        "platform": platform,
        "size": entry.size,
        "created": entry.created,
    }


COMMANDS = (push, pull, list_, show, prune, verify)
