"""K by the number of running requests: a recipe in, a server's own form out, read as that server reads it."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
import yaml

from tests.fakes.heads import TARGET, write_head
from tests.unit.pipeline.plan.conftest import Planned
from tests.unit.pipeline.plan.conftest import planned as planned  # a fixture
from tests.unit.recipe.test_server_limits import served
from trtspec.backends.launch import ServerLaunch
from trtspec.backends.sglang.flags import FILE
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.pipeline.repository.writer import config_text
from trtspec.pipeline.steps.write_repository import repository_spec
from trtspec.recipe.migration.drafts import SCHEDULE

EXAMPLES = ({1: 4, 5: 2, 9: 0}, {1: 4, 33: 1}, {1: 4}, {1: 4, 2: 0, 40: 3}, {1: 4, 7: 4, 100: 0})
MOST = 16


def meant(schedule: Mapping[int, int], running: int) -> int:
    """What docs/reference/recipe.md says: each K is for so many requests and more, up to the next."""
    return [length for least, length in schedule.items() if least <= running][-1]


def of_vllm(launch: ServerLaunch, running: int) -> int:
    """As `build_dynamic_sd_schedule_lookup` of 0.32.0 (vllm/v1/spec_decode/dynamic/utils.py).

    Ranges do not overlap and begin at 1; between them and beyond the last the K of the one before holds.
    """
    place = launch.arguments.index("--speculative-config") + 1
    config = json.loads(launch.arguments[place])
    ranges = config["num_speculative_tokens_per_batch_size"]
    assert all(0 < first <= last for first, last, _ in ranges)
    assert all(one[1] < other[0] for one, other in pairwise(ranges))
    assert ranges[0][0] == 1
    before = [length for first, _, length in ranges if first <= running]
    return int(min(before[-1], config["num_speculative_tokens"]))


def of_tensorrt_llm(launch: ServerLaunch, running: int) -> int:
    """As `Drafter.get_draft_len_for_batch_size` of 1.2 does, and `DecodingBaseConfig` before it."""
    (text,) = launch.files.values()
    config = yaml.safe_load(text)["speculative_config"]
    schedule: dict[int, int] = config["draft_len_schedule"]
    assert schedule[1] == config["max_draft_len"] >= max(schedule.values())
    assert min(schedule) >= 1
    assert min(schedule.values()) >= 0
    thresholds = sorted(schedule)
    return schedule[thresholds[bisect_right(thresholds, running) - 1]]


def of_sglang(launch: ServerLaunch, running: int) -> int:
    """As `AdaptiveSpeculativeParams._find_closest_bs` of 0.5.23, with slots of one number of steps.

    Such a slot begins with that number, whatever the first number of steps is, and has no other.
    """
    slots = json.loads(launch.files[FILE])
    steps = {step for slot in slots.values() for step in slot["candidate_steps"]}
    option = dict(zip(launch.arguments, launch.arguments[1:], strict=False))
    assert int(option["--speculative-num-steps"]) in steps  # `_init_adaptive_speculative_params` raises
    assert int(option["--speculative-num-draft-tokens"]) == int(option["--speculative-num-steps"]) + 1
    assert "--speculative-adaptive" in launch.arguments
    assert option["--speculative-adaptive-config"] == f"{{build}}/{FILE}"
    starts = sorted(map(int, slots))
    (length,) = slots[str(starts[max(0, bisect_right(starts, running) - 1)])]["candidate_steps"]
    return int(length)


@pytest.fixture
def launched(planned: Planned, tmp_path: Any, llama_folder: Any) -> Any:
    def launch(
        backend: str, schedule: Mapping[int, int], more: str = "", method: str = "draft_model"
    ) -> Resolved:
        target = str(llama_folder("of head", **TARGET)) if method == "eagle3" else "./target"
        if method == "eagle3":
            write_head(tmp_path / "head", "specforge")
        return planned(
            target=f"{{model: {json.dumps(target)}}}",
            draft="{model: ./head}" if method == "eagle3" else "{model: ./draft}",
            speculation=f"{{method: {method}, schedule: {dict(schedule)}{more}}}",
            engine=f"{{backend: {backend}, max_batch_size: {MOST}}}",
        )

    return launch


@pytest.mark.parametrize("schedule", EXAMPLES, ids=str)
@pytest.mark.parametrize(
    ("backend", "method", "read"),
    [
        ("vllm", "draft_model", of_vllm),
        ("tensorrt_llm_pytorch", "draft_model", of_tensorrt_llm),
        ("sglang", "eagle3", of_sglang),
    ],
)
def test_a_server_reads_the_k_of_the_recipe_for_every_number_of_requests(
    launched: Any, backend: str, method: str, read: Any, schedule: dict[int, int]
) -> None:
    found = launched(backend, schedule, method=method)
    assert found.num_draft_tokens == 4
    for running in range(1, 150):
        assert read(found.launch, running) == meant(schedule, running)
    (choice,) = (choice for choice in found.choices if choice.key == "speculation.schedule")
    assert (choice.value, choice.origin) == (schedule, "recipe")


@pytest.mark.parametrize(
    ("backend", "method", "read"),
    [("vllm", "draft_model", of_vllm), ("tensorrt_llm_pytorch", "draft_model", of_tensorrt_llm),
     ("sglang", "eagle3", of_sglang)],
)  # fmt: skip
def test_a_fixed_k_below_the_schedule_bounds_it(launched: Any, backend: str, method: str, read: Any) -> None:
    found = launched(backend, {1: 4, 5: 2, 9: 0}, ", num_draft_tokens: 3", method)
    assert [read(found.launch, running) for running in (1, 4, 5, 9)] == [3, 3, 2, 0]


def test_sglang_rounds_up_to_a_cuda_graph_and_so_never_drafts_more(launched: Any) -> None:
    """It pads the number of requests before it looks (`_pad_to_cuda_graph_bs`): K falls with it."""
    schedule, graphs = {1: 4, 4: 2, 11: 0}, (1, 2, 4, 8, 12, 16)
    launch = launched("sglang", schedule, method="eagle3").launch
    for running in range(1, MOST + 1):
        padded = graphs[bisect_left(graphs, running)]
        assert of_sglang(launch, padded) <= meant(schedule, running)


def test_the_coordinator_gets_it_and_the_engine_verifies_its_largest(planned: Planned) -> None:
    found = planned(engine="{backend: tensorrt_llm}", speculation="{schedule: {1: 6, 5: 2}}")
    assert found.target.options.max_draft_len == 6
    text = config_text(repository_spec(found))
    assert 'key: "draft_schedule"' in text
    assert r'string_value: "{\"1\": 6, \"5\": 2}"' in text
    without = planned(engine="{backend: tensorrt_llm}")
    assert "draft_schedule" not in config_text(repository_spec(without))


EAGLE3 = {"draft": {"model": "a/head"}, "speculation": {"method": "eagle3", "schedule": {1: 4, 9: 0}}}
ALONE = {"draft": None}


@pytest.mark.parametrize(
    ("backend", "changes", "problem"),
    [
        ("vllm", {**ALONE, "speculation": {"method": "suffix", "schedule": {1: 4, 9: 0}}}, "suffix changes"),
        (
            "vllm",
            {
                "engine": {"release": "0.32.0"},
                "speculation": {"method": "medusa", "schedule": {1: 4, 9: 0}},
            },
            "K of medusa changes",
        ),
        (
            "vllm",
            {"engine": {"extra_args": ["-dp", "2"]}, "speculation": {"schedule": {1: 4, 9: 0}}},
            "ignores it with --data-parallel-size 2",
        ),
        ("sglang", {"speculation": {"schedule": {1: 4, 9: 0}}}, "only the steps of EAGLE's heads"),
        ("sglang", {**EAGLE3, "engine": {"extra_args": ["--enable-dp-attention"]}}, "--enable-dp-attention"),
        (
            "sglang",
            {**EAGLE3, "engine": {"extra_args": ["--speculative-adaptive-config=x.json"]}},
            "--speculative-adaptive-config",
        ),
        ("tensorrt_llm_pytorch", EAGLE3, "only of draft models and n-grams"),
        (
            "tensorrt_llm_pytorch",
            {"engine": {"release": "1.1.0"}, "speculation": {"schedule": {1: 4, 9: 0}}},
            "from 1.2 on",
        ),
        ("tensorrt_llm_pytorch", {"speculation": {"schedule": {1: 2, 9: 4}}}, "which has 4 tokens"),
        (
            "tensorrt_llm_pytorch",
            {"speculation": {"schedule": {1: 2, 9: 1}, "max_draft_len": 4}},
            "which has 4 tokens",
        ),
    ],
)  # fmt: skip
def test_a_server_that_would_not_follow_it_is_refused(
    backend: str, changes: dict[str, Any], problem: str
) -> None:
    found = served(backend, **{key: dict(value) if value else value for key, value in changes.items()})
    assert problem in found[SCHEDULE][0]
    assert found[SCHEDULE][1]


@pytest.mark.parametrize("backend", ["torch", "tensorrt_llm"])
def test_a_recipe_for_our_coordinator_takes_it_with_every_policy(backend: str) -> None:
    for policy in ({}, {"policy": "fixed"}, {"policy": "adaptive"}, {"num_draft_tokens": 3}):
        assert served(backend, speculation={"schedule": {1: 4, 9: 0}, **policy}) == {}


def test_an_engine_with_its_draft_inside_drafts_alike_at_any_load() -> None:
    found = served(
        "tensorrt_llm", draft={"model": "a/heads"}, speculation={"method": "medusa", "schedule": {1: 4, 9: 0}}
    )
    assert "the same number of tokens in every step" in found[SCHEDULE][0]


def test_k_above_what_the_target_verifies() -> None:
    found = served("torch", speculation={"schedule": {1: 4, 9: 6}, "max_draft_len": 5})
    assert found[SCHEDULE] == ("has more than max_draft_len", "at most 5")
