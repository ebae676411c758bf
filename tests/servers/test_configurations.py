"""What is written for vLLM and SGLang, judged by their own parsers and configuration classes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from tests.fakes.heads import TARGET, write_head
from tests.fakes.mtp import make_mtp
from tests.servers.judges import ROOT, ask
from trtspec.backends.launch import ServerLaunch
from trtspec.client.finding import FoundServer
from trtspec.client.http import Streams
from trtspec.client.openai import OpenAiEndpoint
from trtspec.measure.verify.opening import OpenAiSide
from trtspec.measure.verify.sides import VerifyRequest

pytestmark = pytest.mark.vllm

TINY = ROOT / "recipes/tiny"
NGRAM = "{method: {kind: ngram, prompt_lookup_min: 3, prompt_lookup_max: 7}, max_draft_len: 5}"
FP8 = f"{{model: {TINY}/target, quantization: {{weights: fp8, kv_cache: fp8}}}}"


def test_heads(
    launched: Callable[..., ServerLaunch], llama_folder: Callable[..., Path], tmp_path: Path
) -> None:
    target, forms = llama_folder("target", **TARGET), ("speculators", "specforge")
    heads = [str(write_head(tmp_path / form, form)) for form in forms]

    def arguments(backend: str, head: str) -> list[str]:
        launch = launched(
            backend,
            target=f"{{model: {target}}}",
            draft=f"{{model: {head}}}",
            speculation="{method: eagle3, num_draft_tokens: 3}",
            engine=f"{{backend: {backend}}}",
        )
        return list(launch.arguments)

    of_vllm = ask("ask_vllm.py", [{"arguments": arguments("vllm", head), "whole": True} for head in heads])
    keys = ("method", "num_speculative_tokens", "model")
    assert [[found[key] for key in keys] for found in of_vllm] == [["eagle3", 3, head] for head in heads]
    of_sglang = ask("ask_sglang.py", [arguments("sglang", head) for head in heads])
    for found, head in zip(of_sglang, heads, strict=True):
        assert found["speculative_algorithm"] == "EAGLE3"
        assert (found["speculative_num_steps"], found["speculative_num_draft_tokens"]) == (3, 4)
        assert found["speculative_draft_model_path"] == head


GLM = {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "num_nextn_predict_layers": 1}
OWN_KEYS = ("speculative_algorithm", "speculative_num_steps", "speculative_num_draft_tokens")


def test_layers_of_the_target(
    launched: Callable[..., ServerLaunch], llama_folder: Callable[..., Path]
) -> None:
    target = make_mtp(llama_folder("target"), "model.layers.2.eh_proj.weight", **GLM)

    def arguments(backend: str) -> list[str]:
        launch = launched(
            backend,
            target=f"{{model: {target}}}",
            draft=None,
            speculation="{method: mtp, num_draft_tokens: 2}",
            engine=f"{{backend: {backend}}}",
        )
        return list(launch.arguments)

    (own,) = ask("ask_vllm.py", [{"arguments": arguments("vllm"), "whole": True}])
    assert [own[key] for key in ("method", "num_speculative_tokens", "model")] == ["mtp", 2, str(target)]
    assert own["draft_architecture"] == "Glm4MoeMTPModel"
    (found,) = ask("ask_sglang.py", [arguments("sglang")])
    assert found["speculative_algorithm"] in ("EAGLE", "NEXTN"), "one is the other's name"
    assert [found[key] for key in OWN_KEYS[1:]] == [2, 3]


def test_turns_through_the_targets_layers(
    launched: Callable[..., ServerLaunch], llama_folder: Callable[..., Path]
) -> None:
    """vLLM refuses what `check` refuses: a draft that is no whole number of turns."""
    two = {**GLM, "num_nextn_predict_layers": 2}
    target = make_mtp(llama_folder("target"), "model.layers.2.eh_proj.weight", **two)
    fitting = launched(
        "vllm",
        target=f"{{model: {target}}}",
        draft=None,
        speculation="{method: mtp, num_draft_tokens: 4}",
        engine="{backend: vllm}",
    )
    wrong = [*fitting.arguments[:-1], json.dumps({"method": "mtp", "num_speculative_tokens": 3})]
    asked = [{"arguments": list(each), "whole": True} for each in (fitting.arguments, wrong)]
    found, refused = ask("ask_vllm.py", asked)
    assert found["num_speculative_tokens"] == 4
    assert "must be divisible by n_predict=2" in refused["error"]


@pytest.mark.parametrize(
    ("name", "method", "length"),
    [("dflash", "dflash", 15), ("dspark", "dspark", 7), ("speculators_dflash", "dflash", 7)],
)
def test_vllm_and_sglang_parse_our_flags_for_heads_that_fill_a_block(
    launched: Callable[..., ServerLaunch],
    llama_folder: Callable[..., Path],
    tmp_path: Path,
    name: str,
    method: str,
    length: int,
) -> None:
    target, head = llama_folder("target", **TARGET), write_head(tmp_path / "head", name)

    def arguments(backend: str) -> list[str]:
        launch = launched(
            backend,
            target=f"{{model: {target}}}",
            draft=f"{{model: {head}}}",
            speculation=f"{{method: {method}}}",
            engine=f"{{backend: {backend}}}",
        )
        return list(launch.arguments)

    (found,) = ask("ask_vllm.py", [{"arguments": arguments("vllm"), "whole": True}])
    keys = ("method", "num_speculative_tokens", "model", "parallel_drafting")
    assert [found[key] for key in keys] == [method, length, str(head), True]
    (parsed,) = ask("ask_sglang.py", [arguments("sglang")])
    assert parsed["speculative_algorithm"] == method.upper()
    assert parsed["speculative_num_draft_tokens"] == length + 1
    assert parsed["speculative_draft_model_path"] == str(head)


def test_vllm_parses_our_flags_for_a_parallel_draft_model_and_lookup_on_the_gpu(
    launched: Callable[..., ServerLaunch], llama_folder: Callable[..., Path]
) -> None:
    target, draft = llama_folder("target"), make_mtp(llama_folder("draft"), pard_token=255)
    models = {"target": f"{{model: {target}}}", "draft": f"{{model: {draft}}}", "engine": "{backend: vllm}"}
    method = "{kind: draft_model, parallel_drafting: true}"
    pair = launched("vllm", **models, speculation=f"{{method: {method}, num_draft_tokens: 4}}")
    lookup = launched(
        "vllm",
        **{**models, "draft": None},
        speculation="{method: ngram_gpu, num_draft_tokens: 4}",
        hardware="{gpu: h100}",
    )
    of_pair, of_lookup = ask(
        "ask_vllm.py", [{"arguments": list(each.arguments), "whole": True} for each in (pair, lookup)]
    )
    assert (of_pair["method"], of_pair["parallel_drafting"]) == ("draft_model", True)
    assert (of_lookup["method"], of_lookup["prompt_lookup"]) == ("ngram_gpu", [2, 8])


SCHEDULE = {1: 4, 5: 2, 9: 0}


def test_a_schedule_is_the_k_of_every_number_of_requests_at_vllm_and_at_sglang(
    launched: Callable[..., ServerLaunch], llama_folder: Callable[..., Path], tmp_path: Path
) -> None:
    """From one recipe; SGLang follows one only with EAGLE's heads."""
    meant = [[k for least, k in SCHEDULE.items() if least <= running][-1] for running in range(1, 17)]
    of_vllm = launched("vllm", speculation=f"{{schedule: {SCHEDULE}}}")
    parallel = [*of_vllm.arguments, "--data-parallel-size", "2"]
    asked = [{"arguments": list(words), "whole": True} for words in (of_vllm.arguments, parallel)]
    found, ignored = ask("ask_vllm.py", asked)
    assert (found["num_speculative_tokens"], found["by_requests"]) == (4, meant)
    assert ignored.get("by_requests") == [], "a recipe with both is refused"

    target = llama_folder("target", **TARGET)
    head = write_head(tmp_path / "head", "specforge")
    of_sglang = launched(
        "sglang",
        target=f"{{model: {target}}}",
        draft=f"{{model: {head}}}",
        speculation=f"{{method: eagle3, schedule: {SCHEDULE}}}",
        engine="{backend: sglang}",
    )
    for name, text in of_sglang.files.items():
        (tmp_path / name).write_text(text)
    words = [word.replace("{build}", str(tmp_path)) for word in of_sglang.arguments]
    (parsed,) = ask("ask_sglang.py", [words])
    assert parsed.get("adaptive_flaw", parsed) is None
    assert parsed["adaptive_steps"] == sorted(set(SCHEDULE.values()))
    assert parsed["speculative_num_steps"] == 4


SCALINGS: tuple[dict[str, object], ...] = (
    {},
    {"model_max_length": 4096},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024}},
    {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}},
    {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        }
    },
)


TOLD: tuple[dict[str, object], ...] = (
    {"max_position_embeddings": 8192},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
    {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}},
)
"""Keys of `--hf-overrides`."""


def test_the_longest_text_is_vllms_own(
    launched: Callable[..., ServerLaunch], llama_folder: Callable[..., Path]
) -> None:
    asked, ours = [], []
    cases = [*((keys, None) for keys in SCALINGS), *(({}, keys) for keys in TOLD)]
    for number, (keys, told) in enumerate(cases):
        target = llama_folder(f"target{number}", **{**TARGET, "max_position_embeddings": 2048, **keys})
        extra = json.dumps(["--hf-overrides", json.dumps(told)] if told else [])
        engine = f"{{backend: vllm, extra_args: {extra}}}"
        found = launched("vllm", target=f"{{model: {target}}}", draft=None, speculation=NGRAM, engine=engine)
        words = list(found.arguments)
        place = words.index("--max-model-len")
        ours.append(int(words[place + 1]))
        asked.append({"arguments": [*words[:place], *words[place + 2 :]], "whole": True})
    assert [found.get("max_model_len", found) for found in ask("ask_vllm.py", asked)] == ours


def test_sglang_tells_token_ids() -> None:
    """As `trtspec verify` asks it: of a greedy text, and of a margin by a bias."""
    streams = cast(Streams, None)
    endpoint = OpenAiEndpoint("http://host/v1", "tiny", streams, chat=False, owner="sglang")
    subject = OpenAiSide(FoundServer(endpoint, None, "sglang"), streams, (0,))
    bodies = [
        subject._body(VerifyRequest("def", 8, None)),
        subject._body(VerifyRequest((1, 2), 1, None, bias={7: 0.5}, ignores_end=True)),
    ]
    text, biased = ask("ask_completions.py", bodies)
    assert (text["unknown"], text["tells_ids"], text["temperature"]) == ([], True, 0)
    assert (biased["unknown"], biased["prompt"], biased["logit_bias"]) == ([], [1, 2], {"7": 0.5})
    assert biased["ignore_eos"]


def test_vllm_parses_our_flags_into_the_configuration_that_was_planned(
    launched: Callable[..., ServerLaunch],
) -> None:
    names = "{model_name: org/tiny, aliases: [tiny, demo]}"
    pair = launched("vllm", speculation="{num_draft_tokens: 3}", serving=names)
    lookup = launched("vllm", draft=None, speculation=NGRAM)
    wide = FP8.replace("}}", "}, parallel: {tensor: 2}}")
    precise = launched("vllm", draft=None, speculation=NGRAM, target=wide, hardware="{gpu: h100, count: 2}")
    wrong = list(pair.arguments)
    wrong[-1] = json.dumps({**json.loads(wrong[-1]), "max_draft_len": 3})
    asked = [(pair.arguments, True), (lookup.arguments, True), (precise.arguments, False), (wrong, True)]
    drafted, looked_up, quantized, refused = ask(
        "ask_vllm.py", [{"arguments": list(arguments), "whole": whole} for arguments, whole in asked]
    )

    assert drafted == {
        "served_model_name": "org/tiny",
        "names": ["org/tiny", "tiny", "demo"],
        "dtype": "torch.bfloat16",
        "max_model_len": 1024,
        "max_num_seqs": 16,
        "kv_cache_memory_bytes": int(pair.arguments[pair.arguments.index("--kv-cache-memory-bytes") + 1]),
        "method": "draft_model",
        "num_speculative_tokens": 3,
        "model": str(TINY / "draft"),
        "prompt_lookup": [0, 0],
        "suffix_decoding": {
            "max_tree_depth": 24,
            "max_cached_requests": 10000,
            "max_spec_factor": 1.0,
            "min_token_prob": 0.1,
        },
        "by_requests": [],
        "use_heterogeneous_vocab": False,
        "parallel_drafting": False,
        "draft_architecture": "LlamaForCausalLM",
    }
    assert (looked_up["method"], looked_up["num_speculative_tokens"]) == ("ngram", 5)
    assert looked_up["prompt_lookup"] == [3, 7]
    assert quantized == {
        "model": str(TINY / "target"),
        "quantization": "fp8",
        "kv_cache_dtype": "fp8",
        "tensor_parallel_size": 2,
        "enable_chunked_prefill": None,
    }
    assert "max_draft_len" in refused["error"]


def test_a_tree_of_drafts(launched: Callable[..., ServerLaunch]) -> None:
    """The flags of a tree stand after those of a chain, and SGLang takes the last."""
    words = "[--speculative-eagle-topk, '4', --speculative-num-draft-tokens, '8']"
    engine = f"{{backend: sglang, extra_args: {words}}}"
    launch = launched("sglang", target=FP8, speculation="{num_draft_tokens: 3}", engine=engine)
    (found,) = ask("ask_sglang.py", [list(launch.arguments)])
    shape = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
    assert [found[name] for name in shape] == [3, 4, 8]


def test_suffix_decoding_and_another_vocabulary(
    launched: Callable[..., ServerLaunch], llama_folder: Callable[..., Path]
) -> None:
    """What the golden launches have of them is what vLLM's `SpeculativeConfig` makes of the options."""
    options = {"max_tree_depth": 32, "max_cached_requests": 0, "max_spec_factor": 2.5, "min_token_prob": 0.2}
    method = ", ".join(f"suffix_decoding_{name}: {value}" for name, value in options.items())
    suffix = launched(
        "vllm", draft=None, speculation=f"{{method: {{kind: suffix, {method}}}, num_draft_tokens: 8}}"
    )
    target, draft = llama_folder("target"), llama_folder("draft", vocab_size=300, num_hidden_layers=1)
    models = {"target": f"{{model: {target}}}", "draft": f"{{model: {draft}}}"}
    sections = {**models, "engine": "{backend: vllm}"}
    translated = launched(
        "vllm", **sections, speculation="{method: {kind: draft_model, use_heterogeneous_vocab: true}}"
    )
    unequal = list(translated.arguments)  # A plan would refuse such a pair before vLLM does.
    at = unequal.index("--speculative-config") + 1
    unequal[at] = json.dumps({**json.loads(unequal[at]), "use_heterogeneous_vocab": False})
    looked_up, in_text, refused = ask(
        "ask_vllm.py",
        [
            {"arguments": list(arguments), "whole": True}
            for arguments in (suffix.arguments, translated.arguments, unequal)
        ],
    )
    assert (looked_up["method"], looked_up["num_speculative_tokens"]) == ("suffix", 8)
    assert looked_up["suffix_decoding"] == options
    assert (in_text["method"], in_text["use_heterogeneous_vocab"]) == ("draft_model", True)
    assert in_text["model"] == str(draft)
    assert "vocab" in refused["error"]


def test_sglang_parses_our_flags_into_the_configuration_that_was_planned(
    launched: Callable[..., ServerLaunch],
) -> None:
    pair = launched("sglang", target=FP8, speculation="{num_draft_tokens: 3}")
    lookup = launched("sglang", draft=None, speculation=NGRAM.replace("prompt_lookup_min: 3, ", ""))
    wrong = replace(pair, arguments=(*pair.arguments, "--speculative-max-draft-len", "3"))
    drafted, looked_up, refused = ask(
        "ask_sglang.py", [list(launch.arguments) for launch in (pair, lookup, wrong)]
    )

    assert drafted == {
        "model_path": str(TINY / "target"),
        "served_model_name": str(TINY / "target"),
        "dtype": "bfloat16",
        "quantization": "fp8",
        "kv_cache_dtype": "fp8_e4m3",
        "tp_size": 1,
        "context_length": 1024,
        "max_running_requests": 16,
        "chunked_prefill_size": 8192,
        "enable_metrics": True,
        "speculative_algorithm": "STANDALONE",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
        "speculative_draft_model_path": str(TINY / "draft"),
        "speculative_draft_model_quantization": "unquant",
        "speculative_dspark_block_size": None,
        "speculative_ngram_max_bfs_breadth": 10,
        "speculative_ngram_max_trie_depth": 18,
    }
    assert looked_up["speculative_algorithm"] == "NGRAM"
    assert looked_up["speculative_num_draft_tokens"] == 6
    assert looked_up["speculative_ngram_max_bfs_breadth"] == 1
    assert looked_up["speculative_ngram_max_trie_depth"] == 12
    assert "error" in refused
