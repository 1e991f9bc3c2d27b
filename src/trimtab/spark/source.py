"""The data source "trimtab" of Spark. It only dispatches: Spark makes it anew, in a process of its own, for each step
of a query (schema, filters, partitions, commit), and each step should load no more than it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from trimtab.spark.plain_errors import told_plainly

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamArrowWriter, DataSourceWriter
    from pyspark.sql.types import StructType

FORMAT = "trimtab"


class TrimtabSource(DataSource):
    """`default_peer` is used where the option `peer` is not given; `narrows`: filters reach the reader."""

    default_peer = ""
    narrows = False

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def given(self) -> dict[str, str]:
        """The options as they were given, with the session's peer where they name none."""
        found = dict(self.options)
        if self.default_peer and not any(name.lower() == "peer" for name in found):
            found["peer"] = self.default_peer
        return found

    @told_plainly
    def schema(self) -> StructType:
        from trimtab.spark.planning import schema

        return schema(self.given())

    def reader(self, schema: StructType) -> DataSourceReader:
        from trimtab.spark.reading import reader

        return reader(schema, self.given(), narrows=self.narrows)

    @told_plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from trimtab.spark.writing import writer

        made: DataSourceWriter = writer(schema, self.given(), overwrite)
        return made

    @told_plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from trimtab.spark.streaming import stream_writer

        made: DataSourceStreamArrowWriter = stream_writer(schema, self.given(), overwrite)
        return made


def source_for(peer: str, *, narrows: bool = False) -> type[TrimtabSource]:
    """The source, for one session: made here and not named anywhere, so that Spark sends it by value."""
    values = {"default_peer": peer, "narrows": narrows, "__doc__": TrimtabSource.__doc__}
    made: Any = type("Trimtab", (TrimtabSource,), values)
    found: type[TrimtabSource] = made
    return found
