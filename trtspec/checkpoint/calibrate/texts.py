"""Reads texts and turns them into token ids with the model's own tokenizer.

They are in one file, on this machine or in a dataset of the Hugging Face Hub: JSONL or plain text (a text
per line), also compressed with gzip, or Parquet.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias

from trtspec.base.errors import DatasetError, ModelError
from trtspec.checkpoint.calibration import FILE
from trtspec.models.download import DATASET, explained

if TYPE_CHECKING:
    import torch


LINES, PARQUET = (".jsonl", ".json", ".txt"), ".parquet"
"""The suffixes of files of texts: those with one text a line, which may be compressed, and Parquet's."""
_ON_HUB = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w.-]+))?(/(?P<path>.+))?")
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset's file."""

    name: str
    """The recipe's name for the dataset."""
    file: Path
    revision: str | None
    """The commit on the Hub; None for a local file."""

    @property
    def is_ready(self) -> bool:
        """True if the file holds the result of a calibration, and not texts."""
        return self.file.name.endswith(FILE)


def is_text_file(name: str) -> bool:
    """Returns True if `read_texts` reads a file of this name."""
    return name.endswith(PARQUET) or PurePosixPath(name.removesuffix(".gz")).suffix in LINES


def find_dataset(name: str, folder: Path, *, asks: bool = True) -> Dataset:
    """Finds a file relative to `folder`, or else downloads it from the Hub; raises DatasetError.

    Without `asks` the Hub is not asked, and its file is only named.

    On the Hub a file is `owner/name/path/in/it.parquet`, with `@commit` after the name to pin it; the path
    can be left out where the dataset has one file of texts.
    """
    local = Path(os.path.normpath(folder / os.path.expanduser(name)))
    match = _ON_HUB.fullmatch(name)
    is_path = name.startswith((".", "/", "~")) or (match and not match["path"] and is_text_file(name))
    if match is None or is_path or local.is_file():
        if not local.is_file():
            repair = "name a file relative to the recipe's folder, or owner/name/file of a Hub dataset"
            raise DatasetError(local, "no such file", repair)
        return Dataset(name, local, None)
    found = Dataset(name, Path(name), None)
    return _download(name, match["repo"], match["revision"], match["path"]) if asks else found


def _download(name: str, repo: str, revision: str | None, path: str | None) -> Dataset:
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    with explained(repo, revision, DATASET):
        if path is None:
            files = HfApi().list_repo_files(repo, repo_type="dataset", revision=revision)
            path = _only(name, [file for file in files if is_text_file(file)])
        try:
            file = Path(hf_hub_download(repo, path, repo_type="dataset", revision=revision))
        except LocalEntryNotFoundError:
            raise
        except EntryNotFoundError:
            problem, repair = f"has no {path}", f"look at https://huggingface.co/datasets/{repo}/tree/main"
            raise DatasetError(repo, problem, repair) from None
    return Dataset(name, file, file.parts[-len(Path(path).parts) - 1])


def _only(name: str, files: list[str]) -> str:
    if not files:
        raise DatasetError(name, "has no file of texts (JSONL, text or Parquet)", "choose another dataset")
    files.sort(key=lambda file: ("train" not in file, file))
    if len(files) > 1:
        shown = ", ".join(files[:_SHOWN]) + (", ..." if len(files) > _SHOWN else "")
        raise DatasetError(name, f"has {len(files)} files: {shown}", f"name one: {name}/{files[0]}")
    return files[0]


Text: TypeAlias = str | list[dict[str, str]]
_ONE_A_LINE = 'write one JSON object a line: {"text": "..."}'


def read_texts(file: Path, field: str) -> Iterator[Text]:
    """Yields every text that is not empty: a string, or the messages of a conversation (`role`, `content`).

    `field` is the key, or the column, that holds the text. Raises DatasetError with the file and the line.
    """
    if not file.is_file():
        raise DatasetError(file, "no such file", "a path is relative to the recipe's folder")
    if not is_text_file(file.name):
        kinds = ", ".join((*LINES, *(f"{kind}.gz" for kind in LINES), PARQUET))
        raise DatasetError(file, f"is none of {kinds}", "give the file the suffix of its format")
    if file.suffix == PARQUET:
        rows = _parquet(file, field)
    elif file.name.removesuffix(".gz").endswith(".txt"):
        rows = _lines(file)
    else:
        rows = ((place, _field(place, line, field)) for place, line in _lines(file))
    for place, value in rows:
        text = _text(place, field, value)
        if text:
            _check_letters(place, text)
            yield text


def choose(texts: Iterable[Text], count: int, seed: int) -> list[Text]:
    """At most `count` texts, each equally likely, in random order; takes one pass (Vitter's algorithm R)."""
    chance, chosen = random.Random(seed), list[Text]()  # noqa: S311
    for number, text in enumerate(texts):
        if number < count:
            chosen.append(text)
        elif (place := chance.randrange(number + 1)) < count:
            chosen[place] = text
    chance.shuffle(chosen)
    return chosen


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    """Yields the place (`file:line`) and the text of each line that is not blank; raises DatasetError."""
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
        number = 0
        try:
            for number, line in enumerate(stream, start=1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if text:
                    yield f"{file}:{number}", text
        except UnicodeDecodeError as error:
            raise DatasetError(
                f"{file}:{number}", f"is not UTF-8: {error.reason}", "save it as UTF-8"
            ) from None
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise DatasetError(f"{file}:{number}", f"the gzip data is broken: {error}") from None


def _field(place: str, line: str, field: str) -> Any:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DatasetError(place, f"is not JSON: {error}", _ONE_A_LINE) from None
    if not isinstance(values, dict):
        raise DatasetError(place, "is not a JSON object", _ONE_A_LINE)
    if field not in values:
        raise DatasetError(place, *_without(field, values))
    return values[field]


def _parquet(file: Path, field: str) -> Iterator[tuple[str, Any]]:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(file)
        columns = table.schema_arrow.names
        if field not in columns:
            raise DatasetError(file, *_without(field, columns))
        rows = (row for batch in table.iter_batches(columns=[field]) for row in batch.column(0).to_pylist())
        for number, value in enumerate(rows, start=1):
            yield f"{file}, row {number}", value
    except (pyarrow.ArrowException, OSError) as error:
        raise DatasetError(file, f"cannot be read as Parquet: {error}") from None


def _without(field: str, fields: Iterable[str]) -> tuple[str, str]:
    return f"has no {field!r}; it has {', '.join(fields)}", "name the field with the text in text_field"


def _text(place: str, field: str, value: Any) -> Text:
    if isinstance(value, str):
        return value.strip() and value
    if isinstance(value, list) and all(_is_message(message) for message in value):
        return [{"role": message["role"], "content": message["content"]} for message in value]
    problem = f"{field!r} is neither a text nor a list of messages with role and content"
    raise DatasetError(place, problem, "name the field with the text in text_field")


def _check_letters(place: str, text: Text) -> None:
    """Raises DatasetError for half of a letter, which JSON can hold and no tokenizer takes."""
    try:
        for part in [text] if isinstance(text, str) else [message["content"] for message in text]:
            part.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):x}"
        raise DatasetError(place, f"contains {half}, half of a UTF-16 pair", "remove the text") from None


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))


class Encoder:
    """Turns a text into token ids.

    `chat_template` wraps each text, as a user's message, in the model's template; transformers renders it in
    Jinja's sandbox. Raises ModelError for a model without a template. Errors name `dataset`.
    """

    def __init__(self, folder: Path, dataset: Path, max_length: int, *, chat_template: bool) -> None:
        from transformers import PreTrainedTokenizerFast

        self._tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        self._dataset, self._max_length, self._chat_template = dataset, max_length, chat_template
        if chat_template and not self._tokenizer.chat_template:
            problem = "the tokenizer has no chat template"
            raise ModelError(folder, problem, "remove chat_template, or use the instruct model")

    def __call__(self, text: Text) -> list[int]:
        """At most `max_length` token ids. Raises DatasetError for messages that cannot be rendered."""
        if self._chat_template:
            ids = self._tokenizer(self._render(text), add_special_tokens=False)["input_ids"]
        elif isinstance(text, str):
            ids = self._tokenizer(text)["input_ids"]
        else:
            problem = "holds messages, which need a chat template"
            raise DatasetError(self._dataset, problem, "write chat_template: true")
        return list(ids[: self._max_length])

    def _render(self, text: Text) -> str:
        from jinja2 import TemplateError

        messages = [{"role": "user", "content": text}] if isinstance(text, str) else text
        answered = messages[-1]["role"] == "assistant"
        try:
            rendered: str = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=not answered
            )
        except TemplateError as error:
            problem = f"the chat template refuses a conversation: {error}"
            raise DatasetError(
                self._dataset, problem, "use a dataset with roles that the template supports"
            ) from None
        return rendered


def batches(texts: Sequence[Sequence[int]], size: int) -> Iterator[torch.Tensor]:
    """Yields tensors [<= size, length] int64, one text a row, repeated up to the longest of its batch.

    Nothing is padded, because padding would affect the scales.
    """
    import torch

    for first in range(0, len(texts), size):
        together = texts[first : first + size]
        length = max(map(len, together))
        yield torch.tensor([_repeated(text, length) for text in together])


def _repeated(text: Sequence[int], length: int) -> list[int]:
    return [text[place % len(text)] for place in range(length)]


def encode(texts: Iterable[Text], encoder: Encoder) -> list[list[int]]:
    """The token ids of each text, without texts that have none."""
    return [ids for ids in map(encoder, texts) if ids]
