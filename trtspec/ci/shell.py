"""The command lines of a CI job, the same in every CI system.

Values from outside are in environment variables, quoted where they are used: `TRTSPEC` (what pip installs),
`RECIPES` (file names, with wildcards), `RECIPE`, `OUTPUT` (the build directory), `STORE` (where engines are
kept; empty for nowhere).
"""

from __future__ import annotations

from importlib.metadata import version

BIN = ".venv/bin"
REPORT = "report"


def requirement() -> str:
    """Returns what pip installs if nothing else is asked for: this very version."""
    return f"trtspec=={version('trtspec')}"


# NVIDIA's image has PyTorch, and may lack ensurepip; its own packages stay as they are.
_VENV = f"python3 -m venv --system-site-packages --without-pip {BIN.partition('/')[0]}"
_PIP = f'python3 -m pip --python {BIN}/python install --quiet "$TRTSPEC"'
INSTALL = (_VENV, _PIP)
INSTALL_TO_BUILD = (_VENV, f"{_PIP} 'trtspec[fp8]'")

# Unquoted, so that wildcards are expanded; the shell expands nothing else in a value.
MATRIX = f'{BIN}/trtspec ci matrix --system {{system}} ${{{{STORE:+--store "$STORE"}}}} -- $RECIPES'

BUILD = (
    f"mkdir -p {REPORT}",
    f'{BIN}/trtspec build "$RECIPE" --output "$OUTPUT" ${{STORE:+--store "$STORE"}}'
    f" --report {REPORT}/summary.md --report {REPORT}/junit.xml --report {REPORT}/build.json",
)

COLLECT = (
    f'if [ -d "$OUTPUT/.trtspec/logs" ]; then cp -r "$OUTPUT/.trtspec/logs" {REPORT}/; fi',
    f'if [ -f "$OUTPUT/manifest.json" ]; then cp "$OUTPUT/manifest.json" {REPORT}/; fi',
)
