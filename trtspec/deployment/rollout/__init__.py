"""The roll-out of speculation on a running deployment: its steps, and what stops it."""
