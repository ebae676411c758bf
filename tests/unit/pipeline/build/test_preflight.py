"""Builds that cannot succeed say so before a byte of weights is read.

The pair is that of a recipe that ships, with 9 GB and 2.5 GB of weights. The kernel counts what the process
reads of files: configurations, headers and tokenizers are some megabytes.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from huggingface_hub.utils._http import reset_sessions

from tests.fakes.gpu_machine import H100, GpuMachine
from tests.fakes.hub import Hub
from tests.support.command_line import trtspec
from trtspec.base.errors import UnavailableError
from trtspec.base.progress import no_progress
from trtspec.base.roles import Role
from trtspec.models.download import headers_of
from trtspec.pipeline.build.plan import PlanRequest, look_ahead
from trtspec.pipeline.run.records import FileDigests
from trtspec.pipeline.steps.steps import Stage
from trtspec.recipe.releases import release_of

SHIPPED = Path(__file__).parents[4] / "recipes/llama-3.1-8b-h100.yaml"
IMAGE = release_of(None).image
MOST = 100 << 20
TARGET = "nvidia/Llama-3.1-8B-Instruct-FP8"
DRAFT = "meta-llama/Llama-3.2-1B-Instruct"
UNQUANTIZED = "  quantization: {weights: fp8, kv_cache: fp8}\n"


class Attempt:
    """A machine with one H100, the recipe in a folder of its own, and the options of a build."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.machine, self.patch = GpuMachine(folder / "machine"), monkeypatch
        self.options: tuple[str, ...] = ()
        self.recipe = folder / "recipe.yaml"
        self.recipe.write_text(SHIPPED.read_text())
        self.machine.gpus(H100)

    def with_tools(self) -> None:
        self.machine.tensorrt_llm()

    def in_container(self) -> None:
        self.options = ("--container",)

    def writes(self, old: str, new: str) -> None:
        text = self.recipe.read_text()
        assert old in text
        self.recipe.write_text(text.replace(old, new))

    def run(self) -> CompletedProcess[str]:
        command = ("build", "recipe.yaml", *self.options)
        return trtspec(*command, folder=self.recipe.parent, environment=self.machine.environment)


def no_tool(attempt: Attempt) -> str:
    return "trtllm-build: is not on PATH"


def another_release(attempt: Attempt) -> str:
    attempt.machine.tensorrt_llm("1.1.0")
    return "is of TensorRT-LLM 1.1.0, but the recipe's release is 1.2.1"


def no_gpu(attempt: Attempt) -> str:
    attempt.with_tools()
    attempt.machine.gpus()
    return "GPU: no GPU is visible here; the recipe is for NVIDIA H100"


def another_gpu(attempt: Attempt) -> str:
    attempt.with_tools()
    attempt.machine.gpus("NVIDIA L40S, 8.9, 590, Default, Disabled, 46068, 46000")
    return "NVIDIA L40S: has SM 89, but the recipe's h100 has SM 90"


def a_divided_gpu(attempt: Attempt) -> str:
    attempt.with_tools()
    attempt.machine.gpus(H100.replace("Disabled", "Enabled"))
    return "is divided (MIG)"


def no_docker(attempt: Attempt) -> str:
    attempt.in_container()
    attempt.machine.environment["PATH"] = str(attempt.machine.folder / "bin")
    return "docker: is not on PATH"


def a_daemon_that_is_silent(attempt: Attempt) -> str:
    attempt.in_container()
    attempt.machine.containers(IMAGE).info("", "silent")
    return "docker: its daemon does not answer"


def containers_without_gpus(attempt: Attempt) -> str:
    attempt.in_container()
    attempt.machine.containers(IMAGE).info('{"ServerVersion": "29.0.1", "Runtimes": {"runc": {}}}')
    return "docker: containers get no GPUs here"


def an_image_that_nobody_has(attempt: Attempt) -> str:
    attempt.in_container()
    (attempt.machine.containers().folder / "unknown_image").touch()
    return f"{IMAGE}: cannot be pulled"


def a_full_disk(attempt: Attempt) -> str:
    attempt.with_tools()
    free = shutil.disk_usage("/")._replace(free=10**10)
    attempt.patch.setattr(shutil, "disk_usage", lambda _: free)
    return "GB, but 10 GB are free in "


def a_gated_draft(attempt: Attempt) -> str:
    attempt.with_tools()
    attempt.writes(DRAFT, "owner/gated")
    attempt.patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return "owner/gated: is a gated model, and this machine has no access to it"


def a_precision_that_the_checkpoint_has_not(attempt: Attempt) -> str:
    attempt.with_tools()
    attempt.writes(UNQUANTIZED, "")
    return "target.quantization.weights: the model is FP8 already"


def a_draft_of_another_family(attempt: Attempt) -> str:
    attempt.with_tools()
    attempt.writes(DRAFT, "Qwen/Qwen2.5-0.5B-Instruct")
    return "the models do not fit: token ids: "


def a_file_in_the_way(attempt: Attempt) -> str:
    attempt.with_tools()
    (attempt.recipe.parent / "build/llama-3.1-8b-h100/target").mkdir(parents=True)
    return "holds target, which trtspec did not make"


REASONS: tuple[Callable[[Attempt], str], ...] = (
    no_tool,
    another_release,
    no_gpu,
    another_gpu,
    a_divided_gpu,
    no_docker,
    a_daemon_that_is_silent,
    containers_without_gpus,
    an_image_that_nobody_has,
    a_full_disk,
    a_gated_draft,
    a_precision_that_the_checkpoint_has_not,
    a_draft_of_another_family,
    a_file_in_the_way,
)


@pytest.fixture
def attempt(hub_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attempt]:
    with Hub(tmp_path) as hub:
        url = f"http://127.0.0.1:{hub.server_port}"
        template = "huggingface_hub.file_download.HUGGINGFACE_CO_URL_TEMPLATE"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        monkeypatch.setattr(template, f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}")
        reset_sessions()  # One that an offline test has made would stay offline.
        attempt = Attempt(tmp_path, monkeypatch)
        attempt.machine.environment |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        yield attempt


@contextmanager
def reading_at_most(size: int) -> Iterator[None]:
    """Fails if the process, and those that it waits for, read more bytes of files in this block."""

    def read() -> int:
        found = re.search(r"^rchar: (\d+)$", Path("/proc/self/io").read_text(), re.MULTILINE)
        assert found
        return int(found[1])

    before = read()
    yield
    assert read() - before < size


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: reason.__name__)
def test_a_build_that_cannot_succeed_has_read_no_weights(
    reason: Callable[[Attempt], str], attempt: Attempt
) -> None:
    expected = reason(attempt)
    with reading_at_most(MOST):
        result = attempt.run()
    assert result.returncode == 1, result.stdout
    assert "error: " in result.stderr
    assert expected in result.stderr
    assert not list(attempt.recipe.parent.rglob("*.safetensors"))
    assert not list(attempt.recipe.parent.rglob("digests.json"))


@pytest.mark.parametrize(
    ("request_", "free_gb", "fits"),
    [
        (PlanRequest(), 32, False),
        (PlanRequest(), 36, True),
        (PlanRequest(only=Role.DRAFT), 6, False),
        (PlanRequest(only=Role.DRAFT), 9, True),
        (PlanRequest(backend="vllm"), 1, True),
    ],
)
def test_a_disk_needs_room_for_the_weights_that_are_read(
    attempt: Attempt, hub_cache: Path, request_: PlanRequest, free_gb: int, fits: bool
) -> None:
    """This machine has only the headers of both models, of 9 GB and 2.5 GB; an engine is of its
    checkpoint's size."""
    attempt.with_tools()
    for name, value in attempt.machine.environment.items():
        attempt.patch.setenv(name, value)
    cache = attempt.recipe.parent / "hub"
    attempt.patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    attempt.patch.setenv("TRTSPEC_CACHE", str(attempt.recipe.parent / "trtspec"))
    for name in (TARGET, DRAFT):
        (whole,) = hub_cache.glob(f"models--{name.replace('/', '--')}/snapshots/*")
        snapshot = cache / whole.relative_to(hub_cache)
        shutil.copytree(whole.parent.parent / "refs", snapshot.parent.parent / "refs")
        for folder in (snapshot, headers_of(snapshot)):
            folder.mkdir(parents=True)
            for file in whole.iterdir():
                if folder != snapshot or file.suffix != ".safetensors":
                    (folder / file.name).symlink_to(file)
        (headers_of(snapshot) / ".sha256.json").write_text("{}")
    free = shutil.disk_usage("/")._replace(free=free_gb * 10**9)
    attempt.patch.setattr(shutil, "disk_usage", lambda _: free)
    with nullcontext() if fits else pytest.raises(UnavailableError, match="are free in"):
        look_ahead(attempt.recipe, request_, Stage.BUILD, no_progress, pulls=False)


def test_the_kernel_would_have_counted_them(hub_cache: Path, tmp_path: Path) -> None:
    (weights,) = hub_cache.glob(f"models--{DRAFT.replace('/', '--')}/snapshots/*/model.safetensors")
    assert weights.stat().st_size > 10 * MOST
    part = tmp_path / "part"
    with part.open("wb") as stream:
        stream.truncate(MOST)
    with pytest.raises(AssertionError), reading_at_most(MOST):
        FileDigests(tmp_path / "digests.json", no_progress).of(part)


def test_a_bar_says_which_model_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtspec.pipeline.run.records.LARGE", 1000)
    labels = list[tuple[str, int | None]]()
    shards = [tmp_path / f"model-{number}.safetensors" for number in (1, 2)]
    for number, shard in enumerate(shards):
        shard.write_bytes(bytes([number]) * 500)

    @contextmanager
    def watch(label: str, size: int | None) -> Iterator[Callable[..., None]]:
        labels.append((label, size))
        yield lambda *_: None

    digests = FileDigests(tmp_path / "digests.json", watch)
    found = digests.of_all(shards, TARGET)
    assert labels == [(f"read {TARGET}", 1000)]
    assert digests.of_all(shards, TARGET) == found
    assert len(labels) == 1
