"""The chain on stand-ins for NVIDIA's tools: a GPU's machine, here and in a container."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import sys
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import trtspec.measure.selftest
from tests.fakes.bindings import BINDINGS
from tests.fakes.gpu_machine import H100, GpuMachine
from tests.support.command_line import trtspec as run
from trtspec.base.errors import UnavailableError
from trtspec.measure.selftest import chain, random_pair
from trtspec.measure.selftest.builds import LOW_LATENCY, TrialBuild, TrialPairs
from trtspec.measure.selftest.trial import Outcome, Ruling
from trtspec.measure.verify.result import Difference, GreedyComparison, VerifyResult
from trtspec.measure.verify.tolerance import Tolerance
from trtspec.pipeline.build.plan import make_plan
from trtspec.recipe import gpus
from trtspec.recipe.releases import release_of
from trtspec.recipe.shipped import TINY

NOT_SERVED = "nobody serves here"
SECRETS = {"HF_TOKEN": "hf_0123456789", "FAKE_API_KEY": "correct horse"}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuMachine:
    @contextmanager
    def served(*_: object, **__: object) -> Iterator[Any]:
        raise UnavailableError("Triton", NOT_SERVED)
        yield

    monkeypatch.setattr(chain, "served", served)
    machine = GpuMachine(tmp_path / "machine")
    machine.gpus(H100)
    return machine


def outcomes(found: dict[str, Any], build: str) -> dict[str, tuple[str, str]]:
    return {one["check"]: (one["state"], one["found"]) for one in found["outcomes"] if one["build"] == build}


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Leaves out all builds but these: each takes half a minute."""
    every = TrialPairs.builds
    monkeypatch.setattr(
        TrialPairs, "builds", lambda self, folder: [one for one in every(self, folder) if one.name in names]
    )


@pytest.fixture
def bindings(machine: GpuMachine) -> GpuMachine:
    """The machine with a TensorRT-LLM whose engines answer."""
    machine.tensorrt_llm()
    (machine.folder / "packages/tensorrt_llm").symlink_to(BINDINGS / "tensorrt_llm")
    return machine


@pytest.mark.sweep
@pytest.mark.parametrize("beside", [(), ("fp8",)])
def test_a_selftest_of_this_machine_reports_each_check_and_bundles_no_secrets(
    bindings: GpuMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: tuple[str, ...]
) -> None:
    only(monkeypatch, "reference", "bf16-chunked", *beside)
    bundle = tmp_path / "selftest.zip"
    done = run(
        *("selftest", "--json", "--output", tmp_path / "out", "--bundle", bundle),
        environment=bindings.environment | SECRETS,
    )
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert (found["ok"], found["backend"], found["release"]) == (False, "tensorrt_llm", "1.2.1")
    assert {outcomes(found, build)["build"][0] for build in beside} <= {"ok"}
    by_name = outcomes(found, "bf16-chunked")
    assert by_name.pop("in_process") == ("differs", f"Triton: {NOT_SERVED}")
    for name in ("trimmed drafts", "sampled drafts that are cut"):
        assert by_name.pop(name)[0] == "not tried"
    assert {name: said for name, said in by_name.items() if said[0] != "ok"} == {}
    assert {"release", "requests", "memory as planned", "two engines", "sampled drafts"} <= by_name.keys()
    with zipfile.ZipFile(bundle) as file:
        names = set(file.namelist())
        text = "".join(file.read(name).decode() for name in names)
    assert {"selftest.json", "bf16-chunked.yaml", "bf16-chunked.log", "bf16-chunked.signatures.json"} <= names
    assert any(name.endswith("speculative_llm/config.pbtxt") for name in names)
    assert not any(value in text for value in SECRETS.values())


@pytest.mark.sweep
@pytest.mark.parametrize("build", ["lookahead", "eagle"])
def test_drafts_inside_an_engine(
    bindings: GpuMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: str
) -> None:
    only(monkeypatch, "reference", build)
    done = run("selftest", "--json", "--output", tmp_path / "out", environment=bindings.environment)
    by_name = outcomes(json.loads(done.stdout), build)
    assert by_name.pop("in_process")[0] == "differs"
    assert by_name["drafts inside"][0] == by_name["plain decoding"][0] == "ok"
    assert {state for state, _ in by_name.values()} == {"ok", "not tried"}, by_name


BESIDE = """#!{python}
import json, sys
from pathlib import Path
flag, module, file = sys.argv[1:]
assert (flag, module, Path("trtspec/serving").is_dir()) == ("-m", "trtspec.measure.selftest.engines", True)
job = json.loads(Path(file).read_text())
row = dict(build=job["build"], check="release", found=job["release"])
row |= dict(rule="", source="", means="", state="ok")
Path(job["results"]).write_text(json.dumps(row) + chr(10))
"""


def test_in_nvidias_image(machine: GpuMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The image's Python finds the code in the folder of the self-test, which is all that it sees."""
    only(monkeypatch, "reference", "bf16", "bf16-bls")
    daemon = machine.containers(release_of(None).image)
    daemon.program("python3", BESIDE.format(python=sys.executable))
    done = run(
        "selftest", "--container", "--json", "--output", tmp_path / "out", environment=machine.environment
    )
    found = json.loads(done.stdout)
    assert outcomes(found, "bf16")["release"] == ("ok", "1.2.1")
    assert outcomes(found, "bf16-bls").keys() == {"build", "bls"}
    assert len([words for words in daemon.calls("run") if "trtspec.measure.selftest.engines" in words]) == 1
    assert daemon.running() == []


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.sweep)])
def test_a_self_test_that_is_ended_leaves_no_container(
    machine: GpuMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    only(monkeypatch, "reference", "bf16")
    monkeypatch.setattr(chain, "_ENGINES_S", 240.0)
    daemon = machine.containers(release_of(None).image)
    end = f"import os, time; os.kill({os.getpid()}, {int(number)}); time.sleep(60)"
    daemon.program("python3", f"#!{sys.executable}\n{end}\n")
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        done = run("selftest", "--container", "--output", tmp_path / "out", environment=machine.environment)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done.returncode == 128 + number
    assert daemon.running() == []


@pytest.mark.sweep
def test_an_engine_that_ends_the_process(
    machine: GpuMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "reference", "bf16")
    machine.tensorrt_llm()
    package = machine.folder / "packages/tensorrt_llm/bindings/executor"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "__init__.py").write_text("import os, sys\nprint('Signal 11', flush=True)\nos._exit(139)\n")
    done = run("selftest", "--output", tmp_path / "out", environment=machine.environment)
    assert done.returncode == 1
    assert "ended with 139 after 0 checks: Signal 11" in done.stdout


def test_what_no_build_on_a_gpu_could_try_is_left_out_and_no_pass(
    machine: GpuMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tried(_: object, build: TrialBuild) -> Iterator[Outcome]:
        for name, state in (("rounds", Ruling.OK), ("guides", Ruling.NOT_TRIED)):
            yield Outcome(build.name, name, "", "", "", state, "")
        yield Outcome(build.name, "block reuse", "", "", "", Ruling(TOLD[build.name]), "")

    machine.tensorrt_llm()
    monkeypatch.setattr(chain.SelfTest, "_tried", tried)
    only(monkeypatch, *TOLD)
    words = ("selftest", "--json", "--output", tmp_path / "out")
    done = run(*words, environment=machine.environment)
    assert done.returncode == 3
    assert outcomes(json.loads(done.stdout), "all").keys() == {"guides"}
    assert run(*words, "--quick", environment=machine.environment).returncode == 0


TOLD = {"fp8": "not tried", "bf16-chunked": "ok"}


def test_a_build_that_fails_is_told_with_what_that_means(
    bindings: GpuMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "reference", "bf16")
    bindings.environment["FAKE_FAILURE"] = "gpu memory"
    done = run("selftest", "--output", tmp_path / "out", environment=bindings.environment)
    assert done.returncode == 1
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("bf16  "))
    assert re.match(r"bf16 +build +differs +[0-9]+\.[0-9] ", line)
    assert line.endswith("; so recipes with what this build adds do not build here")


def test_a_disk_without_room_for_the_image_stops_a_self_test_before_it_begins(
    machine: GpuMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.containers()
    monkeypatch.setattr(chain, "_IMAGE_BYTES", 1e18)
    words = ("selftest", "--container", "--json", "--output", tmp_path / "out")
    found = json.loads(run(*words, environment=machine.environment).stdout)
    assert outcomes(found, "machine")["image"][0] == "differs"
    assert {one["build"] for one in found["outcomes"]} == {"machine"}


def test_a_verification_that_finds_a_fault_is_told_and_kept_for_the_bundle(
    machine: GpuMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def served(*_: object, **__: object) -> Iterator[Any]:
        yield SimpleNamespace(url="http://127.0.0.1:1", model_name="tiny")

    @asynccontextmanager
    async def on_server(*_: object) -> AsyncIterator[None]:
        yield

    async def verify(*_: object) -> VerifyResult:
        ways = [GreedyComparison(k, 1, 1, 24, (), None, k, k) for k in (0, 8)]
        wrong = Difference("fib", "tokens", "fault", 17, "def fib", "'a'", "'b'", "")
        bound = Tolerance(0.5, "bfloat16", None)
        return VerifyResult("K=0", "K=8", bound, ways[0], (replace(ways[1], differences=(wrong,)),))

    machine.tensorrt_llm()
    only(monkeypatch, "reference", "bf16")
    monkeypatch.setattr(chain, "served", served)
    monkeypatch.setattr(chain, "on_server", on_server)
    monkeypatch.setattr(chain, "verify", verify)
    bundle = tmp_path / "selftest.zip"
    done = run(
        *("selftest", "--json", "--output", tmp_path / "out", "--bundle", bundle),
        environment=machine.environment | SECRETS,
    )
    found = outcomes(json.loads(done.stdout), "bf16")["lossless"]
    assert found == ("differs", "speculation changed the answer in 1 place")
    kept = json.loads((tmp_path / "out/bf16.verify.json").read_text())
    assert kept["comparisons"][0]["differences"][0]["position"] == 17
    with zipfile.ZipFile(bundle) as file:
        texts = {name: file.read(name).decode() for name in file.namelist()}
    assert {"selftest.json", "bf16.yaml", "bf16.verify.json"} <= texts.keys()
    assert not any(value in text for value in SECRETS.values() for text in texts.values())


def test_a_selftest_names_a_missing_tool_or_pair_at_once(machine: GpuMachine, tmp_path: Path) -> None:
    done = run("selftest", "--output", tmp_path / "out", environment=machine.environment)
    assert done.returncode == 1
    assert "trtllm-build: is not on PATH" in done.stderr
    done = run("selftest", "--pair", tmp_path, environment=machine.environment)
    assert "has no tiny pair" in done.stderr
    assert done.returncode == 1


def test_the_part_for_nvidias_image_imports_what_it_has() -> None:
    """Beside itself and `trtspec.serving` it needs the standard library alone."""
    folder = Path(trtspec.measure.selftest.__path__[0])
    left, seen = ["engines"], set[str]()
    while left:
        name = left.pop()
        seen.add(name)
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("trtspec"):
                own = node.module.partition("trtspec.measure.selftest.")[2]
                assert own or node.module.startswith("trtspec.serving"), node.module
                left += [own] if own and own not in seen else []
    assert seen == {"engines", "names", "rules", "trial"}


def test_a_build_without_its_fp8_scales_is_left_out_and_is_no_pass(
    bindings: GpuMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "reference", "fp8")
    pair = tmp_path / "pair"
    pair.mkdir()
    for role in ("target", "draft"):
        (pair / role).symlink_to(TINY / role)
    done = run("selftest", "--pair", pair, "--output", tmp_path / "out", environment=bindings.environment)
    assert done.returncode == 3, done.stdout + done.stderr
    assert done.stdout.startswith("left out, though this machine could try it: fp8: ")
    assert "target-calibration.json is missing" in done.stdout


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the random pairs small."""
    for name, size in {"HIDDEN": 128, "INTERMEDIATE": 256, "HEADS": 2}.items():
        monkeypatch.setattr(random_pair, name, size)


@pytest.mark.parametrize(
    ("batch_ms", "said"),
    [(2.0, "a batch 1.50 times: they pay"), (6.0, "a batch 0.50 times: they do not pay")],
)
def test_plugins_of_low_latency_pay_where_a_batch_is_faster(batch_ms: float, said: str) -> None:
    usual = {"prefill_ms": 8.0, "batch_ms": 3.0}
    times = {"random-fp8": usual, LOW_LATENCY: {"prefill_ms": 8.0, "batch_ms": batch_ms}}
    (found,) = chain._compared(times)
    assert found.found == f"prefill 1.00 times as fast, {said}"
    assert not list(chain._compared({"random-fp8": usual}))


@pytest.mark.sweep
@pytest.mark.usefixtures("small")
def test_times_of_both_ways_to_multiply_in_fp8_are_compared(
    bindings: GpuMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "reference", "random-fp8", "random-fp8-low-latency")
    done = run("selftest", "--json", "--output", tmp_path / "out", environment=bindings.environment)
    found = json.loads(done.stdout)
    for build in ("random-fp8", "random-fp8-low-latency"):
        assert outcomes(found, build)["build"][0] == "ok"
        state, said = outcomes(found, build)["times of steps"]
        assert state == "ok"
        assert "32 x 5 rows" in said
    state, said = outcomes(found, "random-fp8-low-latency")["low-latency plugins"]
    assert state == "ok"
    assert said.endswith(("they pay", "they do not pay"))


@pytest.mark.usefixtures("small")
def test_every_build_of_a_self_test_plans_on_each_gpu(tmp_path: Path) -> None:
    """A recipe that is refused on a machine with a GPU would be found there first."""
    for gpu in ("h100", "h200", "l40s", "a100"):
        pairs = TrialPairs(TINY, gpus.GPUS[gpu], 2, "1.2.1")
        made = pairs.builds(tmp_path)
        assert len({build.name for build in made}) == len(made)
        for build in made:
            plan = make_plan(build.write(tmp_path), output=tmp_path / build.name)
            assert plan.resolved.target.checkpoint.fp8 is (build.numbers == "fp8")


def test_a_gpu_that_lets_no_second_process_in_stops_a_self_test_before_it_begins(
    bindings: GpuMachine, tmp_path: Path
) -> None:
    bindings.gpus(H100.replace("Default", "Exclusive_Process"))
    done = run("selftest", "--json", "--output", tmp_path / "out", environment=bindings.environment)
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert outcomes(found, "machine")["compute mode"][0] == "differs"
    assert {one["build"] for one in found["outcomes"]} == {"machine"}


def test_engines_with_open_reports_are_called_experimental_and_eagles_batch_is_small(tmp_path: Path) -> None:
    made = {build.name: build for build in TrialPairs(TINY, gpus.GPUS["h100"], 1, "1.2.1").builds(tmp_path)}
    for name, report, batch in (("eagle", "issue 4787", 8), ("lookahead", "issue 5451", 16)):
        del made[name].values["engine"]["max_batch_size"]
        plan = make_plan(made[name].write(tmp_path), output=tmp_path / "out").resolved
        (choice,) = (one for one in plan.choices if one.key == "speculation.method")
        assert choice.reason.startswith("experimental")
        assert report in choice.reason
        assert plan.target.options.max_batch_size == batch
