"""The commands that change a Speculator: what they put into the spec, and how they take the operator's answer."""

import contextlib
import re
import threading
import time

import pytest
import yaml

from .conftest import account


@contextlib.contextmanager
def operator_answers(cli, result: str, message: str):
    """Play the operator: echo the next new action."""
    before = (cli.get()["spec"].get("rollout") or {}).get("action")

    def answer() -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            action = (cli.get()["spec"].get("rollout") or {}).get("action")
            if action and action != before:
                cli.set_status(
                    {"lastAction": {"id": action["id"], "type": action["type"], "result": result, "message": message}}
                )
                return
            time.sleep(0.2)

    thread = threading.Thread(target=answer)
    thread.start()
    yield
    thread.join()


def action_of(cli) -> dict:
    return cli.get()["spec"]["rollout"]["action"]


def test_promote_names_the_candidate_and_reports_what_the_operator_did(own_chat):
    with operator_answers(own_chat, "Done", "Promote: version 3 is stable"):
        ran = own_chat("promote", "chat", "--timeout", "60s")
    action = action_of(own_chat)
    assert (action["type"], action["version"]) == ("Promote", 3)
    assert re.fullmatch(r"promote\.admin\.\d{8}T\d{6}Z\.[0-9a-f]{4}", action["id"])
    assert ran.code == 0
    assert ran.out.splitlines()[1] == "Done: Promote: version 3 is stable."


def test_a_refusal_is_an_error_with_the_operators_words(own_chat):
    with operator_answers(own_chat, "Refused", "Abort: there is no candidate"):
        ran = own_chat("abort", "chat", "--timeout", "60s")
    assert action_of(own_chat)["type"] == "Abort"
    assert (ran.code, ran.err) == (1, "Error: The operator refused: Abort: there is no candidate.\n")


def test_without_an_answer_the_exit_code_says_that_it_is_under_way(own_chat):
    ran = own_chat("abort", "chat", "--timeout", "1s")
    assert ran.code == 3
    assert ran.err.startswith("Error: The operator did not answer within 1s;")


def test_an_action_that_waits_is_not_lost_to_another_unless_asked(own_chat):
    own_chat("retry", "chat", "2", "--timeout", "0s")
    first = action_of(own_chat)
    ran = own_chat("abort", "chat", "--timeout", "0s")
    assert ran.code == 1
    assert f"Action {first['id']} was given and is not carried out yet" in ran.err
    assert action_of(own_chat) == first
    assert own_chat("abort", "chat", "--timeout", "0s", "--replace").code == 0
    assert action_of(own_chat)["type"] == "Abort"


def test_retry_names_the_version(own_chat):
    assert own_chat("retry", "chat", "2", "--timeout", "0s").code == 0
    assert {key: action_of(own_chat)[key] for key in ("type", "version")} == {"type": "Retry", "version": 2}


def test_retry_of_a_version_that_was_never_published_is_refused_at_once(chat):
    assert chat("retry", "chat", "12").err == "Error: There is no version 12; the newest is 3.\n"


def test_rollback_goes_to_the_version_before_or_to_the_one_named(own_chat):
    ran = own_chat("rollback", "chat", "--timeout", "0s")
    assert ran.code == 1
    assert "name one with --to-version: 2, 3 exist" in ran.err
    digest = own_chat.get()["status"]["candidate"]["sha256"]
    own_chat.set_status({"rollout": {"previousStable": {"version": 2, "sha256": digest}}})
    assert own_chat("rollback", "chat", "--timeout", "0s").code == 0
    assert action_of(own_chat)["version"] == 2
    assert own_chat("rollback", "chat", "--to-version", "1", "--timeout", "0s", "--replace").code == 0
    assert {key: action_of(own_chat)[key] for key in ("type", "version")} == {"type": "Rollback", "version": 1}


def test_without_a_candidate_there_is_nothing_to_promote(make_cli):
    cli = make_cli()
    cli.create()
    for command in ("promote", "abort"):
        ran = cli(command, "chat")
        assert (ran.code, ran.err.startswith(f"Error: There is no candidate to {command}:")) == (1, True)


@pytest.mark.parametrize(
    ("commands", "field", "value", "again"),
    [
        ([("pause", "chat")], "paused", True, "is paused already"),
        ([("pause", "chat"), ("resume", "chat")], "paused", False, "is not paused"),
        ([("target-only", "chat")], "mode", "TargetOnly", "is in mode TargetOnly already"),
        ([("target-only", "chat"), ("auto", "chat")], "mode", "Auto", "is in mode Auto already"),
    ],
)
def test_a_switch_is_one_field_and_switching_twice_changes_nothing(make_cli, commands, field, value, again):
    cli = make_cli()
    cli.create()
    for command in commands:
        assert cli(*command).code == 0
    after = cli.get()
    assert after["spec"][field] == value
    assert again in cli(*commands[-1]).out
    assert cli.get()["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]


def test_pin_serves_one_version_until_auto(own_chat):
    assert own_chat("pin", "chat", "2").code == 0
    assert (own_chat.get()["spec"]["mode"], own_chat.get()["spec"]["pinnedVersion"]) == ("Pinned", 2)
    assert own_chat("auto", "chat").code == 0
    assert "pinnedVersion" not in own_chat.get()["spec"]


def test_a_dry_run_shows_the_patch_and_changes_nothing(chat):
    before = chat.get()
    for command in (("promote", "chat"), ("retry", "chat", "2"), ("pause", "chat"), ("target-only", "chat")):
        ran = chat(*command, "--dry-run")
        assert ran.code == 0
        head, patch = ran.out.split("\n", 1)
        assert head == "Dry run, nothing was changed; the cluster accepts for chat:"
        assert "spec" in yaml.safe_load(patch)
    assert chat.get() == before


def test_whoever_may_only_read_is_told_the_verb_and_resource_they_lack(chat, tmp_path):
    rule = {"apiGroups": ["speculator.dev"], "resources": ["speculators"], "verbs": ["get", "list"]}
    reader = account(chat, tmp_path, "reader", rule)
    ran = chat("abort", "chat", kubeconfig=reader)
    assert ran.code == 1
    assert ran.err == (
        f"Error: Could not patch speculator chat in namespace {chat.namespace}: user "
        f'system:serviceaccount:{chat.namespace}:reader lacks the verb "patch" on speculators.speculator.dev in '
        f"namespace {chat.namespace}; ask for a Role that grants it.\n"
    )
