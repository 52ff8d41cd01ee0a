"""The thin edge to the API server, the agents, the trainer and S3."""
