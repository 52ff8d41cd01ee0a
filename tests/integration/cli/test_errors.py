"""What goes wrong between the user and the cluster is one sentence each, without a traceback."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from speculator_operator.cli import cluster as cluster_module
from support.s3server import free_port

from .conftest import account, kubeconfig

BIN = Path(sys.executable).parent


def test_an_unreachable_cluster_is_named(chat, tmp_path, caplog):
    url = f"https://127.0.0.1:{free_port()}"
    ran = chat("get", "chat", kubeconfig=kubeconfig(chat, tmp_path / "gone", server=url))
    assert ran.code == 1
    assert ran.err == (
        f"Error: Could not get speculator chat in namespace {chat.namespace}: no answer from {url} "
        "(Connection refused); is the cluster up, and is it the right context?\n"
    )
    assert not caplog.records, "a warning of a library would stand before the sentence"


def test_a_missing_kubeconfig_and_an_unknown_context_say_what_to_name(chat, tmp_path):
    for arguments in (("--kubeconfig", str(tmp_path / "none")), ("--context", "moon")):
        ran = chat("list", *arguments)
        assert ran.code == 1
        assert "--context" in ran.err
        assert ran.err.count("\n") == 1


def test_a_slip_in_the_name_is_answered_with_near_names(chat):
    assert chat("get", "chta").err == (
        f"Error: There is no speculator chta in namespace {chat.namespace}; did you mean chat?\n"
    )
    assert chat("get", "zzz").err.endswith("; there are: chat.\n")


def test_whoever_may_not_list_is_told_the_verb_and_resource(chat, tmp_path):
    ran = chat("list", kubeconfig=account(chat, tmp_path, "nobody"))
    assert 'lacks the verb "list" on speculators.speculator.dev in namespace' in ran.err


def test_without_rights_on_pods_the_rest_is_shown_and_says_why_pods_are_not(chat, tmp_path):
    rule = {"apiGroups": ["speculator.dev"], "resources": ["*"], "verbs": ["get", "list"]}
    ran = chat("get", "chat", kubeconfig=account(chat, tmp_path, "outsider", rule))
    assert ran.code == 0
    assert "version 3" in ran.out
    assert 'lacks the verb "list" on pods' in ran.out


def test_without_rights_on_the_secret_verify_says_so(chat, tmp_path):
    rule = {"apiGroups": ["speculator.dev"], "resources": ["*"], "verbs": ["get", "list"]}
    ran = chat("verify", "chat", "1", kubeconfig=account(chat, tmp_path, "auditor", rule))
    assert ran.code == 1
    assert 'lacks the verb "get" on secrets' in ran.err


def test_a_cluster_without_our_resources_is_told_apart_from_a_missing_object(chat, monkeypatch):
    monkeypatch.setattr(cluster_module, "GROUP", "not-installed.example")
    ran = chat("get", "chat")
    assert ran.code == 1
    assert "this cluster does not know the resource; are the CRDs of speculator.dev installed" in ran.err


def test_a_change_between_look_and_patch_is_not_overwritten(chat):
    cluster = cluster_module.Cluster(cluster_module.Where(chat.apiserver.kubeconfig, None, chat.namespace))
    with pytest.raises(cluster_module.CliError, match="somebody else changed it at the same moment"):
        cluster.patch("chat", {"paused": True}, "1")


def test_kubectl_finds_the_plugin_and_completion_knows_the_names(chat, tmp_path):
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "KUBECONFIG": str(kubeconfig(chat, tmp_path / "config"))}
    kubectl = chat.apiserver.binaries["kubectl"]
    done = subprocess.run([kubectl, "speculator", "list"], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split()[10]) == (0, "chat"), done.stderr
    complete = [sys.executable, "-m", "speculator_operator.cli.completion"]
    done = subprocess.run([*complete, "get", "ch"], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["chat", ":4"], done.stderr
    done = subprocess.run([*complete, "roll"], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["rollback", ":4"], done.stderr


def test_watching_on_a_terminal_draws_in_place_and_ends_quietly(chat, tmp_path):
    ours, theirs = pty.openpty()
    env = {**os.environ, "KUBECONFIG": str(kubeconfig(chat, tmp_path / "config")), "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [BIN / "kubectl-speculator", "get", "chat", "-w"], env=env, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    drawn = b""
    while drawn.count(b"chat-engine-0") < 2:
        drawn += os.read(ours, 65536)
    process.send_signal(signal.SIGINT)
    while True:
        try:
            drawn += os.read(ours, 65536)
        except OSError:
            break
    os.close(ours)
    assert process.wait(20) == 130
    assert b"Traceback" not in drawn
    assert b"\x1b[2K" in drawn, "the picture is drawn over the one before"
