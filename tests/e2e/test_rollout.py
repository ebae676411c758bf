"""A roll-out on a real Triton under load: every step up and down, and the text is always the same."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.conftest import IN_PROCESS, TRTSPEC, Deploy, Deployer, wait_until
from tests.support.command_line import trtspec
from trtspec.deployment.rollout.steps import STEPS, name_of, read_record
from trtspec.serving.rollout.state import ARMS

pytestmark = pytest.mark.sweep

USERS, STREAMS = 48, 4
PROMPTS = ("def fib(n):\n", "class Stack:\n", "import os\n", "for line in file:\n")


@dataclass
class Load:
    """Clients that ask on and on, each time as the next user; `drafted` has who had drafts since `forget`."""

    deploy: Deploy
    texts: dict[tuple[str, int], str]
    lengths: tuple[int, int]
    wrong: list[str] = field(default_factory=list)
    drafted: dict[str, set[bool]] = field(default_factory=dict)
    since: int = 0

    def __post_init__(self) -> None:
        self._numbers, self._is_over, self._lock = count(), threading.Event(), threading.Lock()
        self._begun = 0

    def forget(self) -> None:
        """Requests that have begun before say nothing of what follows."""
        with self._lock:
            self.since, self.drafted = self._begun, {}

    def ask(self) -> None:
        while not self._is_over.is_set():
            with self._lock:
                number = self._begun = next(self._numbers)
            prompt, length = PROMPTS[number % len(PROMPTS)], self.lengths[number % 16 == 0]
            user = f"user-{number % USERS}"
            status, said = self.deploy.post(
                {"text_input": prompt, "max_tokens": length, "user": user, "return_perf_metrics": True}
            )
            if status != 200 or said["text_output"] != self.texts[prompt, length]:
                self.wrong.append(f"{status} {said}")
            with self._lock:
                if number > self.since:
                    is_drafted = said.get("speculation") != "off: rollout"
                    self.drafted.setdefault(user, set()).add(is_drafted)

    def all_asked(self) -> bool:
        return len(self.drafted) == USERS

    def end(self) -> None:
        self._is_over.set()


@contextmanager
def load(deploy: Deploy, streams: int = STREAMS, lengths: tuple[int, int] = (6, 48)) -> Iterator[Load]:
    """Every 16th text has the second length."""
    texts = {
        (prompt, length): deploy.generate(prompt, max_tokens=length, num_draft_tokens=0)
        for prompt in PROMPTS
        for length in lengths
    }
    clients = Load(deploy, texts, lengths)
    threads = [threading.Thread(target=clients.ask) for _ in range(streams)]
    for thread in threads:
        thread.start()
    try:
        yield clients
    finally:
        clients.end()
        for thread in threads:
            thread.join()


class Cli:
    def __init__(self, recipe: Path, build: Path, deploy: Deploy) -> None:
        url = f"127.0.0.1:{deploy.ports[2]}"
        self.words = [str(recipe), "--output", str(build), "--url", url]
        self.file = build / "rollout.json"

    @property
    def step(self) -> str:
        """Where the roll-out stands; `status` says by its exit status what a busy machine makes of it."""
        found = read_record(self.file)
        return name_of(found.state) if found else "all"

    def __call__(self, verb: str, *options: str, status: int = 0) -> str:
        done = trtspec("rollout", verb, *self.words, *options)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout if "--json" in options else done.stdout + done.stderr

    def json(self, verb: str, *options: str) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self(verb, "--json", *options))
        return said


@IN_PROCESS
def test_through_all_steps_and_back_under_load(
    deployer: Deployer, build_copy: Path, tiny_recipe: Path
) -> None:
    deploy = deployer(build_copy, recipe=tiny_recipe, with_api=True)
    wait_until(lambda: deploy.is_ready, "the server ready")
    cli = Cli(tiny_recipe, build_copy, deploy)
    assert deploy.metric("speculation_share") == 1
    with load(deploy) as clients:
        assert cli.json("off")["followed"]
        had_drafts = set[str]()
        for step in (*STEPS, STEPS[-2]):
            if (name := cli.step) != step.name:
                moved = cli.json("back") if name == "all" else cli.json("next", "--force")
                assert moved == {"moved": True, "from": name, "to": step.name, "followed": True}
                had_drafts = set() if name == "all" else had_drafts
            clients.forget()
            wait_until(clients.all_asked, f"every user at {step.name}")
            arms = dict(clients.drafted)
            # Each user is of one arm, as many as asked for have drafts, and who had them keeps them.
            assert {len(found) for found in arms.values()} == {1}
            drafted = {user for user, found in arms.items() if True in found}
            share = step.state.share_of("speculate")
            assert abs(len(drafted) - share * USERS) <= 4 * math.sqrt(USERS * share * (1 - share))
            assert had_drafts <= drafted
            had_drafts = drafted
        cli("off")
        assert cli.step == "off"
    assert clients.wrong == []
    shadow, verified = deploy.metric("shadow_num_drafts"), deploy.metric("spec_decode_num_drafts")
    assert shadow > 0
    assert verified > 0
    for name in ARMS:
        assert deploy.metric("rollout_requests", arm=name) > 10
    assert deploy.metric("rollout_request_errors") == 0

    refuses_without_evidence(cli)
    a_user_of_openais_api_stays_in_its_arm(deploy, cli)
    a_broken_file_changes_nothing(deploy, cli, build_copy / "tritonserver.log")
    a_killed_command_leaves_the_old_or_the_new(cli)


def refuses_without_evidence(cli: Cli) -> None:
    cli("next")
    said = cli("next", status=1)
    assert "no step to 5 % yet" in said
    assert "more requests will decide" in said
    assert "[shadow]" in cli("status")


def a_user_of_openais_api_stays_in_its_arm(deploy: Deploy, cli: Cli) -> None:
    """And is in the same one as over Triton's API, which has the same metrics of drafts."""
    while cli.step != "50 %":
        cli("next", "--force")
    arms = set()
    with openai.OpenAI(base_url=deploy.api, api_key="none", max_retries=0) as client:
        for number in range(12):
            user = f"user-{number}"
            _, said = deploy.post({"text_input": "a = ", "max_tokens": 8, "user": user})
            is_drafted = said.get("speculation") != "off: rollout"
            for prompt in ("class A:\n", "import sys\n"):
                made = client.completions.create(
                    model=deploy.model, prompt=prompt, max_tokens=24, temperature=0, user=user
                )
                counts: Any = made.model_extra
                drafts = counts["metrics"]["speculative_decoding"]["num_draft_tokens"]
                assert (drafts > 0) == is_drafted
            arms.add(is_drafted)
    assert arms == {True, False}


def a_broken_file_changes_nothing(deploy: Deploy, cli: Cli, log: Path) -> None:
    whole = cli.file.read_text()
    cli.file.write_text(whole[:40])
    wait_until(lambda: deploy.metric("rollout_file_malformed") == 1, "the server has seen it")
    assert deploy.metric("speculation_share") == 0.5
    assert "is not JSON" in cli("next", status=1)
    cli.file.write_text(whole)
    wait_until(lambda: deploy.metric("rollout_file_malformed") == 0, "the server has seen it")
    assert log.read_text().count("the file of the roll-out is not JSON") == 1


def a_killed_command_leaves_the_old_or_the_new(cli: Cli) -> None:
    cli("off")
    names, dice = [step.name for step in STEPS], random.Random(4)
    for _ in range(3):
        before = cli.step
        command = subprocess.Popen([TRTSPEC, "rollout", "next", *cli.words, "--force"])
        time.sleep(dice.uniform(0.2, 1.5))
        os.kill(command.pid, signal.SIGKILL)
        command.wait()
        after = cli.step
        assert after in (before, names[names.index(before) + 1])


@pytest.mark.sweep
@pytest.mark.parametrize("tiny_recipe", ["in_process"], indirect=True)
def test_the_evidence_of_a_long_run_is_enough(
    deployer: Deployer, build_copy: Path, tiny_recipe: Path
) -> None:
    """The demo pair's own drafts carry it from off to all; at 5 % alone that would take 5,360 requests.

    Not in the bls layout: a round is several requests between models there, which is more than the pair's
    drafts save.
    """
    deploy = deployer(build_copy, recipe=tiny_recipe)
    wait_until(lambda: deploy.is_ready, "the server ready")
    cli = Cli(tiny_recipe, build_copy, deploy)
    cli("off")
    with load(deploy, streams=1, lengths=(32, 48)) as clients:
        for step in STEPS[:-1]:
            if step.name == "5 %":
                cli("next", "--force")
            else:
                wait_until(lambda: trtspec("rollout", "next", *cli.words).returncode == 0, "a step", 900)
        assert cli.step == "all"
    assert clients.wrong == []
