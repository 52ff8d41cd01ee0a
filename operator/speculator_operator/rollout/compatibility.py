"""Whether a version fits the target that is served. Checked before any canary and before any rollback."""

from speculator_runtime.contracts.ledger import Manifest

from .types import LiveTarget


def incompatibility(manifest: Manifest, target: LiveTarget) -> str:
    """Why the version does not fit, in one sentence; empty when it does. What the target does not tell is not checked
    here: the engine's preflight checks every tensor."""
    theirs = manifest.target
    if theirs.digest != target.digest:
        return (
            f"it was trained for target {theirs.digest[:12]} ({theirs.model}), replicas serve {target.digest[:12]}; "
            "versions trained on the present target's traffic will follow"
        )
    wanted = target.draft_vocab_size
    pairs: list[tuple[str, object, object]] = [
        ("hidden size", theirs.hidden_size, target.hidden_size),
        ("vocabulary size", theirs.vocab_size, target.vocab_size),
        ("captured layers", manifest.capture_layers, target.capture_layers),
        ("algorithm", manifest.algorithm, target.algorithm),
        ("draft vocabulary", manifest.draft_vocab_size, wanted and min(wanted, theirs.vocab_size)),
    ]
    for name, has, expected in pairs:
        if expected is not None and has != expected:
            return f"its {name} is {has}, the replicas have {expected}; a hot swap needs the same"
    return ""
