from __future__ import annotations

import pytest

from trimtab.client.errors import InvalidRequest
from trimtab.spark.options import Options, read_options, time_us

GIVEN = {"peer": "a:1, b:2", "table": "shop.users"}


def test_options_are_known_in_any_case_as_spark_gives_them() -> None:
    found = read_options({"PEER": "a:1", "table": "shop.users", "splitspertablet": "4", "asof": "1000", "META": "true"})
    assert (found.splits_per_tablet, found.as_of_us, found.meta) == (4, 1000, True)


def test_a_misspelt_option_is_refused_by_name_with_what_is_known() -> None:
    with pytest.raises(InvalidRequest, match=r"no option asOff for reading; did you mean asOf\?.*splitsPerTablet"):
        read_options({**GIVEN, "asOff": "2025-01-01"})


def test_the_peer_is_the_options_else_the_sessions_else_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRIMTAB_CONTACT", raising=False)
    assert read_options(GIVEN, "c:3").connection.peer == "a:1,b:2"
    assert read_options({"table": "a.b"}, "c:3").connection.peer == "c:3"
    with pytest.raises(InvalidRequest, match="no member of the cluster was named"):
        read_options({"table": "a.b"})
    monkeypatch.setenv("TRIMTAB_CONTACT", "d:4")
    assert read_options({"table": "a.b"}).connection.peer == "d:4"


def test_a_table_is_named_by_option_or_by_what_load_is_given() -> None:
    assert read_options({"peer": "a:1", "path": "shop.users"}).table == "shop.users"
    with pytest.raises(InvalidRequest, match="no table was named"):
        read_options({"peer": "a:1"})
    with pytest.raises(InvalidRequest):
        read_options({"peer": "a:1", "table": "users"})


def test_two_tables_by_option_and_by_what_load_is_given_are_refused() -> None:
    assert read_options({**GIVEN, "path": "shop.users"}).table == "shop.users"
    with pytest.raises(
        InvalidRequest, match=r"two tables are named: shop.users by the option table, shop.orders where"
    ):
        read_options({**GIVEN, "path": "shop.orders"})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("consistency", "SOME", "one of ONE"),
        ("splitsPerTablet", "0", "a whole number from 1 to"),
        ("splitsPerTablet", "many", "a whole number from 1 to"),
        ("meta", "perhaps", "true or false"),
        ("asOf", "yesterday", "a time such as"),
        ("asOf", "1970-01-01T00:00:00Z", "a time after 1970"),
        ("asOf", "1969-07-20", "a time after 1970"),
        ("asOf", "0", "from 1 to"),
        ("asOf", str(1 << 63), "from 1 to"),
        ("columns", "a,,b", "names separated by commas"),
        ("columns", "a,b,a", "a is named twice"),
        ("timeout", "-1", "seconds"),
        ("tlsKey", "key.pem", "all three"),
    ],
)
def test_what_can_not_be_is_refused_with_what_could(name: str, value: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        read_options({**GIVEN, name: value})


def test_a_time_is_iso_or_microseconds_and_utc_where_it_names_no_zone() -> None:
    assert time_us("1970-01-01T00:00:01", "asOf") == 1_000_000
    assert time_us("1970-01-01T01:00:01.5+01:00", "asOf") == 1_500_000
    assert time_us("1970-01-02", "asOf") == 86_400_000_000
    assert time_us("1750000000000000", "asOf") == 1_750_000_000_000_000


def test_words_of_an_option_are_taken_in_any_case() -> None:
    options = Options({"onError": "REJECT"}, ("onError",), "writing")
    assert options.one_of("onError", ("fail", "reject"), "fail") == "reject"
