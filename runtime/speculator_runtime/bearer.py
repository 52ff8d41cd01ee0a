"""The bearer token that protects the routes between operator, agent, engine and trainer."""

import hmac
from collections.abc import Callable
from pathlib import Path

from fastapi import HTTPException, Request


def bearer_guard(token_file: Path) -> Callable[[Request], None]:
    """A FastAPI dependency that lets a request pass only with the file's token.

    The file is read every time, because the Secret behind it is rotated while programs run. The dependency raises
    HTTPException: 401 for a missing or wrong token, 503 when the file cannot be read or is empty.
    """

    def authorised(request: Request) -> None:
        check_token(request.headers.get("Authorization", ""), token_file)

    return authorised


def check_token(header: str, token_file: Path) -> None:
    """Raises HTTPException unless the Authorization header carries the file's token."""
    try:
        token = token_file.read_text().strip()
    except OSError as error:
        raise HTTPException(503, f"cannot read {token_file}: {error.strerror}") from error
    if not token:
        raise HTTPException(503, f"{token_file} is empty")
    scheme, _, given = header.partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
        raise HTTPException(401, f"a bearer token is needed: {token_file.name} of the Speculator's Secret")
