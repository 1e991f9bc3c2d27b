"""The rows of the demo: an order is a function of its number, in Python and in Spark alike.

So every row can be checked wherever it is read, and a whole table against the generator by one checksum: no copy of
what was written has to be kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from trimtab.client.database import Database

KEYSPACE = "shop"
TABLE = "shop.orders"
COLUMNS = {"id": "bigint", "customer": "text", "item": "text", "total": "double"}
_CUSTOMERS = 9973
_PRICES = 100_000
_SUM = "sum(cast(xxhash64(id, customer, item, total) as decimal(38, 0)))"
_XOR = "bit_xor(xxhash64(id, customer, item, total))"


@dataclass(frozen=True)
class Checksum:
    """Of any number of orders, in any order: the same for the same rows, and for no others."""

    rows: int
    sum: int
    xor: int


def order(number: int) -> dict[str, Any]:
    """The order of that number."""
    return {
        "id": number,
        "customer": f"customer {number % _CUSTOMERS}",
        "item": hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest(),
        "total": number % _PRICES * 0.25,
    }


async def create_table(database: Database, *, replication: int, tablets: int) -> None:
    await database.create_keyspace(KEYSPACE, replication=replication)
    await database.create_table(TABLE, COLUMNS, primary_key=["id"], tablets=tablets)


# In Spark


def orders(spark: SparkSession, count: int, parts: int) -> DataFrame:
    """The orders from 0 on, made by Spark itself."""
    return spark.range(0, count, 1, parts).selectExpr(
        "id",
        f"concat('customer ', id % {_CUSTOMERS}) AS customer",
        "md5(cast(id AS string)) AS item",
        f"cast(id % {_PRICES} AS double) * 0.25D AS total",
    )


def load(spark: SparkSession, peer: str, count: int, parts: int) -> None:
    """Write so many orders; readers see all of them at once when this returns."""
    orders(spark, count, parts).write.format("trimtab").options(peer=peer, table=TABLE).mode("append").save()


def stored(spark: SparkSession, peer: str) -> DataFrame:
    """The orders of the table, as QUORUM has them."""
    return spark.read.format("trimtab").options(peer=peer, table=TABLE, consistency="QUORUM").load()


def checksum(frame: DataFrame, without: Collection[int] = ()) -> Checksum:
    """Of these orders; those in `without` don't count: whether they were written is not known."""
    if without:
        frame = frame.where(f"id NOT IN ({', '.join(str(int(number)) for number in without)})")
    rows, total, xor = frame.selectExpr("count(*)", _SUM, _XOR).first() or (0, 0, 0)
    return Checksum(int(rows), int(total or 0), int(xor or 0))
