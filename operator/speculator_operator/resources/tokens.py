"""Random material of a Speculator: bearer tokens, and CURVE key pairs for the trace sockets."""

import base64
from collections.abc import Callable, Mapping

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

TOKENS = ("agent-token", "engine-token", "trainer-token")
CURVE_PAIRS = ("curve-trainer", "curve-agent")
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def fill_tokens(existing: Mapping[str, str], random_bytes: Callable[[int], bytes]) -> dict[str, str]:
    """`existing` with what is missing made; a pair with one half missing is made anew. Other keys are dropped."""
    tokens = {}
    for name in TOKENS:
        fresh = base64.urlsafe_b64encode(random_bytes(32)).decode().rstrip("=") if not existing.get(name) else ""
        tokens[name] = existing.get(name) or fresh
    for name in CURVE_PAIRS:
        halves = (f"{name}-public", f"{name}-secret")
        if all(existing.get(half) for half in halves):
            tokens |= {half: existing[half] for half in halves}
        else:
            tokens |= dict(zip(halves, curve_pair(random_bytes(32)), strict=True))
    return tokens


def curve_pair(secret: bytes) -> tuple[str, str]:
    """Public and secret key in Z85, as ZeroMQ's CURVE wants them (RFC 26: Curve25519), from 32 random bytes."""
    public = X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()
    return z85(public), z85(secret)


def z85(data: bytes) -> str:
    """ZeroMQ's base-85 text (RFC 32) of a multiple of 4 bytes."""
    if len(data) % 4:
        raise ValueError(f"Z85 encodes multiples of 4 bytes, got {len(data)}")
    text = ""
    for start in range(0, len(data), 4):
        value = int.from_bytes(data[start : start + 4], "big")
        text += "".join(_Z85[value // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return text
