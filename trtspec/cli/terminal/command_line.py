"""Returns the command line as it was typed, for messages and reports."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection


def typed(without: Collection[str] = ()) -> str:
    """Returns the command line without what may be secret in its URLs.

    The options in `without`, each of which takes a value, are left out.
    """
    from trtspec.client.finding import shown

    def plain(word: str) -> str:
        option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        return option + equals + (shown(value) if "://" in value else value)

    kept, is_value = ["trtspec"], False
    for word in sys.argv[1:]:
        is_left_out = word.partition("=")[0] in without
        if not is_value and not is_left_out:
            kept.append(plain(word))
        is_value = is_left_out and "=" not in word
    return shlex.join(kept)
