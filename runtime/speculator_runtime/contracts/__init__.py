"""Contracts between operator, agent, engine and trainer. See each module for its routes or layout."""
