"""Serves on an open socket: `python -m trtspec.gateway.openai NUMBER SETTINGS`, whose settings are JSON."""

from __future__ import annotations

import socket
import sys

from trtspec.gateway.openai.server import load, serve
from trtspec.gateway.openai.settings import ApiSettings

if __name__ == "__main__":
    settings = ApiSettings.from_json(sys.argv[2])
    serve(socket.socket(fileno=int(sys.argv[1])), settings, *load(settings))
