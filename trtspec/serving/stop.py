"""The search for stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class StopMatcher:
    """Passes text on up to the first complete stop string.

    It is the automaton of Aho and Corasick (1975). Its depth after a character is the length of the longest
    suffix of the text that begins a stop string, which is the part to hold back. A character costs the same
    for any number of strings. Of several strings that end at the same character, the longest is cut off.
    With `is_included` none is.
    """

    def __init__(self, stops: Iterable[str], *, is_included: bool = False) -> None:
        self.found, self.is_included = False, is_included
        self._held = ""
        self._node = 0
        # One entry for each node. Node 0 is the empty string.
        self._children: list[dict[str, int]] = [{}]
        self._firsts = self._children[0].keys()
        self._depth = [0]
        self._shorter = [0]  # the node of the longest proper suffix that begins a stop string
        self._match = [0]  # the length of the longest stop string that ends here, 0 for none
        for stop in stops:
            self._add(stop)
        self._link()

    def push(self, text: str) -> str:
        """Returns the text that can be sent now. It must not be called once `found` is true."""
        if not self._node and self._firsts.isdisjoint(text):
            return text
        for position, char in enumerate(text, 1):
            self._node = self._step(self._node, char)
            if match := self._match[self._node]:
                self.found = True
                shown = self._held + text[:position]
                shown = shown if self.is_included else shown[:-match]
                self._held = ""
                return shown
        seen = self._held + text
        border = len(seen) - self._depth[self._node]
        self._held = seen[border:]
        return seen[:border]

    def flush(self) -> str:
        """Returns the text that was held back, at the end of a text without a stop string."""
        held, self._held = self._held, ""
        return held

    def _step(self, node: int, char: str) -> int:
        while node and char not in self._children[node]:
            node = self._shorter[node]
        return self._children[node].get(char, 0)

    def _add(self, stop: str) -> None:
        node = 0
        for char in stop:
            if char not in self._children[node]:
                self._children[node][char] = len(self._depth)
                self._children.append({})
                self._depth.append(self._depth[node] + 1)
                self._shorter.append(0)
                self._match.append(0)
            node = self._children[node][char]
        self._match[node] = len(stop)

    def _link(self) -> None:
        waiting = deque(self._children[0].values())
        while waiting:
            node = waiting.popleft()
            for char, child in self._children[node].items():
                self._shorter[child] = self._step(self._shorter[node], char)
                self._match[child] = self._match[child] or self._match[self._shorter[child]]
                waiting.append(child)
