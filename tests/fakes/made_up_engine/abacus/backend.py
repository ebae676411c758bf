"""An abacus: a server whose releases, methods, rules, launch and commands are all in this folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from trtspec.backends.backend import Unsupported
from trtspec.backends.shared.servers import LaunchInputs, ServerBackend, ServerRelease
from trtspec.recipe.migration.command import as_words, options
from trtspec.recipe.migration.drafts import LENGTH, METHOD, MODEL, carry, draft_reading
from trtspec.recipe.migration.reading import FlagKey, FlagReading, whole
from trtspec.recipe.migration.tool import MigrationTool


class AbacusBackend(ServerBackend):
    """Beads on rods, of which some guess."""

    name = "abacus"
    title = "The abacus"
    packages = ("abacus",)
    module = "abacus"
    program = ("abacus",)
    releases = (
        ServerRelease("2.0", "example.com/abacus:2.0"),
        ServerRelease("1.0", "example.com/abacus:1.0"),
    )
    methods: ClassVar[Mapping[str, Unsupported | None]] = {
        "draft_model": None,
        "medusa": Unsupported("an abacus has no heads", "abacus 2.0, the frame"),
    }
    lacking: ClassVar[Mapping[str, str]] = {"engine.max_num_tokens": "it moves one bead at a time"}

    def arguments(self, wanted: LaunchInputs) -> tuple[str, ...]:
        draft = wanted.draft.place if wanted.draft else None
        return (wanted.target.place, *as_words({"--guess": draft, "--beads": wanted.num_draft_tokens}))

    def tools(self) -> tuple[MigrationTool, ...]:
        return (MigrationTool(self.title, self.name, (("abacus",),), _read),)


def _read(command: Sequence[str], reading: FlagReading) -> None:
    drafts = draft_reading(reading)
    for item in options(command, AbacusBackend.flags.syntax):
        if isinstance(item, str):
            reading.take_model(item)
        elif item.name == "--guess":
            drafts.set(METHOD, "draft_model", item.written)
            drafts.set(MODEL, item.value or "", item.written)
        elif item.name == "--beads":
            drafts.convert(item, FlagKey(LENGTH, whole))
        else:
            reading.take(item, AbacusBackend.flags)
    carry(drafts, reading)


BACKEND = AbacusBackend()
