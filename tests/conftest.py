"""Models: tiny Llamas as transformers saves them, with recipes for a pair, and published ones."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path, PurePath
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A shell starts what runs in its background with SIGINT ignored, and children inherit that: the tests
# that press Ctrl-C would wait in vain.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Threads of OpenMP wait for each other at every product: with fewer free cores than threads, which is usual
# where servers run beside the tests, that costs a hundred times what the second thread gains.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Those of the tests that have more sleep while they wait.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Helm and promtool are written in Go, and end before collecting garbage would pay: a quarter of their time.
os.environ.setdefault("GOGC", "off")

# How long an example takes says how busy the machine is, not whether it holds.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# What a test wrote need not outlive a loss of power: each file that appears whole would wait for the disk.
os.fsync = lambda fd: None

# What Python compiles is kept, of the tests too, where the environment says otherwise: each worker and each
# process that a test starts would compile the same files again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Of a package for formats of IRIs, which no schema here has, jsonschema would make 38 parsers at its import.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# Commands that name no server ask what deploy tells of: never one of the user, nor of another worker's tests.
_STATE = tempfile.TemporaryDirectory(prefix="trtspec-tests-")
os.environ["XDG_STATE_HOME"] = _STATE.name


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.support.workers import FilesAndServers

    return FilesAndServers(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Looks for no garbage while all tests are imported, nor afterwards among what stays to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the seconds of the slowest folders, those of all workers together."""
    seconds = defaultdict[str, float](float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[str(PurePath(report.nodeid.partition("::")[0]).parent)] += report.duration
    if len(seconds) > 1:
        terminalreporter.write_line("seconds of the slowest folders:")
        for spent, folder in sorted(zip(seconds.values(), seconds, strict=True), reverse=True)[:10]:
            terminalreporter.write_line(f"{spent:8.1f}  {folder}")


@pytest.fixture(scope="session")
def saved_llama(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Saves a random LlamaForCausalLM, and the same one only once; the folder is not to be changed."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    made: dict[str, Path] = {}

    def save(seed: int, dtype: torch.dtype, shard: str, config: dict[str, Any]) -> Path:
        key = repr((seed, dtype, shard, config))
        if key not in made:
            torch.manual_seed(seed)
            values = {
                "vocab_size": 264,
                "hidden_size": 32,
                "intermediate_size": 80,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "max_position_embeddings": 256,
                "bos_token_id": 0,
                "eos_token_id": 1,
                "initializer_range": 0.5,
                **config,
            }
            made[key] = tmp_path_factory.mktemp("llama")
            model = LlamaForCausalLM(LlamaConfig(**values)).to(dtype)  # type: ignore[arg-type]
            model.save_pretrained(made[key], max_shard_size=shard)
            _save_tokenizer(made[key], int(values["vocab_size"]))
        return made[key]

    return save


@pytest.fixture
def llama_folder(tmp_path: Path, saved_llama: Callable[..., Path]) -> Callable[..., Path]:
    """Writes a random LlamaForCausalLM to `tmp_path/<name>`; keywords replace values of its LlamaConfig."""
    import torch

    def write(
        name: str = "model", dtype: torch.dtype = torch.bfloat16, shard: str = "5GB", **config: Any
    ) -> Path:
        saved = saved_llama(len(name), dtype, shard, config)
        shutil.copytree(saved, tmp_path / name, dirs_exist_ok=True)
        return tmp_path / name

    return write


def _save_tokenizer(folder: Path, vocab_size: int) -> None:
    """Saves a tokenizer of bytes; a target of toy heads, of 24 tokens, has one of as many."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[: vocab_size - 2 if vocab_size < 64 else None]
    words = {"<s>": 0, "</s>": 1, **{letter: 2 + i for i, letter in enumerate(letters)}}
    tokenizer = Tokenizer(models.BPE(words, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')


@pytest.fixture
def pair_recipe(tmp_path: Path, llama_folder: Callable[..., Path]) -> Path:
    """A recipe of the torch backend beside its two models, `target` and `draft`."""
    llama_folder("target", hidden_size=64)
    llama_folder("draft", num_hidden_layers=1, tie_word_embeddings=True)
    recipe = tmp_path / "pair.yaml"
    recipe.write_text(
        "name: pair\n"
        "target: {model: ./target}\n"
        "draft: {model: ./draft, dtype: float32}\n"
        "engine: {backend: torch}\n"
        "hardware: {gpu: none}\n"
    )
    return recipe


@pytest.fixture
def h200_recipe(pair_recipe: Path) -> Path:
    """The same recipe for TensorRT-LLM on one H200."""
    text = pair_recipe.read_text()
    for old, new in (
        ("backend: torch", "release: 1.2.1"),
        ("gpu: none", "gpu: h200"),
        ("float32", "float16"),
    ):
        text = text.replace(old, new)
    pair_recipe.write_text(text)
    return pair_recipe


@pytest.fixture(scope="session")
def published_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hub cache with the models of the recipes, one for all processes of `pytest -n`; not to be changed."""
    from tests.fakes.published import write_cache

    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "hub"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = folder.with_suffix(".unfinished")
            write_cache(unfinished)
            unfinished.rename(folder)
    return folder


@pytest.fixture
def without_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine on which the Hub is not asked."""
    from huggingface_hub.utils._http import reset_sessions

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    # The Hub's client keeps a session for each thread, which refuses to ask for as long as it lives.
    reset_sessions()
    yield
    reset_sessions()


@pytest.fixture(scope="session")
def tokens_of() -> Callable[..., Any]:
    """What `read_tokenizer` makes of the bytes of a file, the same ones once: the half of a plan's time."""
    from trtspec.models import tokenizer

    return cache(tokenizer._tokens_of)


@pytest.fixture
def hub_cache(
    published_models: Path,
    tokens_of: Callable[..., Any],
    without_network: None,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A machine without network that has the models of the recipes in its Hub cache, and no TensorRT-LLM."""
    monkeypatch.setattr("trtspec.models.tokenizer._tokens_of", tokens_of)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(published_models))
    monkeypatch.setenv("PATH", str(published_models))
    return published_models
