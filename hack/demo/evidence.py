"""The gate's view of a trial pair by pair, recomputed from the evidence in the bucket as anyone can."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml

from speculator_operator.api.sync_policy import SyncPolicy
from speculator_operator.gate import GatePolicy, evaluate
from speculator_operator.gate.blocks import round_key
from speculator_operator.reconcile.policies import rollout_policy
from speculator_runtime.contracts.plan import Arm, Block, VersionRef
from speculator_runtime.contracts.settings import StoreSettings
from speculator_runtime.storage import Ledger, StoreError

from .objectstore import client_of
from .observe import Estimate, GateSample
from .place import S3Access


class Evidence:
    """Reads the trials of one ledger."""

    def __init__(self, access: S3Access, bucket: str, prefix: str, gate: GatePolicy) -> None:
        settings = StoreSettings(
            bucket=bucket, prefix=prefix, endpoint=access.endpoint, region=access.region, path_style=True
        )
        self._ledger = Ledger(settings, client=client_of(access))
        self._gate = gate

    def samples(self, versions: Iterable[int]) -> list[GateSample]:
        """Every version's trial, pair by pair; a version that cannot be read just now is left out."""
        found: list[GateSample] = []
        for number in versions:
            try:
                ref = VersionRef(version=number, sha256=self._ledger.read_manifest(number).sha256)
                blocks = self._ledger.read_evidence(number)
            except StoreError:
                continue
            found += pair_by_pair(blocks, ref, self._gate)
        return found


def gate_policy(manifest: Path) -> GatePolicy:
    """The gate's parameters in a SyncPolicy manifest, as the operator reads them."""
    policy = SyncPolicy.parse(yaml.safe_load(manifest.read_text()))
    return rollout_policy(policy.spec, "demo").gate


def pair_by_pair(blocks: Sequence[Block], candidate: VersionRef, gate: GatePolicy) -> list[GateSample]:
    """What the evidence said after each round.

    Bounds are given from the second pair on, for the eye: the gate itself looks at none before its burn-in.
    """
    shown = gate.model_copy(update={"burn_in_pairs": 2})
    found: list[GateSample] = []
    for last in sorted({round_key(block) for block in blocks}):
        seen = [block for block in blocks if round_key(block) <= last]
        report = evaluate(seen, arm=Arm.CANDIDATE, versions={Arm.CANDIDATE: candidate}, policy=shown, alpha=gate.alpha)
        interval = report.against_target_only.interval
        if interval is not None and (not found or interval.pairs > found[-1].speedup.pairs):
            estimate = Estimate(interval.estimate, interval.lower, interval.upper, interval.pairs)
            found.append(GateSample(candidate.version, estimate))
    return found
