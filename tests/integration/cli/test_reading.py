"""The commands that only read, on a real API server and S3 server."""

import json

import yaml

MESSAGE = (
    "against target-only decoding: 1.243, surely between 0.981 and 1.576 after 12 pairs; the lower bound must pass 1.00"
)
LIST_HEADER = "NAME PHASE MODE STABLE CANDIDATE STEP SPEEDUP PAIRS READY AGE"


def test_list_has_one_line_a_speculator_with_its_figures(chat):
    ran = chat("list")
    header, row = ran.out.splitlines()
    assert " ".join(header.split()) == LIST_HEADER
    assert row.split()[:7] == ["chat", "◌", "Canary", "Auto", "1", "3", "1/1"]


def test_list_of_an_empty_namespace_says_so(make_cli):
    cli = make_cli()
    assert cli("list").out == f"There are no Speculators in namespace {cli.namespace}.\n"


def test_get_shows_a_header_and_a_tree_of_versions_and_pods_with_their_arms(chat):
    ran = chat("get", "chat")
    assert ran.code == 0
    lines = {line.split(":")[0]: line for line in ran.out.splitlines() if ":" in line}
    assert MESSAGE in lines["Message"]
    assert "version 1 (sha256 " in lines["Stable"]
    assert "1.243 [0.981, 1.576] over target-only decoding, 12 pairs" in lines["Speedup"]
    rows = ran.out.splitlines()
    rejected = next(row for row in rows if "version 2" in row and "├─" in row)
    assert "Rejected" in rejected
    assert "SlowerThanTargetOnly" in rejected or "SlowerThanStable" in rejected
    canary = next(row for row in rows if "chat-engine-0" in row)
    assert "canary, in turn: TargetOnly, Stable 1, Candidate 3" in canary
    assert "✔ Ready" in canary
    assert "NotReady" in next(row for row in rows if "chat-trainer-0" in row)


def test_output_into_a_pipe_has_no_colour_and_no_wrapped_line(chat):
    out = chat("get", "chat", COLUMNS="40", TERM="xterm-256color").out
    assert "\x1b" not in out
    assert any(len(line) > 90 for line in out.splitlines())


def test_get_for_programs_holds_the_objects_themselves(chat):
    as_json, as_yaml = chat("get", "chat", "-o", "json").out, chat("get", "chat", "-o", "yaml").out
    read = json.loads(as_json)
    assert read["speculator"]["status"]["candidate"]["version"] == 3
    assert [version["spec"]["version"] for version in read["versions"]] == [1, 2, 3]
    assert yaml.safe_load(as_yaml) == read


def test_status_says_by_its_exit_code_that_a_canary_is_under_way(chat):
    ran = chat("status", "chat", "--timeout", "1s")
    assert (ran.code, ran.out) == (3, f"◌ Canary: {MESSAGE}\n")


def test_history_has_a_line_for_each_version_with_figures_and_verdict(chat):
    rows = chat("history", "chat").out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["1", "2", "3"]
    assert "400 (800)" in rows[1]
    assert "Promoted" in rows[0]
    assert "gate" in rows[0]
    assert "2400" in rows[1]


def test_history_from_the_ledger_shows_versions_that_the_cluster_no_longer_has(own_chat):
    own_chat.apiserver.kubectl("delete", "speculatorversion", "--all", "-n", own_chat.namespace)
    assert own_chat("history", "chat").out == "Speculator chat has no versions yet.\n"
    rows = own_chat("history", "chat", "--ledger").out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["1", "2", "3"]
    assert "Promoted" in rows[0]


def test_diff_shows_only_fields_that_differ(chat):
    table, sentences = chat("diff", "chat", "1", "2").out.split("\n\n")
    rows = {line.split()[0]: line.split()[1:] for line in table.splitlines()}
    assert rows["trainingStep"] == ["1200", "2400"]
    assert rows["verdict"] == ["Promoted", "Rejected"]
    assert "draftVocabSize" not in rows
    assert sentences.startswith("Version 1: the speedup is at least")


def test_diff_of_a_version_that_does_not_exist_names_those_that_do(chat):
    ran = chat("diff", "chat", "1", "9")
    assert ran.code == 1
    assert ran.err.startswith("Error: There is no version 9; there are: 1, 2, 3.")


def test_explain_says_what_is_missing_for_a_promotion(chat):
    ran = chat("explain", "chat")
    assert ran.out.startswith("Version 3 is on trial, step 1/1: there is not enough evidence yet.\n")
    assert "the bar of 1.00" in ran.out
    assert "kubectl speculator abort chat" in ran.out
