"""A real HTTP server that answers as a trainer, for tests where no kubelet can run one."""

from dataclasses import dataclass, field

from aiohttp import web

from speculator_runtime.contracts.trainer import TrainerDirective, TrainerStatus


@dataclass
class TrainerServer:
    """Start with `await start(address)`; the operator calls port 8090."""

    status: TrainerStatus = field(default_factory=lambda: TrainerStatus(phase="Training", step=10))
    directives: list[TrainerDirective] = field(default_factory=list)
    requests: int = 0

    async def start(self, address: str, port: int = 8090) -> None:
        app = web.Application()
        app.add_routes([web.get("/v1/status", self._status), web.put("/v1/directive", self._directive)])
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, address, port).start()

    async def stop(self) -> None:
        await self._runner.cleanup()

    def _answer(self) -> web.Response:
        generation = self.directives[-1].generation if self.directives else 0
        # Counters move all the time, as those of a live trainer do.
        self.requests += 1
        status = self.status.model_copy(
            update={"directive_generation": generation, "step": self.status.step + self.requests}
        )
        return web.Response(text=status.model_dump_json(), content_type="application/json")

    async def _status(self, request: web.Request) -> web.Response:
        return self._answer()

    async def _directive(self, request: web.Request) -> web.Response:
        self.directives.append(TrainerDirective.model_validate_json(await request.text()))
        return self._answer()
