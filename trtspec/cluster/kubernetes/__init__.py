"""Kubernetes: a recipe as objects of a cluster, applied, waited for, and rolled out."""
