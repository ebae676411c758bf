"""Answers as the families of models write them, and what they are read as."""

from __future__ import annotations

from typing import Any

from trtspec.gateway.openai.output_parser import NO_PARSER

DEEPSEEK = (
    "I look.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n"
    '{"a": 1, "b": "é"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n'
    "{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
DEEPSEEK_31 = (
    "I look.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>"
    '{"a": 1, "b": "é"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>'
    "<｜tool▁calls▁end｜>"
)
KIMI = (
    "I look.\n<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
    '{"a": 1, "b": "é"}<|tool_call_end|><|tool_call_begin|>functions.now:1 <|tool_call_argument_begin|>{}'
    "<|tool_call_end|><|tool_calls_section_end|>"
)
GLM = (
    "I look.\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n"
    "<arg_value>é</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>"
)
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
