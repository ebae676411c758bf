"""`trtspec build RECIPE --output FOLDER --store URL` that stops in the build of its first engine for ever.

Run as `held_builder.py EXPIRY ARGUMENT…`; it says `builds` once it is there. Its lease expires after `EXPIRY`
seconds.
"""

from __future__ import annotations

import sys
from typing import Any

from trtspec.backends.torch import builder
from trtspec.cli.app import main
from trtspec.pipeline.store import lease


def hold(*_: Any) -> None:
    print("builds", flush=True)
    while True:
        sys.stdin.read(1)


if __name__ == "__main__":
    lease.EXPIRY_S, lease.RENEWAL_S = float(sys.argv[1]), 0.1
    setattr(builder, "build", hold)  # noqa: B010 - it has another type
    sys.argv = ["trtspec", "build", *sys.argv[2:]]
    main()
