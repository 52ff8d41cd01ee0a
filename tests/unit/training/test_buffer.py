import torch
from hypothesis import given
from hypothesis import strategies as st

from speculator_runtime.contracts.settings import TrainingConfig
from speculator_runtime.contracts.trace import TraceHeader
from speculator_runtime.training import buffer as buffers
from speculator_runtime.training.buffer import SampleBuffer
from speculator_runtime.training.sample import Sample

KIB = 1 << 10


def sample(domain="sql", name="r", kib=64, finished=100.0, draft_version=0, target="t"):
    header = TraceHeader(
        request_id=name,
        domain=domain,
        prompt_length=1,
        total_length=2,
        hidden_size=1,
        vocab_size=9,
        capture_layers=(0, 1, 2),
        draft_version=draft_version,
        target_digest=target,
        mode="TargetOnly",
        arrived=0.0,
        finished=finished,
    )
    empty = torch.empty(0)
    return Sample(header, empty, 0, torch.zeros(kib * KIB // 4), empty, empty, empty, empty)


def make(quota=0.5, mib=1, **training):
    return SampleBuffer(TrainingConfig(buffer_bytes=mib << 20, buffer_domain_quota=quota, **training))


def names(samples):
    return [s.header.request_id for s in samples]


def seed(value=0):
    return torch.Generator().manual_seed(value)


def test_a_burst_of_ten_times_the_size_keeps_within_the_bytes_and_counts_what_went():
    buffer = make()
    for i in range(160):
        buffer.add(sample(name=str(i)))
    held = buffer.occupancy()
    assert (held.samples, held.bytes, held.high_water_bytes <= (1 << 20) + 64 * KIB) == (16, 1 << 20, True)
    assert buffer.dropped == {buffers.FULL: 144}
    assert names(buffer.draw(16, None, seed())) == [str(i) for i in range(144, 160)]


def test_a_burst_in_one_domain_grows_to_its_quota_and_then_displaces_only_itself():
    buffer = make(quota=0.5)
    for i in range(16):
        buffer.add(sample(("math", "code")[i % 2], name=f"old-{i}"))
    for i in range(160):
        buffer.add(sample("sql", name=f"new-{i}"))
    assert buffer.occupancy().domains == {"code": 4, "math": 4, "sql": 8}


def test_a_lone_domain_may_fill_everything_and_gives_room_when_another_comes():
    buffer = make(quota=0.5)
    for i in range(20):
        buffer.add(sample("sql", name=str(i)))
    assert buffer.occupancy().domains == {"sql": 16}
    for i in range(3):
        buffer.add(sample("math", name=f"m{i}"))
    assert buffer.occupancy().domains == {"math": 3, "sql": 13}


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 300)), max_size=80), st.sampled_from([0.2, 0.5, 1.0]))
def test_bytes_never_exceed_the_bound_and_every_sample_is_held_or_counted(arrivals, quota):
    buffer = make(quota)
    for i, (domain, kib) in enumerate(arrivals):
        buffer.add(sample(domain, str(i), kib))
        assert buffer.occupancy().bytes <= 1 << 20
    held = buffer.occupancy()
    assert held.samples + sum(buffer.dropped.values()) == len(arrivals)
    drawn = buffer.draw(len(arrivals), None, seed())
    assert sum(s.nbytes for s in drawn) == held.bytes


def test_a_sample_larger_than_the_buffer_is_refused_and_nothing_goes_for_it():
    buffer = make()
    buffer.add(sample(name="small"))
    buffer.add(sample(name="large", kib=2048))
    assert buffer.occupancy().samples == 1
    assert buffer.dropped == {buffers.TOO_LARGE: 1}


def test_a_batch_mixes_at_most_so_many_fresh_samples_with_replay():
    buffer = make()
    for i in range(6):
        buffer.add(sample(name=str(i)))
    assert names(buffer.draw(4, 2, seed())) == ["0", "1", "2", "3"], "nothing to replay yet: all fresh"
    second = names(buffer.draw(4, 2, seed()))
    assert second[:2] == ["4", "5"]
    assert set(second[2:]) < {"0", "1", "2", "3"}
    assert buffer.occupancy().fresh == 0


def test_no_sample_is_twice_in_a_batch_and_draws_follow_the_generator():
    buffer, same = make(), make()
    for b in (buffer, same):
        for i in range(8):
            b.add(sample(name=str(i)))
        b.draw(8, None, seed())
    first = [names(buffer.draw(4, 2, g)) for g in [seed(5)] for _ in range(3)]
    again = [names(same.draw(4, 2, g)) for g in [seed(5)] for _ in range(3)]
    assert first == again
    assert all(len(set(batch)) == 4 for batch in first)


def test_stale_samples_are_gone_and_counted_by_reason():
    buffer = make(max_age_seconds=50.0, max_draft_versions_behind=2)
    buffer.add(sample(name="fine", finished=100.0, draft_version=5))
    buffer.add(sample(name="old", finished=10.0, draft_version=5))
    buffer.add(sample(name="behind", finished=100.0, draft_version=2))
    buffer.add(sample(name="other", finished=100.0, draft_version=5, target="u"))
    buffer.prune(now=120.0, published=5, target_digest="t")
    assert names(buffer.draw(9, None, seed())) == ["fine"]
    assert buffer.dropped == {buffers.STALE_AGE: 1, buffers.STALE_DRAFT: 1, buffers.OTHER_TARGET: 1}
