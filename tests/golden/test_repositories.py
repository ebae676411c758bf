"""The models of the bls layout and the line that launches them, for every recipe and release, to the letter.

Of a recipe without a draft, of one with its draft on the CPU, and of engines with Medusa's heads, with
lookahead and with a head of EAGLE, the model in front too, in both layouts.

Texts have what differs between recipes, one file has a whole `config.pbtxt`. UPDATE_GOLDEN=1 writes them
anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from tests.fakes.eagle_heads import write_eagle_for
from tests.fakes.heads import write_head_for
from tests.support.releases import each_release
from trtspec.deployment.triton.install import IN_IMAGE as SERVER
from trtspec.deployment.triton.launch import by_ranks
from trtspec.pipeline.build.plan import make_plan
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.pipeline.repository.writer import config_text, engine_config_text, write_repository
from trtspec.pipeline.steps.write_repository import repository_spec

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
GOLDEN = Path(__file__).with_name("repository")


def golden(name: str, output: str) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        (GOLDEN / name).write_text(output)
    assert output == (GOLDEN / name).read_text()


def planned(path: Path, folder: Path, release: str, layout: str = "bls", draft: str = "") -> Resolved:
    """The plan of a recipe for this release and layout; `draft` is a line more for its draft."""
    text = path.read_text().replace(
        "\nengine:\n", f"\nserving: {{layout: {layout}}}\nengine:\n  release: {release}\n"
    )
    text = text.replace("\ndraft:\n", f"\ndraft:\n  {draft}\n")
    recipe = folder / path.name
    recipe.write_text(text)
    return make_plan(recipe).resolved


@each_release(RECIPES)
@pytest.mark.usefixtures("hub_cache")
def test_models_and_launch_line(recipe: Path, release: str, tmp_path: Path) -> None:
    resolved = planned(recipe, tmp_path, release)
    spec = repository_spec(resolved)
    write_repository(tmp_path / "model_repository", spec)
    ranks = max(engine.checkpoint.mapping.world_size for engine in resolved.engines.values())
    server = [SERVER, "--model-repository=model_repository", "--disable-auto-complete-config"]
    line = by_ranks(server, ranks, resolved.loaded.recipe.hardware.count)

    shown = " \\\n    ".join([*(f"{key}={value}" for key, value in line.environment.items()), *line.argv])
    for engine in spec.engines:
        text = (tmp_path / "model_repository" / engine.name / "config.pbtxt").read_text()
        shown += f"\n\n{summary(text_format.Parse(text, pb.ModelConfig()))}"
    golden(f"{recipe.stem}.txt", shown + "\n")


def models_of(resolved: Resolved) -> str:
    """The model in front, and those of the engines."""
    spec = repository_spec(resolved)
    texts = [config_text(spec), *map(engine_config_text, spec.engines)]
    return "\n\n".join(summary(text_format.Parse(text, pb.ModelConfig())) for text in texts) + "\n"


def summary(config: pb.ModelConfig) -> str:
    """All but the tensors, in few lines."""
    parameters = {key: value.string_value for key, value in config.parameters.items()}
    for field in ("parameters", "input", "output"):
        config.ClearField(field)
    return "\n".join(
        [
            text_format.MessageToString(config).strip(),
            *(f"    {key}: {value}".rstrip() for key, value in sorted(parameters.items())),
        ]
    )


@pytest.mark.usefixtures("hub_cache")
def test_a_whole_model(tmp_path: Path) -> None:
    (path,) = (path for path in RECIPES if path.stem == "llama-3.3-70b-2xh100")
    target, _ = repository_spec(planned(path, tmp_path, "1.2.1")).engines
    golden("tensorrt_llm.pbtxt", engine_config_text(target))


@pytest.mark.parametrize("layout", ["in_process", "bls"])
@pytest.mark.usefixtures("hub_cache")
def test_the_model_in_front_without_a_draft(layout: str, tmp_path: Path) -> None:
    (path,) = (path for path in RECIPES if path.stem == "llama-3.3-70b-h200-ngram")
    text = config_text(repository_spec(planned(path, tmp_path, "1.2.1", layout)))
    golden(f"ngram_{layout}.txt", summary(text_format.Parse(text, pb.ModelConfig())) + "\n")


@pytest.mark.parametrize("layout", ["in_process", "bls"])
@pytest.mark.usefixtures("hub_cache")
def test_the_models_of_a_draft_on_the_cpu(layout: str, tmp_path: Path) -> None:
    (path,) = (path for path in RECIPES if path.stem == "llama-3.3-70b-h200")
    golden(f"cpu-draft_{layout}.txt", models_of(planned(path, tmp_path, "1.2.1", layout, "device: cpu")))


@pytest.mark.parametrize("layout", ["in_process", "bls"])
def test_the_models_of_an_engine_with_heads(
    layout: str, llama_folder: Callable[..., Path], tmp_path: Path
) -> None:
    write_head_for(llama_folder("target", max_position_embeddings=4096), tmp_path / "heads", "medusa")
    path = tmp_path / "medusa.yaml"
    path.write_text(
        "name: medusa\ntarget: {model: ./target}\ndraft:\n  model: ./heads\nspeculation: {method: medusa}\n"
        "engine:\n  max_batch_size: 4\nhardware: {gpu: h200}\n"
    )
    golden(f"medusa_{layout}.txt", models_of(planned(path, tmp_path, "1.2.1", layout)))


@pytest.mark.parametrize("layout", ["in_process", "bls"])
def test_the_models_of_an_engine_with_lookahead(
    layout: str, llama_folder: Callable[..., Path], tmp_path: Path
) -> None:
    llama_folder("target", max_position_embeddings=4096)
    path = tmp_path / "lookahead.yaml"
    path.write_text(
        "name: lookahead\ntarget: {model: ./target}\nspeculation: {method: lookahead}\n"
        "engine:\n  max_batch_size: 4\nhardware: {gpu: h200}\n"
    )
    golden(f"lookahead_{layout}.txt", models_of(planned(path, tmp_path, "1.2.1", layout)))


@pytest.mark.parametrize("layout", ["in_process", "bls"])
def test_the_models_of_an_engine_with_a_head_of_eagle(
    layout: str, llama_folder: Callable[..., Path], tmp_path: Path
) -> None:
    write_eagle_for(llama_folder("target", max_position_embeddings=4096), tmp_path / "head")
    path = tmp_path / "eagle.yaml"
    path.write_text(
        "name: eagle\ntarget: {model: ./target}\ndraft:\n  model: ./head\n"
        "speculation: {method: eagle, max_draft_len: 7}\n"
        "engine:\n  max_batch_size: 4\nhardware: {gpu: h200}\n"
    )
    golden(f"eagle_{layout}.txt", models_of(planned(path, tmp_path, "1.2.1", layout)))
