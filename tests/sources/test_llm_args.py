"""What is written for `trtllm-serve`, read by NVIDIA's own command and by its `TorchLlmArgs`.

Written it is for releases 1.0 to 1.2. Sources of 1.3 read it too: there `speculative_model_dir` is another
name of `speculative_model`, and `Eagle` one of `Eagle3` for the PyTorch backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.heads import TARGET, write_head
from tests.fakes.mtp import DEEPSEEK, make_mtp
from tests.sources.checkout import MARKS, ROOT, ask
from trtspec.backends.tensorrt_llm_pytorch.backend import BACKEND, FILE
from trtspec.pipeline.build.plan import make_plan

pytestmark = MARKS

RELEASES = [release.version for release in BACKEND.releases]


def command(recipe: Path) -> list[str]:
    """The command line of a recipe, whose file is written into a folder of its own."""
    launch = make_plan(recipe, backend=BACKEND.name, output=recipe.parent / "build").resolved.launch
    assert launch
    folder = recipe.with_suffix("")
    folder.mkdir()
    for name, text in launch.files.items():
        (folder / name).write_text(text)
    return [word.replace("{build}", str(folder)) for word in launch.arguments]


def written(folder: Path, name: str, **sections: str) -> list[str]:
    values = {
        "name": name,
        "target": "{model: ./target, dtype: bfloat16}",
        "hardware": "{gpu: h100}",
        **sections,
    }
    recipe = folder / f"{name}.yaml"
    recipe.write_text("".join(f"{key}: {value}\n" for key, value in values.items()))
    return command(recipe)


def differing(found: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, Any]:
    """What was read otherwise than expected; a section is compared key by key."""
    assert "error" not in found, found["error"]
    keys = {key: found[key] for key in expected if not isinstance(expected[key], dict)}
    inner = {
        key: {name: found[key].get(name) for name in expected[key]}
        for key in expected
        if isinstance(expected[key], dict)
    }
    return {key: value for key, value in (keys | inner).items() if value != expected[key]}


def test_each_method(llama_folder: Callable[..., Path], tmp_path: Path) -> None:
    llama_folder("target", **TARGET)
    llama_folder("draft", **TARGET)
    write_head(tmp_path / "head", "speculators")
    make_mtp(llama_folder("deepseek"), "model.layers.2.eh_proj.weight", **DEEPSEEK)
    ngram = "{method: {kind: ngram, prompt_lookup_max: 5}, max_draft_len: 6}"
    eagle = "{method: eagle3, num_draft_tokens: 5}"
    mtp = "{method: mtp, num_draft_tokens: 2}"
    found = ask(
        "ask_llm_args",
        [
            written(tmp_path, "lookup", speculation=ngram),
            written(tmp_path, "pair", draft="{model: ./draft}", speculation="{num_draft_tokens: 3}"),
            written(tmp_path, "of_eagle", draft="{model: ./head}", speculation=eagle),
            written(tmp_path, "own", target="{model: ./deepseek, dtype: bfloat16}", speculation=mtp),
        ],
    )
    expected = [
        {
            "class": "NGramDecodingConfig", "max_draft_len": 6, "max_matching_ngram_size": 5,
            "is_keep_all": True, "is_use_oldest": False, "is_public_pool": False,
        },
        {
            "class": "DraftTargetDecodingConfig", "max_draft_len": 3,
            "speculative_model": str(tmp_path / "draft"),
        },
        {
            "class": "Eagle3DecodingConfig", "max_draft_len": 5, "speculative_model": str(tmp_path / "head"),
            "eagle3_one_model": True, "eagle_choices": None,
        },
        {
            "class": "MTPDecodingConfig", "max_draft_len": 2, "num_nextn_predict_layers": 2,
            "mtp_eagle_one_model": True,
        },
    ]  # fmt: skip
    overlapped = [False, False, True, True]
    for read, speculation, overlaps in zip(found, expected, overlapped, strict=True):
        wanted = {"speculation": speculation, "disable_overlap_scheduler": not overlaps}
        assert not differing(read, wanted)


def test_a_schedule_is_the_k_of_every_number_of_requests(
    llama_folder: Callable[..., Path], tmp_path: Path
) -> None:
    """`TorchLlmArgs` takes it; in 1.3 each number is the most requests, in 1.2 the least (#10860)."""
    llama_folder("target", **TARGET)
    llama_folder("draft", **TARGET)
    schedule = {1: 4, 5: 2, 9: 0}
    (found,) = ask(
        "ask_llm_args",
        [written(tmp_path, "pair", draft="{model: ./draft}", speculation=f"{{schedule: {schedule}}}")],
    )
    written_keys = {str(least): length for least, length in schedule.items()}  # As JSON has them.
    wanted = {"speculation": {"max_draft_len": 4, "draft_len_schedule": written_keys}}
    assert not differing(found, wanted)


def test_sizes_and_options_of_each_release(llama_folder: Callable[..., Path], tmp_path: Path) -> None:
    llama_folder("target")
    sizes = "max_batch_size: 64, max_seq_len: 128, max_num_tokens: 4096, enable_chunked_context: false"
    commands = [
        written(
            tmp_path,
            f"of-{release}",
            target="{model: ./target, dtype: float16, parallel: {tensor: 2}}",
            speculation="{method: ngram}",
            engine=f"{{release: {release}, {sizes}}}",
            hardware="{gpu: h100, count: 2}",
        )
        for release in RELEASES
    ]
    expected = {
        "model": str(tmp_path / "target"), "backend": "pytorch", "revision": None, "dtype": "float16",
        "tensor_parallel_size": 2, "pipeline_parallel_size": 1, "max_batch_size": 64, "max_seq_len": 128,
        "max_num_tokens": 4096, "enable_chunked_prefill": False, "kv_cache_dtype": "auto",
    }  # fmt: skip
    for release, found in zip(RELEASES, ask("ask_llm_args", commands), strict=True):
        assert not differing(found, {**expected, "return_perf_metrics": release != "1.0.0"})


@pytest.mark.usefixtures("hub_cache")
def test_a_model_in_fp8_of_the_hub(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text((ROOT / "recipes/llama-3.3-70b-h200-ngram.yaml").read_text())
    (found,) = ask("ask_llm_args", [command(recipe)])
    expected = {
        "model": "nvidia/Llama-3.3-70B-Instruct-FP8", "dtype": "bfloat16", "kv_cache_dtype": "fp8",
        "enable_chunked_prefill": True, "max_seq_len": 16384,
    }  # fmt: skip
    assert not differing(found, expected)
    assert len(found["revision"]) == 40


def test_nvidias_parser_refuses_keys_and_options_that_it_does_not_know(
    llama_folder: Callable[..., Path], tmp_path: Path
) -> None:
    llama_folder("target")
    fine = written(tmp_path, "fine", speculation="{method: ngram}")
    file = tmp_path / "fine" / FILE
    wrong = []
    for number, (old, new) in enumerate((("dtype:", "dtypes:"), ("is_use_oldest:", "is_use_newest:"))):
        other = tmp_path / f"{number}.yaml"
        other.write_text(file.read_text().replace(old, new))
        wrong.append([word.replace(str(file), str(other)) for word in fine])
    first, top, inner, option = ask("ask_llm_args", [fine, *wrong, [*fine, "--max_draft_len", "3"]])
    assert "error" not in first
    assert "dtypes\n  Extra inputs are not permitted" in top["error"]
    assert "is_use_newest\n  Extra inputs are not permitted" in inner["error"]
    assert "No such option '--max_draft_len'" in option["error"]
