"""What the gate answers, and never answers."""

import math
import re
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculator_operator.gate import Decision, GatePolicy, Outcome, decide, evaluate
from speculator_runtime.contracts.control import BucketCounters
from speculator_runtime.contracts.plan import Arm, Block
from support.rollout_world import block, ref

from .test_evidence import VERSIONS, rounds


def judged(blocks: list[Block], cap: str = "", **policy: object) -> Decision:
    gate = GatePolicy.model_validate(policy)
    versions = VERSIONS if any(b.arm is Arm.STABLE for b in blocks) else {Arm.CANDIDATE: ref(2)}
    return decide(evaluate(blocks, arm=Arm.CANDIDATE, versions=versions, policy=gate, alpha=gate.alpha), gate, cap)


class TestOutcomes:
    def test_a_faster_drafter_is_promoted_with_figures(self) -> None:
        decision = judged(rounds(12, 1.2))
        assert (decision.outcome, decision.reason) == (Outcome.PROMOTE, "Faster")
        figures = r"at least 1.1\d\d over target-only decoding \(bar 1.00, estimate 1.\d+, 12 pairs\)"
        assert re.search(figures, decision.message)
        assert "confidence 0.95" in decision.message

    def test_a_slower_drafter_is_rejected(self) -> None:
        decision = judged(rounds(12, 0.85))
        assert (decision.outcome, decision.reason) == (Outcome.REJECT, "SlowerThanTargetOnly")
        assert "below the bar of 1.00" in decision.message

    def test_one_slower_than_the_stable_drafter_is_rejected_though_it_beats_target_only(self) -> None:
        decision = judged(rounds(12, 1.2, stable=1.4))
        assert (decision.outcome, decision.reason) == (Outcome.REJECT, "SlowerThanStable")

    def test_one_as_good_as_the_stable_drafter_is_not_promoted(self) -> None:
        assert judged(rounds(20, 1.3, stable=1.3)).outcome is Outcome.CONTINUE

    def test_one_that_cannot_reach_the_bar_is_rejected_even_when_faster(self) -> None:
        decision = judged(rounds(20, 1.05), min_speedup_target_only=1.2)
        assert decision.reason == "BelowBarAgainstTargetOnly"

    def test_before_the_burn_in_it_goes_on_and_says_how_far_it_is(self) -> None:
        decision = judged(rounds(4, 3.0))
        assert decision.outcome is Outcome.CONTINUE
        assert "4 of at least 10 pairs" in decision.message

    def test_dropped_blocks_are_named_in_the_message(self) -> None:
        broken = [b.model_copy(update={"valid": False}) if b.round > 3 else b for b in rounds(12)]
        assert "blocks dropped: 16 Invalid" in judged(broken, guardrail_invalid_blocks=50).message


class TestCaps:
    def test_at_the_cap_of_pairs_an_undecided_candidate_is_inconclusive(self) -> None:
        decision = judged(rounds(30, 1.0, seed=4), max_pairs=30)
        assert (decision.outcome, decision.reason) == (Outcome.INCONCLUSIVE, "Undecided")
        assert "30 pairs were compared" in decision.message

    @pytest.mark.parametrize(("count", "reason"), [(0, "NoEvidence"), (5, "TooFewPairs")])
    def test_at_the_cap_of_time_too_little_evidence_is_inconclusive_and_said_as_such(
        self, count: int, reason: str
    ) -> None:
        decision = judged(rounds(count, 2.0), cap="4 h have passed")
        assert (decision.outcome, decision.reason) == (Outcome.INCONCLUSIVE, reason)
        assert "4 h have passed" in decision.message

    def test_evidence_that_suffices_decides_even_at_the_cap(self) -> None:
        assert judged(rounds(12, 1.3), cap="time is up").outcome is Outcome.PROMOTE
        assert judged(rounds(12, 0.7), cap="time is up").outcome is Outcome.REJECT


class TestGuardrails:
    def test_failing_requests_reject_at_once_however_fast_it_is(self) -> None:
        made = [b.model_copy(update={"requests_failed": 2}) if b.arm is Arm.CANDIDATE else b for b in rounds(6, 2.0)]
        decision = judged(made)
        assert (decision.outcome, decision.reason, decision.guardrail) == (Outcome.REJECT, "ErrorRate", True)
        assert "12 of 36 requests failed" in decision.message

    def test_requests_that_fail_under_every_arm_are_not_the_candidates_fault(self) -> None:
        assert judged(rounds(12, 1.3, failed=2)).outcome is Outcome.PROMOTE

    def test_a_single_failure_among_few_requests_is_no_error_rate(self) -> None:
        made = rounds(3, 1.2, finished=2)
        made[1] = made[1].model_copy(update={"requests_failed": 1})
        assert judged(made).outcome is Outcome.CONTINUE

    def test_a_later_first_token_rejects(self) -> None:
        made = [b.model_copy(update={"ttft_p50_seconds": 0.4}) if b.arm is Arm.CANDIDATE else b for b in rounds(6, 2)]
        decision = judged(made)
        assert (decision.reason, decision.guardrail) == ("TimeToFirstToken", True)
        assert "2.00 times" in decision.message

    def test_blocks_cut_short_under_the_candidate_alone_reject(self) -> None:
        made = [b.model_copy(update={"valid": False}) if b.arm is Arm.CANDIDATE else b for b in rounds(6)]
        assert judged(made).reason == "Unstable"

    def test_blocks_cut_short_under_every_arm_are_not_the_candidates_fault(self) -> None:
        made = [b.model_copy(update={"valid": False}) for b in rounds(6)]
        assert judged(made).outcome is Outcome.CONTINUE

    def test_a_collapsed_accept_length_rejects_before_there_are_pairs_enough(self) -> None:
        made = [
            *(b for b in rounds(2, 1.0, stable=1.3, accept_length=1.8) if b.arm is not Arm.CANDIDATE),
            *(b for b in rounds(2, 1.0, stable=1.3, accept_length=1.05) if b.arm is Arm.CANDIDATE),
        ]
        decision = judged(made)
        assert (decision.outcome, decision.reason, decision.guardrail) == (
            Outcome.REJECT,
            "AcceptLengthCollapsed",
            True,
        )
        assert judged(made, collapse_share=0).outcome is Outcome.CONTINUE
        assert judged(made, collapse_verify_steps=5000).outcome is Outcome.CONTINUE


numbers = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.just(0.0), st.floats(0, 10))


class TestNothingIsPromotedWithoutEvidence:
    def test_not_without_any_block(self) -> None:
        assert judged([]).outcome is Outcome.CONTINUE
        assert judged([], cap="time is up").outcome is Outcome.INCONCLUSIVE

    @pytest.mark.parametrize("missing", list(Arm))
    def test_not_when_an_arm_is_missing(self, missing: Arm) -> None:
        made = [b for b in rounds(40, 3.0, stable=1.1) if b.arm is not missing]
        gate = GatePolicy()
        report = evaluate(made, arm=Arm.CANDIDATE, versions=VERSIONS, policy=gate, alpha=0.05)
        assert decide(report, gate).outcome is not Outcome.PROMOTE

    @settings(max_examples=150, deadline=None)
    @given(
        st.lists(
            st.tuples(st.sampled_from(list(Arm)), st.integers(-5, 500), st.integers(-5, 500), numbers),
            max_size=30,
        ),
        st.booleans(),
    )
    def test_not_on_garbage_of_fewer_pairs_than_the_burn_in(
        self, cells: list[tuple[Arm, int, int, float]], capped: bool
    ) -> None:
        made = []
        for index, (arm, steps, tokens, seconds) in enumerate(cells):
            version = {Arm.CANDIDATE: ref(2), Arm.STABLE: ref(1)}.get(arm)
            base = block(arm, index, round_=index // 3 % 9, version=version)
            bucket = BucketCounters.model_construct(
                steps=steps, sequences=1, tokens=tokens, seconds=seconds, accept_histogram={}
            )
            made.append(base.model_copy(update={"buckets": {1: bucket}}))
        decision = judged(made, cap="time is up" if capped else "")
        assert decision.outcome is not Outcome.PROMOTE
        assert decision.message


def test_a_decision_over_500_blocks_takes_less_than_20_milliseconds() -> None:
    made = rounds(168, 1.1, stable=1.05)
    made = [b.model_copy(update={"buckets": dict.fromkeys((1, 2, 4, 8, 16), b.buckets[1])}) for b in made]
    assert len(made) > 500
    best = math.inf
    for _ in range(7):
        start = time.thread_time()
        judged(made, max_pairs=1000)
        best = min(best, time.thread_time() - start)
    traced = sys.gettrace() is not None  # by coverage, which takes most of the time
    assert best < (0.2 if traced else 0.020), f"{best * 1000:.1f} ms"
