"""Traces from engine to agent to trainer: codec, sender (engine), forwarder (agent, no torch), receiver (trainer).

Import from the modules: this package itself imports nothing, so that the agent stays without torch.
"""
