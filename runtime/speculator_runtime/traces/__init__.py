"""Trace codec and transport."""
