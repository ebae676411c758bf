"""What NVIDIA's converters of checkpoints write.

The argument is a checkout of TensorRT-LLM. Reads a JSON list of commands on stdin, each a script of it and
its arguments, and writes what each failed with, or null, as the last line of stdout.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

from tests.sources import nvidia


def main() -> None:
    root = Path(sys.argv[1])
    nvidia.install(root)
    found: list[str | None] = []
    for script, *arguments in json.load(sys.stdin):
        sys.argv = [script, *arguments]
        try:
            runpy.run_path(str(root / script), run_name="__main__")
            found.append(None)
        except (SystemExit, Exception) as error:
            found.append(f"{type(error).__name__}: {error}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
