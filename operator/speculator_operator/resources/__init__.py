"""Builders: pure functions from a Speculator to Kubernetes objects, one kind a file."""

from .build import build_objects
from .errors import CannotBuild
from .names import common_labels
from .tokens import fill_tokens

__all__ = ["CannotBuild", "build_objects", "common_labels", "fill_tokens"]
