"""Which jobs a store's gaps make, on the plans of real recipes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.command_line import trtspec
from tests.unit.cluster.jobs.conftest import Look
from trtspec.base.errors import PairError
from trtspec.cluster.jobs import ClusterJob, PendingBuild, plan_jobs
from trtspec.pipeline.store.store import Store

FP8 = "quantization: {weights: fp8, calibration: {dataset: texts.txt}}"


def jobs(wanted: PendingBuild | Sequence[PendingBuild], *, shares_files: bool = True) -> list[ClusterJob]:
    every = [wanted] if isinstance(wanted, PendingBuild) else wanted
    return plan_jobs(every, "s3://engines", shares_files=shares_files)


def shape(made: list[ClusterJob]) -> list[tuple[str, int, list[str]]]:
    """The titles, the GPUs, and the titles of what each waits for."""
    titles = {job.name: job.title for job in made}
    return [(job.title, job.gpus, [titles[name] for name in job.after]) for job in made]


def build(recipe: Path, folder: Path, store: Store, *words: str) -> None:
    done = trtspec("build", recipe, "--output", folder, "--store", store, *words)
    assert done.returncode == 0, done.stderr


def test_the_torch_backend_needs_no_gpu(pair_recipe: Path, wanted: Look) -> None:
    assert shape(jobs(wanted(pair_recipe))) == [
        ("pair target: build", 0, []),
        ("pair draft: build", 0, []),
        ("pair pair", 0, ["pair target: build", "pair draft: build"]),
    ]


def test_what_needs_no_gpu_does_not_hold_one(h200_recipe: Path, wanted: Look) -> None:
    found = wanted(h200_recipe)
    assert shape(jobs(found)) == [
        ("pair target: convert", 0, []),
        ("pair target: build", 1, ["pair target: convert"]),
        ("pair draft: convert", 0, []),
        ("pair draft: build", 1, ["pair draft: convert"]),
        ("pair pair", 0, ["pair target: build", "pair draft: build"]),
    ]
    assert shape(jobs(found, shares_files=False)) == [
        ("pair target: build", 1, []),
        ("pair draft: build", 1, []),
        ("pair pair", 0, ["pair target: build", "pair draft: build"]),
    ]


def test_calibration_has_every_gpu_of_the_recipe_and_conversion_none(
    h200_recipe: Path, llama_folder: Callable[..., Path], wanted: Look
) -> None:
    llama_folder("target", hidden_size=64, intermediate_size=96)
    text = h200_recipe.read_text().replace(
        "model: ./target", f"model: ./target, parallel: {{tensor: 2}}, {FP8}"
    )
    h200_recipe.write_text(text.replace("gpu: h200", "gpu: h200, count: 4"))
    (h200_recipe.parent / "texts.txt").write_text("one\ntwo\n")
    assert shape(jobs(wanted(h200_recipe)))[:3] == [
        ("pair target: calibrate", 4, []),
        ("pair target: convert", 0, ["pair target: calibrate"]),
        ("pair target: build", 2, ["pair target: convert"]),
    ]


def test_no_job_needs_more_gpus_than_a_host_has(
    h200_recipe: Path, llama_folder: Callable[..., Path], wanted: Look
) -> None:
    """A rank more than there are GPUs is built after another one."""
    llama_folder("target", hidden_size=64, intermediate_size=96)
    text = h200_recipe.read_text().replace(
        "model: ./target", f"model: ./target, parallel: {{tensor: 2, pipeline: 2}}, {FP8}"
    )
    hosts = "kubernetes: {hosts: {gpus_per_host: 2, leader: [lead], worker: [work]}}\n"
    h200_recipe.write_text(text.replace("gpu: h200", "gpu: h200, count: 4") + hosts)
    (h200_recipe.parent / "texts.txt").write_text("one\ntwo\n")
    assert shape(jobs(wanted(h200_recipe)))[:3] == [
        ("pair target: calibrate", 2, []),
        ("pair target: convert", 0, ["pair target: calibrate"]),
        ("pair target: build", 2, ["pair target: convert"]),
    ]


def test_weights_are_downloaded_before_a_gpu_is_held(
    h200_recipe: Path, llama_folder: Callable[..., Path], wanted: Look
) -> None:
    """A model of which only the headers are here, as a plan has one of the Hub."""
    target = llama_folder("target", hidden_size=64, intermediate_size=96)
    (target / ".sha256.json").write_text("{}")
    assert shape(jobs(wanted(h200_recipe)))[0] == ("pair target: convert", 0, [])
    h200_recipe.write_text(h200_recipe.read_text().replace("model: ./target", f"model: ./target, {FP8}"))
    (h200_recipe.parent / "texts.txt").write_text("one\ntwo\n")
    assert shape(jobs(wanted(h200_recipe)))[:4] == [
        ("pair target: fetch", 0, []),
        ("pair target: calibrate", 1, ["pair target: fetch"]),
        ("pair target: convert", 0, ["pair target: calibrate"]),
        ("pair target: build", 1, ["pair target: convert"]),
    ]


def test_a_draft_on_the_cpu_is_built_without_a_gpu(h200_recipe: Path, wanted: Look) -> None:
    h200_recipe.write_text(h200_recipe.read_text().replace("dtype: float16", "device: cpu"))
    assert ("pair draft: build", 0, []) in shape(jobs(wanted(h200_recipe)))


def test_what_a_job_says_on_its_node(pair_recipe: Path, wanted: Look, tmp_path: Path) -> None:
    found = wanted(pair_recipe)
    target, _, pair = jobs(found)
    key, build = found.engines[next(iter(found.engines))].key, tmp_path / "build"
    assert target.arguments == (
        *("build", str(pair_recipe), "--only", "target", "--until", "build"),
        *("--output", f"{build}/pair.jobs/target", "--store", "s3://engines", "--key", key),
    )
    assert target.name == f"trtspec-build-{key[:16]}"
    assert target.log == build / "pair/.trtspec/logs/job-target-build.log"
    assert target.folders == (tmp_path,)
    assert pair.arguments[2:4] == ("--output", f"{build}/pair")
    assert pair.arguments[-1] == found.pair.key


def test_another_backend_than_the_recipes_goes_with_the_job(
    h200_recipe: Path, wanted: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTSPEC_BACKEND", "torch")
    (target, *_) = jobs(wanted(h200_recipe))
    assert target.arguments[target.arguments.index("--backend") + 1] == "torch"


def test_an_engine_of_several_recipes_is_made_once(pair_recipe: Path, wanted: Look) -> None:
    other = pair_recipe.with_name("other.yaml")
    other.write_text(
        pair_recipe.read_text().replace("name: pair", "name: other").replace("float32", "float16")
    )
    made = jobs([wanted(pair_recipe), wanted(other, "other")])
    assert shape(made)[-2:] == [
        ("other draft: build", 0, []),
        ("other pair", 0, ["pair target: build", "other draft: build"]),
    ]
    assert len({job.name for job in made}) == len(made) == 5


def test_what_the_store_has_is_left_out(
    pair_recipe: Path, wanted: Look, store: Store, tmp_path: Path
) -> None:
    build(pair_recipe, tmp_path / "elsewhere", store, "--only", "target")
    assert shape(jobs(wanted(pair_recipe))) == [
        ("pair draft: build", 0, []),
        ("pair pair", 0, ["pair draft: build"]),
    ]
    build(pair_recipe, tmp_path / "elsewhere", store)
    found = wanted(pair_recipe)
    assert found.entry
    assert found.entry.role == "pair"
    assert jobs(found) == []


def test_what_was_built_here_is_only_pushed(pair_recipe: Path, wanted: Look, tmp_path: Path) -> None:
    assert trtspec("build", pair_recipe, "--output", tmp_path / "build/pair").returncode == 0
    assert shape(jobs(wanted(pair_recipe))) == [("pair pair", 0, [])]


def test_a_job_goes_on_where_the_last_one_died(h200_recipe: Path, wanted: Look, tmp_path: Path) -> None:
    folder = tmp_path / "build/pair.jobs/target"
    words = ("--only", "target", "--until", "convert", "--output", folder)
    assert trtspec("build", h200_recipe, *words).returncode == 0
    assert shape(jobs(wanted(h200_recipe)))[:2] == [
        ("pair target: build", 1, []),
        ("pair draft: convert", 0, []),
    ]


def test_models_that_do_not_fit_together_get_no_job(pair_recipe: Path, wanted: Look) -> None:
    tokenizer = pair_recipe.parent / "draft/tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"a"', '"ab"'))
    with pytest.raises(PairError):
        wanted(pair_recipe)
