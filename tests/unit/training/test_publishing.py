import pytest

from speculator_runtime.contracts.plan import VersionRef
from speculator_runtime.contracts.settings import PublishConfig
from speculator_runtime.training.counters import Progress
from speculator_runtime.training.publishing import publish_due
from speculator_runtime.training.sample import from_trace

CONFIG = PublishConfig(every_requests=80, first_after_requests=30, first_after_steps=50, min_interval_seconds=60)


def due(*, window, published=0, step=100, published_at_step=10, since=None, trained=1):
    progress = Progress(window_requests=window, published=published, published_at_step=published_at_step)
    return publish_due(CONFIG, progress, step, since, trained)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"window": 30}, True),
        ({"window": 29}, False),
        ({"window": 30, "step": 49}, False),
        ({"window": 79, "published": 1}, False),
        ({"window": 80, "published": 1}, True),
        ({"window": 80, "published": 1, "since": 59.0}, False),
        ({"window": 80, "published": 1, "since": 60.0}, True),
        ({"window": 80, "published": 1, "step": 10}, False),
    ],
    ids=str,
)
def test_a_version_is_due_after_its_requests_and_never_too_soon(state, expected):
    assert due(**state) is expected


def test_a_restarted_trainer_trains_on_fresh_samples_before_it_publishes():
    assert not due(window=500, published=3, trained=0)


def test_the_window_counts_from_the_last_version_and_survives_json(make_trace):
    progress = Progress()
    for i in range(3):
        progress.count(from_trace(make_trace(seed=i, domain="ab"[i % 2], draft_version=i), 99))
    progress = Progress.from_json(progress.to_json())
    window = progress.window()
    assert (window.requests, window.requests_total, window.tokens) == (3, 3, 30)
    assert (window.domains, window.draft_versions) == ({"a": 2, "b": 1}, {0: 1, 1: 1, 2: 1})
    assert (window.first_request, window.last_request) == ("request-0", "request-2")

    progress.published_as(VersionRef(version=4, sha256="s"), "m", step=7)
    progress.count(from_trace(make_trace(seed=9), 99))
    progress = Progress.from_json(progress.to_json())
    window = progress.window()
    assert (window.requests, window.requests_total, window.first_request) == (1, 4, "request-9")
    assert (progress.published, progress.latest.version, progress.latest_manifest_sha256) == (1, 4, "m")
