"""verify recomputes decisions from what lies in the bucket."""

import json


def evidence_keys(cli, version: int) -> list[str]:
    prefix = f"{cli.namespace}/chat/versions/{version:06d}/evidence/"
    found = cli.s3.client().list_objects_v2(Bucket=cli.bucket, Prefix=prefix)
    return [entry["Key"] for entry in found["Contents"]]


def rewrite(cli, key: str, change) -> None:
    body = cli.s3.client().get_object(Bucket=cli.bucket, Key=key)["Body"].read().decode()
    cli.s3.client().put_object(Bucket=cli.bucket, Key=key, Body=change(body).encode())


def test_untouched_evidence_gives_the_same_verdicts_again(chat):
    for version, verdict in ((1, "Promoted"), (2, "Rejected")):
        ran = chat("verify", "chat", str(version))
        assert ran.code == 0, ran.out
        assert f"agrees  verdict {version}, {verdict}" in ran.out
        assert "recomputed from" in ran.out
        assert ran.out.endswith(f"Version {version}: 1 of 1 decisions recomputed, in agreement.\n")


def test_one_changed_number_in_the_evidence_is_noticed(own_chat):
    key = evidence_keys(own_chat, 2)[0]
    rewrite(own_chat, key, lambda text: text.replace('"seconds":18.0', '"seconds":17.0', 1))
    ran = own_chat("verify", "chat", "2")
    assert ran.code == 1
    assert "TAMPERED  verdict 2" in ran.out
    assert "its digest differs" in ran.out


def test_a_rewritten_verdict_is_noticed(own_chat):
    key = f"{own_chat.namespace}/chat/versions/000002/verdicts/002.json"
    rewrite(own_chat, key, lambda text: text.replace('"Rejected"', '"Promoted"'))
    ran = own_chat("verify", "chat", "2", "-o", "json")
    assert ran.code == 1
    found = json.loads(ran.out)
    assert not found["agrees"]
    assert "recorded was Promoted" in found["checks"][1]["message"]


def test_evidence_that_is_no_longer_a_block_is_noticed(own_chat):
    rewrite(own_chat, evidence_keys(own_chat, 1)[0], lambda text: "nonsense\n" + text)
    ran = own_chat("verify", "chat", "1")
    assert ran.code == 1
    assert "line 1 is not a block" in ran.out


def test_a_rewritten_manifest_of_the_parent_is_noticed(own_chat):
    key = f"{own_chat.namespace}/chat/versions/000001/manifest.json"
    rewrite(own_chat, key, lambda text: text.replace('"training_step": 1200', '"training_step": 1201'))
    ran = own_chat("verify", "chat", "2")
    assert ran.code == 1
    assert "TAMPERED  manifest of version 2: version 2: it was built on a manifest of version 1" in ran.out


def test_a_version_without_a_decision_says_so(chat):
    ran = chat("verify", "chat", "3")
    assert ran.code == 0
    assert ran.out.endswith("Version 3: nothing was decided on it yet.\n")


def test_an_unknown_version_names_those_in_the_bucket(chat):
    ran = chat("verify", "chat", "7")
    assert ran.code == 1
    assert ran.err == f"Error: There is no version 7 in s3://{chat.bucket}/{chat.namespace}/chat; there are: 1, 2, 3.\n"


def test_credentials_of_the_shell_are_used_when_it_has_some(chat):
    wrong = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing"}
    ran = chat("verify", "chat", "1", **wrong)
    assert ran.code == 1
    assert "the store refused the credentials" in ran.err
    assert "(credentials: your own, from this shell; --credentials chooses)" in ran.err
    assert chat("verify", "chat", "1", "--credentials", "secret", **wrong).code == 0


def test_a_bucket_out_of_reach_is_one_sentence(chat):
    ran = chat("verify", "chat", "1", "--endpoint", "http://127.0.0.1:9")
    assert ran.code == 1
    assert ran.err.count("\n") == 1
    assert "no answer" in ran.err
