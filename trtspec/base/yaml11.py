"""Reads and writes YAML 1.1 with ruamel.yaml, and nothing but plain values.

Recipes are YAML 1.1, and so are the files of TensorRT-LLM, vLLM and SGLang, which read them with PyYAML: `no`
is false there and `1:30` is a number, so text that looks like these is written in quotes.
"""

from __future__ import annotations

import warnings
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MantissaNoDotYAML1_1Warning, MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.scanner import Scanner, ScannerError

__all__ = [
    "CollectionNode",
    "MappingNode",
    "MarkedYAMLError",
    "Node",
    "ReaderError",
    "ScalarNode",
    "SequenceNode",
    "YAMLError",
    "compose",
    "dump",
    "load",
    "load_all",
    "num_aliases",
]


_DEEPEST = 100


class _Constructor(SafeConstructor):
    """Reads dates as such, whatever others in this process have registered with ruamel.yaml."""


_Constructor.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_timestamp)


class _Scanner(Scanner):
    """Refuses deep nests of brackets, of which ruamel.yaml looks at every open one for each token."""

    def fetch_flow_collection_start(self, TokenClass: Any, to_push: str) -> None:
        if self.flow_level >= _DEEPEST:
            problem = f"brackets are nested more than {_DEEPEST} deep"
            raise ScannerError(None, None, problem, self.reader.get_mark())
        super().fetch_flow_collection_start(TokenClass, to_push)


def compose(text: str) -> list[Node]:
    """Returns the root node of each document; a node says where it begins and ends. Raises YAMLError."""
    yaml = _yaml()
    # An anchor may be used again (YAML 1.1, section 3.2.2.2): an alias stands for the last one before it.
    yaml.composer.warn_double_anchors = False
    return list(yaml.compose_all(text))


def num_aliases(text: str) -> int:
    """Returns how many values stand for another one (`*name`); raises YAMLError."""
    return sum(isinstance(event, AliasEvent) for event in _yaml().parse(text))


def load(text: str) -> Any:
    """Returns the one document as plain values; raises YAMLError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MantissaNoDotYAML1_1Warning)
        return _yaml().load(text)


def load_all(text: str) -> list[Any]:
    """Returns each document as plain values; raises YAMLError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MantissaNoDotYAML1_1Warning)
        return list(_yaml().load_all(text))


_NEVER_FOLDED = 10**6
"""Columns. A long path would otherwise be written on a line of its own."""


def dump(value: Any, *, on_one_line: bool = False) -> str:
    """Returns a value as YAML: each key on a line, in the order of the mapping, or all on one line."""
    yaml: Any = _yaml()
    yaml.default_flow_style = on_one_line
    yaml.sort_base_mapping_type_on_output = False
    yaml.brace_single_entry_mapping_in_flow_sequence = True
    yaml.width = _NEVER_FOLDED
    written = StringIO()
    yaml.dump(value, written)
    return written.getvalue().removeprefix("%YAML 1.1\n---").lstrip()


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor, yaml.Scanner = _Constructor, _Scanner
    yaml.version = (1, 1)
    return yaml
