"""The control API: what it refuses, what it changes, and that serving does not notice."""

import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from speculator_runtime.contracts.control import EngineError, EngineState
from speculator_runtime.drafter.checkpoint import file_sha256, state_digest
from support.engine_server import Running

WriteDrafter = Callable[..., tuple[Path, str]]


def state(engine: Running) -> EngineState:
    return EngineState.model_validate(engine.control.get("/control/state").raise_for_status().json())


def load(engine: Running, version: int, directory: Path, sha256: str) -> httpx.Response:
    body = {"version": version, "directory": str(directory), "sha256": sha256}
    return engine.control.put("/control/drafter", json=body)


def test_every_route_wants_the_token(engine: Running) -> None:
    for method, path in [("GET", "state"), ("GET", "stats"), ("PUT", "drafter"), ("PUT", "mode")]:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            url = f"http://127.0.0.1:{engine.settings.control_port}/control/{path}"
            response = httpx.request(method, url, headers=headers, json={})
            assert response.status_code == 401
            assert "engine-token" in response.text


def test_a_rotated_token_holds_at_once_without_a_restart(engine: Running) -> None:
    token_file = Path(engine.settings.secrets_directory) / "engine-token"
    old = token_file.read_text()
    url = f"http://127.0.0.1:{engine.settings.control_port}/control/state"
    try:
        token_file.write_text("rotated")
        assert engine.control.get("/control/state").status_code == 401
        assert httpx.get(url, headers={"Authorization": "Bearer rotated"}).status_code == 200
    finally:
        token_file.write_text(old)
    assert engine.control.get("/control/state").status_code == 200


def test_the_control_api_is_not_on_the_public_port(engine: Running) -> None:
    headers = {"Authorization": engine.control.headers["authorization"]}
    assert engine.http.get("/control/state", headers=headers).status_code == 404


def test_an_engine_starts_target_only_with_drafter_version_zero_and_knows_its_target(
    engine: Running, tiny_directory: Path
) -> None:
    now = state(engine)
    assert now.engine.startswith("reference/")
    assert now.healthy
    assert len(now.live_digest) == len(now.target_digest) == 64


def test_a_loaded_drafter_is_proved_by_the_digest_of_the_live_weights_and_loading_is_idempotent(
    engine: Running, write_drafter: WriteDrafter
) -> None:
    directory, sha256 = write_drafter(seed=5, used=100)
    first = EngineState.model_validate(load(engine, 3, directory, sha256).raise_for_status().json())
    tensors = load_file(directory / "model.safetensors")
    d2t = tensors.pop("d2t")
    tensors.pop("t2d")
    assert (first.version, first.sha256) == (3, sha256)
    assert first.live_digest == state_digest(tensors.items(), d2t)
    swaps = engine.engine.loop.stats.swaps
    again = EngineState.model_validate(load(engine, 3, directory, sha256).raise_for_status().json())
    assert again.live_digest == first.live_digest
    assert engine.engine.loop.stats.swaps == swaps


def _truncate(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def _edit(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        tensors = load_file(directory / "model.safetensors")
        change(tensors)
        save_file(tensors, directory / "model.safetensors")

    return edit


def _nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors["midlayer.mlp.up_proj.weight"][3, 3] = float("nan")


def _rename(tensors: dict[str, torch.Tensor]) -> None:
    tensors["layers.0.mlp.up_proj.weight"] = tensors.pop("midlayer.mlp.up_proj.weight")


def _embedding(tensors: dict[str, torch.Tensor]) -> None:
    tensors["embed_tokens.weight"] = torch.zeros(320, 32)


def _shape(tensors: dict[str, torch.Tensor]) -> None:
    tensors["fc.weight"] = tensors["fc.weight"][:, :-1].clone()


def _dtype(tensors: dict[str, torch.Tensor]) -> None:
    tensors["fc.weight"] = tensors["fc.weight"].to(torch.int32)


def _map(tensors: dict[str, torch.Tensor]) -> None:
    tensors["d2t"][7] += 1000


@pytest.mark.parametrize(
    ("damage", "reason", "words"),
    [
        (lambda d: shutil.rmtree(d), "Missing", "fetch the version again"),
        (_truncate, "Corrupt", "fetch it again"),
        (_edit(_nan), "NotFinite", "up_proj"),
        (_edit(_rename), "TensorNames", "midlayer.mlp.up_proj.weight"),
        (_edit(_embedding), "TensorNames", "embed_tokens"),
        (_edit(_shape), "TensorShapes", "fc.weight"),
        (_edit(_dtype), "TensorDtypes", "fc.weight"),
        (_edit(_map), "VocabularyMap", ""),
    ],
)
def test_a_bad_checkpoint_is_refused_with_its_reason_and_leaves_the_live_drafter_alone(
    engine: Running,
    write_drafter: WriteDrafter,
    damage: Callable[[Path], None],
    reason: str,
    words: str,
) -> None:
    directory, sha256 = write_drafter(seed=8)
    damage(directory)
    weights = directory / "model.safetensors"
    before = state(engine)
    response = load(engine, 9, directory, file_sha256(weights) if weights.exists() else sha256)
    assert response.status_code == 422
    error = EngineError.model_validate(response.json())
    assert error.reason.value == reason
    assert words in error.message
    assert state(engine) == before
    assert engine.generate([1, 2], 3)["meta_info"]["completion_tokens"] == 3


def test_a_checkpoint_with_another_digest_or_another_draft_vocabulary_is_refused(
    engine: Running, write_drafter: WriteDrafter
) -> None:
    directory, _ = write_drafter(seed=8)
    assert load(engine, 9, directory, "0" * 64).json()["reason"] == "DigestMismatch"
    smaller, sha256 = write_drafter(seed=9, size=64, used=64, name="small")
    response = load(engine, 9, smaller, sha256)
    assert response.status_code == 422
    assert "draft_vocab_size is 64, here 320" in response.json()["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"mode": "Fast"},
        {"mode": "Speculative", "shape": {"steps": 0, "topk": 1, "draft_tokens": 4}},
        {"mode": "Speculative", "shape": {"steps": 2, "topk": 1, "draft_tokens": 9}},
        {"mode": "Speculative", "target_only_above": 0},
        {"mode": "Speculative", "colour": "red"},
    ],
)
def test_a_mode_that_makes_no_sense_is_refused_and_changes_nothing(engine: Running, body: dict[str, Any]) -> None:
    before = state(engine)
    assert engine.control.put("/control/mode", json=body).status_code == 400
    assert state(engine) == before


def test_set_mode_keeps_the_shape_unless_one_is_given(engine: Running) -> None:
    shape = {"steps": 2, "topk": 2, "draft_tokens": 5}
    engine.control.put("/control/mode", json={"mode": "Speculative", "shape": shape, "target_only_above": 3})
    engine.control.put("/control/mode", json={"mode": "TargetOnly"})
    now = state(engine)
    assert now.shape.model_dump() == shape
    assert now.target_only_above is None


def test_batches_above_the_limit_decode_target_only(engine: Running) -> None:
    body = {"mode": "Speculative", "shape": {"steps": 2, "topk": 1, "draft_tokens": 3}, "target_only_above": 1}
    engine.control.put("/control/mode", json=body).raise_for_status()
    before = engine.stats()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: engine.generate([i, 2, 3], 30), range(4)))
    after = engine.stats()
    larger = [b for b in after.buckets if b > 1]
    assert larger
    for bucket in larger:
        then = before.buckets.get(bucket)
        assert after.buckets[bucket].steps > (then.steps if then else 0)
        assert after.buckets[bucket].accept_histogram == (then.accept_histogram if then else {})


def test_swaps_and_switches_under_load_fail_nothing_and_change_no_output(
    engine: Running, write_drafter: WriteDrafter
) -> None:
    """Also: the counters add up to the tokens that clients received, to the last one."""
    prompts = [[i + 1] * (3 + 7 * i) for i in range(8)]
    engine.control.put("/control/mode", json={"mode": "TargetOnly"}).raise_for_status()
    expected = [engine.generate(p, 60)["output_ids"] for p in prompts]
    drafters = [write_drafter(seed=seed, used=320 - 50 * seed) for seed in range(1, 5)]
    shapes = [
        {"steps": 1, "topk": 1, "draft_tokens": 2},
        {"steps": 3, "topk": 1, "draft_tokens": 4},
        {"steps": 3, "topk": 3, "draft_tokens": 10},
    ]
    before, done, calls, longest = engine.stats(), threading.Event(), 0, 0.0
    answers: list[list[int]] = []

    def traffic() -> None:
        with ThreadPoolExecutor(6) as pool:
            for _ in range(3):
                answers.extend(pool.map(lambda p: engine.generate(p, 60)["output_ids"], prompts))
        done.set()

    thread = threading.Thread(target=traffic)
    thread.start()
    while not done.is_set():
        directory, sha256 = drafters[calls % 4]
        body: dict[str, Any] = {"mode": "Speculative", "shape": shapes[calls % 3]}
        if calls % 5 == 4:
            body = {"mode": "TargetOnly"}
        started = time.perf_counter()
        engine.control.put("/control/mode", json=body).raise_for_status()
        longest = max(longest, time.perf_counter() - started)
        load(engine, 10 + calls, directory, sha256).raise_for_status()
        calls += 1
    thread.join()
    assert answers == expected * 3
    assert calls > 10
    after = engine.stats()
    assert after.requests_failed == before.requests_failed
    assert after.requests_finished - before.requests_finished == 24
    committed = sum(b.tokens for b in after.buckets.values()) - sum(b.tokens for b in before.buckets.values())
    assert committed == 24 * 59  # the first token of a request comes from its prompt's forward
    sequences = sum(b.sequences for b in after.buckets.values()) - sum(b.sequences for b in before.buckets.values())
    assert sequences <= committed
    domains = sum(d.tokens for d in after.domains.values()) - sum(d.tokens for d in before.domains.values())
    assert domains == committed
    assert state(engine).version == 10 + calls - 1


def test_a_swap_holds_up_the_decoding_thread_no_longer_than_a_decode_step(
    engine: Running, write_drafter: WriteDrafter
) -> None:
    """Reading and checking a checkpoint happen elsewhere; between two steps there is only a copy in memory.

    Timed in the decoding thread itself, beside the decode steps of the same run, while a request is decoded.
    """
    drafters = [write_drafter(seed=seed) for seed in (21, 22)]
    loop, runner = engine.engine.loop, engine.engine.service._runner
    spent: list[float] = []
    swap = runner.swap

    def timed(checkpoint: Any) -> None:
        started = time.perf_counter()
        swap(checkpoint)
        spent.append(time.perf_counter() - started)

    before = engine.stats().buckets[1]
    runner.swap = timed  # type: ignore[method-assign]
    try:
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(engine.generate, [1, 2, 3], 240)
            call = 0
            while not answer.done():
                directory, sha256 = drafters[call % 2]
                load(engine, 100 + call, directory, sha256).raise_for_status()
                call += 1
    finally:
        runner.swap = swap  # type: ignore[method-assign]
    assert len(spent) >= 3
    assert loop.policy.draft_version == 100 + call - 1
    steps = engine.stats().buckets[1].minus(before)
    assert sorted(spent)[len(spent) // 2] < steps.seconds / steps.steps
