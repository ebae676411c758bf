"""Answers as the families of models write them, and what they are read as."""

from __future__ import annotations

from typing import Any

from tests.unit.gateway.openai.test_tool_parser import DEEPSEEK, DEEPSEEK_31, GLM, KIMI
from trtspec.gateway.openai.job import NO_PARSER

QWEN = "{{ '<think>' }}</think><tool_call>"
THOUGHT = "<think>\nTwo and two.\n</think>\n\n"
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
GRANITE = "Here is my thought process:\nTwo and two.\n\nHere is my response:\nFour."
BOTH = [("add", {"a": 1, "b": "é"}), ("now", {})]

Parsed = tuple[str, str, list[tuple[str, Any]]]
"""The reasoning, the content, and the calls with their arguments."""

RECORDINGS: list[tuple[str, str | None, str, str, Parsed]] = [
    (QWEN, None, "", THOUGHT + "Four.", ("\nTwo and two.\n", "\n\nFour.", [])),
    (QWEN, None, "", f"\n {THOUGHT}{CALL}", ("\nTwo and two.\n", "\n\n", [("add", {"a": 1})])),
    # Qwen3 is asked not to think by a prompt that has thought, and DeepSeek-R1 begins to think in it.
    (QWEN, None, "<think>\n\n</think>\n\n", "Four.", ("", "Four.", [])),
    (QWEN, None, "assistant\n<think>\n", "Two.</think>Four.", ("Two.", "Four.", [])),
    (QWEN, None, "assistant\n<think>\n", "Two is", ("Two is", "", [])),
    (QWEN, "qwen3", "", "Four. <think> is </think> a tag", ("", "Four. <think> is </think> a tag", [])),
    (QWEN, NO_PARSER, "", THOUGHT + CALL, ("", THOUGHT, [("add", {"a": 1})])),
    ("", "deepseek_r1", "", "Two.</think>Four.", ("Two.", "Four.", [])),
    ("", "deepseek_r1", "", THOUGHT + "Four.", ("\nTwo and two.\n", "\n\nFour.", [])),
    ("", "deepseek_r1", "", "Two", ("Two", "", [])),
    ("", "deepseek_r1", "<think></think>", "Four.", ("", "Four.", [])),
    (
        DEEPSEEK + "</think>",
        None,
        "<think>",
        "Two.</think>" + DEEPSEEK,
        ("Two.", "I look.\n", BOTH),
    ),
    (DEEPSEEK + "</think>", None, "", DEEPSEEK_31, ("", "I look.\n", BOTH)),
    ("my thought process", None, "", GRANITE, ("\nTwo and two.\n\n", "\nFour.", [])),
    ("", "granite", "", GRANITE.replace("Here is", "Here's"), ("\nTwo and two.\n\n", "\nFour.", [])),
    ("", "granite", "", "Here is the answer.", ("", "Here is the answer.", [])),
    (KIMI, None, "", KIMI, ("", "I look.\n", BOTH)),
    (GLM, None, "", GLM, ("", "I look.\n", BOTH)),
]
"""The marks of a template, the recipe's parser, the end of the prompt, the answer, and what it is read as."""
