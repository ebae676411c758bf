"""What NVIDIA's sources judge can be made without them, so that it does not rot where they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sources.test_engines import CASES, made


@pytest.mark.parametrize("name", ["eagle_plain", "medusa_plain", "lookahead_plain"])
def test_a_case_is_converted_and_has_its_line(name: str, tmp_path: Path) -> None:
    line = made(tmp_path, CASES[name])
    assert line[:2] == ["--checkpoint_dir", "target/checkpoint"]
    assert (tmp_path / "ours/target/checkpoint/rank0.safetensors").is_file()
