"""The servers that `prove` is told: addresses, recipes, and commands that it starts and ends."""

from __future__ import annotations

import asyncio
import shlex
import sys
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.said import Said
from tests.support.processes import command_lines
from tests.unit.measure.prove.test_proof import BENCH, TEXTS
from tests.unit.measure.verify.conftest import TINY
from trtspec.base.errors import MeasureError, ServerError
from trtspec.measure.bench.plan import BenchPlan
from trtspec.measure.bench.result import BenchResult, OfferedLoad
from trtspec.measure.prove import run
from trtspec.measure.prove import servers as module
from trtspec.measure.prove.proof import Wanted
from trtspec.measure.prove.run import ProofPlan, ProofTalk
from trtspec.measure.prove.servers import ProvedServer, ServedSide, ServerStart, ServerTurns, begin, opened
from trtspec.measure.verify.opening import ServerAddress
from trtspec.measure.verify.prompts import Vocabulary
from trtspec.measure.verify.result import VerifyResult
from trtspec.measure.verify.sides import VerificationSettings
from trtspec.measure.workloads.workload import Prompt, Workload

FAKE = (
    f"{shlex.quote(sys.executable)} -m tests.fakes.openai_server --model {TINY / 'target'} --host 127.0.0.1"
)


def started(server: ProvedServer, said: list[str]) -> bool:
    async def main() -> bool:
        async with AsyncExitStack() as stack:
            assert server.start
            await begin(server.start, stack, said.append)
            return bool(running(server))

    return asyncio.run(main())


def running(server: ProvedServer) -> list[list[str]]:
    port = server.address.url.rpartition(":")[2].partition("/")[0]
    return [line for _, line in command_lines() if port in line]


def test_an_address_is_shown_without_its_password() -> None:
    with opened("https://me:secret@host/v1", None, None, "a") as server:
        assert (server.name, server.start, server.address.model) == ("https://host/v1", None, "a")


def test_a_command_is_started_on_a_free_port_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))
    monkeypatch.chdir(tmp_path)
    with opened(
        f"{FAKE} --served-model-name one --api-key secret --dtype float32", None, None, None
    ) as server:
        pass
    assert "secret" not in server.name
    assert server.address.key == "secret"
    assert (server.tokenizer, server.dtype) == (TINY / "target", "float32")
    said: list[str] = []
    with opened(f"env VLLM_API_KEY=secret {FAKE} --served-model-name one", None, "secret", None) as server:
        assert "secret" not in server.name
        assert started(server, said)
        assert said[0].startswith("starting ")
    assert not running(server)


def test_a_command_that_ends_is_told_with_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = f"{shlex.quote(sys.executable)} -c 'import sys; sys.exit(\"no such device\")'"
    with opened(words, None, None, None) as server, pytest.raises(ServerError, match="no such device"):
        started(server, [])


def test_other_words_are_no_server() -> None:
    with pytest.raises(MeasureError, match="is no server"), opened("nobody", None, None, None):
        pass


def unserved() -> Any:
    raise AssertionError("it is not started")


def test_each_of_two_servers_in_turns_reports_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """SGLang reports no log-probabilities by id, and vLLM five: neither is asked for those of the other."""
    servers = {"old": Said((1,), (2,), (2,), top_log_probs=0), "new": Said((1,), (2,), (2,), top_log_probs=5)}

    async def begin(*_: object) -> None: ...

    async def deployed(address: ServerAddress, _: object) -> tuple[Said, bool]:
        return servers[address.url], False

    monkeypatch.setattr(module, "begin", begin)
    monkeypatch.setattr(module, "deployed", deployed)

    async def main() -> list[int]:
        turns = ServerTurns((), lambda _: None)
        starts = [ServerStart(name, ServerAddress(name, None), tmp_path, unserved) for name in servers]
        sides = [ServedSide(start, turns) for start in starts]
        for side in sides:
            await turns.reach(side)
        return [side.top_log_probs for side in sides]

    assert asyncio.run(main()) == [0, 5]


def test_who_stops_a_proof_in_turns_starts_no_other_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reached: list[str] = []
    start = {
        name: ServerStart(name, ServerAddress(f"http://{name}/v1", None), tmp_path, unserved)
        for name in ("old", "new")
    }
    old, new = (ProvedServer(name, one.address, one) for name, one in start.items())

    async def reach(turns: ServerTurns, side: ServedSide) -> None:
        turns.turn = side
        reached.append(side.name)

    async def asked(*_: object) -> tuple[VerifyResult, None]:
        return TEXTS, None

    async def measured(*_: object) -> tuple[BenchResult, tuple[()]]:
        return replace(BENCH, is_partial=True), ()

    monkeypatch.setattr(ServerTurns, "reach", reach)
    monkeypatch.setattr(run._Proof, "_asked", asked)
    monkeypatch.setattr(run, "measure", measured)
    monkeypatch.setattr(run, "_scrape", asked)
    monkeypatch.setattr(run, "_acceptance", asked)
    plan = BenchPlan(Workload("w", "w", (Prompt("p", ("x",)),)), (OfferedLoad("streams", 1),), paired=False)
    settings = VerificationSettings(lengths=(None,))
    wanted = ProofPlan(
        plan,
        settings,
        (),
        Vocabulary.load(TINY / "target"),
        (),
        Wanted(),
        in_turns=True,
        folder=tmp_path,
        command="",
    )
    talk = ProofTalk(lambda _: None, lambda *_: nullcontext(lambda _: None), lambda *_: None)  # type: ignore[arg-type]
    proof = asyncio.run(run.prove(old, new, wanted, talk))
    assert reached == ["old", "old"]
    assert (proof.outcome, proof.bench.levels) == ("open", ())
