"""The traffic generator: prompts in, measured requests out. Not a load test of engines; see `main`."""
