"""speculator-traffic: send prompts to an OpenAI or SGLang-style server and measure what comes back."""

import asyncio
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console

from .client import Api, RequestOptions, ask
from .order import Order, stream
from .progress import RunProgress
from .prompts import DOMAINS, Split, builtin
from .records import Prompt, Record, TrafficError, read_prompts
from .report import TrafficSummary, summarise, table
from .run import Load, send_all
from .tokenize import TargetTokenizer

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def choose_prompts(files: Sequence[Path], domains: str | None, split: Split) -> list[Prompt]:
    """Prompts of the files, or the built-in ones, of the domains asked for; raises TrafficError when none is left."""
    wanted = [d.strip() for d in domains.split(",") if d.strip()] if domains else None
    if not files:
        unknown = sorted(set(wanted or ()) - set(DOMAINS))
        if unknown:
            raise TrafficError(f"--domains {','.join(unknown)}: the built-in domains are {', '.join(DOMAINS)}")
        return [prompt for domain in wanted or DOMAINS for prompt in builtin(domain, split)]
    prompts = [prompt for path in files for prompt in read_prompts(path)]
    if wanted is None:
        return prompts
    present = {prompt.domain for prompt in prompts}
    if missing := [d for d in wanted if d not in present]:
        raise TrafficError(f"--domains {','.join(missing)}: not in the files, which hold {', '.join(sorted(present))}")
    return [prompt for domain in wanted for prompt in prompts if prompt.domain == domain]


def checked_url(url: str) -> str:
    """The base URL without a trailing slash; raises TrafficError when it is none."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise TrafficError(f"--url {url}: {error}") from error
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise TrafficError(f"--url {url}: not a URL of a server; it looks like http://HOST:8000")
    return str(parsed).rstrip("/")


async def _check_server(client: httpx.AsyncClient, url: str) -> None:
    try:
        response = await client.get("/health", timeout=10)
    except httpx.HTTPError as error:
        raise TrafficError(f"cannot reach {url}: {error or type(error).__name__}; is the server up?") from error
    if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        raise TrafficError(f"{url} answers 503 to /health: it is not ready yet; wait for it and start again")


async def _run(
    url: str,
    prompts: list[Prompt],
    order: Order,
    per_domain: int | None,
    load: Load,
    options: RequestOptions,
    tokenizer: TargetTokenizer | None,
    timeout: float,
    records_path: Path | None,
    console: Console,
) -> TrafficSummary:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    async with httpx.AsyncClient(
        base_url=url, timeout=httpx.Timeout(timeout), limits=limits, trust_env=False
    ) as client:
        await _check_server(client, url)
        file = records_path.open("w", encoding="utf-8") if records_path else None
        records: list[Record] = []
        begun = time.monotonic()
        try:
            with RunProgress(console, load.requests) as progress:

                def done(record: Record) -> None:
                    records.append(record)
                    progress.add(record)
                    if file:
                        file.write(record.model_dump_json() + "\n")
                        file.flush()  # others watch the file while the run goes on

                cancelled = await send_all(
                    stream(prompts, order, load.seed, per_domain),
                    load,
                    lambda prompt: ask(client, prompt, options, tokenizer),
                    done,
                    stop,
                )
        finally:
            if file:
                file.close()
        return summarise(records, time.monotonic() - begun, cancelled)


@app.command()
def main(
    url: Annotated[str, typer.Option(help="Base URL of the server, for example http://127.0.0.1:8000.")],
    prompts: Annotated[
        list[Path] | None,
        typer.Option(help="JSONL file with id, domain, source, prompt; may be repeated. Default: built-in prompts."),
    ] = None,
    domains: Annotated[str | None, typer.Option(help="Comma-separated; the order counts if sequential.")] = None,
    split: Annotated[Split, typer.Option(help="Of the built-in prompts; held-out ones share no template.")] = "train",
    order: Annotated[Order, typer.Option(help="mixed: shuffled; sequential: one domain after another.")] = "mixed",
    per_domain: Annotated[int | None, typer.Option(min=1, help="Prompts of a domain before the next one.")] = None,
    seed: Annotated[int, typer.Option(help="Of the shuffling and of the arrivals.")] = 0,
    rate: Annotated[float | None, typer.Option(help="Poisson arrivals per second, instead of --concurrency.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Requests kept in flight [default: 4].")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Stop after so many; prompts are cycled.")] = None,
    duration: Annotated[float | None, typer.Option(help="Send nothing new after so many seconds.")] = None,
    api: Annotated[Api, typer.Option(help="/generate (SGLang) or /v1/chat/completions.")] = "generate",
    model: Annotated[str, typer.Option(help="Model name sent to chat completions.")] = "default",
    max_tokens: Annotated[int, typer.Option(min=1)] = 128,
    temperature: Annotated[float, typer.Option(min=0.0)] = 0.0,
    tokenizer: Annotated[
        Path | None, typer.Option(help="The target's checkpoint directory: sends token ids, counts prompt lookup.")
    ] = None,
    draft_tokens: Annotated[int, typer.Option(min=1, help="Chain length for the prompt-lookup count.")] = 3,
    timeout: Annotated[float, typer.Option(help="Seconds without a byte after which a request has failed.")] = 120.0,
    records: Annotated[Path | None, typer.Option(help="Write one JSON object per request here.")] = None,
    summary: Annotated[Path | None, typer.Option(help="Write the summary as JSON here.")] = None,
) -> None:
    """Send prompts, measure TTFT, TPOT, throughput and accept length. Requests are never retried.

    Without --requests and --duration every prompt is sent once. Interrupt ends the run with a summary. Exit status: 0,
    1 when requests failed, 2 when the run could not start.
    """
    console = Console(stderr=True)
    try:
        if rate is not None and (rate <= 0 or concurrency is not None):
            raise TrafficError(f"--rate {rate}: it must be positive, and --concurrency must not be given with it")
        if duration is not None and duration <= 0:
            raise TrafficError(f"--duration {duration}: it must be positive")
        chosen = choose_prompts(prompts or [], domains, split)
        load = Load(
            concurrency=concurrency or 4,
            rate=rate,
            requests=requests if requests or duration else len(chosen),
            duration=duration,
            seed=seed,
        )
        result = asyncio.run(
            _run(
                url=checked_url(url),
                prompts=chosen,
                order=order,
                per_domain=per_domain,
                load=load,
                options=RequestOptions(
                    api=api, model=model, max_tokens=max_tokens, temperature=temperature, draft_tokens=draft_tokens
                ),
                tokenizer=TargetTokenizer(tokenizer) if tokenizer else None,
                timeout=timeout,
                records_path=records,
                console=console,
            )
        )
        if summary:
            summary.write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")
    except (TrafficError, OSError) as error:
        console.print(f"error: {error}", style="red", highlight=False, soft_wrap=True)
        raise typer.Exit(2) from error
    Console().print(table(result))
    for text, count in result.errors.items():
        console.print(f"{count} failed: {text}", highlight=False, soft_wrap=True)
    if result.cancelled_requests:
        console.print(f"interrupted: {result.cancelled_requests} requests in flight were cancelled", highlight=False)
    raise typer.Exit(1 if result.overall.failed_requests else 0)


if __name__ == "__main__":
    app()
