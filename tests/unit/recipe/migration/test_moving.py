"""Recipes move to another backend: what comes out loads, keeps its comments, and every other key is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from trtspec.backends.moving import MovedRecipe, move
from trtspec.backends.table import load, loads, runner_of
from trtspec.base.errors import RecipeError
from trtspec.cli.app import app
from trtspec.recipe.backends import NAMES
from trtspec.recipe.edit import edit, places
from trtspec.recipe.schema import Serving

RECIPES = Path(__file__).parents[4] / "recipes"
FULL = """\
# A pair with every key that another engine's server does not have.
name: pair
target:
  model: org/big                # the large one
  quantization: {weights: fp8, kv_cache: fp8, calibration: {dataset: texts.jsonl}}
  build: {gemm_plugin: auto}
draft:
  model: org/small
  device: cuda:0
speculation:
  method:
    kind: hybrid
    earlier_answers: 1000
  policy: adaptive
  share: 0.5
engine: {release: 1.2.1, max_input_len: 2048, max_seq_len: 4096}
hardware: {gpu: h200}
serving:
  max_queue_size: 8             # a comment that goes with its key
"""


def moved(text: str, backend: str, folder: Path) -> MovedRecipe:
    path = folder / "recipe.yaml"
    path.write_text(text)
    return move(text, load(path), backend, folder / "moved.yaml")


def flat(values: dict[str, object], before: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in values.items():
        found |= flat(value, f"{before}{key}.") if isinstance(value, dict) else {f"{before}{key}": value}
    return found


@pytest.mark.parametrize("backend", sorted({*NAMES} - {"tensorrt_llm"}))
@pytest.mark.parametrize("name", ["llama-3.1-405b-8xh200", "llama-3.3-70b-h200-ngram", "qwen2.5-32b-h100"])
def test_a_recipe_for_engines_moves_everywhere(name: str, backend: str, tmp_path: Path) -> None:
    recipe = RECIPES / f"{name}.yaml"
    text, path = recipe.read_text(), tmp_path / recipe.name
    found = move(text, load(recipe), backend, path)
    assert loads(found.text.encode(), path).recipe.backend == backend
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert [line for line in found.text.splitlines() if line.startswith("#")] == comments


def test_a_recipe_in_another_folder_names_the_same_files(tmp_path: Path) -> None:
    text = """\
name: pair
target: {model: org/big, build: {lora_plugin: auto, lora_dir: adapter}}
draft: {layers_of_target: auto, layer_search: {dataset: texts.jsonl}}
hardware: {gpu: h100}
fleet: {workload: trace.jsonl}
"""
    path, there = tmp_path / "recipe.yaml", tmp_path / "other/recipe.yaml"
    path.write_text(text)
    for name in ("adapter", "texts.jsonl", "trace.jsonl"):
        (tmp_path / name).touch()
    recipe = loads(edit(text, places(load(path), there.parent), there).encode(), there).recipe
    assert recipe.target.build["lora_dir"] == "../adapter"
    assert recipe.layer_texts == "../texts.jsonl"
    assert recipe.fleet.workload == "../trace.jsonl"


def test_a_draft_of_the_targets_layers_follows_the_target_into_another_folder(tmp_path: Path) -> None:
    quantization = "quantization: {weights: fp8, calibration: {dataset: texts.jsonl}}"
    text = f"""\
name: a
target: {{model: ./m, {quantization}}}
draft: {{layers_of_target: [0, 1]}}
hardware: {{gpu: h100}}
"""
    path, there = tmp_path / "recipe.yaml", tmp_path / "other/recipe.yaml"
    (tmp_path / "texts.jsonl").touch()
    written = edit(text, places(loads(text.encode(), path), there.parent), there)
    assert written == text.replace("./m", "../m").replace("texts", "../texts")
    recipe = loads(written.replace("../m", "../n").encode(), there).recipe
    assert recipe.draft
    assert recipe.draft.model == "../n"


def test_a_recipe_without_a_gpu_moves_where_a_cpu_serves(tmp_path: Path) -> None:
    tiny = RECIPES / "tiny/recipe.yaml"
    loaded, path = load(tiny), tmp_path / "moved.yaml"
    found = move(tiny.read_text(), loaded, "vllm", path)
    there = loads(found.text.encode(), path)
    assert there.locations == loaded.locations
    with pytest.raises(RecipeError, match="needs a GPU"):
        move(tiny.read_text(), loaded, "tensorrt_llm_pytorch", path)


@pytest.mark.parametrize("backend", ["vllm", "sglang", "tensorrt_llm_pytorch", "torch"])
def test_every_key_that_changes_is_told(backend: str, tmp_path: Path) -> None:
    found = moved(FULL, backend, tmp_path)
    before, after = flat(yaml.safe_load(FULL)), flat(yaml.safe_load(found.text))
    told = [change.key for change in found.changes]
    other = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert {
        key for key in other if not any(key == name or key.startswith(f"{name}.") for name in told)
    } == set()
    assert all(change.reason for change in found.changes)
    assert "# the large one" in found.text


def test_to_a_server_the_coordinators_keys_are_lost(tmp_path: Path) -> None:
    found = moved(FULL, "vllm", tmp_path)
    recipe = found.recipe
    assert recipe.speculation.method.kind == "draft_model"
    assert (recipe.speculation.policy, recipe.speculation.share) == (None, None)
    assert recipe.serving == Serving(model_name="speculative_llm")
    assert recipe.target.quantization.calibration is None
    reasons = {change.key: change.reason for change in found.changes}
    assert "one source" in reasons["speculation.method"]
    assert "coordinator" in reasons["serving.max_queue_size"]
    assert "as they are loaded" in reasons["target.quantization.weights"]


def test_a_cluster_serves_a_server_of_others_otherwise(tmp_path: Path) -> None:
    section = """\
kubernetes:
  image: reg/trtspec:1
  store: s3://engines
  replicas: 2
  autoscaling: {max_replicas: 4}
  secrets: {store: s3, api_keys: keys}
"""
    models = "target: {model: org/big}\ndraft: {model: org/small}\n"
    found = moved(f"name: pair\n{models}hardware: {{gpu: h200}}\n{section}", "vllm", tmp_path)
    assert yaml.safe_load(found.text)["kubernetes"] == {"replicas": 2, "secrets": {"api_keys": "keys"}}
    told = {change.key: change.reason for change in found.changes if change.key.startswith("kubernetes")}
    assert told.keys() == {
        "kubernetes.image",
        "kubernetes.store",
        "kubernetes.secrets.store",
        "kubernetes.autoscaling",
    }
    assert told["kubernetes.image"] == "vllm has another image"
    back = moved(found.text.replace("api_keys: keys", "hub: hf"), "torch", tmp_path)
    assert yaml.safe_load(back.text)["kubernetes"] == {"replicas": 2}


@pytest.mark.parametrize(
    ("backend", "to", "serving", "change"),
    [
        ("vllm", "tensorrt_llm", None, ("org/big", "org/big", "clients go on")),
        (
            "tensorrt_llm",
            "sglang",
            None,
            ("speculative_llm", "speculative_llm", "clients go on"),
        ),
        ("vllm", "sglang", None, None),
        ("vllm", "tensorrt_llm", "pair", None),
        ("vllm", "tensorrt_llm_pytorch", "pair", ("pair", None, "tensorrt_llm_pytorch has no such thing")),
        (
            "torch",
            "tensorrt_llm_pytorch",
            None,
            ("speculative_llm", "org/big", "tensorrt_llm_pytorch has"),
        ),
    ],
)
def test_clients_call_the_model_as_before(
    backend: str, to: str, serving: str | None, change: tuple[str, str | None, str] | None, tmp_path: Path
) -> None:
    text = "name: pair\ntarget: {model: org/big}\nspeculation: {method: ngram}\nhardware: {gpu: h100}\n"
    text += f"engine: {{backend: {backend}}}\n" + (f"serving: {{model_name: {serving}}}\n" if serving else "")
    found = moved(text, to, tmp_path)
    told = [each for each in found.changes if each.key == "serving.model_name"]
    assert [(each.before, each.after) for each in told] == ([change[:2]] if change else [])
    assert all(each.reason.startswith(change[2]) for each in told if change)
    recipes = load(tmp_path / "recipe.yaml"), loads(found.text.encode(), tmp_path / "moved.yaml")
    was, now = (runner_of(each.recipe).served_name(each) for each in recipes)
    assert now == ("org/big" if to == "tensorrt_llm_pytorch" else was)


def test_the_longest_text_is_told_where_the_recipe_names_none(tmp_path: Path) -> None:
    text = "name: pair\ntarget: {model: org/big}\nspeculation: {method: ngram}\nhardware: {gpu: h100}\n"
    ours, own = "the model's own, up to 8,192", "the model's own, where memory allows"
    for backend, to, length, told in (
        ("vllm", "tensorrt_llm", "", [(own, ours)]),
        ("torch", "sglang", "", [(ours, own)]),
        ("vllm", "sglang", "", []),
        ("vllm", "tensorrt_llm", ", max_seq_len: 99", []),
    ):
        found = moved(f"{text}engine: {{backend: {backend}{length}}}\n", to, tmp_path)
        changes = [each for each in found.changes if each.key == "engine.max_seq_len"]
        assert [(each.before, each.after) for each in changes] == told


def test_the_tokens_of_an_iteration_are_told_where_the_recipe_names_none(tmp_path: Path) -> None:
    text = "name: pair\ntarget: {model: org/big}\nspeculation: {method: ngram}\n"
    engine = "8,192, or more where memory allows"
    for backend, gpu, to, tokens, told in (
        ("vllm", "h100", "tensorrt_llm", "", [("8,192", engine)]),
        ("torch", "none", "vllm", "", [("8,192", "2,048")]),
        ("vllm", "h100", "sglang", "", []),
        ("vllm", "h100", "tensorrt_llm", ", max_num_tokens: 4096", []),
    ):
        own = f"hardware: {{gpu: {gpu}}}\nengine: {{backend: {backend}{tokens}}}\n"
        changes = [
            each for each in moved(text + own, to, tmp_path).changes if each.key == "engine.max_num_tokens"
        ]
        assert [(each.before, each.after) for each in changes] == told


def test_back_from_a_server_nothing_is_lost(tmp_path: Path) -> None:
    text = "name: pair-vllm\ntarget: {model: a/b}\nspeculation: {method: ngram, max_draft_len: 4}\n"
    text += "engine: {backend: vllm, release: 0.33.0}\nhardware: {gpu: h100}\n"
    found = moved(text, "tensorrt_llm", tmp_path)
    assert found.recipe.name == "pair-tensorrt_llm"
    told = {change.key: (change.before, change.after) for change in found.changes}
    assert told["K"] == ("4 in every round", "adaptive, up to 4")
    assert told["engine.release"] == ("0.33.0", None)


@pytest.mark.parametrize(
    ("before", "after", "lengths"),
    [
        ("tensorrt_llm", "torch", ("a tree of 8 in every step", "adaptive")),
        ("torch", "tensorrt_llm", ("adaptive, up to 8", "a tree in every step")),
    ],
)
def test_the_nodes_of_a_tree_are_not_the_tokens_of_a_chain(
    before: str, after: str, lengths: tuple[str, str], tmp_path: Path
) -> None:
    text = "name: pair\ntarget: {model: a/b}\ndraft: {model: a/heads}\n"
    text += f"engine: {{backend: {before}}}\nhardware: {{gpu: h100}}\n"
    text += "speculation: {method: medusa, max_draft_len: 8}\n"
    found = moved(text, after, tmp_path)
    told = {change.key: (change.before, change.after) for change in found.changes}
    assert (told["speculation.max_draft_len"], told["K"]) == ((8, None), lengths)
    assert found.recipe.speculation.method.kind == "medusa"
    assert found.recipe.speculation.max_draft_len is None


def test_lookahead_becomes_what_the_text_itself_proposes(tmp_path: Path) -> None:
    text = "name: pair\ntarget: {model: a/b}\nhardware: {gpu: h100}\n"
    text += "speculation:\n  method: {kind: lookahead, window_size: 7}\n"
    found = moved(text, "torch", tmp_path)
    told = {change.key: (change.before, change.after) for change in found.changes}
    assert told["K"] == ("its own n-grams in every step", "adaptive")
    assert found.recipe.speculation.method.kind == "ngram"


def test_a_method_that_the_newest_release_lacks_goes_to_one_that_has_it(tmp_path: Path) -> None:
    text = "name: pair\ntarget: {model: a/b}\ndraft: {model: a/heads}\nhardware: {gpu: h100}\n"
    text += "engine: {backend: torch}\nspeculation: {method: medusa}\n"
    found = moved(text, "vllm", tmp_path)
    told = {change.key: (change.after, change.reason) for change in found.changes}
    assert told["engine.release"] == (
        "0.32.0",
        "vllm 0.33.0 does not run medusa: vLLM has Medusa up to 0.32.0, but not in 0.33.0",
    )
    assert found.recipe.speculation.method.kind == "medusa"
    back = moved(found.text, "torch", tmp_path)
    assert (back.recipe.engine.release, back.recipe.speculation.method.kind) == (None, "medusa")


class TestCommand:
    def test_migrate_writes_beside_the_recipe_and_shows_commands_that_compare_both(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("recipe.yaml").write_text(FULL)
        result = CliRunner().invoke(app, ["migrate", "recipe.yaml", "--to", "vllm"])
        assert result.exit_code == 0
        assert load(Path("recipe-vllm.yaml")).recipe.name == "pair-vllm"
        assert result.stdout.splitlines()[-3:] == [
            "trtspec build recipe.yaml",
            "trtspec build recipe-vllm.yaml",
            "trtspec prove recipe.yaml recipe-vllm.yaml",
        ]

    def test_migrate_overwrites_no_file(self, tmp_path: Path) -> None:
        recipe, there = tmp_path / "recipe.yaml", tmp_path / "recipe-vllm.yaml"
        recipe.write_text(FULL)
        there.write_text("mine")
        result = CliRunner().invoke(app, ["migrate", str(recipe), "--to", "vllm"])
        assert "is there already" in str(result.exception)
        assert there.read_text() == "mine"

    def test_a_recipe_that_cannot_move_is_told_by_its_own_lines(self, tmp_path: Path) -> None:
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text("name: a\ntarget: {model: a/b}\ndraft: {model: a/c}\nhardware: {gpu: none}\n")
        result = CliRunner().invoke(app, ["migrate", str(recipe), "--to", "sglang"])
        assert isinstance(result.exception, RecipeError)
        assert result.exception.path == str(recipe)
        assert list(tmp_path.iterdir()) == [recipe]

    def test_init_reads_stdin_and_says_what_is_lost(self, tmp_path: Path) -> None:
        path = tmp_path / "recipe.yaml"
        command = "vllm serve a/b --spec-model a/c --spec-tokens 4 \\\n  --port 8000\n"
        result = CliRunner().invoke(app, ["init", str(path), "--from", "-", "--gpu", "h200"], command)
        assert (result.exit_code, result.stdout) == (0, "")
        assert "--port: left out: " in result.stderr
        assert load(path).recipe.hardware.gpu == "h200"

    def test_options_of_from_alone_are_refused(self, tmp_path: Path) -> None:
        result = CliRunner().invoke(app, ["init", str(tmp_path), "--gpu", "h200"])
        assert result.exit_code == 2
        assert list(tmp_path.iterdir()) == []

    def test_a_gpu_that_nobody_knows_is_refused_before_there_is_a_recipe(self, tmp_path: Path) -> None:
        result = CliRunner().invoke(app, ["init", str(tmp_path), "--from", "vllm serve a/b", "--gpu", "h300"])
        assert result.exit_code == 2
        assert "h200, h100" in result.stderr
