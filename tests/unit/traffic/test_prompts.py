"""The built-in prompts: many, distinct, the same everywhere, and split by template."""

import pytest

from speculator_runtime.traffic.prompts import DOMAINS, builtin


@pytest.mark.parametrize("domain", DOMAINS)
def test_each_domain_has_hundreds_of_distinct_prompts(domain: str) -> None:
    prompts = builtin(domain)
    assert len({p.prompt for p in prompts}) == len(prompts) >= 200
    assert len({p.id for p in prompts}) == len(prompts)
    assert {p.domain for p in prompts} == {domain}


@pytest.mark.parametrize("domain", DOMAINS)
def test_held_out_prompts_share_no_template_or_database_with_the_training_ones(domain: str) -> None:
    train, held_out = builtin(domain, "train"), builtin(domain, "heldout")
    assert not {p.source for p in train} & {p.source for p in held_out}
    assert len(train) >= 200
    assert len(held_out) >= 40
    assert sorted(p.id for p in train + held_out) == sorted(p.id for p in builtin(domain))


def test_prompts_are_the_same_on_every_machine() -> None:
    assert builtin("sql") == builtin("sql")
    first = builtin("math")[0]
    assert (first.id, first.source.split("/")[0]) == ("math-0000", "builtin")


def test_held_out_databases_do_not_appear_in_training_schemas() -> None:
    assert not [p for p in builtin("sql", "train") if "painting(" in p.prompt or "guest(" in p.prompt]
    assert [p for p in builtin("sql", "heldout") if "painting(" in p.prompt]


def test_an_unknown_domain_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown domain 'law'.*math, sql, code, finance, chat"):
        builtin("law")
