"""The sidecar that runs a replica's plan."""
