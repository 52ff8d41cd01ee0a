"""HTTP clients of the agents and the trainer. A replica that does not answer is a value, never an exception.

One dead replica must not hold up the others: every call has its own short timeout, and callers gather them.
"""

from dataclasses import dataclass
from typing import TypeVar

import aiohttp
from pydantic import ValidationError

from speculator_runtime.contracts.base import Contract
from speculator_runtime.contracts.plan import AgentState, BlockPage, Plan
from speculator_runtime.contracts.settings import canonical_json
from speculator_runtime.contracts.trainer import TrainerDirective, TrainerStatus

AGENT_PORT = 8070
TRAINER_PORT = 8090

Model = TypeVar("Model", bound=Contract)


@dataclass(frozen=True)
class CallFailure:
    """Why a call yielded nothing: `status` is the HTTP status, or 0 if nobody answered."""

    where: str
    status: int
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {f'HTTP {self.status}: ' if self.status else ''}{self.message}"


@dataclass(frozen=True)
class Endpoint:
    """Base URL and bearer token of an agent or a trainer."""

    url: str
    token: str


def http_url(address: str, port: int) -> str:
    """Base URL of a pod address; IPv6 addresses get brackets."""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


class PodClients:
    """Calls to agents and trainers over one aiohttp session."""

    def __init__(self, session: aiohttp.ClientSession, seconds: float = 4.0) -> None:
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=seconds, connect=min(2.0, seconds))

    async def agent_state(self, agent: Endpoint) -> AgentState | CallFailure:
        """What the replica runs."""
        return await self._call("GET", agent, "/v1/state", AgentState)

    async def put_plan(self, agent: Endpoint, plan: Plan) -> AgentState | CallFailure:
        """Give the replica its plan; a failure with status 409 means that it follows a newer generation."""
        return await self._call("PUT", agent, "/v1/plan", AgentState, plan)

    async def blocks(self, agent: Endpoint, generation: int, after: int) -> BlockPage | CallFailure:
        """Blocks of a plan generation with an index above `after`."""
        return await self._call("GET", agent, f"/v1/blocks?generation={generation}&after={after}", BlockPage)

    async def trainer_status(self, trainer: Endpoint) -> TrainerStatus | CallFailure:
        """Where training stands."""
        return await self._call("GET", trainer, "/v1/status", TrainerStatus)

    async def put_directive(self, trainer: Endpoint, directive: TrainerDirective) -> TrainerStatus | CallFailure:
        """Tell the trainer what is wanted of it."""
        return await self._call("PUT", trainer, "/v1/directive", TrainerStatus, directive)

    async def _call(
        self, method: str, endpoint: Endpoint, path: str, answer: type[Model], body: Contract | None = None
    ) -> Model | CallFailure:
        where = endpoint.url + path.split("?", 1)[0]
        headers = {"Authorization": f"Bearer {endpoint.token}", "Content-Type": "application/json"}
        data = canonical_json(body) if body is not None else None
        try:
            async with self._session.request(
                method, endpoint.url + path, data=data, headers=headers, timeout=self._timeout
            ) as response:
                text = await response.text()
                if response.status != 200:
                    return CallFailure(where, response.status, text[:300])
                return answer.model_validate_json(text)
        except ValidationError as error:
            return CallFailure(where, 200, f"answer is not a {answer.__name__} of this version: {error.errors()[0]}")
        except (aiohttp.ClientError, TimeoutError, OSError, UnicodeDecodeError) as error:
            return CallFailure(where, 0, f"{type(error).__name__}: {error}".rstrip(": "))
