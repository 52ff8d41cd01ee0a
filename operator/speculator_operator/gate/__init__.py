"""The gate's statistics: is this drafter faster, and how sure are we? Pure, no I/O. See docs/gate.md.

report = evaluate(blocks, arm=Arm.CANDIDATE, versions={...}, policy=policy, alpha=alpha_of_candidate(policy, k))
decision = decide(report, policy)
"""

from .blocks import evidence_sha256
from .decide import decide
from .evaluate import evaluate
from .holdback import Move, evaluate_holdback, judge_holdback
from .policy import AlphaSpending, BoundsMethod, FallbackPolicy, GatePolicy
from .spending import alpha_of_candidate, expected_false_promotions
from .types import BucketReport, Comparison, Decision, DomainReport, DropReason, GateReport, Outcome

__all__ = [
    "AlphaSpending",
    "BoundsMethod",
    "BucketReport",
    "Comparison",
    "Decision",
    "DomainReport",
    "DropReason",
    "FallbackPolicy",
    "GatePolicy",
    "GateReport",
    "Move",
    "Outcome",
    "alpha_of_candidate",
    "decide",
    "evaluate",
    "evaluate_holdback",
    "evidence_sha256",
    "expected_false_promotions",
    "judge_holdback",
]
