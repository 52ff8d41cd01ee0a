"""What the schema converter makes of models, and what it refuses to make."""

from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from speculator_operator.api import crds
from speculator_operator.api.base import ApiModel, Later, Quantity
from speculator_operator.api.schema import LATER, NotStructural, structural

REPOSITORY = Path(__file__).parents[3]


def test_the_files_in_the_repository_are_those_of_the_models() -> None:
    assert crds.stale_files(REPOSITORY) == []


def test_a_stale_missing_or_left_over_file_is_found_and_mended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pyproject.toml").touch()
    assert crds.main(["--root", str(tmp_path)]) == 0
    assert crds.main(["--check", "--root", str(tmp_path)]) == 0
    changed = tmp_path / "crds/speculator.dev_speculators.yaml"
    changed.write_text(changed.read_text().replace("Learning", "Earning"))
    left_over = tmp_path / crds.FOLDERS[1] / "speculator.dev_old.yaml"
    left_over.touch()
    assert crds.main(["--check", "--root", str(tmp_path)]) == 1
    complaint = capsys.readouterr().err
    assert "speculator.dev_speculators.yaml differs" in complaint
    assert "speculator.dev_old.yaml differs" in complaint
    crds.main(["--root", str(tmp_path)])
    assert crds.stale_files(tmp_path) == []
    assert not left_over.exists()


class Inner(ApiModel):
    """Inner words."""

    size: Quantity = Field(default="2Gi", description="A size.")


class Outer(ApiModel):
    """Outer words."""

    inner: Inner = Field(default_factory=Inner, description="Beside the reference.")
    maybe: Inner | None = Field(default=None, description="Absent or there.")
    later: Annotated[int, Later()] = Field(default=1, description="Counts.")


def test_an_optional_object_defaults_to_empty_so_that_defaults_within_it_hold() -> None:
    properties = structural(Outer, defaults=True)["properties"]
    assert properties["inner"]["default"] == {}
    assert properties["inner"]["description"] == "Beside the reference."
    assert "default" not in properties["maybe"]


def test_a_quantity_may_be_a_number_or_a_string() -> None:
    size = structural(Inner, defaults=True)["properties"]["size"]
    assert size["x-kubernetes-int-or-string"] is True
    assert size["default"] == "2Gi"


def test_a_field_that_is_not_acted_on_says_so() -> None:
    assert structural(Outer, defaults=True)["properties"]["later"]["description"] == "Counts." + LATER


def test_nothing_appears_in_a_status_by_itself() -> None:
    assert "default" not in str(structural(Outer, defaults=False))


def test_a_float_is_refused() -> None:
    class Model(ApiModel):
        """A model."""

        share: float = Field(default=0.5, description="A share.")

    with pytest.raises(NotStructural, match=r"Model.share: type 'number'.*decimal string"):
        structural(Model, defaults=True)


def test_a_field_without_a_description_is_refused() -> None:
    class Model(ApiModel):
        """A model."""

        bare: int = 1

    with pytest.raises(NotStructural, match=r"Model.bare has no description"):
        structural(Model, defaults=True)


def test_a_union_is_refused() -> None:
    class Model(ApiModel):
        """A model."""

        either: int | str = Field(default=1, description="Either.")

    with pytest.raises(NotStructural, match="union of 2 types"):
        structural(Model, defaults=True)
