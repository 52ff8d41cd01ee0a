"""The commands against the real operator process: it carries out what they ask, and they report what it did."""

import asyncio
import contextlib

from kubernetes.aio import config as kube_config
from kubernetes.aio.client import ApiClient, Configuration

from speculator_operator.kube.client import Kube, api_requester
from support.operator_harness import Kubelet, Operator, speculator, sync_policy, until

from .conftest import Cli, publish


@contextlib.asynccontextmanager
async def operated(cli: Cli, log):
    """An operator over the namespace, with pods played; every canary step waits for a person."""
    configuration = Configuration()
    await kube_config.load_kube_config(config_file=str(cli.apiserver.kubeconfig), client_configuration=configuration)
    async with ApiClient(configuration) as api:
        kube = Kube(api_requester(api), lambda: 10.0)
        await kube.create(sync_policy(cli.namespace, steps=[{"replicas": 1, "pause": {}}]))
        await kube.create(speculator(cli.namespace, cli.bucket, cli.s3.endpoint))
        kubelet, operator = Kubelet(kube, cli.namespace), Operator(cli.apiserver.kubeconfig, cli.namespace, log).start()
        playing = asyncio.create_task(kubelet.run())
        try:
            yield
        finally:
            operator.kill()
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
            await kubelet.close()


async def test_a_person_runs_a_lineage_with_nothing_but_the_plugin(make_cli, tmp_path):
    cli = make_cli()

    async def run(*arguments: str, code: int = 0) -> str:
        ran = await asyncio.to_thread(cli, *arguments)
        assert ran.code == code, ran
        return ran.out + ran.err

    async def explained(words: str) -> None:
        async def holds() -> bool:
            return words in await run("explain", "chat")

        await until(f"explain says {words!r}", holds, 60)

    async with operated(cli, tmp_path / "operator.log"):
        await run("wait", "chat", "--for=condition=Ready", "--timeout", "60s")
        assert "no version has been promoted" in await run("get", "chat")

        first = publish(cli.ledger, tmp_path, 1, None)
        await explained("passed step 1/1; the step waits for a person")
        assert "canary, in turn: TargetOnly, Candidate 1" in await run("get", "chat")
        assert "Done: Promote: version 1 is stable." in await run("promote", "chat")
        assert "Stable" in await run("status", "chat", "--timeout", "60s")

        publish(cli.ledger, tmp_path, 2, first)
        await explained("Version 2 passed step 1/1")
        assert "Done: Abort: version 2 is out; version 1 serves." in await run("abort", "chat")
        assert "was aborted by a person" in await run("explain", "chat")
        assert "Done: Retry: version 2 is tried next." in await run("retry", "chat", "2")
        await explained("Version 2 passed step 1/1")
        assert "version 2 is stable" in await run("promote", "chat")
        assert "Done: Rollback: version 1 is stable." in await run("rollback", "chat")
        refused = await run("rollback", "chat", "--to-version", "1", code=1)
        assert refused.endswith("The operator refused: Rollback: version 1 is the stable one already.\n")

        await run("target-only", "chat")
        await run("wait", "chat", "--for=condition=SpeculationActive=False", "--timeout", "60s")
        await run("auto", "chat")
        await run("pause", "chat")
        await run("wait", "chat", "--for=condition=Paused", "--timeout", "60s")
        await run("resume", "chat")
        await run("wait", "chat", "--for=condition=SpeculationActive", "--timeout", "60s")

        rows = (await run("history", "chat", "--ledger")).splitlines()[1:]
        assert [row.split()[0] for row in rows] == ["1", "2", "2", "1"]
        deciders = ["promote.admin.", "abort.admin.", "promote.admin.", "rollback.admin."]
        assert all(who in row for who, row in zip(deciders, rows, strict=True))
        said = "its 2 decisions were not made from pairs of blocks, so none was recomputed.\n"
        for version in ("1", "2"):
            assert (await run("verify", "chat", version)).endswith(said)

        (part,) = cli.ledger.store.objects("versions/000001/evidence/")[:1]
        key = f"{cli.namespace}/chat/{part.key}"
        text = (
            cli.s3.client()
            .get_object(Bucket=cli.bucket, Key=key)["Body"]
            .read()
            .replace(b'"tokens":400', b'"tokens":401', 1)
        )
        cli.s3.client().put_object(Bucket=cli.bucket, Key=key, Body=text)
        assert "the evidence it shows has changed since" in await run("verify", "chat", "1", code=1)
