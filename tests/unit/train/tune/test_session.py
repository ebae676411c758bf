"""`trtspec tune` on random pairs: from prompts to a recipe that builds, and on from where it broke off."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import trtspec
from trtspec.backends.table import load
from trtspec.measure.workloads.workload import Recorded, append_recorded, read_recorded
from trtspec.serving.coordinator import Coordinator
from trtspec.serving.tokenizer import Tokenizer
from trtspec.train.tune import costs as tune_costs
from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.candidate import candidates
from trtspec.train.tune.race import FEWEST
from trtspec.train.tune.session import Session
from trtspec.train.tune.teacher_forcing import TeacherForcing


def tune(recipe: Path, *words: object) -> dict[str, Any]:
    """What it says, with the target as a draft of itself, which is right wherever it drafts."""
    folder = recipe.parent
    done = trtspec(
        *("tune", recipe, "--draft", folder / "target", "--work", folder / "work", "--json"), *words
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def for_vllm(pair_recipe: Path) -> Path:
    text = pair_recipe.read_text().replace("backend: torch", "backend: vllm")
    pair_recipe.write_text(text.replace(", dtype: float32", ""))
    return pair_recipe


@pytest.mark.parametrize(
    ("backend", "methods"),
    [("vllm", ["draft_model", "ngram", "suffix"]), ("sglang", ["draft_model", "ngram"])],
)
def test_methods_that_the_backend_lacks_are_not_tried(
    for_vllm: Path, backend: str, methods: list[str]
) -> None:
    text = for_vllm.read_text().replace("backend: vllm", f"backend: {backend}")
    for_vllm.write_text(text.replace("gpu: none", "gpu: none" if backend == "vllm" else "gpu: h100"))
    found = candidates(load(for_vllm), [], [], [])
    assert [candidate.method for candidate in found] == methods


@pytest.mark.sweep
@pytest.mark.usefixtures("cheap")
def test_a_recipe_for_a_server_of_others_is_tuned_here(for_vllm: Path, prompts: Path) -> None:
    found = tune(for_vllm, "--workload", prompts, "--longest", 6)
    assert found["best"]["candidate"] == "target"
    assert load(Path(found["recipe"])).recipe.backend == "vllm"


@pytest.mark.usefixtures("cheap")
def test_the_best_draft_is_found_and_written(pair_recipe: Path, prompts: Path) -> None:
    text = "# Mine.\n" + pair_recipe.read_text()
    pair_recipe.write_text(text)
    found = tune(
        pair_recipe, "--workload", prompts, "--method", "draft_model", "--layers", "1", "--longest", 6
    )
    assert (found["best"]["candidate"], found["best"]["scores"][0]["length"]) == ("target", 6)
    assert found["best"]["scores"][0]["acceptance"]["per_token"] > 0.85  # Of the target, in float32.
    others = {standing["candidate"]: standing for standing in found["standings"][1:]}
    assert set(others) == {"draft", "layers 0 of the target"}
    assert all(standing["was_stopped"] for standing in others.values())
    written = Path(found["recipe"])
    assert written == pair_recipe.with_name("pair.tuned.yaml")
    assert pair_recipe.read_text() == text
    assert written.read_text().startswith("# Mine.\nname: pair\ntarget: {model: ./target}\n")
    recipe = load(written).recipe
    assert recipe.draft
    assert (recipe.draft.model, recipe.draft.dtype) == ("./target", "float32")
    assert (recipe.speculation.num_draft_tokens, recipe.speculation.max_draft_len) == (6, 6)
    assert trtspec("build", written, "--output", pair_recipe.parent / "build").returncode == 0


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("listed", [[0, 1], None])
def test_a_draft_ends_with_the_token_that_a_served_pair_ends_with(
    pair_recipe: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch, listed: list[int] | None
) -> None:
    """The tokenizer's own, whatever the order of the model's, and also where the model names none."""
    for folder in ("target", "draft"):
        for file in ("config.json", "generation_config.json"):
            path = pair_recipe.parent / folder / file
            path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": listed}))
    asked = list[tuple[int, ...]]()

    def noted(self: TeacherForcing, engine: Path, device: str, size: int, end_ids: tuple[int, ...]) -> None:
        asked.append(end_ids)
        raise KeyboardInterrupt

    monkeypatch.setattr(TeacherForcing, "__init__", noted)
    words = ("--work", pair_recipe.parent / "work", "--method", "draft_model", "--longest", 1)
    assert trtspec("tune", pair_recipe, "--workload", prompts, *words).returncode == 130
    own = Tokenizer.load(pair_recipe.parent / "target").id_of("</s>")
    assert [ends[:1] for ends in asked] == [(own,)]


@pytest.mark.usefixtures("cheap")
def test_a_second_run_measures_nothing_again(
    pair_recipe: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tune(pair_recipe, "--workload", prompts, "--longest", 4)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("this was measured before")

    monkeypatch.setattr(tune_costs.CostMeasurement, "costs", never)
    monkeypatch.setattr(TeacherForcing, "__init__", never)
    monkeypatch.setattr(Coordinator, "complete", never)
    assert tune(pair_recipe, "--workload", prompts, "--longest", 4) == first


@pytest.mark.usefixtures("cheap")
def test_a_prompt_that_may_be_answered_longer_now_is_asked_again(pair_recipe: Path, prompts: Path) -> None:
    def lengths(most: int) -> set[int]:
        rows = [{**json.loads(row), "max_tokens": most} for row in prompts.read_text().splitlines()]
        prompts.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        tune(pair_recipe, "--workload", prompts, "--method", "ngram", "--longest", 1)
        (file,) = (pair_recipe.parent / "work").glob("answers-*.jsonl")
        newest = {answer.prompt_token_ids: answer for answer in read_recorded(file)}
        return {len(answer.answer_token_ids or ()) for answer in newest.values()}

    assert [lengths(24), lengths(32), lengths(16)] == [{24}, {32}, {16}]


@pytest.mark.usefixtures("cheap")
def test_measurements_of_tune_before_an_interrupt_are_kept(
    pair_recipe: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices, asked = TeacherForcing.choices, list[object]()

    def noted(self: TeacherForcing, answer: Any) -> Any:
        asked.append(answer)
        return choices(self, answer)

    def interrupted(self: TeacherForcing, answer: Any) -> Any:
        if len(asked) == 3:
            raise KeyboardInterrupt
        return noted(self, answer)

    words = ("tune", pair_recipe, "--workload", prompts, "--work", pair_recipe.parent / "work", "--json")
    monkeypatch.setattr(TeacherForcing, "choices", interrupted)
    stopped = trtspec(*words, "--method", "draft_model")
    assert stopped.returncode == 130
    assert "the same command continues from there" in stopped.stderr
    monkeypatch.setattr(TeacherForcing, "choices", noted)
    assert trtspec(*words, "--method", "draft_model").returncode == 0
    assert len(asked) == len(set(asked)) == FEWEST  # A random draft is not looked at any longer.


@pytest.mark.usefixtures("cheap")
def test_recorded_answers_are_taken_as_they_are(pair_recipe: Path, prompts: Path) -> None:
    tune(pair_recipe, "--workload", prompts, "--method", "ngram")
    (file,) = (pair_recipe.parent / "work").glob("answers-*.jsonl")
    answers = read_recorded(file)
    assert len(answers) == 10
    assert all(len(answer.answer_token_ids or ()) <= 24 for answer in answers)
    texts = pair_recipe.with_name("texts.jsonl")
    append_recorded(
        texts, [Recorded(answer.name, prompt=answer.prompt, text="abcabcabcabc") for answer in answers]
    )
    found = tune(pair_recipe, "--answers", texts, "--method", "ngram")
    assert found["best"]["scores"][0]["acceptance"]["per_token"] > 0.8


@pytest.mark.usefixtures("cheap")
def test_answers_to_one_prompt_count_once(pair_recipe: Path, prompts: Path) -> None:
    """As a bench has them, whose two arms and several loads ask the same prompts again."""
    tune(pair_recipe, "--workload", prompts, "--method", "ngram")
    (file,) = (pair_recipe.parent / "work").glob("answers-*.jsonl")
    answers, again = read_recorded(file), pair_recipe.with_name("again.jsonl")
    append_recorded(again, answers * 6)
    found = tune(pair_recipe, "--answers", again, "--method", "ngram", "--longest", 2)
    assert found == tune(pair_recipe, "--answers", file, "--method", "ngram", "--longest", 2)
    assert found["answers"] == 10


def test_tokens_that_the_target_has_not_are_told(pair_recipe: Path) -> None:
    texts = pair_recipe.with_name("texts.jsonl")
    append_recorded(texts, [Recorded("a", prompt="x", answer_token_ids=(5, 10**6))])
    done = trtspec("tune", pair_recipe, "--work", pair_recipe.parent / "work", "--answers", texts)
    assert done.returncode == 1
    assert "texts.jsonl: a: has token id 1000000, but the target has" in done.stderr


@pytest.mark.usefixtures("cheap")
def test_recorded_prompts_may_be_what_a_user_says(
    pair_recipe: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pair_recipe.parent / "target" / "chat_template.jinja").write_text(
        "{% for message in messages %}<{{ message.content }}>{% endfor %}"
    )
    tokenizer, texts = Tokenizer.load(pair_recipe.parent / "target"), pair_recipe.with_name("said.jsonl")
    known = tokenizer.encode("already tokens")
    append_recorded(
        texts,
        [
            Recorded("a", prompt="hello", text="abcabcabc"),
            Recorded("b", prompt="bye", text="abcabcabc"),
            Recorded("c", prompt_token_ids=tuple(known), text="abcabcabc"),
        ],
    )
    asked: list[Sequence[RecordedAnswer]] = []

    def taken(self: Session, answers: Sequence[RecordedAnswer]) -> None:
        asked.append(answers)
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "tune", taken)
    trtspec("tune", pair_recipe, "--work", pair_recipe.parent / "work", "--answers", texts, "--chat")
    assert {tuple(answer.prompt) for answer in asked[0]} == {
        tuple(tokenizer.encode("<hello>", add_special_tokens=False)),
        tuple(tokenizer.encode("<bye>", add_special_tokens=False)),
        tuple(known),
    }


@pytest.mark.usefixtures("cheap")
def test_drawn_answers_keep_the_numbers_that_they_were_drawn_with(pair_recipe: Path, prompts: Path) -> None:
    words = ("--workload", prompts, "--temperature", 0.7, "--method", "draft_model", "--longest", 2)
    found = tune(pair_recipe, *words)
    assert found["best"]["candidate"] == "target"
    assert found["best"]["scores"][0]["acceptance"]["per_token"] > 0.85


def test_a_draft_with_another_tokenizer_is_refused_and_the_rest_goes_on(
    pair_recipe: Path, prompts: Path, cheap: None, llama_folder: Callable[..., Path]
) -> None:
    stranger = llama_folder("stranger")
    tokenizer = json.loads((stranger / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (stranger / "tokenizer.json").write_text(json.dumps(tokenizer))
    found = tune(pair_recipe, "--workload", prompts, "--draft", stranger, "--method", "draft_model")
    by_name = {standing["candidate"]: standing["why"] for standing in found["standings"]}
    assert "do not fit together" in by_name["stranger"] or "token" in by_name["stranger"]
    assert by_name["target"].startswith("the best")


def test_a_draft_that_is_not_there_is_refused_before_anything_is_built(
    pair_recipe: Path, prompts: Path
) -> None:
    work = pair_recipe.parent / "work"
    words = ("--workload", prompts, "--draft", "./nope", "--work", work)
    said = trtspec("tune", pair_recipe, *words)
    assert said.returncode == 1
    assert "nope: is not a folder" in said.stderr
    assert not work.exists()


def test_rounds_are_timed_here(pair_recipe: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_costs, "BUDGET_S", 0.0)
    monkeypatch.setattr(tune_costs, "SECONDS", 0.005)
    found = tune(pair_recipe, "--workload", prompts, "--longest", 3, "--streams", 2, "--method", "hybrid")
    costs = [standing["costs"] for standing in found["standings"]]
    assert all(len(one["drafted"]) == len(one["looked_up"]) == 3 for one in costs)
    assert all(one["plain_s"] > 0 and one["error"] > 0 for one in costs)
    assert all(one["drafted"][2] > one["looked_up"][2] >= 1.0 for one in costs)


def test_rounds_are_timed_with_texts_that_have_no_room_left(
    pair_recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune_costs, "BUDGET_S", 0.0)
    monkeypatch.setattr(tune_costs, "SECONDS", 0.005)
    pair_recipe.write_text(
        pair_recipe.read_text().replace("backend: torch", "backend: torch, max_seq_len: 128")
    )
    texts = pair_recipe.with_name("texts.jsonl")
    prompts = [(100 + number, *range(60, 180)) for number in range(4)]
    append_recorded(
        texts,
        [Recorded("a", prompt_token_ids=prompt, answer_token_ids=(65, 66, 67, 68)) for prompt in prompts],
    )
    found = tune(pair_recipe, "--answers", texts, "--longest", 8, "--method", "draft_model")
    assert all(cost > 0 for standing in found["standings"] for cost in standing["costs"]["drafted"])


def test_a_plan_says_what_rounds_cost_on_its_gpu(h200_recipe: Path, prompts: Path) -> None:
    answers = h200_recipe.with_name("answers.jsonl")
    append_recorded(answers, [Recorded(str(n), prompt=f"{n}", text="abcabcabc" * 4) for n in range(4)])
    found = tune(h200_recipe, "--answers", answers, "--method", "ngram", "--method", "draft_model")
    assert found["speed"] == "plan"
    by_method = {standing["method"]: standing["costs"] for standing in found["standings"]}
    assert by_method["ngram"]["drafted"] == by_method["ngram"]["looked_up"]
    assert by_method["draft_model"]["drafted"] > by_method["draft_model"]["looked_up"]
    assert found["best"]["method"] == "ngram"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give one of --workload and --answers"),
        (("--workload", "a", "--answers", "b"), "give one of --workload and --answers"),
        (("--workload", "a", "--layers", "0"), "write how many, as 4, or which, as 0,1,31"),
    ],
)
def test_wrong_usage_is_told(pair_recipe: Path, words: tuple[str, ...], said: str) -> None:
    done = trtspec("tune", pair_recipe, *words)
    assert done.returncode == 2
    assert said in done.stderr


def test_more_streams_than_places_are_refused(pair_recipe: Path, prompts: Path) -> None:
    done = trtspec(
        "tune", pair_recipe, "--workload", prompts, "--streams", 17, "--work", pair_recipe.parent / "w"
    )
    assert done.returncode == 1
    assert "serves 16 texts at once, not 17" in done.stderr
