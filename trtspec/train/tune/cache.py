"""Keeps measurements on the disk, so that an interrupted run resumes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trtspec.base.digest import digest_of
from trtspec.base.files import write_atomically
from trtspec.train.tune.replay import Choices
from trtspec.train.tune.score import DraftLengthCosts


class TuneCache:
    """A folder with recorded answers, choices of drafts, and costs, each under a digest.

    A line that was cut off during writing is measured again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def answers(self, *what: Any) -> Path:
        """Returns the file of a target's answers; its name depends on their inputs."""
        return self.folder / f"answers-{_short(what)}.jsonl"

    def choices(self, draft: str, end_ids: tuple[int, ...]) -> CachedChoices:
        """Returns the choices for each answer of the draft with this digest, which ends with `end_ids`."""
        return CachedChoices(self.folder / f"choices-{_short([draft, end_ids])}.jsonl")

    def costs(self, *what: Any) -> DraftLengthCosts | None:
        """Returns the measured costs for this digest; None if there are none."""
        try:
            values = json.loads(self._costs(what).read_bytes())
        except FileNotFoundError:
            return None
        return DraftLengthCosts(
            tuple(values["drafted"]), tuple(values["looked_up"]), values["plain_s"], values["error"]
        )

    def put_costs(self, costs: DraftLengthCosts, *what: Any) -> None:
        write_atomically(self._costs(what), json.dumps(asdict(costs)))

    def _costs(self, what: Sequence[Any]) -> Path:
        return self.folder / f"costs-{_short(what)}.json"


class CachedChoices:
    """The choices of one draft, by the digests of answers."""

    def __init__(self, file: Path) -> None:
        self._file = file
        data = file.read_bytes() if file.is_file() else b""
        self._whole = data.rfind(b"\n") + 1
        lines = map(json.loads, data[: self._whole].splitlines())
        self._known: dict[str, Choices] = {line["answer"]: line["choices"] for line in lines}

    def get(self, answer: str) -> Choices | None:
        return self._known.get(answer)

    def put(self, answer: str, choices: Choices) -> None:
        self._known[answer] = choices
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("ab") as file:
            if file.tell() > self._whole:
                file.truncate(self._whole)
            file.write(json.dumps({"answer": answer, "choices": list(choices)}).encode() + b"\n")
            self._whole = file.tell()


def _short(what: Any) -> str:
    return digest_of(what)[:16]
