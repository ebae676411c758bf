"""A Kubernetes API server for tests: keeps objects, and lets pods come up or fail as a script says."""
