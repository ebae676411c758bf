"""The standard streams of a command."""

from __future__ import annotations

import os
import sys


def open_closed() -> None:
    """Gives a command whose stdin, stdout or stderr is closed (`>&-`) the null device in its place.

    Python has no stream there, and the first file that is opened would have its number.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(null, True)
            setattr(sys, name, os.fdopen(null, mode, encoding="utf-8"))
