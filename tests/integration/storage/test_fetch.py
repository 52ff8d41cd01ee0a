"""speculator-fetch, from real sources into real directories."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from speculator_runtime.contracts.settings import FetchSettings, StoreSettings
from speculator_runtime.storage import sources
from speculator_runtime.storage.fetch import MARKER, fetch, main

NEEDED = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}


def tensors():
    generator = torch.Generator().manual_seed(0)

    def weights(*shape):
        return torch.randn(shape, generator=generator).bfloat16()

    return {
        "model.embed_tokens.weight": weights(32, 8),
        "model.layers.0.input_layernorm.weight": weights(8),
        "model.layers.0.mlp.up_proj.weight": weights(400, 8),
        "model.norm.weight": weights(8),
        "lm_head.weight": weights(32, 8),
    }


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A Llama-family checkpoint as it lies on the Hub: also with what must not be brought."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    save_file(tensors(), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text('{"hidden_size": 8}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    (folder / "model-Q4.gguf").write_bytes(b"another format of the same")
    return folder


@pytest.fixture
def sharded(checkpoint: Path) -> Path:
    (checkpoint / "model.safetensors").unlink()
    places = {}
    for number, (name, tensor) in enumerate(tensors().items()):
        shard = f"model-0000{number}.safetensors"
        save_file({name: tensor}, checkpoint / shard)
        places[name] = shard
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return checkpoint


NO_STORE = StoreSettings(bucket="unused")


def from_directory(folder: Path, destination: Path, only="all") -> FetchSettings:
    return FetchSettings(source=f"file://{folder}", destination=str(destination), store=NO_STORE, only=only)


@pytest.fixture
def in_s3(s3_server, store, checkpoint):
    """The checkpoint below `models/tiny` in the bucket, beside one whose name begins alike."""
    client = s3_server.client()
    for path in checkpoint.iterdir():
        client.upload_file(str(path), store.bucket, f"models/tiny/{path.name}")
    client.put_object(Bucket=store.bucket, Key="models/tiny-2/config.json", Body=b"not this one")

    def settings(destination: Path, only="all", name="models/tiny") -> FetchSettings:
        return FetchSettings(source=f"s3://{store.bucket}/{name}", destination=str(destination), store=store, only=only)

    return settings


def test_a_whole_checkpoint_comes_from_s3_without_pickles_and_without_a_second_format(in_s3, checkpoint, tmp_path):
    names = fetch(in_s3(tmp_path / "in"))

    assert names == ["config.json", "model.safetensors", "tokenizer.json"]
    for name in names:
        assert (tmp_path / "in" / name).read_bytes() == (checkpoint / name).read_bytes()


def test_the_trainers_part_comes_from_s3_by_ranges(in_s3, tmp_path, monkeypatch):
    read = []
    original = sources.S3Source.read
    monkeypatch.setattr(sources.S3Source, "read", lambda *a: read.append((a[1], a[3])) or original(*a), raising=True)

    names = fetch(in_s3(tmp_path / "in", only="embedding"))

    assert names == ["config.json", "model.safetensors", "tokenizer.json"]
    found = load_file(tmp_path / "in" / "model.safetensors")
    assert set(found) == NEEDED
    assert all(torch.equal(tensor, tensors()[name]) for name, tensor in found.items())
    assert sum(length for _, length in read) < 3000 < 400 * 8 * 2


def test_the_trainers_part_of_a_sharded_checkpoint(sharded, tmp_path):
    fetch(from_directory(sharded, tmp_path / "in", only="embedding"))

    found = load_file(tmp_path / "in" / "model.safetensors")
    assert set(found) == NEEDED
    assert all(torch.equal(tensor, tensors()[name]) for name, tensor in found.items())
    assert not list((tmp_path / "in").glob("model-0*"))
    assert not (tmp_path / "in" / "model.safetensors.index.json").exists()


def test_a_tied_head_is_not_missed(checkpoint, tmp_path):
    some = tensors()
    del some["lm_head.weight"]
    save_file(some, checkpoint / "model.safetensors")

    fetch(from_directory(checkpoint, tmp_path / "in", only="embedding"))

    assert set(load_file(tmp_path / "in" / "model.safetensors")) == NEEDED - {"lm_head.weight"}


def test_running_again_brings_nothing_and_a_lost_file_is_brought_again(in_s3, tmp_path, monkeypatch):
    fetch(in_s3(tmp_path / "in"))
    downloads = []
    original = sources.S3Source.download
    monkeypatch.setattr(sources.S3Source, "download", lambda *a: downloads.append(a[1]) or original(*a))

    fetch(in_s3(tmp_path / "in"))
    assert downloads == []
    (tmp_path / "in" / "config.json").unlink()
    fetch(in_s3(tmp_path / "in"))
    assert downloads == ["config.json"]


def test_a_run_that_was_killed_before_its_end_is_finished_by_the_next(in_s3, tmp_path):
    fetch(in_s3(tmp_path / "in"))
    (tmp_path / "in" / MARKER).write_text('{"sour')
    (tmp_path / "in" / "model.safetensors").write_bytes(b"half")

    fetch(in_s3(tmp_path / "in"))

    assert set(load_file(tmp_path / "in" / "model.safetensors")) == set(tensors())


def test_a_gguf_file_is_brought_whole_for_engine_and_trainer_alike(tmp_path):
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")

    for only in ("all", "embedding"):
        assert fetch(from_directory(tmp_path / "tiny.gguf", tmp_path / only, only=only)) == ["tiny.gguf"]


def run(settings: FetchSettings, tmp_path: Path) -> tuple[int, str]:
    """Exit code and what stands in the termination log."""
    (tmp_path / "settings.json").write_text(settings.model_dump_json())
    log = tmp_path / "termination-log"
    log.touch()
    return main(["--settings", str(tmp_path / "settings.json")], termination_log=log), log.read_text()


def test_success_leaves_the_termination_log_empty(in_s3, tmp_path):
    assert run(in_s3(tmp_path / "in"), tmp_path) == (0, "")


def test_an_unknown_model_in_s3_is_named_where_the_operator_looks(in_s3, tmp_path):
    code, message = run(in_s3(tmp_path / "in", name="models/tin"), tmp_path)

    assert code == 1
    assert "/models/tin holds no files" in message
    assert "spec.target.model" in message


def test_a_missing_bucket_is_named(in_s3, tmp_path):
    settings = in_s3(tmp_path / "in").model_copy(update={"source": "s3://no-such-bucket/models/tiny"})

    code, message = run(settings, tmp_path)

    assert code == 1
    assert "'no-such-bucket'" in message
    assert "create it" in message


@pytest.mark.parametrize("only", ["all", "embedding"])
@pytest.mark.parametrize("kept", [4, 100, -10], ids=["no header", "half a header", "data cut"])
def test_a_truncated_checkpoint_is_refused(checkpoint, tmp_path, kept, only):
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])

    code, message = run(from_directory(checkpoint, tmp_path / "in", only=only), tmp_path)

    assert code == 1
    assert "truncated" in message
    assert not (tmp_path / "in" / "model.safetensors").exists()


def test_a_checkpoint_of_another_family_is_refused_for_the_trainer(checkpoint, tmp_path):
    save_file({"transformer.wte.weight": torch.zeros(2, 2)}, checkpoint / "model.safetensors")

    code, message = run(from_directory(checkpoint, tmp_path / "in", only="embedding"), tmp_path)

    assert code == 1
    assert "no tensor for embedding and norm" in message


def test_pickled_weights_alone_are_refused(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "pytorch_model.bin").write_bytes(b"a pickle")

    code, message = run(from_directory(tmp_path / "m", tmp_path / "in"), tmp_path)

    assert code == 1
    assert "convert them to safetensors" in message


def test_settings_that_cannot_be_read_end_the_same_way(tmp_path):
    log = tmp_path / "termination-log"
    log.touch()

    assert main(["--settings", str(tmp_path / "none.json")], termination_log=log) == 1
    assert "none.json" in log.read_text()


COMMIT = "c" * 40


@pytest.fixture
def hub(checkpoint: Path, monkeypatch) -> Iterator[str]:
    """A server that answers the Hub's routes for one model, `org/tiny`, from the checkpoint's folder."""

    class Hub(BaseHTTPRequestHandler):
        def log_message(self, *_arguments):
            pass

        def _send(self, status, body=b"", **headers):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_GET(self):
            path = self.path.split("?")[0]
            if path.startswith("/api/models/org/tiny/tree/"):
                tree = [
                    {"type": "file", "path": p.name, "size": p.stat().st_size, "oid": "0" * 40}
                    for p in checkpoint.iterdir()
                ]
                return self._send(200, json.dumps(tree).encode(), Content_Type="application/json")
            if path.startswith("/api/models/org/tiny"):
                files = [{"rfilename": p.name, "size": p.stat().st_size} for p in checkpoint.iterdir()]
                body = {"id": "org/tiny", "modelId": "org/tiny", "sha": COMMIT, "siblings": files}
                return self._send(200, json.dumps(body).encode(), Content_Type="application/json")
            if path.startswith(f"/org/tiny/resolve/{COMMIT}/"):
                data = (checkpoint / path.rsplit("/", 1)[1]).read_bytes()
                identity = {"ETag": f'"{path[-8:]}"', "X_Repo_Commit": COMMIT}
                if "Range" in self.headers:
                    first, last = self.headers["Range"].removeprefix("bytes=").split("-")
                    part = data[int(first) : int(last) + 1 if last else len(data)]
                    where = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
                    return self._send(206, part, Content_Range=where, **identity)
                return self._send(200, data, **identity)
            return self._send(404, X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")

        do_HEAD = do_GET

        def do_POST(self):
            length = int(self.headers.get("Content-Length", 0))
            asked = json.loads(self.rfile.read(length)) if length else {}
            found = [
                {"type": "file", "path": name, "size": (checkpoint / name).stat().st_size, "oid": "0" * 40}
                for name in asked.get("paths", [])
                if (checkpoint / name).is_file()
            ]
            return self._send(200, json.dumps(found).encode(), Content_Type="application/json")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    # The client reads HF_ENDPOINT when it is imported, which another test may have done.
    import huggingface_hub.constants
    import huggingface_hub.file_download
    import huggingface_hub.hf_api

    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(
        huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    )
    yield endpoint
    server.shutdown()
    server.server_close()


def from_hub(name: str, destination: Path, only="all") -> FetchSettings:
    return FetchSettings(source=f"hf://{name}", destination=str(destination), store=NO_STORE, only=only)


def test_a_whole_checkpoint_comes_from_the_hub(hub, checkpoint, tmp_path):
    assert fetch(from_hub("org/tiny", tmp_path / "in")) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (tmp_path / "in" / "model.safetensors").read_bytes() == (checkpoint / "model.safetensors").read_bytes()


def test_the_trainers_part_comes_from_the_hub(hub, tmp_path):
    fetch(from_hub("org/tiny", tmp_path / "in", only="embedding"))

    assert set(load_file(tmp_path / "in" / "model.safetensors")) == NEEDED


def test_a_model_the_hub_does_not_know_is_named(hub, tmp_path):
    code, message = run(from_hub("org/tyni", tmp_path / "in"), tmp_path)

    assert code == 1
    assert message.startswith("hf://org/tyni does not exist on the Hub")


def test_a_hub_that_cannot_be_reached_is_said_so(hub, tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:1")

    code, message = run(from_hub("org/tiny", tmp_path / "in"), tmp_path)

    assert code == 1
    assert message.startswith("cannot ask the Hub for hf://org/tiny")
