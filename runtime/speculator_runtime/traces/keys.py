"""CURVE keys of the trace sockets, from the files of the Speculator's Secret (names: contracts/settings.py)."""

from dataclasses import dataclass
from pathlib import Path

import zmq
import zmq.utils.z85

from .errors import TraceKeyError


@dataclass(frozen=True)
class CurveKeys:
    """One side's pair and the other side's public key, in Z85."""

    public: bytes
    secret: bytes
    peer: bytes


def agent_keys(directory: Path) -> CurveKeys:
    """Keys of an agent; raises TraceKeyError."""
    return CurveKeys(
        _read(directory / "curve-agent-public"),
        _read(directory / "curve-agent-secret"),
        _read(directory / "curve-trainer-public"),
    )


def trainer_keys(directory: Path) -> CurveKeys:
    """Keys of the trainer; raises TraceKeyError."""
    return CurveKeys(
        _read(directory / "curve-trainer-public"),
        _read(directory / "curve-trainer-secret"),
        _read(directory / "curve-agent-public"),
    )


def write_key_files(directory: Path) -> None:
    """Make fresh pairs for both sides, for runs without an operator."""
    for role in ("agent", "trainer"):
        public, secret = zmq.curve_keypair()
        (directory / f"curve-{role}-public").write_bytes(public)
        (directory / f"curve-{role}-secret").write_bytes(secret)


def _read(path: Path) -> bytes:
    try:
        text = path.read_bytes().strip()
    except OSError as error:
        raise TraceKeyError(
            f"cannot read the CURVE key {path}: {error.strerror}; it comes from the Secret NAME-tokens"
        ) from error
    try:
        valid = len(text) == 40 and len(zmq.utils.z85.decode(text)) == 32
    except (KeyError, ValueError):
        valid = False
    if not valid:
        raise TraceKeyError(f"{path} does not hold a CURVE key: 40 characters of Z85 are expected, got {len(text)}")
    return text
