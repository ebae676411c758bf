"""What a process may open is looked at before a server starts."""

from __future__ import annotations

import resource

import pytest

from trtspec.base.errors import UnavailableError
from trtspec.base.process_limits import check_open_files


@pytest.mark.parametrize(
    ("hard", "is_enough"),
    [(64, False), (287, False), (288, True), (4096, True), (resource.RLIM_INFINITY, True)],
)
def test_too_few_open_files_are_told_with_what_a_server_needs(
    hard: int, is_enough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, hard))
    if is_enough:
        check_open_files()
        return
    with pytest.raises(UnavailableError) as found:
        check_open_files()
    assert f"at most {hard} may be open here" in found.value.problem
    assert "a server needs 288" in found.value.problem
