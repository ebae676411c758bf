"""Runs a new build beside the one that a cluster serves, and moves requests to it step by step."""
