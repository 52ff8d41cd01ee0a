"""A one-node Kubernetes made of the real programs, for the demo and the tests. Not for production."""
