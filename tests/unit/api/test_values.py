"""Strings of the API: durations, quantities, decimals."""

from decimal import Decimal

import pytest

from speculator_operator.api.base import decimal_string, number, quantity, seconds


@pytest.mark.parametrize(
    ("text", "value"),
    [("90s", 90), ("1h30m", 5400), ("500ms", 0.5), ("1.5h", 5400), ("0s", 0), ("1m1s1ms", 61.001)],
)
def test_a_duration_is_read_as_seconds(text: str, value: float) -> None:
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "90", "s", "-5s", "1d", "5 s", "1h 30m", "90s\n"])
def test_what_is_not_a_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="for example 90s"):
        seconds(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("2Gi", 2 << 30), ("1.5Ki", 1536), ("500M", 500_000_000), ("1500m", Decimal("1.5")), ("1e9", 10**9), ("7", 7)],
)
def test_a_quantity_is_read_in_its_base_unit(text: str, value: object) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "-1", "2 Gi", "2GB", "1e", "1.5.2"])
def test_what_is_not_a_quantity_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="for example 2Gi"):
        quantity(text)


def test_a_decimal_survives_the_way_there_and_back() -> None:
    assert number(decimal_string(1.23456)) == 1.2346


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.5])
def test_a_value_that_is_no_decimal_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        decimal_string(value)
