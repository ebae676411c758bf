"""What the server is told about waiting and giving up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.suffix import SUFFIX
from trtspec.pipeline.build.plan import make_plan
from trtspec.pipeline.plan.resolved import Choice, Coordination, Resolved
from trtspec.pipeline.repository.spec import AdmissionParameters
from trtspec.pipeline.repository.writer import config_text
from trtspec.pipeline.steps.write_repository import repository_spec
from trtspec.serving.drafters.source import Drafting

SECOND = 10**6


def resolved(recipe: Path, serving: str = "{}", engine: str = "backend: torch") -> Resolved:
    text = (
        recipe.read_text()
        .partition("serving:")[0]
        .replace("engine: {backend: torch}", f"engine: {{{engine}}}")
    )
    recipe.write_text(f"{text}\nserving: {serving}\n")
    return make_plan(recipe).resolved


def coordination(found: Resolved) -> Coordination:
    assert found.coordination
    return found.coordination


def choice(found: Resolved, key: str) -> Choice:
    return next(choice for choice in found.choices if choice.key == f"serving.{key}")


def test_defaults(pair_recipe: Path) -> None:
    found = resolved(pair_recipe)
    assert coordination(found).admission == AdmissionParameters(
        max_places=16,
        max_queue_size=256,
        max_queue_delay_microseconds=300 * SECOND,
        default_timeout_microseconds=600 * SECOND,
        draft_timeout_microseconds=5 * SECOND,
        target_timeout_microseconds=120 * SECOND,
    )
    assert choice(found, "draft_timeout_microseconds").reason == "five seconds for what takes milliseconds"


@pytest.mark.parametrize(("places", "queue"), [(1, 256), (16, 256), (17, 272), (64, 1024)])
def test_a_queue_for_every_place(pair_recipe: Path, places: int, queue: int) -> None:
    found = resolved(pair_recipe, engine=f"backend: torch, max_batch_size: {places}")
    admission = coordination(found).admission
    assert (admission.max_places, admission.max_queue_size) == (places, queue)


def test_timeouts_left_out_of_a_recipe_fit_within_those_that_are_written(pair_recipe: Path) -> None:
    found = resolved(pair_recipe, "{default_timeout_microseconds: 4000000, max_queue_size: 3}")
    admission = coordination(found).admission
    assert (admission.max_queue_size, choice(found, "max_queue_size").origin) == (3, "recipe")
    assert admission.max_queue_delay_microseconds == 4 * SECOND
    assert admission.draft_timeout_microseconds == 2 * SECOND
    assert choice(found, "draft_timeout_microseconds").reason == "half the time limit"


def test_where_no_engine_proposes_nothing_is_said_of_its_time(pair_recipe: Path) -> None:
    lines = [line for line in pair_recipe.read_text().splitlines() if not line.startswith("draft:")]
    pair_recipe.write_text("\n".join([*lines, "speculation: {method: ngram}", ""]))
    found = resolved(pair_recipe)
    assert coordination(found).admission.draft_timeout_microseconds is None
    assert "draft_timeout_microseconds" not in config_text(repository_spec(found))
    assert coordination(found).drafting == Drafting("ngram", {"prompt_lookup_min": 2, "prompt_lookup_max": 8})
    assert not [choice for choice in found.choices if choice.key == "serving.draft_timeout_microseconds"]


def test_the_options_of_suffix_decoding_are_vllms(pair_recipe: Path) -> None:
    lines = [line for line in pair_recipe.read_text().splitlines() if not line.startswith("draft:")]
    method = "{kind: suffix, suffix_decoding_max_cached_requests: 100}"
    pair_recipe.write_text("\n".join([*lines, f"speculation: {{method: {method}}}", ""]))
    found = resolved(pair_recipe)
    assert coordination(found).drafting == SUFFIX
    assert "draft_method.suffix_decoding_min_token_prob" in config_text(repository_spec(found))


def test_the_method_is_shown_unless_it_is_the_usual_one(pair_recipe: Path) -> None:
    assert not [choice for choice in resolved(pair_recipe).choices if "method" in choice.key]
    method = "speculation: {method: {kind: hybrid, prompt_lookup_min: 3}}\n"
    pair_recipe.write_text(method + pair_recipe.read_text())
    chosen = {choice.key: (choice.value, choice.origin) for choice in resolved(pair_recipe).choices}
    assert chosen["speculation.method"] == ("hybrid", "recipe")
    assert chosen["speculation.method.prompt_lookup_min"] == (3, "recipe")
    assert chosen["speculation.method.prompt_lookup_max"] == (8, "default")
    assert chosen["serving.draft_timeout_microseconds"] == (5 * SECOND, "default")


def test_the_plan_knows_what_kv_caches_hold_where_it_says_so(h200_recipe: Path) -> None:
    in_process = repository_spec(resolved(h200_recipe)).admission
    assert in_process
    assert in_process.kv_tokens is None
    apart = repository_spec(resolved(h200_recipe, "{layout: bls}"))
    assert apart.admission
    assert apart.admission.kv_tokens == apart.engines[0].kv_tokens
    assert apart.admission.kv_tokens
