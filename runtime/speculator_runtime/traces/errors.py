"""Why a trace or a trace socket is refused, as types whose reasons can be counted."""

from enum import StrEnum


class TraceReason(StrEnum):
    """What is wrong with a trace that came in."""

    NOT_A_TRACE = "NotATrace"
    SCHEMA_VERSION = "SchemaVersion"
    HEADER = "Header"
    TENSOR_NAMES = "TensorNames"
    TENSOR_DTYPE = "TensorDtype"
    TENSOR_SHAPE = "TensorShape"
    LENGTHS = "Lengths"
    VALUES = "Values"


class TraceError(Exception):
    """A trace that cannot be used; it is refused whole and counted by reason, and nothing else happens."""

    def __init__(self, reason: TraceReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class TraceKeyError(Exception):
    """A CURVE key file is missing or is not a key; the message names the file."""
