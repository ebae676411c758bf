"""Files of servers' options are read as the servers read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtspec.backends.importing import recipe_of
from trtspec.backends.table import loads
from trtspec.base.errors import TrtspecError

HERE = Path("recipe.yaml")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a: 2001-99-99", "is no YAML"),
        ("[" * 3000, "is no YAML"),
        ("a: &a {b: *a}", "has a value that stands for another"),
        (
            "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))]),
            "write ea",
        ),
    ],
)
def test_a_file_that_no_server_reads(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "a.yaml").write_text(content)
    with pytest.raises(TrtspecError) as caught:
        recipe_of(f"trtllm-serve a/b --config {tmp_path / 'a.yaml'}", HERE)
    assert problem in f"{caught.value.problem}; {caught.value.repair}"


@pytest.mark.parametrize(
    ("key", "passed", "is_chunked"),
    [
        ("enable-chunked-prefill", [], False),
        ("enable_prefix_caching", ["--no-enable-prefix-caching"], None),
        ("disable-log-stats", [], None),
    ],
)
def test_false_in_a_file_of_vllm_is_the_flag_that_turns_it_off(
    tmp_path: Path, key: str, passed: list[str], is_chunked: bool | None
) -> None:
    """A flag without such a form is off already."""
    file = tmp_path / "config.yaml"
    file.write_text(f"{key}: false")
    found = recipe_of(f"vllm serve org/big --config {file}", HERE)
    engine = loads(found.text.encode(), HERE).recipe.engine
    assert (engine.extra_args, engine.enable_chunked_context) == (passed, is_chunked)


def test_null_is_as_good_as_no_key(tmp_path: Path) -> None:
    config = '{"method": "ngram", "num_speculative_tokens": 4, "revision": null, "quantization": null}'
    file = tmp_path / "extra.yaml"
    file.write_text("max_seq_len: null\nspeculative_config: {decoding_type: NGram, speculative_model: null}")
    for command in (f"vllm serve org/big -sc '{config}'", f"trtllm-serve org/big --config {file}"):
        found = recipe_of(command, HERE)
        assert "None" not in found.text
        assert not [line for line in found.notes if "null" in line.fate or "None" in line.fate]
        assert not found.missing


def test_import_tells_which_options_for_ngrams_trtspec_sets_itself(tmp_path: Path) -> None:
    file = tmp_path / "extra.yaml"
    file.write_text("speculative_config: {decoding_type: NGram, is_public_pool: true, is_use_oldest: true}")
    told = {note.subject: note.fate for note in recipe_of(f"trtllm-serve a/b --config {file}", HERE).notes}
    for key in ("is_public_pool", "is_use_oldest"):
        assert told[f"{file} speculative_config.{key}"] == "left out: trtspec sets it: false"


def test_values_of_a_file_that_are_of_another_kind(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text('backend: [pytorch]\nspeculative_config: {decoding_type: NGram, max_draft_len: "²"}')
    told = {told.subject for told in recipe_of(f"trtllm-serve a/b --config {file}", HERE).notes}
    assert {f"{file} backend", f"{file} speculative_config.max_draft_len"} <= told
