"""The traffic generator."""
