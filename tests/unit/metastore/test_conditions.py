"""Every condition, on every state a key can be in."""

from __future__ import annotations

import operator

import pytest
from tests.unit.metastore.driver import Driver

from trimtab.metastore.commands import Actions, Branch, Command, Delete, Put, compact, delete, invoke, put
from trimtab.metastore.conditions import (
    And,
    Compare,
    Condition,
    Exists,
    Not,
    NotExists,
    Or,
    Revision,
    Tombstone,
    Value,
)
from trimtab.metastore.results import InvokeResult

OPERATORS = {
    Compare.EQ: operator.eq,
    Compare.NE: operator.ne,
    Compare.LT: operator.lt,
    Compare.LE: operator.le,
    Compare.GT: operator.gt,
    Compare.GE: operator.ge,
}


def arranged() -> Driver:
    """live = m at revision 2, deleted at revision 4, never: untouched."""
    driver = Driver()
    for command in (put(b"live", b"x"), put(b"live", b"m"), put(b"deleted", b"m"), delete(b"deleted")):
        driver(command)
    return driver


def holds(driver: Driver, condition: Condition) -> bool:
    result = driver(invoke(condition, []))
    assert isinstance(result, InvokeResult) and isinstance(result.yields, bool)
    return result.yields


@pytest.mark.parametrize(
    ("condition", "live", "deleted", "never"),
    [(Exists, True, False, False), (NotExists, False, True, True), (Tombstone, False, True, False)],
)
def test_being_there(condition: type[Exists], live: bool, deleted: bool, never: bool) -> None:
    driver = arranged()
    assert [holds(driver, condition(key)) for key in (b"live", b"deleted", b"never")] == [live, deleted, never]


@pytest.mark.parametrize("compare", list(Compare))
def test_comparing_values(compare: Compare) -> None:
    driver = arranged()
    for value in (b"", b"a", b"m", b"m\x00", b"z"):
        assert holds(driver, Value(b"live", compare, value)) == OPERATORS[compare](b"m", value)
        for missing in (b"deleted", b"never"):
            assert holds(driver, Value(missing, compare, value)) == (compare is Compare.NE)


@pytest.mark.parametrize("compare", list(Compare))
def test_comparing_revisions(compare: Compare) -> None:
    driver = arranged()
    for revision in (0, 1, 2, 3):
        assert holds(driver, Revision(b"live", compare, revision)) == OPERATORS[compare](2, revision)
        for missing in (b"deleted", b"never"):
            assert holds(driver, Revision(missing, compare, revision)) == OPERATORS[compare](0, revision)


def test_and_or_not() -> None:
    driver = arranged()
    yes, no = Exists(b"live"), Exists(b"never")
    assert [holds(driver, And(c)) for c in ((), (yes,), (yes, no), (yes, yes))] == [True, True, False, True]
    assert [holds(driver, Or(c)) for c in ((), (no,), (yes, no), (no, no))] == [False, False, True, False]
    assert [holds(driver, Not(yes)), holds(driver, Not(no))] == [False, True]
    assert holds(driver, And((Or((no, Not(no))), Not(And((yes, no))))))


def test_compaction_forgets_a_tombstone_at_once_whether_purged_or_not() -> None:
    driver = arranged()
    driver(compact(3))
    assert holds(driver, Tombstone(b"deleted"))
    driver(compact(4))
    assert driver.machine.purged_revision == 0
    assert not holds(driver, Tombstone(b"deleted"))
    while driver.machine.compact_step():
        pass
    assert not holds(driver, Tombstone(b"deleted"))


@pytest.mark.parametrize(
    ("values", "leaf"),
    [({}, b"neither"), ({b"a": b"1"}, b"only a"), ({b"b": b"1"}, b"only b"), ({b"a": b"1", b"b": b"1"}, b"both")],
)
def test_a_nested_invoke_says_which_leaf_it_reached_and_does_only_that(values: dict[bytes, bytes], leaf: bytes) -> None:
    driver = Driver()
    for key, value in values.items():
        driver(put(key, value))
    before = driver.machine.revision

    def mark(name: bytes) -> Actions:
        return Actions((Put(b"leaf", name), Put(b"leaf/" + name, b"")), name)

    tree = Branch(
        Exists(b"a"),
        Branch(Exists(b"b"), mark(b"both"), mark(b"only a")),
        Branch(Exists(b"b"), mark(b"only b"), mark(b"neither")),
    )
    assert driver(Command(b"", tree)) == InvokeResult(before + 1, leaf, 2)
    assert driver.value(b"leaf") == leaf
    assert [e.key for e in driver.machine.range(b"leaf/", b"leaf0").entries] == [b"leaf/" + leaf]


def test_all_operations_of_a_leaf_are_one_revision_and_conditions_see_the_state_before() -> None:
    driver = Driver()
    driver(put(b"a", b"1"))
    result = driver(invoke(Exists(b"a"), [Delete(b"a"), Put(b"b", b"2"), Put(b"c", b"3")]))
    assert result == InvokeResult(2, True, 3)
    assert [driver.value(k) for k in (b"a", b"b", b"c")] == [None, b"2", b"3"]
    assert {e.mod_revision for e in driver.machine.range(b"", None).entries} == {2}


def test_an_invoke_without_operations_makes_no_revision() -> None:
    driver = Driver()
    driver(put(b"a", b"1"))
    assert driver(invoke(Exists(b"b"), [Put(b"c", b"")])) == InvokeResult(1, False, 0)
    assert driver(delete(b"never")) == InvokeResult(1, True, 0)
    assert driver.machine.revision == 1
