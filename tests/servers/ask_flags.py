"""What a server's own parser reads of commands; run by a Python that has the server.

The arguments are the product's script that finds the parser, and what it takes. Reads a JSON list of lists of
arguments on stdin, and writes the values of each as the last line of stdout.
"""

from __future__ import annotations

import json
import runpy
import sys


def main() -> None:
    script, *arguments = sys.argv[1:]
    made = runpy.run_path(script)["parser"](*arguments)
    print(json.dumps([vars(made.parse_args(words)) for words in json.load(sys.stdin)], default=str))


if __name__ == "__main__":
    main()
