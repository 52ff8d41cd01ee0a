"""Builders: pure functions from a Speculator to Kubernetes objects, one kind a file."""
