"""The gate's view of a trial pair by pair, recomputed from the evidence in the bucket as anyone can."""

from collections.abc import Sequence

from speculator_operator.api.sync_policy import SyncPolicySpec
from speculator_operator.gate import GatePolicy, evaluate
from speculator_operator.gate.blocks import round_key
from speculator_operator.reconcile.policies import rollout_policy
from speculator_runtime.contracts.plan import Arm, Block, VersionRef
from speculator_runtime.contracts.settings import StoreSettings
from speculator_runtime.storage import Ledger

from .objectstore import client_of
from .observe import GateSample, Story
from .place import S3Access


def trial_samples(story: Story, access: S3Access, bucket: str, prefix: str, policy: SyncPolicySpec) -> list[GateSample]:
    """Estimate and bounds of every version after each pair of its trial; empty for a version without evidence."""
    settings = StoreSettings(
        bucket=bucket, prefix=prefix, endpoint=access.endpoint, region=access.region, path_style=True
    )
    ledger = Ledger(settings, client=client_of(access))
    gate = rollout_policy(policy, "demo").gate
    samples: list[GateSample] = []
    for version in story.latest.versions if story.latest else ():
        ref = VersionRef(version=version.version, sha256=ledger.read_manifest(version.version).sha256)
        samples += pair_by_pair(ledger.read_evidence(version.version), ref, gate)
    return samples


def pair_by_pair(blocks: Sequence[Block], candidate: VersionRef, gate: GatePolicy) -> list[GateSample]:
    """What the gate would have seen after each round.

    Bounds are shown from the second pair on, for the eye: the gate itself looks at none before its burn-in.
    """
    shown = gate.model_copy(update={"burn_in_pairs": 2})
    samples: list[GateSample] = []
    for last in sorted({round_key(block) for block in blocks}):
        seen = [block for block in blocks if round_key(block) <= last]
        report = evaluate(
            seen, arm=Arm.CANDIDATE, versions={Arm.CANDIDATE: candidate}, policy=shown, alpha=gate.alpha
        )
        interval = report.against_target_only.interval
        if interval is not None and interval.pairs > (samples[-1].pairs if samples else 0):
            at = max(block.started + block.seconds for block in seen)
            samples.append(GateSample(at, candidate.version, interval.pairs, interval))
    return samples
