"""The chain of manifests as a rule, without a store."""

from speculator_runtime.contracts.ledger import FileEntry
from speculator_runtime.contracts.plan import VersionRef
from speculator_runtime.storage import StoredManifest, check_chain
from speculator_runtime.storage.chain import encode_manifest, manifest_sha256
from support.samples import make_manifest


def entry(letter):
    return {"model.safetensors": FileEntry(sha256=letter * 64, size=1)}


def store(*manifests):
    return {m.version: StoredManifest(m, manifest_sha256(encode_manifest(m))) for m in manifests}


def chain_of_two():
    first = store(make_manifest(1, entry("a")))[1]
    return first, make_manifest(2, entry("b"), parent=first)


def test_a_whole_chain_has_no_breaks():
    first, second = chain_of_two()

    assert check_chain(store(first.manifest, second)) == []


def test_a_first_version_may_descend_from_the_unpublished_day_0_drafter():
    manifest = make_manifest(1, entry("a")).model_copy(update={"parent": VersionRef(version=0, sha256="0" * 64)})

    assert check_chain(store(manifest)) == []


def test_each_break_is_a_sentence():
    first, second = chain_of_two()

    def sentence(*manifests):
        (problem,) = check_chain(store(*manifests))
        return problem

    assert "parent 1 is not in the ledger" in sentence(second)
    assert "built on weights" in sentence(
        first.manifest, second.model_copy(update={"parent": VersionRef(version=1, sha256="c" * 64)})
    )
    assert "(none)" in sentence(first.manifest, second.model_copy(update={"parent_manifest_sha256": ""}))
    assert "not older than itself" in sentence(
        first.manifest, second.model_copy(update={"parent": VersionRef(version=2, sha256="b" * 64)})
    )
    assert "names no parent" in sentence(first.manifest, second.model_copy(update={"parent": None}))


def test_equal_manifests_have_equal_bytes_whatever_order_their_files_were_listed_in():
    one = make_manifest(1, {**entry("a"), "config.json": FileEntry(sha256="b" * 64, size=2)})
    two = make_manifest(1, {"config.json": FileEntry(sha256="b" * 64, size=2), **entry("a")})

    assert encode_manifest(one) == encode_manifest(two)
