"""The launch of a server, read back as a command, says what was to be served."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.support.servers_of_others import SERVERS, server_named, write_launch
from trtspec.backends.importing import recipe_of
from trtspec.backends.shared.servers import LaunchInputs, LaunchModel
from trtspec.backends.table import loads
from trtspec.checkpoint.convert_options import ConvertOptions, Mapping
from trtspec.methods.method import Method
from trtspec.methods.table import DraftModelMethod, Ngram
from trtspec.pipeline.engine.engine_options import BuildOptions

PATH = Path("recipe.yaml")


def wanted(backend: str, method: Method) -> LaunchInputs:
    return LaunchInputs(
        release=server_named(backend).release_of(None),
        names=("served", "org/served"),
        target=LaunchModel("org/big", "0" * 40),
        draft=LaunchModel("org/small", "1" * 40) if method.has_model else None,
        method=method,
        num_draft_tokens=5,
        checkpoint=ConvertOptions("bfloat16", Mapping(4)),
        options=BuildOptions(12, 6143, 6144, 2048),
        enable_chunked_context=True,
        kv_bytes=None,
    )


@pytest.mark.parametrize(
    "method", [DraftModelMethod(), Ngram(kind="ngram", prompt_lookup_max=6)], ids=lambda m: m.kind
)
@pytest.mark.parametrize("backend", SERVERS)
def test_a_launch_is_read_back(backend: str, method: Method, tmp_path: Path) -> None:
    launch = server_named(backend).launch(wanted(backend, method))
    write_launch(launch, tmp_path)
    words = [word.replace("{build}", str(tmp_path)) for word in launch.arguments]
    for start in (launch.program, ("python", "-m", launch.module, *launch.module_words)):
        own = words[words[0] == "serve" and start == launch.program :]
        found = recipe_of(shlex.join([*start, *own]), PATH)
        recipe = loads(found.text.encode(), PATH).recipe
        assert (recipe.backend, recipe.target.model, recipe.target.dtype) == (backend, "org/big", "bfloat16")
        assert recipe.target.parallel.tensor == 4
        assert (recipe.draft.model if recipe.draft else None) == ("org/small" if method.has_model else None)
        assert (recipe.speculation.method.kind, recipe.speculation.max_draft_len) == (method.kind, 5)
        names = {"vllm": ("served", ["org/served"]), "sglang": ("served", [])}
        serving = (recipe.serving.model_name, recipe.serving.aliases)
        assert serving == names.get(backend, ("speculative_llm", []))
        engine = recipe.engine
        assert (engine.max_batch_size, engine.max_seq_len, engine.max_num_tokens) == (12, 6144, 2048)
        assert not [line for line in found.notes if "no such flag" in line.fate]
