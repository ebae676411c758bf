"""A new build beside the one that a cluster serves: a share of the requests, a step at a time, and back."""
