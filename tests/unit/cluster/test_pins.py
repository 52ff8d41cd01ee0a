"""Programs are built when their pins change and only then; images are named after what is in them."""

import shutil
from pathlib import Path

import pytest

from localcluster import build, existing, images
from localcluster.layout import ClusterError, Layout

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A clone's tools and an empty cache."""
    tools = tmp_path / "clone" / "hack" / "cluster" / "tools"
    shutil.copytree(REPOSITORY / "hack" / "cluster" / "tools", tools)
    return Layout(repo=tmp_path / "clone", cache=tmp_path / "cache", cluster=tmp_path / "cache" / "cluster")


def module(name: str) -> build.Module:
    return next(module for module in build.MODULES if module.name == name)


def test_every_pinned_module_is_built_and_every_built_one_is_pinned(layout: Layout) -> None:
    assert {path.name for path in layout.tools.iterdir()} == {module.name for module in build.MODULES}
    for each in build.MODULES:
        assert build.version_of(layout, each).startswith("v") == bool(each.package)


def test_tool_lines_name_the_programs_that_are_expected(layout: Layout) -> None:
    for each in build.MODULES:
        lines = (layout.tools / each.name / "go.mod").read_text().splitlines()
        in_block, programs = False, []
        for line in lines:
            words = line.split()
            if words[:1] == ["tool"] and words[1] != "(":
                programs.append(words[1])
            elif words[:1] == ["tool"]:
                in_block = True
            elif words == [")"]:
                in_block = False
            elif in_block:
                programs.append(words[0])
        if each.package and not each.built_as:
            assert sorted(program.rsplit("/", 1)[-1] for program in programs) == sorted(each.binaries)


def test_a_module_is_outdated_until_built_and_again_when_a_pin_changes(layout: Layout) -> None:
    pause = module("pause")
    assert build.outdated(layout) == [each.name for each in build.MODULES]
    stamp = layout.bin / ".stamps" / "pause"
    stamp.parent.mkdir(parents=True)
    stamp.write_text(build.digest(layout, pause))
    assert not build.is_current(layout, pause), "the binary is missing"
    (layout.bin / "pause").write_bytes(b"program")
    assert build.is_current(layout, pause)
    source = layout.tools / "pause" / "main.go"
    source.write_text(source.read_text() + "// changed\n")
    assert not build.is_current(layout, pause)


def test_kubernetes_is_told_its_version(layout: Layout) -> None:
    assert build.version_of(layout, module("k8s")) in build._link_flags(
        module("k8s"), build.version_of(layout, module("k8s"))
    )


def test_an_unknown_module_is_named(layout: Layout) -> None:
    with pytest.raises(ClusterError, match="no such module: docker"):
        build.build(layout, ["docker"])


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    repo = tmp_path / "repo"
    for file in (
        "pyproject.toml",
        "operator/a.py",
        "runtime/b.py",
        "requirements/build.txt",
        "requirements/operator.txt",
        "requirements/runtime.txt",
        "images/lib/with-index",
        "images/operator/Dockerfile",
        "images/runtime/Dockerfile",
        "tests/test_a.py",
    ):
        (repo / file).parent.mkdir(parents=True, exist_ok=True)
        (repo / file).write_text(file)
    return repo


def digest(repo: Path, name: str, scratch: Path, base: str = "base") -> str:
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    images.copy_sources(repo, name, scratch)
    return images.source_digest(scratch, base)


@pytest.mark.parametrize("file", ["pyproject.toml", "operator/a.py", "runtime/b.py", "requirements/operator.txt"])
def test_a_change_of_what_is_in_an_image_changes_its_tag(sources: Path, tmp_path: Path, file: str) -> None:
    before = digest(sources, "operator", tmp_path / "x")
    (sources / file).write_text("changed")
    assert digest(sources, "operator", tmp_path / "x") != before


def test_what_is_not_in_an_image_leaves_its_tag_alone(sources: Path, tmp_path: Path) -> None:
    before = digest(sources, "operator", tmp_path / "x")
    for file in ("tests/test_a.py", "requirements/runtime.txt", "images/runtime/Dockerfile"):
        (sources / file).write_text("changed")
    cached = sources / "operator" / "__pycache__"
    cached.mkdir()
    (cached / "a.pyc").write_bytes(b"code")
    assert digest(sources, "operator", tmp_path / "x") == before


def test_a_renamed_file_and_another_base_change_the_tag(sources: Path, tmp_path: Path) -> None:
    before = digest(sources, "operator", tmp_path / "x")
    assert digest(sources, "operator", tmp_path / "x", base="another") != before
    (sources / "operator" / "a.py").rename(sources / "operator" / "c.py")
    assert digest(sources, "operator", tmp_path / "x") != before


def test_an_existing_cluster_needs_a_registry_and_takes_its_tag_from_the_environment() -> None:
    with pytest.raises(ClusterError, match="IMAGE_REGISTRY"):
        existing.references(["operator"], {})
    environment = {"IMAGE_REGISTRY": "registry.example/me/", "IMAGE_TAG": "1.2"}
    assert existing.references(["operator"], environment) == {"operator": "registry.example/me/speculator-operator:1.2"}


def test_an_unknown_kind_of_cluster_is_refused() -> None:
    assert not existing.wanted({})
    assert existing.wanted({"CLUSTER": "existing"})
    with pytest.raises(ClusterError, match="CLUSTER=cloud"):
        existing.wanted({"CLUSTER": "cloud"})


@pytest.mark.parametrize("name", ["", "../up", "a/b", "a b"])
def test_a_cluster_name_that_is_no_plain_name_is_refused(name: str) -> None:
    with pytest.raises(ClusterError, match="cluster name"):
        Layout.from_environment(name)
