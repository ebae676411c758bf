from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from trtspec.backends.table import load
from trtspec.base.errors import RecipeError
from trtspec.base.findings import Finding
from trtspec.base.roles import Role
from trtspec.methods.table import METHODS
from trtspec.recipe.loader import model_location
from trtspec.recipe.schema import Recipe
from trtspec.recipe.shipped import STARTER

MINIMAL = "name: pair\ntarget: {model: a/big}\ndraft: {model: a/small}\nhardware: {gpu: h100}\n"
DESIGN = """\
name: llama-3.3-70b-h200
target:
  model: meta-llama/Llama-3.3-70B-Instruct
  revision: 6f6073b423013f6a7d4d9f39144961bfbfbc386b
  quantization:
    {weights: fp8, kv_cache: fp8, calibration: {dataset: calibration.jsonl, samples: 512, max_length: 2048}}
  parallel: {tensor: 1, pipeline: 1}
draft:
  model: meta-llama/Llama-3.2-1B-Instruct
  quantization: {weights: fp8, kv_cache: fp8}
speculation: {max_draft_len: 8}
engine: {backend: tensorrt_llm, release: 1.2.1, max_batch_size: 16, max_input_len: 4096, max_seq_len: 8192}
hardware: {gpu: h200, count: 1}
serving: {model_name: speculative_llm}
"""


Problems = Callable[[str | bytes], tuple[Finding, ...]]


@pytest.fixture
def problems(write_recipe: Callable[..., Path]) -> Problems:
    def of(text: str | bytes) -> tuple[Finding, ...]:
        path = write_recipe(text)
        with pytest.raises(RecipeError) as error:
            load(path)
        assert error.value.path == str(path)
        return error.value.findings

    return of


@pytest.mark.parametrize("text", [MINIMAL, DESIGN, STARTER])
def test_valid_recipes_keep_every_value(write_recipe: Callable[..., Path], text: str) -> None:
    loaded = load(write_recipe(text))
    assert loaded.recipe.model_dump(exclude_unset=True) == yaml.safe_load(text)


def test_the_recipe_of_the_repository_is_valid() -> None:
    tiny = Path(__file__).parents[3] / "recipes/tiny/recipe.yaml"
    loaded = load(tiny)
    assert loaded.recipe.backend == "torch"
    assert loaded.locations[Role.TARGET] == tiny.parent / "target"


class TestUnknownKeys:
    @pytest.mark.parametrize(
        ("line", "key", "repair"),
        [
            ("nmae: x", "nmae", "did you mean name?"),
            ("engine: {max_batch_siz: 4}", "engine.max_batch_siz", "did you mean max_batch_size?"),
            ("engine: {Max-Batch-Size: 4}", "engine.Max-Batch-Size", "did you mean max_batch_size?"),
            ("max_batch_size: 4", "max_batch_size", "it belongs in engine"),
            ("tensor: 4", "tensor", "it belongs in target.parallel or in draft.parallel"),
            ("serving: {speculation: 1}", "serving.speculation", "it belongs at the top level"),
            (
                "speculation: {zzz: 1}",
                "speculation.zzz",
                "known keys here: method, mode, max_draft_len, num_draft_tokens, policy, schedule, share",
            ),
        ],
    )
    def test_they_are_refused_with_the_nearest(
        self, problems: Problems, line: str, key: str, repair: str
    ) -> None:
        assert problems(MINIMAL + line) == (Finding(key, "unknown key", repair, line=5),)

    @pytest.mark.parametrize(
        ("method", "key", "repair"),
        [
            ("{kind: ngram, prompt_lookup_mx: 3}", "prompt_lookup_mx", "did you mean prompt_lookup_max?"),
            (
                "{kind: draft_model, prompt_lookup_max: 3}",
                "prompt_lookup_max",
                "it belongs in speculation.method of kind ngram or in speculation.method of kind hybrid"
                " or in speculation.method of kind ngram_gpu",
            ),
            (
                "{kind: ngram_gpu, earlier_answers: 1000}",
                "earlier_answers",
                "it belongs in speculation.method of kind ngram or in speculation.method of kind hybrid",
            ),
            (
                "{kind: ngram, zzz: 3}",
                "zzz",
                "known keys here: kind, prompt_lookup_min, prompt_lookup_max, earlier_answers",
            ),
            (
                "{kind: draft_model, zzz: 3}",
                "zzz",
                "known keys here: kind, use_heterogeneous_vocab, parallel_drafting",
            ),
        ],
    )
    def test_those_of_a_method_are_held_against_this_method(
        self, problems: Problems, method: str, key: str, repair: str
    ) -> None:
        (found,) = problems(f"{MINIMAL}speculation:\n  method: {method}\n")
        assert found == Finding(f"speculation.method.{key}", "unknown key", repair, line=6)

    def test_a_missing_key_says_what_it_is_for(self, problems: Problems) -> None:
        found = problems("target:\n  dtype: auto\ndraft: {model: a/b}\n")
        assert [(problem.line, problem.subject) for problem in found] == [
            (None, "name"),
            (None, "hardware"),
            (1, "target.model"),
        ]
        assert found[2].problem == "is missing: Hugging Face Hub id, or a folder relative to the recipe."


class TestValues:
    @pytest.mark.parametrize(
        ("value", "found", "repair"),
        [
            ("1", "1", "write cuda:1"),
            ("gpu", "'gpu'", None),
            ("cuda", "'cuda'", None),
            ("cuda:01", "'cuda:01'", None),
            ('"cpu\\n"', "'cpu\\n'", None),
            ("CPU", "'CPU'", None),
            ("true", "True", None),
            ("[cpu]", "['cpu']", None),
        ],
    )
    def test_a_device_is_named_as_pytorch_names_it(
        self, problems: Problems, value: str, found: str, repair: str | None
    ) -> None:
        (problem,) = problems(MINIMAL.replace("a/small", f"a/small, device: {value}"))
        allowed = "allowed: cpu, or a GPU by its number: cuda:0, cuda:1 and so on"
        assert problem == Finding("draft.device", f"found {found}; {allowed}", repair, line=problem.line)

    def test_a_target_has_no_device(self, problems: Problems) -> None:
        (problem,) = problems(MINIMAL.replace("a/big", "a/big, device: cpu"))
        assert (problem.subject, problem.repair) == ("target.device", "it belongs in draft")

    @pytest.mark.parametrize(
        ("line", "key", "problem", "repair"),
        [
            (
                "engine: {max_batch_size: '16'}",
                "engine.max_batch_size",
                "found the text '16'",
                "remove the quotes: 16",
            ),
            (
                "engine: {max_seq_len: 1e3}",
                "engine.max_seq_len",
                "found the text '1e3'",
                "YAML 1.1 reads 1e3 as text",
            ),
            ("engine: {max_seq_len: 8.0}", "engine.max_seq_len", "found the number 8.0", "write 8"),
            ("engine: {max_seq_len: 8.5}", "engine.max_seq_len", "found the number 8.5", None),
            ("engine: {max_seq_len: yes}", "engine.max_seq_len", "found true", None),
            ("engine: {max_seq_len: 0}", "engine.max_seq_len", "found 0; it must be at least 1", None),
            (
                "engine: {max_seq_len: 3000000000}",
                "engine.max_seq_len",
                "found 3000000000; it must be at most",
                None,
            ),
            ("engine: {max_seq_len: [1]}", "engine.max_seq_len", "found a list", None),
            ("engine: {max_seq_len: 010}", "engine.max_seq_len", "YAML reads 010", "quotes"),
            (
                "engine: {backend: tensorrt-llm}",
                "engine.backend",
                "allowed: tensorrt_llm, torch",
                "did you mean tensorrt_llm?",
            ),
            ("engine: {release: 1.2}", "engine.release", "found the number 1.2", 'put it in quotes: "1.2"'),
            ("engine:", "engine", "has no value, but a section of keys is wanted", None),
            ("engine: torch", "engine", "found the text 'torch', but a section of keys is wanted", None),
            ("speculation: {max_draft_len: 65}", "speculation.max_draft_len", "at most 64", None),
            ("serving: {model_name: a//b}", "serving.model_name", "found 'a//b'; allowed: letters", None),
            (
                "serving: {model_name: no}",
                "serving.model_name",
                "found false, but text",
                'put it in quotes: "no"',
            ),
            ("version: 2", "version", "found the number 2; allowed: 1", None),
        ],
    )
    def test_a_wrong_value_is_reported_with_what_was_found_and_what_is_allowed(
        self,
        problems: Problems,
        line: str,
        key: str,
        problem: str,
        repair: str | None,
    ) -> None:
        (found,) = problems(MINIMAL + line)
        assert (found.line, found.subject) == (5, key)
        assert problem in found.problem
        assert (found.repair is None) == (repair is None)
        assert (repair or "") in (found.repair or "")

    @pytest.mark.parametrize(
        ("method", "problem", "repair"),
        [
            ("ngrm", "found the text 'ngrm'", "did you mean ngram?"),
            ("{kind: ngrm}", "found the text 'ngrm'", "did you mean ngram?"),
            ("[ngram]", "found a list", "did you mean ngram?"),
            ("5", "found the number 5", None),
            ("{kind: 5}", "found the number 5", None),
            ("true", "found true", None),
            ("", "has no value", None),
            ("{kind: }", "has no value", None),
            ("{kind: [ngram]}", "found a list", "did you mean ngram?"),
            ("{prompt_lookup_max: 3}", "has no kind", "write kind: and one of these names"),
            ("{}", "has no kind", "write kind: and one of these names"),
        ],
    )
    def test_methods_that_there_are_not(
        self, problems: Problems, method: str, problem: str, repair: str | None
    ) -> None:
        (found,) = problems(f"{MINIMAL}speculation:\n  method: {method}\n")
        allowed = f"allowed: {', '.join(METHODS)}"
        assert found == Finding("speculation.method", f"{problem}; {allowed}", repair, line=6)

    def test_a_lookup_of_too_many_tokens(self, problems: Problems) -> None:
        (found,) = problems(f"{MINIMAL}speculation: {{method: {{kind: hybrid, prompt_lookup_max: 65}}}}\n")
        assert found.subject == "speculation.method.prompt_lookup_max"
        assert found.problem == "found 65; it must be at most 64"

    @pytest.mark.parametrize(
        ("name", "repair"),
        [
            ("3.10", 'put it in quotes: "3.10"'),
            ("12", 'put it in quotes: "12"'),
            ("on", 'put it in quotes: "on"'),
        ],
    )
    def test_names_that_yaml_reads_otherwise(self, problems: Problems, name: str, repair: str) -> None:
        (found,) = problems(MINIMAL.replace("pair", name))
        assert (found.subject, found.repair) == ("name", repair)

    @pytest.mark.parametrize("revision", ["0123456", "1234567", "12:30", "0x12ab"])
    def test_revisions_that_yaml_reads_as_numbers(self, problems: Problems, revision: str) -> None:
        (found,) = problems(MINIMAL.replace("a/big", f"a/big, revision: {revision}"))
        assert (found.line, found.subject) == (2, "target.revision")
        assert "in quotes" in str(found.repair)

    @pytest.mark.parametrize("revision", ["1e10", "12ab34", "2024-01-31", "'0123456'"])
    def test_revisions_that_stay_text(self, write_recipe: Callable[..., Path], revision: str) -> None:
        loaded = load(write_recipe(MINIMAL.replace("a/big", f"a/big, revision: {revision}")))
        assert loaded.recipe.target.revision == revision.strip("'")

    @pytest.mark.parametrize("name", ["", "'../up'", "'/abs'", "Upper", "'a b'", "-x", "'a\\nb'", "x" * 101])
    def test_names_that_are_no_folder(self, problems: Problems, name: str) -> None:
        assert [found.subject for found in problems(MINIMAL.replace("pair", name))] == ["name"]

    @pytest.mark.parametrize("value", ['"a\\0b"', '"a\\nb"', "''", '"\\e[31m"'])
    def test_models_with_control_characters(self, problems: Problems, value: str) -> None:
        assert [found.subject for found in problems(MINIMAL.replace("a/big", value))] == ["target.model"]

    def test_a_build_option_with_no_single_value_is_one_problem(self, problems: Problems) -> None:
        found = problems(MINIMAL.replace("a/big", "a/big, build: {gemm_plugin: [auto], workers: }"))
        assert [(problem.subject, problem.problem) for problem in found] == [
            ("target.build.gemm_plugin", "found a list, but one text, number, true or false is wanted"),
            ("target.build.workers", "has no value"),
        ]


class TestGpusAndReleases:
    @pytest.mark.parametrize(
        ("gpu", "near"),
        [("H100", "h100"), ("NVIDIA-H200", "h200"), ("a100-40gb", "a100_40gb"), ("rtx-4090", "rtx4090")],
    )
    def test_an_unknown_gpu(self, problems: Problems, gpu: str, near: str) -> None:
        (found,) = problems(MINIMAL.replace("h100", gpu))
        assert (found.line, found.subject, found.repair) == (4, "hardware.gpu", f"did you mean {near}?")
        assert "l40s" in found.problem

    @pytest.mark.parametrize(
        ("release", "reason"),
        [
            ("1.3.0", "no engines after 1.2"),
            ("1.3.0rc4", "no engines after 1.2"),
            ("2.0.0", "no engines after 1.2"),
            ("0.21.0", "before 1.0"),
            ("1.2.0rc6", "only final releases"),
            ("1.0.3.2510", "disagree"),
            ("'25.11'", "disagree"),
            ("'1.2'", "no TensorRT-LLM release with a Triton image"),
            ("latest", "no TensorRT-LLM release"),
        ],
    )
    def test_a_release_outside_the_table(self, problems: Problems, release: str, reason: str) -> None:
        (found,) = problems(MINIMAL + f"engine: {{release: {release}}}")
        assert reason in found.problem
        assert found.repair == "known releases are 1.2.1, 1.2.0, 1.1.0, 1.0.0"

    @pytest.mark.parametrize(
        ("release", "known"),
        [
            ("26.04", "1.2.1"),
            ("26.01", "1.1.0"),
            ("nvcr.io/nvidia/tritonserver:25.09-trtllm-python-py3", "1.0.0"),
            ("v1.2.0", "1.2.0"),
        ],
    )
    def test_another_name_of_a_release(self, problems: Problems, release: str, known: str) -> None:
        (found,) = problems(MINIMAL + f"engine: {{release: {release!r}}}")
        assert found.repair == f"write release: {known}"

    def test_an_image_outside_the_table(self, problems: Problems) -> None:
        (found,) = problems(MINIMAL + "engine: {release: '26.08'}")
        assert "none whose TensorRT-LLM builds engines" in found.problem


class TestAllAtOnce:
    def test_problems_of_text_and_of_keys_come_together_in_the_order_of_lines(
        self, problems: Problems
    ) -> None:
        found = problems(MINIMAL + "engine: {backend: x}\nname: again\nwhat: 1\n")
        assert [(problem.line, problem.subject) for problem in found] == [
            (5, "engine.backend"),
            (6, "name"),
            (7, "what"),
        ]

    def test_contradictions_come_together(self, problems: Problems) -> None:
        text = MINIMAL + "engine:\n  max_input_len: 9\n  max_seq_len: 9\n  max_num_tokens: 16\n"
        assert [problem.line for problem in problems(text)] == [6, 8, 8]


class TestFiles:
    def test_a_missing_file_says_how_to_begin(self, tmp_path: Path) -> None:
        with pytest.raises(RecipeError) as error:
            load(tmp_path / "none.yaml")
        (found,) = error.value.findings
        assert found.problem == "no such file"
        assert "trtspec init" in str(found.repair)

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(RecipeError, match="Is a directory"):
            load(tmp_path)

    def test_broken_text(self, problems: Problems) -> None:
        (found,) = problems(b"name: x\n\ttarget: y\n")
        assert (found.line, found.repair) == (2, "indent with spaces")


class TestLocations:
    def test_a_folder_is_what_exists_or_looks_like_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", "/home/someone")
        (tmp_path / "org/model").mkdir(parents=True)
        assert model_location("org/model", tmp_path) == tmp_path / "org/model"
        assert model_location("org/other", tmp_path) == "org/other"
        assert model_location("./org/other", tmp_path) == tmp_path / "org/other"
        assert model_location("../x", tmp_path) == tmp_path.parent / "x"
        assert model_location("/abs", tmp_path) == Path("/abs")
        assert model_location("~/m", tmp_path) == Path("/home/someone/m")

    def test_a_model_that_is_neither_folder_nor_hub_name_is_refused(self, problems: Problems) -> None:
        (found,) = problems(MINIMAL.replace("a/big", "models/llama/70b"))
        assert (found.line, found.subject) == (2, "target.model")
        assert "neither a folder nor a Hub id" in found.problem

    def test_a_folder_has_no_revision(self, problems: Problems) -> None:
        (found,) = problems(MINIMAL.replace("a/small", "./small, revision: main"))
        assert (found.line, found.subject) == (3, "draft.revision")

    def test_later_problems_know_their_line(self, write_recipe: Callable[..., Path]) -> None:
        loaded = load(write_recipe(MINIMAL))
        assert loaded.problem("target.model", "x").line == 2
        assert loaded.problem("draft.parallel.tensor", "x", "y") == Finding(
            "draft.parallel.tensor", "x", "y", line=3
        )
        assert loaded.problem("engine.release", "x").line is None


def test_a_recipe_cannot_be_changed(write_recipe: Callable[..., Path]) -> None:
    recipe: Recipe = load(write_recipe(MINIMAL)).recipe
    with pytest.raises(ValueError, match="frozen"):
        recipe.name = "other"
