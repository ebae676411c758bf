"""Limits on clients that both HTTP servers of this machine enforce: the front of `deploy` and OpenAI's
API.
"""

from __future__ import annotations

MAX_BODY = 16 << 20
"""The most bytes of one body, which is more text than any model reads."""

MAX_HEAD = 64 << 10
"""The most bytes of the head of one request, or of the trailers behind its body."""

SHORT_BODY = 1 << 16
"""Bodies of at most so many bytes are read and examined on the loop, since that takes next to no time."""

MOST_CONNECTIONS = 4096

HEAD_S = 30.0
"""The seconds that a client has for the head of a request."""

SENDING_S = 60.0
"""The seconds that a client has for the body."""

UNREAD_S = 1.0
"""The seconds that a client has to take in the answer to a body that is not read to its end."""

READING_S = 60.0
"""The seconds that a client has to make room for more of an answer that is being made."""

RETRY_S = 1
"""After how many seconds a client that found no place may try again."""

LEFT_S = 0.1
"""The seconds before the model is told that a client has left, so that this does not overtake its request."""
