"""`fetch` against a Hub on the loopback interface."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from tests.fakes.hub import COMMIT, Hub
from trtspec.base.errors import TrtspecError
from trtspec.models import download


@pytest.fixture
def hub(llama_folder: Callable[..., Path]) -> Iterator[Hub]:
    folder = llama_folder("published", vocab_size=200_000)
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "modeling.py").write_text("raise SystemExit")
    (folder / "consolidated.safetensors").write_bytes(b"the same weights under other names")
    (folder / "original").mkdir()
    (folder / "original" / "params.json").write_text("{}")
    (folder / "adapter").mkdir()
    (folder / "adapter" / "config.json").write_text("{}")
    with Hub(folder) as server:
        yield server


@pytest.fixture
def run(hub: Hub, tmp_path: Path) -> Callable[..., tuple[str, list[str]]]:
    """Calls `fetch`, and returns the folder, or the error and its repair, and what was told of progress."""

    def call(
        model: str, revision: str = "", *, asks: bool = False, **environment: str
    ) -> tuple[str, list[str]]:
        told = list[str]()

        @contextmanager
        def watch(label: str, size: int | None) -> Iterator[Callable[..., None]]:
            told.append(f"watched {label} {size}")
            yield lambda amount, *_, **__: told.append(f"arrived {amount}")

        with hub.asked_here(tmp_path / "home", **environment):
            try:
                if asks:
                    download.check_access(model, None, 60)
                return str(download.fetch(model, revision or None, watch)), told
            except TrtspecError as error:
                return f"{error}; {error.repair}", told

    return call


@pytest.fixture
def fetch(run: Callable[..., tuple[str, list[str]]]) -> Callable[..., str]:
    """What `run` returns first: the folder, or the error and its repair."""
    return lambda *arguments, **options: run(*arguments, **options)[0]


def test_a_snapshot_has_what_a_build_needs_and_nothing_that_runs(hub: Hub, fetch: Callable[..., str]) -> None:
    folder = Path(fetch("owner/model"))
    assert folder.name == COMMIT
    names = {path.name for path in folder.iterdir()}
    left = {"pytorch_model.bin", "modeling.py", "consolidated.safetensors", "original", "adapter"}
    assert names == {path.name for path in hub.folder.iterdir()} - left
    assert all((folder / name).read_bytes() == (hub.folder / name).read_bytes() for name in names)
    assert fetch("owner/model", "v1") == str(folder)


def test_a_snapshot_that_is_here_is_found_without_its_weights_being_read(fetch: Callable[..., str]) -> None:
    folder = Path(fetch("owner/model"))
    (folder / "model.safetensors").resolve().write_bytes(b"no header")
    assert fetch("owner/model", COMMIT) == str(folder)


def test_a_snapshot_has_the_templates_that_are_in_a_folder(hub: Hub, fetch: Callable[..., str]) -> None:
    template = Path("additional_chat_templates", "tool_use.jinja")
    (hub.folder / template).parent.mkdir()
    (hub.folder / template).write_text("{{ tools }}")
    assert (Path(fetch("owner/model")) / template).read_text() == "{{ tools }}"


def test_shards_are_those_that_the_index_names(hub: Hub, fetch: Callable[..., str]) -> None:
    model = LlamaForCausalLM.from_pretrained(hub.folder)
    (hub.folder / "model.safetensors").unlink()
    model.save_pretrained(hub.folder, max_shard_size="8MB")
    folder = Path(fetch("owner/model"))
    shards = {path.name for path in hub.folder.glob("model-*.safetensors")}
    assert len(shards) > 2
    assert {path.name for path in folder.glob("*.safetensors")} == shards


def test_progress_is_told_in_bytes_of_the_weights(
    hub: Hub, run: Callable[..., tuple[str, list[str]]]
) -> None:
    size = (hub.folder / "model.safetensors").stat().st_size
    _, told = run("owner/model")
    assert told[0] == f"watched download owner/model {size}"
    assert sum(int(line.split()[1]) for line in told[1:] if line.startswith("arrived")) == size


def test_a_download_that_breaks_off_goes_on_where_it_stopped(hub: Hub, fetch: Callable[..., str]) -> None:
    hub.break_after = 15_000_000  # huggingface_hub writes chunks of 10 MiB: one is whole
    first = fetch("owner/model", COMMIT)
    assert first.startswith("owner/model: the download was interrupted")
    assert first.endswith("run the command again; it continues where it stopped")
    folder = Path(fetch("owner/model", COMMIT))
    weights = folder / "model.safetensors"
    assert weights.read_bytes() == (hub.folder / "model.safetensors").read_bytes()
    assert f"GET /owner/model/resolve/{COMMIT}/model.safetensors bytes={10 << 20}-" in hub.asked


def test_nothing_is_downloaded_that_the_disk_cannot_hold(hub: Hub, fetch: Callable[..., str]) -> None:
    hub.sizes["model.safetensors"] = 10**15
    said = fetch("owner/model")
    assert "owner/model needs 1 PB, but" in said
    assert "set HF_HOME" in said
    assert not [asked for asked in hub.asked if asked.endswith("model.safetensors")]


def test_weights_as_pickle_are_refused_before_they_are_downloaded(
    hub: Hub, fetch: Callable[..., str]
) -> None:
    (hub.folder / "model.safetensors").unlink()
    said = fetch("owner/model")
    assert said.startswith("owner/model: holds its weights as pickle (pytorch_model.bin)")
    assert "save_pretrained(new_folder)" in said
    (hub.folder / "pytorch_model.bin").unlink()
    assert fetch("owner/model").startswith("owner/model: has no model.safetensors")
    assert not [asked for asked in hub.asked if asked.endswith(".bin")]


def test_a_hub_repository_without_a_usable_model_is_refused_before_the_download(
    hub: Hub, fetch: Callable[..., str]
) -> None:
    """`check_access` comes before it in a plan; it does not take a missing config.json for a failure."""
    for name in ("model.safetensors", "pytorch_model.bin", "config.json", "consolidated.safetensors"):
        (hub.folder / name).unlink()
    (hub.folder / "model-Q4_K_M.gguf").write_bytes(b"GGUF")
    assert fetch("owner/model", asks=True).startswith(
        "owner/model: holds its weights as GGUF (model-Q4_K_M.gguf)"
    )
    (hub.folder / "adapter_model.safetensors").write_bytes(b"")
    (hub.folder / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/base"}')
    assert fetch("owner/model", asks=True).startswith(
        "owner/model: is a LoRA adapter of owner/base, not a model"
    )
    assert not [asked for asked in hub.asked if asked.endswith(("gguf", "adapter_model.safetensors"))]


def test_a_private_model_is_downloaded_with_the_token(fetch: Callable[..., str]) -> None:
    assert Path(fetch("owner/private", HF_TOKEN="right")).name == COMMIT


def test_a_pinned_commit_needs_no_network_once_it_is_whole(hub: Hub, fetch: Callable[..., str]) -> None:
    folder = fetch("owner/model", COMMIT)
    hub.asked.clear()
    assert fetch("owner/model", COMMIT) == folder
    assert hub.asked == []
    assert fetch("owner/model", COMMIT, HF_HUB_OFFLINE="1") == folder
    (Path(folder) / "model.safetensors").unlink()
    assert fetch("owner/model", COMMIT) == folder
    assert (Path(folder) / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("model", "revision", "environment", "said"),
    [
        (
            "owner/private",
            "",
            {},
            "neither a folder nor a model of the Hugging Face Hub that this machine may see",
        ),
        ("owner/private", "", {}, "for a private model: hf auth login, or set HF_TOKEN"),
        ("owner/private", "", {"HF_TOKEN": "other"}, "use a token that may read it"),
        ("owner/private", "", {"HF_TOKEN": "wrong"}, "does not accept the token of this machine"),
        ("owner/private", "", {"HF_TOKEN": "weak"}, "the token of this machine may not read this model"),
        ("owner/gated", "", {}, "accept its terms at https://huggingface.co/owner/gated"),
        ("owner/model", "v2", {}, "has no revision v2"),
        ("a/b/c", "", {}, "neither a folder nor the name of a model"),
        (
            "owner/model",
            "",
            {"HF_HUB_OFFLINE": "1"},
            "is not complete on this machine, and HF_HUB_OFFLINE is set",
        ),
        ("owner/model", COMMIT, {"HF_ENDPOINT": "http://127.0.0.1:9"}, "the Hub cannot be reached"),
    ],
)
def test_a_refusal_by_the_hub_is_one_clear_error(
    fetch: Callable[..., str], model: str, revision: str, environment: dict[str, str], said: str
) -> None:
    output = fetch(model, revision, **environment)
    assert output.startswith(f"{model}: ")
    assert said in output


def test_an_endpoint_that_is_not_the_hub(fetch: Callable[..., str]) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        said = fetch("owner/model", HF_ENDPOINT=f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert said.startswith("owner/model: the Hub answered with status 404; check the network")


def test_a_model_that_is_half_there_offline(hub: Hub, fetch: Callable[..., str]) -> None:
    folder = Path(fetch("owner/model"))
    assert fetch("owner/model", HF_HUB_OFFLINE="1") == str(folder)
    assert fetch("owner/model", HF_ENDPOINT="http://127.0.0.1:9") == str(folder)
    (folder / "model.safetensors").unlink()
    said = fetch("owner/model", HF_HUB_OFFLINE="1")
    assert said.startswith("owner/model: is not complete on this machine, and HF_HUB_OFFLINE is set")
    said = fetch("owner/model", HF_ENDPOINT="http://127.0.0.1:9")
    assert said.startswith("owner/model: is not complete on this machine, and the Hub cannot be reached")
