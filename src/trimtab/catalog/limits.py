"""How large what is declared may be: every bound of the catalog in one place.

Numbers in stored forms bound some of them (a layout's number is 16 bits wide); the others keep one record of a change
inside one value of the metastore, and keep a catalog small enough for every instance and client to hold.
"""

from __future__ import annotations

from trimtab.metastore import limits as metastore

MAX_NAME_CHARACTERS = 48  # keyspaces, tables and types; as in CQL
MAX_COLUMN_CHARACTERS = 128  # columns and fields of types
MAX_KEYSPACES = 1_000
MAX_TABLES = 5_000
MAX_TYPES = 1_000  # of one keyspace
MAX_COLUMNS = 1_000  # of one table
MAX_KEY_COLUMNS = 32  # of a partition key, and of a clustering key
MAX_LAYOUTS = 4_096  # changes of one table's columns, over its life
MAX_FIELDS = 256  # of a user type, and components of a tuple
MAX_TYPE_DEPTH = 16
MAX_TYPE_CHARACTERS = 8_192  # of a type as text, names of nested types in it
MAX_NUMBER_BYTES = 1_024  # of a varint, and of a decimal's digits
MAX_ELEMENTS = 65_535  # of a collection, in one request
MAX_TABLETS = 16_384  # of one table; as `tablets.ring` has it
MAX_REPLICAS = 16  # in one data centre
MAX_DATACENTERS = 64
MAX_OPTION_CHARACTERS = 2_048  # a comment, or an extension
MAX_EXTENSIONS = 32
MAX_BULK_COMMANDS = 1_000
MAX_COMMAND_BYTES = 384 * 1024
MAX_UPDATE_BYTES = metastore.MAX_VALUE_BYTES  # an update is one value
MAX_REQUEST_BYTES = 256  # of the id of the request that an update was made for
MAX_SNAPSHOT_BYTES = 256 * 1024 * 1024
SNAPSHOT_CHUNK_BYTES = 256 * 1024
