from __future__ import annotations

from trimtab.playground.orders import COLUMNS, order


def test_an_order_is_a_function_of_its_number() -> None:
    assert order(123_456) == order(123_456)
    assert order(123_456) == {
        "id": 123_456,
        "customer": "customer 3780",
        "item": "e10adc3949ba59abbe56e057f20f883e",
        "total": 5864.0,
    }
    assert list(order(1)) == list(COLUMNS)
