"""Texts of files and of Hub datasets; pyarrow writes the Parquet files, a local server is the Hub."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pyarrow
import pytest
from pyarrow import parquet

from trtspec.base.errors import DatasetError
from trtspec.checkpoint.calibrate.texts import choose, find_dataset, read_texts

TEXTS = ["one", "zwei \u00fc", "three"]
CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]


def test_every_kind_of_file_gives_the_same_texts(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps({"text": text}) for text in TEXTS)
    (tmp_path / "a.jsonl").write_text(lines + "\n\n", encoding="utf-8")
    (tmp_path / "a.txt").write_text("\ufeff" + "\n\n".join(TEXTS), encoding="utf-8")
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(lines.encode()))
    parquet.write_table(pyarrow.table({"id": [1, 2, 3, 4], "text": [*TEXTS, "  "]}), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.txt", "a.json.gz", "a.parquet"):
        assert list(read_texts(tmp_path / name, "text")) == TEXTS, name


def test_conversations(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"chat": [{**CHAT[0], "id": 1}, CHAT[1]]}))
    parquet.write_table(pyarrow.table({"chat": [CHAT]}), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        assert list(read_texts(tmp_path / name, "chat")) == [CHAT]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"text": "a"}\n\n{"text": "b"\n', r"a\.jsonl:3: is not JSON"),
        ("a.jsonl", b'{"text": "a"}\n{"txt": "b", "n": 1}', r"a\.jsonl:2: has no 'text'; it has txt, n"),
        ("a.jsonl", b'["a"]', r"a\.jsonl:1: is not a JSON object"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "\xff"}', r"a\.jsonl:2: is not UTF-8"),
        ("a.jsonl", b'{"text": 3}', r"a\.jsonl:1: 'text' is neither a text nor a list of messages"),
        ("a.jsonl", b'{"text": [{"role": "user"}]}', r"a\.jsonl:1: 'text' is neither a text nor a list of"),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl:1: is not JSON"),
        ("a.txt", b"fine\n\xc3\x28", r"a\.txt:2: is not UTF-8"),
        ("a.txt.gz", gzip.compress(b"fine\n" * 9, mtime=0)[:-9], r"a\.txt\.gz:\d+: the gzip data is broken"),
        (
            "a.txt.gz",
            gzip.compress(b"fine\n", mtime=0)[:10] + b"\xff" * 20,
            r"a\.txt\.gz:0: the gzip data",
        ),
        (
            "a.jsonl",
            b'{"text": "a"}\n{"text": "b \\ud83d"}',
            r"a\.jsonl:2: contains \\ud83d, half of a UTF-16 pair",
        ),
        (
            "a.jsonl",
            b'{"text": [{"role": "user", "content": "\\ude00"}]}',
            r"a\.jsonl:1: contains \\ude00, half of a UTF-16 pair",
        ),
        ("a.txt.gz", b"plain", r"a\.txt\.gz:0: the gzip data is broken"),
        ("a.parquet", b"PAR1", r"a\.parquet: cannot be read as Parquet"),
        ("a.csv", b"text", r"a\.csv: is none of \.jsonl, \.json, \.txt, .*\.parquet"),
        ("a.parquet.gz", b"text", r"a\.parquet\.gz: is none of .*\.txt\.gz, \.parquet"),
    ],
)
def test_an_unreadable_text_is_reported_with_its_file_and_line(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError, match=said):
        list(read_texts(tmp_path / name, "text"))


def test_a_column_that_is_missing(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"article": TEXTS}), tmp_path / "a.parquet")
    with pytest.raises(DatasetError, match=r"a\.parquet: has no 'text'; it has article"):
        list(read_texts(tmp_path / "a.parquet", "text"))


def test_the_choice_is_the_seeds_and_fair() -> None:
    numbers = [str(number) for number in range(20)]
    assert choose(numbers, 5, 1) == choose(iter(numbers), 5, 1) != choose(numbers, 5, 2)
    assert sorted(choose(numbers, 99, 1)) == sorted(numbers) != choose(numbers, 99, 1)
    counts = Counter(text for seed in range(4000) for text in choose(numbers, 5, seed))
    assert all(abs(counts[number] - 1000) < 150 for number in numbers)  # five standard deviations


@pytest.mark.parametrize("name", ["a.jsonl", "./a", "data/a.jsonl", "~/a.jsonl", "a b/c"])
def test_a_file_that_is_not_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(DatasetError, match="no such file") as caught:
        find_dataset(name, tmp_path)
    assert caught.value.repair


def test_a_file_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "data/deep").mkdir(parents=True)
    for name, ready in (("a.jsonl", False), ("data/deep/a.jsonl", False), ("x.calibration.json", True)):
        (tmp_path / name).touch()
        found = find_dataset(name, tmp_path)
        assert (found.file, found.revision, found.is_ready) == (tmp_path / name, None, ready)


COMMIT = "0123456789abcdef0123456789abcdef01234567"
SCRIPT = """
import sys
from pathlib import Path
from trtspec.checkpoint.calibrate.texts import find_dataset
from trtspec.checkpoint.calibrate.texts import read_texts
from trtspec.base.errors import TrtspecError
for name in sys.argv[1:]:
    try:
        found = find_dataset(name, Path("/nowhere"))
        print(found.revision, *read_texts(found.file, "text"))
    except TrtspecError as error:
        print(f"{error}; {error.repair}")
"""
FILES = {
    "owner/one": {"README.md": b"", "data/train.jsonl": b'{"text": "a"}\n{"text": "b"}'},
    "owner/two": {"test.txt": b"t", "train.txt": b"r"},
    "owner/none": {"README.md": b""},
}


class Handler(BaseHTTPRequestHandler):
    """The part of the Hub's API that datasets need."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        parts = path.removeprefix("/api").removeprefix("/datasets/").split("/")
        files, verb = FILES.get("/".join(parts[:2])), parts[2] if len(parts) > 2 else ""
        name = "/".join(parts[4:])
        if files is None or (verb == "resolve" and name not in files):
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound" if files is None else "EntryNotFound")
            body = b""
        elif verb == "resolve":
            body = files[name]
            self.send_response(200)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        else:
            entries = [
                {"type": "file", "path": path, "size": len(body), "oid": "0"} for path, body in files.items()
            ]
            siblings = [{"rfilename": path} for path in files]
            body = json.dumps(
                entries if verb == "tree" else {"id": "x", "sha": COMMIT, "siblings": siblings}
            ).encode()
            self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def on_hub(tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """A line of the script for each name; in a process, for huggingface_hub reads settings once."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    hub = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path / "cache")}

    def find(*names: str, **environment: str) -> list[str]:
        command, settings = [sys.executable, "-c", SCRIPT, *names], {**os.environ, **hub, **environment}
        result = subprocess.run(
            command, env=settings, capture_output=True, text=True, timeout=240, check=False
        )
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines()

    yield find
    server.shutdown()
    server.server_close()


def test_a_dataset_of_the_hub(on_hub: Callable[..., list[str]]) -> None:
    pinned = f"owner/one@{COMMIT}/data/train.jsonl"
    found = on_hub("owner/one", "owner/one@main/data/train.jsonl", "owner/two/train.txt", pinned)
    assert found == [f"{COMMIT} a b", f"{COMMIT} a b", f"{COMMIT} r", f"{COMMIT} a b"]
    offline = on_hub(pinned, "owner/one", HF_HUB_OFFLINE="1")
    assert offline[0] == f"{COMMIT} a b"
    assert "HF_HUB_OFFLINE is set" in offline[1]


def test_a_dataset_or_file_missing_from_the_hub_is_reported(on_hub: Callable[..., list[str]]) -> None:
    expected = {
        "owner/two": "has 2 files: train.txt, test.txt; name one: owner/two/train.txt",
        "owner/none": "has no file of texts",
        "owner/one/b.jsonl": "owner/one: has no b.jsonl",
        "owner/lost": "is neither a file nor a dataset of the Hugging Face Hub",
        "owner/lost/a.jsonl": "is neither a file nor a dataset of the Hugging Face Hub",
    }
    for said, found in zip(expected.values(), on_hub(*expected), strict=True):
        assert said in found
