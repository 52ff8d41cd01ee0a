"""Whatever goes wrong becomes one sentence that says what to do. No tracebacks for what a user can put right."""

import json
import re
from typing import Any

from kubernetes.client.exceptions import ApiException

from speculator_operator.api.base import GROUP

FAILED = 1
"""Exit code of anything that went wrong, and of an answer that is no (2 is a wrong command line)."""
UNDER_WAY = 3
"""Exit code when the time was over and nothing had been decided."""


class CliError(Exception):
    """Ends the command: the sentence goes to stderr, the exit code to the shell."""

    def __init__(self, sentence: str, exit_code: int = FAILED) -> None:
        self.exit_code = exit_code
        super().__init__(sentence)


class NotFound(CliError):
    """The object that was named does not exist."""


class Conflict(CliError):
    """The object is no longer at the resourceVersion that was read."""


_FORBIDDEN = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)")?'
)


def api_error(error: ApiException, doing: str) -> CliError:
    """The sentence for an answer of the API server. `doing`: what was tried, "get speculator chat in namespace a"."""
    status = _status(error.body)
    message = str(status.get("message") or error.reason or "no message")
    if error.status == 401:
        return CliError(f"Could not {doing}: the cluster does not accept your credentials; log in again.")
    if error.status == 403:
        return CliError(f"Could not {doing}: {_forbidden(message)}")
    if error.status == 404 and not (status.get("details") or {}).get("name"):
        return CliError(
            f"Could not {doing}: this cluster does not know the resource; are the CRDs of {GROUP} installed in it "
            "(`kubectl get crd`), and is it the right context?"
        )
    if error.status == 404:
        return NotFound(f"Could not {doing}: it does not exist.")
    if error.status == 409:
        return Conflict(f"Could not {doing}: somebody else changed it at the same moment; look again, then repeat.")
    if error.status == 422:
        return CliError(f"Could not {doing}: the cluster refuses it: {_causes(status) or message}.")
    return CliError(f"Could not {doing}: the API server answered {error.status}: {message}.")


def _status(body: Any) -> dict[str, Any]:
    """The Status object of an answer, if it is one."""
    try:
        found = json.loads(body or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _forbidden(message: str) -> str:
    match = _FORBIDDEN.search(message)
    if match is None:
        return f"it is forbidden ({message})."
    resource = ".".join(filter(None, (match["resource"], match["group"])))
    place = f"in namespace {match['namespace']}" if match["namespace"] else "in the whole cluster"
    return (
        f'user {match["user"]} lacks the verb "{match["verb"]}" on {resource} {place}; ask for a Role that grants it.'
    )


def _causes(status: dict[str, Any]) -> str:
    causes = (status.get("details") or {}).get("causes") or []
    return "; ".join(f"{cause.get('field', '')}: {cause.get('message', '')}".removeprefix(": ") for cause in causes)
