"""Figures, columns, signs and ids, as text."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.client.exceptions import ApiException

from speculator_operator.api.speculator import Action, ActionType
from speculator_operator.cli import show
from speculator_operator.cli.changes import action_id
from speculator_operator.cli.errors import NotFound, api_error
from speculator_operator.cli.tree import View, get_lines

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


@given(user=st.text(max_size=80), kind=st.sampled_from(ActionType))
def test_an_action_id_is_accepted_by_the_api_whoever_gives_it(user, kind):
    made = action_id(kind, user, NOW, "0a1b")
    assert Action(id=made, type=kind, version=1).id == made
    assert made.endswith("20261201T120000Z.0a1b")


def test_an_action_id_says_who_without_the_prefix_of_service_accounts():
    assert action_id(ActionType.ABORT, "system:serviceaccount:ci:bot", NOW, "ff") == "abort.ci-bot.20261201T120000Z.ff"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (172800, "2d"), (-5, "0s")]
)
def test_ages_are_as_kubectl_prints_them(seconds, text):
    assert show.age(NOW - timedelta(seconds=seconds), NOW) == text


def test_an_unbounded_speedup_has_no_upper_figure():
    assert show.speedup({"estimate": "1.1", "lower": "1", "pairs": 3}) == "1.100 [1.000, ∞]"


def test_columns_are_aligned_by_what_is_seen_not_by_bytes():
    lines = [line.plain for line in show.columns(("A", "B"), [("✔ x", "1"), ("yyyyy", "2")])]
    assert [line.index(cell) for line, cell in zip(lines, "B12", strict=True)] == [8, 8, 8]


def test_where_the_terminal_has_no_unicode_the_tree_is_drawn_in_ascii():
    obj = {"metadata": {"name": "chat", "namespace": "a"}, "spec": {}, "status": {"phase": "Degraded", "message": "m"}}
    versions = [{"spec": {"version": number}} for number in range(1, 9)]
    text = "\n".join(line.plain for line in get_lines(View(obj, versions, ()), NOW, unicode=False))
    assert text.isascii()
    assert "x Degraded" in text
    assert re.search(r"`- 3 more +`history` shows all$", text)


def test_a_missing_object_and_a_missing_resource_are_told_apart():
    body = '{"kind": "Status", "message": "x", "details": {"name": "chat", "kind": "speculators"}}'
    missing = ApiException(status=404, reason="Not Found")
    missing.body = body
    assert isinstance(api_error(missing, "get it"), NotFound)
    unknown = ApiException(status=404, reason="Not Found")
    unknown.body = "404 page not found\n"
    assert "are the CRDs of speculator.dev installed" in str(api_error(unknown, "get it"))


def test_a_refused_value_names_the_field():
    refused = ApiException(status=422, reason="Invalid")
    refused.body = '{"details": {"name": "chat", "causes": [{"field": "spec.mode", "message": "no such mode"}]}}'
    assert str(api_error(refused, "patch it")) == "Could not patch it: the cluster refuses it: spec.mode: no such mode."
