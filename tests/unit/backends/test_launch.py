"""What is left of a launch when its drafts are."""

from __future__ import annotations

import yaml

from trtspec.backends.launch import ServerLaunch


def launch(*arguments: str, **files: str) -> ServerLaunch:
    return ServerLaunch(
        backend="",
        release="",
        module="",
        program=("serve",),
        arguments=arguments,
        image="",
        served_model_name="",
        files={name.replace("_", "."): text for name, text in files.items()},
    )


def test_options_on_drafts_go_with_their_values() -> None:
    vllm = launch(
        "--model", "m", "--speculative-config", '{"model": "--odd"}', "--no-enable-x", "--dtype", "a"
    )
    assert vllm.without_drafts().arguments == ("--model", "m", "--no-enable-x", "--dtype", "a")
    words = ("--speculative-algorithm", "STANDALONE", "--speculative-adaptive", "--tp-size", "2")
    assert launch(*words).without_drafts().arguments == ("--tp-size", "2")


def test_short_flags_after_options_on_drafts_stay() -> None:
    kept = ("-ep", "-cc", '{"mode": 3}', "-tp", "2")
    found = launch("--speculative-config", "{}", *kept, "--speculative-threshold", "-1").without_drafts()
    assert found.arguments == kept


def test_a_file_on_drafts_gets_a_brother_without_them() -> None:
    text = "dtype: float16\nspeculative_config: {decoding_type: NGram}\n"
    found = launch("serve", "m", "--extra", "{build}/llm.yaml", llm_yaml=text).without_drafts()
    assert found.arguments == ("serve", "m", "--extra", "{build}/plain-llm.yaml")
    assert found.files["llm.yaml"] == text
    assert yaml.safe_load(found.files["plain-llm.yaml"]) == {"dtype": "float16"}


def test_a_launch_that_never_had_drafts_is_unchanged_without_drafts() -> None:
    given = launch("--model", "m", "--config", "{build}/llm.yaml", llm_yaml="dtype: float16\n")
    assert given.without_drafts() == given
