"""The commands over metrics that a coordinator's own counters are written as."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import trtspec
from tests.unit.deployment.rollout.metrics import text_of, told
from trtspec.serving.rollout.rollout import Rollout
from trtspec.serving.rollout.state import RolloutFile
from trtspec.serving.stats import Stats

RECIPE = "name: pair\ntarget: {model: ./t}\ndraft: {model: ./d}\nhardware: {gpu: none}\n"


class Server:
    """What a server would tell, with a second passing at each look; it follows its file as it is asked."""

    def __init__(self, build: Path) -> None:
        self.build, self.rollout, self.seconds = build, Rollout(), 0.0
        self.stats, self.file = Stats(rollout=self.rollout.stats), RolloutFile(build / "rollout.json")
        self.follows = True

    def text(self) -> str:
        self.seconds += 1
        if self.follows and (reading := self.file.look()):
            self.rollout.take(reading)
        return text_of(self.stats, self.seconds, "speculative_llm")

    def serve(self, arm: str, count: int, per_token: float, failures: int = 0, accepted: int = 3) -> None:
        """Completions of times that spread by a tenth, with drafts of which so many of four are accepted."""
        found = self.stats.rollout.arms[arm]
        found.requests, found.failures = found.requests + count, found.failures + failures
        for number in range(count):
            value = per_token * (0.9 + 0.2 * (number % 11) / 10)
            found.time_to_first_token.observe(value)
            found.time_per_output_token.observe(value)
            if arm == "shadow":
                self.stats.rollout.shadow.record(4, accepted)
            elif arm == "speculate":
                self.stats.by_origin["engine"].record(4, accepted)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    (tmp_path / "build/pair").mkdir(parents=True)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return Server(tmp_path / "build/pair")


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    with told(server.text) as url:
        yield url


class Cli:
    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url

    def __call__(self, verb: str, *options: str, status: int = 0) -> str:
        """What it said, on both streams."""
        done = trtspec("rollout", verb, "recipe.yaml", "--url", self._url, *options, folder=self._folder)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    def json(self, verb: str, *options: str, status: int = 0) -> dict[str, Any]:
        done = trtspec(
            "rollout", verb, "recipe.yaml", "--url", self._url, "--json", *options, folder=self._folder
        )
        assert done.returncode == status, done.stderr
        said: dict[str, Any] = json.loads(done.stdout)
        return said


@pytest.fixture
def cli(tmp_path: Path, url: str) -> Cli:
    return Cli(tmp_path, url)


def test_without_a_roll_out_all_have_drafts(cli: Cli, server: Server) -> None:
    assert "is at step all" in cli("status")
    said = cli.json("status")
    assert (said["step"], said["checks"], said["next"], said["back"]) == ("all", [], None, "50 %")
    assert "all requests have drafts already" in cli("next")
    assert not server.file.path.exists()


def test_every_step_up_with_the_evidence_for_it(cli: Cli, server: Server) -> None:
    assert "all -> off" in cli("off")
    assert "off -> shadow" in cli("next")
    refused = cli("next", status=1)
    assert (
        "no step to 5 % yet: requests: 0 with drafts, 0 plain; about 100 more requests will decide" in refused
    )
    for arm in ("shadow", "plain"):
        server.serve(arm, 300, 0.02)
    assert cli.json("status")["verdict"] == "holds"
    names = ["5 %", "25 %", "50 %"]
    for before, name in zip(["shadow", *names], names, strict=False):
        said = cli.json("next")
        assert said == {"moved": True, "from": before, "to": name, "followed": True}
        # What was seen before counts no more.
        assert "yet: requests: 0 with drafts, 0 plain" in cli("next", status=1)
        server.serve("plain", 400, 0.02)
        server.serve("speculate", 300, 0.01)
        found = cli.json("status")
        assert (found["step"], found["verdict"]) == (name, "holds")
        assert found["evidence"]["arms"]["speculate"]["per_token"]["count"] == 300
        text = cli("status")
        assert f"[{name}]" in text
        assert "0.50x" in text
        assert "trtspec rollout next recipe.yaml" in text
    assert "50 % -> all" in cli("next")
    assert "all requests have drafts already" in cli("next")


def test_a_broken_bound_is_named_and_stops_it(cli: Cli, server: Server) -> None:
    cli("off")
    for _ in range(3):
        cli("next", "--force")
    server.serve("plain", 400, 0.02)
    server.serve("speculate", 200, 0.03)
    said = cli("status", status=1)
    assert "time per token" in said
    assert "trtspec rollout back recipe.yaml" in said
    assert "time per token is 1.50x" in (refused := cli("next", status=1))
    assert "must be at most 1.05x plain" in refused
    assert cli.json("status", status=1)["verdict"] == "broken"
    assert "time per token is 1.50x" in cli.json("next", status=1)["refused"]
    assert "25 % -> 5 %" in cli("back")
    assert "5 % -> 25 %" in cli("next", "--force")


def test_back_and_off_need_no_server(tmp_path: Path) -> None:
    (tmp_path / "build/pair").mkdir(parents=True)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    cli = Cli(tmp_path, "127.0.0.1:9")
    for verb, words in (("back", "all -> 50 %"), ("back", "50 % -> 25 %"), ("off", "25 % -> off")):
        said = cli(verb)
        assert words in said
        assert "the server has not followed yet" in said
    assert "does not answer" in cli("status", status=1)
    cli("next", "--force")
    assert "does not answer" in cli("next", status=1)
    assert "shadow" in (tmp_path / "build/pair/rollout.json").read_text()


@pytest.mark.parametrize("first", ["status", "next"])
def test_a_step_that_no_counters_were_read_for_is_judged_from_the_next_look_on(
    cli: Cli, server: Server, first: str
) -> None:
    """What the server counted before the step would break a bound."""
    server.serve("plain", 400, 0.02)
    server.serve("speculate", 200, 0.03)
    unreachable = Cli(server.build.parent.parent, "127.0.0.1:9")
    for verb in ("back", "back", "next"):
        unreachable(verb, *(("--force",) if verb == "next" else ()))
    assert json.loads(server.file.path.read_text())["counted"] is None
    assert "0 with drafts, 0 plain" in cli(first, status=int(first == "next"))
    server.serve("plain", 400, 0.02)
    server.serve("speculate", 300, 0.01)
    found = cli.json("status")
    assert (found["step"], found["verdict"]) == ("50 %", "holds")
    assert found["evidence"]["arms"]["speculate"]["per_token"]["count"] == 300


def test_a_broken_file_can_be_written_anew(cli: Cli, server: Server) -> None:
    cli("off")
    cli("next")
    server.file.path.write_text("{")
    assert "is not JSON" in cli("next", status=1)
    assert "is not JSON" in cli("status", status=1)
    assert server.stats.rollout.shadow_share == 0.5  # The last good state.
    cli("off")
    assert server.stats.rollout.shadow_share == 0


def test_a_server_that_does_not_follow_gets_no_further(cli: Cli, server: Server) -> None:
    server.follows = False
    assert "has not followed yet" in cli("off")
    assert "does not follow the file yet" in cli("status")
    assert "does not follow its file" in cli("next", status=1)


def test_the_recipes_share_is_where_it_begins(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE + "speculation: {share: 0.1}\n")
    assert cli.json("back") | {"followed": True} == {
        "moved": True,
        "from": "10 %",
        "to": "5 %",
        "followed": True,
    }


def test_a_rollout_of_a_missing_build_and_an_unknown_verb_are_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "build/pair").rmdir()
    assert "there is no build here" in cli("status", status=1)
    done = trtspec("rollout", "forward", "recipe.yaml", folder=tmp_path)
    assert done.returncode == 2


def test_a_fall_by_half_after_weeks_is_seen_and_goes_back(server: Server, cli: Cli) -> None:
    """The mean of the whole step hides it; the file remembers what was counted at the last look."""
    cli("off")
    for _ in range(5):
        cli("next", "--force")
    server.serve("speculate", 100_000, 0.01)
    assert cli.json("status")["verdict"] == "holds"
    server.serve("speculate", 300, 0.01)
    assert cli.json("status")["verdict"] == "holds"
    server.serve("speculate", 300, 0.01, accepted=1)
    found = cli.json("status", status=1)
    assert [each["name"] for each in found["checks"] if each["verdict"] == "broken"] == ["acceptance lately"]
    cli("status", status=1)
    assert "all -> 50 %" in cli("back")


def test_a_draft_that_is_its_target_goes_back(server: Server, cli: Cli) -> None:
    cli("off")
    for _ in range(5):
        cli("next", "--force")
    server.serve("speculate", 300, 0.01, accepted=4)
    assert "is it the target itself" in cli("status", status=1)
