"""NVIDIA's AIPerf against OpenAI's API; it needs an environment of its own: `AIPERF=…/bin/aiperf`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import IN_PROCESS, TINY, Deploy

AIPERF = os.environ.get("AIPERF") or shutil.which("aiperf")


@IN_PROCESS
@pytest.mark.sweep
@pytest.mark.skipif(AIPERF is None, reason="no aiperf on PATH, nor AIPERF")
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_aiperf_reads_acceptance(server: Deploy, tmp_path: Path, endpoint: str) -> None:
    drafts, accepted = (
        server.metric(f"spec_decode_num_{name}") for name in ("draft_tokens", "accepted_tokens")
    )
    options = {
        "--model": server.model,
        "--url": server.api.removesuffix("/v1"),
        "--endpoint-type": endpoint,
        "--concurrency": "2",
        "--request-count": "8",
        "--isl": "40",
        "--osl": "30",
        "--tokenizer": str(TINY / "target"),
        "--output-artifact-dir": str(tmp_path),
        "--ui": "none",
    }
    words = [word for option in options.items() for word in option]
    subprocess.run([str(AIPERF), "profile", "--streaming", *words], check=True, capture_output=True)

    found = json.loads((tmp_path / "profile_export_aiperf.json").read_text())
    drafts = server.metric("spec_decode_num_draft_tokens") - drafts
    accepted = server.metric("spec_decode_num_accepted_tokens") - accepted
    rate = found["spec_decode_overall_draft_acceptance_rate"]["avg"]
    assert rate == pytest.approx(100 * accepted / drafts, abs=0.1)
    assert found["request_count"]["avg"] == 8
