"""`speculator-fetch`: brings the target checkpoint into the pod before engine or trainer starts.

Safe to run again: what is complete is kept, what is not is brought or resumed. On failure the last thing it does is to
write one sentence to the container's termination log, where the operator finds it.
"""

import argparse
import errno
import json
import logging
import sys
from pathlib import Path

from speculator_runtime.contracts.settings import FetchSettings, SettingsError

from .errors import CorruptObjectError, StoreError
from .safetensor_parts import RangeReader, TensorEntry, copy_tensors, read_header, wanted_tensors
from .sources import Source, open_source

log = logging.getLogger("speculator.fetch")
MARKER = ".speculator-fetch.json"
EXTRACT = "model.safetensors"
"""Where `only: embedding` leaves its tensors, under their own names: the directory reads like a small checkpoint."""
_INDEX = "model.safetensors.index.json"
# Everything a Llama-family checkpoint needs; pickles (.bin, .pt) and code are never brought.
_SUFFIXES = {".json", ".safetensors", ".gguf", ".model", ".txt", ".jinja", ".tiktoken"}
_WEIGHTS = {".safetensors", ".gguf"}


def fetch(settings: FetchSettings) -> list[str]:
    """Bring the checkpoint; returns the names of its files. Raises StoreError's subclasses and OSError."""
    destination = Path(settings.destination)
    done = _read_marker(settings, destination)
    if done is not None:
        log.info("%s is already in %s", settings.source, destination)
        return done
    destination.mkdir(parents=True, exist_ok=True)
    source = open_source(settings.source, settings.store)
    files = choose_files(source.files(), settings.source)
    tensors = settings.only == "embedding" and any(name.endswith(".safetensors") for name in files)
    for name in files:
        if not tensors or (name != _INDEX and Path(name).suffix not in _WEIGHTS):
            _bring(source, name, files[name], destination / name)
    for name in files:
        if name.endswith(".safetensors") and not tensors:
            _check_whole(destination / name, f"{settings.source}/{name}")
    if tensors:
        _extract(source, files, settings.source, destination / EXTRACT)
    names = sorted(
        path.name for path in destination.iterdir() if path.is_file() and path.name in {*files, EXTRACT} - {MARKER}
    )
    _write_marker(settings, destination, names)
    return names


def choose_files(files: dict[str, int], source: str) -> dict[str, int]:
    """Of a source's files (name -> bytes), those to bring, ascending. Raises CorruptObjectError without weights."""
    chosen = {name: files[name] for name in sorted(files) if Path(name).suffix in _SUFFIXES}
    if any(name.endswith(".safetensors") for name in chosen):
        return {name: size for name, size in chosen.items() if not name.endswith(".gguf")}
    if any(name.endswith(".gguf") for name in chosen):
        return chosen
    raise CorruptObjectError(
        f"{source} holds {', '.join(sorted(files)[:8])} but neither *.safetensors nor *.gguf: it is not a checkpoint "
        "that can be served (pickled weights are not accepted; convert them to safetensors)"
    )


def _bring(source: Source, name: str, size: int, path: Path) -> None:
    if path.exists() and path.stat().st_size == size:
        return
    log.info("bringing %s, %.1f MB", name, size / 1e6)
    source.download(name, path)


def _check_whole(path: Path, name: str) -> None:
    """Raises CorruptObjectError for a file that is shorter than its header says; the copy is removed."""

    def read(start: int, length: int) -> bytes:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(length)

    try:
        read_header(name, path.stat().st_size, read)
    except CorruptObjectError:
        path.unlink()
        raise


def _extract(source: Source, files: dict[str, int], url: str, destination: Path) -> None:
    shards = [name for name in files if name.endswith(".safetensors")]
    places: dict[str, str] = {}
    if _INDEX in files:
        try:
            places = dict(json.loads(source.read(_INDEX, 0, files[_INDEX]))["weight_map"])
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptObjectError(f"{url}/{_INDEX} is not an index of weights: {error}") from error
        shards = sorted({places[name] for name in wanted_tensors(places, url)})
        absent = [shard for shard in shards if shard not in files]
        if absent:
            raise CorruptObjectError(
                f"{url}/{_INDEX} names {absent[0]}, which is not there; upload the checkpoint again"
            )
    found: dict[str, tuple[TensorEntry, RangeReader]] = {}
    for shard in shards:

        def read(start: int, length: int, shard: str = shard) -> bytes:
            return source.read(shard, start, length)

        for name, entry in read_header(f"{url}/{shard}", files[shard], read).items():
            found[name] = (entry, read)
    parts = [(name, *found[name]) for name in wanted_tensors(found, url)]
    size = copy_tensors(parts, destination)
    log.info("took %s, %.1f MB of %.1f MB", [name for name, *_ in parts], size / 1e6, sum(files.values()) / 1e6)


def _identity(settings: FetchSettings) -> dict[str, str]:
    return {"source": settings.source, "only": settings.only, "endpoint": settings.store.endpoint or ""}


def _read_marker(settings: FetchSettings, destination: Path) -> list[str] | None:
    """The files of an earlier, complete run for the same settings, if they are still there."""
    try:
        marker = json.loads((destination / MARKER).read_text())
        sizes: dict[str, int] = marker.pop("files")
    except (OSError, ValueError, KeyError):
        return None  # Not there, or half written by a run that was killed: do the work.
    if marker != _identity(settings):
        return None
    whole = all((destination / name).is_file() and (destination / name).stat().st_size == sizes[name] for name in sizes)
    return sorted(sizes) if whole else None


def _write_marker(settings: FetchSettings, destination: Path, names: list[str]) -> None:
    sizes = {name: (destination / name).stat().st_size for name in names}
    partial = destination / (MARKER + ".part")
    partial.write_text(json.dumps({**_identity(settings), "files": sizes}, indent=2))
    partial.replace(destination / MARKER)


def main(argv: list[str] | None = None, termination_log: Path = Path("/dev/termination-log")) -> int:
    """Exit code 0 when the checkpoint is there, 1 with one sentence when it cannot be."""
    parser = argparse.ArgumentParser(prog="speculator-fetch", description="Bring a target checkpoint into the pod.")
    parser.add_argument("--settings", type=Path, default=Path("/etc/speculator/config/fetch.json"))
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        names = fetch(FetchSettings.load(arguments.settings))
    except (SettingsError, StoreError) as error:
        return _fail(str(error), termination_log)
    except OSError as error:
        advice = "; give the pod more ephemeral storage" if error.errno == errno.ENOSPC else ""
        return _fail(f"cannot write the checkpoint: {error}{advice}", termination_log)
    log.info("complete: %s", ", ".join(names))
    return 0


def _fail(message: str, termination_log: Path) -> int:
    log.error("%s", message)
    if termination_log.exists():
        termination_log.write_text(message[:4000])
    return 1


if __name__ == "__main__":
    sys.exit(main())
