"""The pages of the documentation, followed: their commands are run as they are printed, with the tiny pair.

A page is one script, in a folder that has the pair as `recipe.yaml`, its build, and a few prompts. Where it
asks a server that it does not start, one is up. Only ports differ, since several tests run at once.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.docs.blocks import GENERATED, PAGES, ROOT, blocks, is_printed
from tests.e2e.conftest import TINY
from tests.support.ports import free_port, free_ports

NAMES = ("add", "close", "read", "write", "merge", "find", "send", "copy")
PROMPTS = "".join(f"{json.dumps({'prompt': f'def {name}(self, other):'})}\n" for name in NAMES)
LONG = {
    *("bench.md", "prove.md", "train-a-draft.md", "tune.md", "verify.md"),
    *("guided-decoding.md", "laptop.md", "monitor.md", "openai-api.md"),
    *("read-a-plan.md", "share-engines.md", "triton-api.md"),
}
"""The pages of which `make test-sweep` takes care; the suite has tests of their commands."""
MOST_S = 900
END = "status=$?; kill $(jobs -p) 2> /dev/null || true; wait; exit $status"
PATH = os.pathsep.join([str(Path(sys.prefix, "bin")), os.environ["PATH"]])
ENVIRONMENT = {**os.environ, "PATH": PATH, "OMP_NUM_THREADS": "1"}


def scripts() -> dict[Path, str]:
    """Returns what the suite runs of each page."""
    written = [page for page in PAGES if GENERATED not in page.read_text(encoding="utf-8")]
    found = {page: "".join(block.script for block in blocks(page) if not block.title) for page in written}
    return {page: text for page, text in found.items() if text}


SCRIPTS = scripts()


def with_ports(text: str) -> str:
    """Returns the script with free ports, and with a server where it asks one that it does not start."""
    http, grpc, metrics = free_ports()
    openai = free_port()
    ports = {"8000": http, "8001": grpc, "8002": metrics, "9000": openai}
    if "trtspec deploy" not in text and (any(f":{port}" in text for port in ports) or "trtspec top" in text):
        text = f"trtspec deploy recipe.yaml &\ntrtspec generate --max-tokens 1 'def fib('\n{text}"
    options = f"--http-port {http} --grpc-port {grpc} --metrics-port {metrics} --openai-port {openai}"
    text = re.sub(r"(?<=:)(8000|8001|8002|9000)\b", lambda port: str(ports[port[0]]), text)
    text = re.sub(r"(?m)^(trtspec deploy \S+\.yaml)", rf"\1 {options}", text)
    return re.sub(r"(?m)^trtspec generate\b", "trtspec generate --wait 240", text)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=[pytest.mark.sweep] if page.name in LONG else [])
        for page in SCRIPTS
    ],
)
def test_a_page_can_be_followed(page: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "recipes" / "tiny"):
        folder.mkdir(parents=True, exist_ok=True)
        for part in ("recipe.yaml", "target", "draft"):
            (folder / part).symlink_to(TINY / part)
    for recipe in TINY.parent.glob("*.yaml"):
        (tmp_path / "recipes" / recipe.name).symlink_to(recipe)
    (tmp_path / "prompts.jsonl").write_text(PROMPTS)
    text = f"trtspec build recipe.yaml\n{with_ports(SCRIPTS[page])}"
    with (tmp_path / "said").open("wb") as said:
        script = subprocess.Popen(
            ["bash", "-e", "-c", f"trap '{END}' EXIT\n{text}"],
            cwd=tmp_path,
            env={**ENVIRONMENT, "XDG_STATE_HOME": str(tmp_path / "state")},
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            status = script.wait(MOST_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(script.pid, signal.SIGKILL)
    found = (tmp_path / "said").read_text()
    assert status == 0, f"{text}\n{found[-3000:]}"
    assert '{"error"' not in found
    if page.name == "README.md":
        shown = [line for block in blocks(page) if not block.title for line in block.printed]
        # Numbers are another machine's.
        assert [line for line in shown if not is_printed(re.sub(r"\d[\d.]*", "…", line), found)] == [], found


def test_the_pages_that_serve_are_followed() -> None:
    assert {"README.md", "laptop.md", "openai-api.md", "monitor.md"} <= {page.name for page in SCRIPTS}
    assert all(page.is_relative_to(ROOT) for page in SCRIPTS)
