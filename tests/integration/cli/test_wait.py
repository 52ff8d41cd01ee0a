"""wait ends when it is so, when it never will be, and when the time is over."""

import threading
import time

import pytest


def later(cli, status: dict) -> threading.Thread:
    """Play the operator after a moment."""

    def change() -> None:
        time.sleep(1.0)
        cli.set_status(status)

    thread = threading.Thread(target=change)
    thread.start()
    return thread


def test_a_condition_that_holds_is_not_waited_for(chat):
    ran = chat("wait", "chat", "--for", "condition=ready")
    assert (ran.code, ran.out) == (0, "Speculator chat: Ready is True (Serving).\n")


def test_a_condition_of_an_older_spec_does_not_count(own_chat):
    own_chat("pause", "chat")
    ran = own_chat("wait", "chat", "--for", "condition=Ready", "--timeout", "1s")
    assert ran.code == 3
    assert ran.err.startswith("Error: condition=Ready was not reached within 1s;")


def test_promotion_of_the_candidate_ends_the_wait(own_chat):
    thread = later(own_chat, {"stable": own_chat.get()["status"]["candidate"], "candidate": None, "phase": "Stable"})
    ran = own_chat("wait", "chat", "--for=promoted", "--timeout", "60s")
    thread.join()
    assert (ran.code, ran.out) == (0, "Speculator chat: version 3 is promoted.\n")


def test_rejection_of_the_candidate_ends_the_wait_with_the_reason(own_chat):
    status = own_chat.get()["status"]
    rejected = [{**status["candidate"], "reason": "SlowerThanStable"}]
    thread = later(own_chat, {"candidate": None, "rejectedDigests": rejected, "message": "waiting for a version"})
    ran = own_chat("wait", "chat", "--for=promoted", "--timeout", "60s")
    thread.join()
    assert ran.code == 1
    assert ran.err == "Error: Version 3 was not promoted: SlowerThanStable; waiting for a version.\n"


def test_deletion_ends_the_wait(make_cli):
    cli = make_cli()
    cli.create()
    thread = threading.Timer(1.0, cli.apiserver.kubectl, ("delete", "speculator", "chat", "-n", cli.namespace))
    thread.start()
    ran = cli("wait", "chat", "--for=promoted", "--timeout", "60s")
    thread.join()
    assert (ran.code, ran.err) == (1, f"Error: Speculator chat in namespace {cli.namespace} was deleted.\n")


def test_status_waits_until_the_rollout_is_over(own_chat):
    thread = later(own_chat, {"candidate": None, "phase": "Stable", "message": "version 1 serves"})
    ran = own_chat("status", "chat", "--timeout", "60s")
    thread.join()
    assert (ran.code, ran.out) == (0, "✔ Stable: version 1 serves\n")


@pytest.mark.parametrize("text", ["ready", "condition=Redy", "condition=Ready=Maybe"])
def test_a_goal_that_does_not_exist_is_a_wrong_command_line(chat, text):
    ran = chat("wait", "chat", "--for", text)
    assert ran.code == 2
    assert "TrainerHealthy" in ran.err
