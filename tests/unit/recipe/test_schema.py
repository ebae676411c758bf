from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from check_jsonschema import main as check
from click.testing import CliRunner
from pydantic import ValidationError

from trtspec.backends.table import all_releases, backends, load
from trtspec.base.errors import RecipeError
from trtspec.recipe import gpus, releases
from trtspec.recipe.schema import Recipe, json_schema
from trtspec.recipe.shipped import STARTER

SCHEMA = json_schema(all_releases())


def sections() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "Recipe", SCHEMA
    yield from SCHEMA["$defs"].items()


def resolve(schema: dict[str, Any]) -> dict[str, Any]:
    """The section that a property refers to, itself if it refers to none."""
    options = schema.get("anyOf", [schema])
    references = [option["$ref"] for option in options if "$ref" in option]
    return SCHEMA["$defs"][references[0].rpartition("/")[2]] if references else schema


def unknown(values: dict[str, Any], schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Keys of `values` that an editor with this schema would mark, and required ones that are missing."""
    if "properties" not in schema:
        return
    yield from (f"{path}{key} is missing" for key in schema.get("required", ()) if key not in values)
    for key, value in values.items():
        if key not in schema["properties"]:
            yield f"{path}{key}"
        elif isinstance(value, dict):
            yield from unknown(value, resolve(schema["properties"][key]), f"{path}{key}.")


def test_the_json_schema_names_its_dialect_and_can_be_written_as_json() -> None:
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["title"] == "trtspec recipe"
    assert SCHEMA["description"]
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA


@pytest.mark.parametrize(("name", "section"), list(sections()))
def test_every_key_is_described_and_no_other_is_allowed(name: str, section: dict[str, Any]) -> None:
    assert section["additionalProperties"] is False
    assert section["description"]
    for key, value in section["properties"].items():
        assert value.get("description") or resolve(value).get("description"), f"{name}.{key}"


def test_only_three_keys_are_required() -> None:
    assert set(SCHEMA["required"]) == {"name", "target", "hardware"}
    assert SCHEMA["$defs"]["RecipeModel"]["required"] == ["model"]
    assert SCHEMA["$defs"]["Hardware"]["required"] == ["gpu"]


def test_the_keys_of_lookups_are_bounded() -> None:
    for method in ("Ngram", "Hybrid"):
        properties = SCHEMA["$defs"][method]["properties"]
        for key in ("prompt_lookup_min", "prompt_lookup_max"):
            assert (properties[key]["minimum"], properties[key]["maximum"]) == (1, 64)


PAIR, ALONE = {"target": {"model": "a/big"}, "draft": {"model": "a/small"}}, {"target": {"model": "a/big"}}
LOOKUP = {"kind": "ngram", "prompt_lookup_max": 4}


@pytest.mark.parametrize(
    ("models", "speculation", "is_valid"),
    [
        (PAIR, None, True),
        (PAIR, {"max_draft_len": 4}, True),
        (PAIR, {"method": "draft_model"}, True),
        (PAIR, {"method": "hybrid"}, True),
        (PAIR, {"method": {"kind": "hybrid"}}, True),
        (PAIR, {"method": "ngram"}, False),
        (PAIR, {"method": LOOKUP}, False),
        (ALONE, None, False),
        (ALONE, {"max_draft_len": 4}, False),
        (ALONE, {"method": "draft_model"}, False),
        (ALONE, {"method": "hybrid"}, False),
        (ALONE, {"method": {"kind": "hybrid"}}, False),
        (ALONE, {"method": "ngram"}, True),
        (ALONE, {"method": LOOKUP}, True),
        (ALONE, {"method": {"kind": "ngram", "prompt_lookup_max": 65}}, False),
        (ALONE, {"method": "ngrm"}, False),
        ({**ALONE, "draft": None}, {"method": "ngram"}, True),
        ({**ALONE, "draft": None}, None, False),
    ],
)
def test_an_editor_and_the_loader_want_a_draft_of_the_same_recipes(
    tmp_path: Path, models: dict[str, Any], speculation: dict[str, Any] | None, is_valid: bool
) -> None:
    values = {"name": "pair", "hardware": {"gpu": "none"}, **models}
    if speculation is not None:
        values["speculation"] = speculation
    schema, recipe = tmp_path / "schema.json", tmp_path / "recipe.yaml"
    schema.write_text(json.dumps(SCHEMA))
    recipe.write_text(yaml.safe_dump(values))
    result = CliRunner().invoke(check, ["--schemafile", str(schema), str(recipe)])
    assert result.exit_code == (0 if is_valid else 1), result.output
    if is_valid:
        load(recipe)
    else:
        with pytest.raises(RecipeError):
            load(recipe)


def test_tables_are_offered_for_completion() -> None:
    assert SCHEMA["$defs"]["Hardware"]["properties"]["gpu"]["enum"] == list(gpus.NAMES)
    release, nothing = SCHEMA["$defs"]["Engine"]["properties"]["release"]["anyOf"]
    assert set(release["enum"]) == {version for backend in backends() for version in backend.versions}
    assert len(release["enum"]) == len(set(release["enum"]))
    assert nothing == {"type": "null"}


def test_the_starter_has_no_key_that_the_schema_lacks() -> None:
    assert list(unknown(yaml.safe_load(STARTER), SCHEMA)) == []
    assert list(unknown({"nmae": 1, "target": {"x": 1}}, SCHEMA)) == [
        "name is missing",
        "hardware is missing",
        "nmae",
        "target.model is missing",
        "target.x",
    ]


def test_the_commented_lines_of_the_starter_recipe_fit_the_schema() -> None:
    uncommented = [
        line.replace("  # ", "  ", 1) if line.startswith("  # ") else line for line in STARTER.splitlines()
    ]
    text = "\n".join(uncommented).replace("<commit>", "main")
    values = yaml.safe_load(text)
    assert {"revision", "dtype", "quantization", "parallel", "build"} <= set(values["target"])
    assert "release" in values["engine"]
    assert list(unknown(values, SCHEMA)) == []


class TestTables:
    def test_fp8_came_with_sm_89(self) -> None:
        assert {gpu.name for gpu in gpus.GPUS.values() if not gpu.fp8} == {"a10", "a100", "a100_40gb"}

    def test_the_default_release_and_its_image(self) -> None:
        release = releases.RELEASES[releases.DEFAULT]
        assert release.image == "nvcr.io/nvidia/tritonserver:26.06-trtllm-python-py3"
        assert release.tensorrt == "10.14.1.48"

    def test_no_image_belongs_to_two_releases(self) -> None:
        tags = [tag for release in releases.RELEASES.values() for tag in release.tags]
        assert len(tags) == len(set(tags))
        assert "25.11" not in tags


@pytest.mark.parametrize(
    ("changes", "digest"),
    [
        ({"draft": {"model": "a/small"}}, "4797dca8a8d28e6984ab08a4b235db41564bca1ccc4e2c51c2dc5bf1e063d567"),
        (
            {"speculation": {"method": "ngram"}, "name": "alone"},
            "ef62e7989866847f5500920e810016dfdaba787edd329a32deee596f2743011d",
        ),
    ],
)
def test_the_digest_of_a_recipe_stays_the_same_when_the_schema_gains_keys(
    changes: dict[str, Any], digest: str
) -> None:
    values = {"name": "pair", "hardware": {"gpu": "h100"}, "target": {"model": "a/big"}, **changes}
    assert Recipe.model_validate(values).digest == digest


@pytest.mark.parametrize(
    "section",
    [
        {"fleet": {"requests_per_second": 1000, "price_per_gpu_hour": {"h200": 3.5}}},
        {"kubernetes": {"replicas": 3, "image": "registry/trtspec:2", "cache": "claim"}},
        {"slurm": {"partition": "gpu", "options": {"mem": "64G"}}},
    ],
)
def test_sections_that_change_no_build_are_left_out_of_the_digest(section: dict[str, Any]) -> None:
    values = {"name": "pair", "hardware": {"gpu": "h100"}, **PAIR}
    assert Recipe.model_validate({**values, **section}).digest == Recipe.model_validate(values).digest


def test_the_device_of_a_draft_is_part_of_the_digest() -> None:
    values = {"name": "pair", "hardware": {"gpu": "h100"}, "target": {"model": "a/big"}}
    drafts: tuple[dict[str, str], ...] = ({}, {"device": "cpu"}, {"device": "cuda:0"})
    found = {
        Recipe.model_validate({**values, "draft": {"model": "a/small", **draft}}).digest for draft in drafts
    }
    assert len(found) == 3


@pytest.mark.parametrize(
    ("device", "is_valid"), [("cpu", True), ("cuda:0", True), ("cuda:12", True), ("cuda", False), (0, False)]
)
def test_an_editor_knows_the_names_of_devices(tmp_path: Path, device: object, is_valid: bool) -> None:
    schema, recipe = tmp_path / "schema.json", tmp_path / "recipe.yaml"
    schema.write_text(json.dumps(SCHEMA))
    draft = {"model": "a/small", "device": device}
    recipe.write_text(yaml.safe_dump({"name": "pair", "hardware": {"gpu": "h100"}, **ALONE, "draft": draft}))
    result = CliRunner().invoke(check, ["--schemafile", str(schema), str(recipe)])
    assert result.exit_code == (0 if is_valid else 1), result.output


@pytest.mark.parametrize(
    ("share", "is_valid"), [(0, True), (0.05, True), (1, True), (1.01, False), (-1, False), ("5%", False)]
)
def test_a_share_is_a_number_from_0_to_1(share: object, is_valid: bool) -> None:
    values = {"name": "pair", "hardware": {"gpu": "h100"}, **PAIR, "speculation": {"share": share}}
    if is_valid:
        assert Recipe.model_validate(values).speculation.share == share
        assert (
            Recipe.model_validate(values).digest
            != Recipe.model_validate({**values, "speculation": {}}).digest
        )
    else:
        with pytest.raises(ValidationError, match="share"):
            Recipe.model_validate(values)
