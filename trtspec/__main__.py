"""`python -m trtspec` is the command `trtspec`."""

from trtspec.cli.app import main

main()
