"""How RocksDB is set up: the log and the metastore with memory of their own, tablets by the hundred with shared memory.

Measured with 300 tablet stores in a process: 30 MB for having them open, as long as each memtable grows in small steps
(`arena_bytes`; RocksDB's own choice would be a megabyte for the first row) and the blocks of indexes live in the shared
cache. Each costs eight file descriptors, so the limit of open files has to be raised (see `rocks`).

There is no Bloom filter on tablets: keys hold versions, so no reader knows a whole key, and filters on the token alone
made point reads no faster when measured (a seek looks into one file a level anyway).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rocksdict

# Files of a tablet's store that may hold the same keys, so that a read has to look into each of them: from so many on
# RocksDB merges them, and with so many it may not be put off.
SMALL_MERGED_FROM = 4
MOST_LOOSE_FILES = 24
# Fewer than that stay as they are, unless a load has brought them: then a store of up to so many bytes, of which loose
# files are at least one part in so many, and what is not in the largest one is too, is merged as a whole. Loads of a
# few rows each are merged now and then only.
MERGED_WHOLE_BYTES = 64 << 20
MOSTLY_LOOSE = 3
NEARLY_ALL = 16


def merged_at_once(loose_files: int) -> bool:
    """Whether a store that is being loaded leaves merging to RocksDB: there is nothing to merge yet, or too much."""
    return not SMALL_MERGED_FROM <= loose_files <= MOST_LOOSE_FILES


def opened(path: Path, options: rocksdict.Options, **how: Any) -> rocksdict.Rdict:
    """With these options, whatever it was opened with before.

    Without the column family's name rocksdict takes from the newest file of options what a family has of its own: the
    cache, which would be one for each store then, and whether files are merged.
    """
    return rocksdict.Rdict(str(path), options, column_families={"default": options}, **how)


@dataclass(frozen=True, slots=True)
class RocksOptions:
    """What an operator may want to change. `small_*`: of tablet stores; their memtables share `small_total_bytes`."""

    write_buffer_bytes: int = 16 * 1024 * 1024
    write_buffers: int = 4
    background_jobs: int = 2
    block_cache_bytes: int = 32 * 1024 * 1024
    info_log_bytes: int = 256 * 1024
    small_write_buffer_bytes: int = 16 * 1024 * 1024
    small_total_bytes: int = 96 * 1024 * 1024
    small_open_files: int = 64
    arena_bytes: int = 64 * 1024

    def build(self, cache: rocksdict.Cache) -> rocksdict.Options:
        options = self._base(self.write_buffer_bytes)
        options.set_max_write_buffer_number(self.write_buffers)
        options.set_level_zero_file_num_compaction_trigger(2)
        table = rocksdict.BlockBasedOptions()
        table.set_block_cache(cache)
        table.set_bloom_filter(10, False)
        options.set_block_based_table_factory(table)
        return options

    def build_small(self, cache: rocksdict.Cache, memory: rocksdict.WriteBufferManager) -> rocksdict.Options:
        options = self._base(self.small_write_buffer_bytes)
        # RocksDB would hold a writer, and with it the loop, when it falls behind. Writers are refused before (see
        # `node.replicas.flushing`), so there is room for what may come until then.
        options.set_max_write_buffer_number(6)
        options.set_level_zero_file_num_compaction_trigger(SMALL_MERGED_FROM)
        options.set_level_zero_slowdown_writes_trigger(64)
        options.set_level_zero_stop_writes_trigger(256)
        options.set_arena_block_size(self.arena_bytes)
        options.set_write_buffer_manager(memory)
        options.set_max_open_files(self.small_open_files)
        options.set_table_cache_num_shard_bits(0)
        # Opening holds the interpreter. Starting sixteen threads for a few files took nearly half of that time.
        options.set_max_file_opening_threads(1)
        options.set_skip_stats_update_on_db_open(True)
        options.set_manifest_preallocation_size(64 * 1024)
        # Who copies the store reads all of it (`storage.manifest`).
        options.set_max_manifest_file_size(256 * 1024)
        table = rocksdict.BlockBasedOptions()
        table.set_block_cache(cache)
        table.set_cache_index_and_filter_blocks(True)
        # Whole keys: files are 5 % larger, point reads no slower, and bulk readers (sst_columns) find rows at once.
        table.set_block_restart_interval(1)
        options.set_block_based_table_factory(table)
        return options

    def _base(self, write_buffer_bytes: int) -> rocksdict.Options:
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_paranoid_checks(True)
        options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.absolute_consistency())
        # Recycled log files keep old records behind new ones, which look like data after a damage.
        options.set_recycle_log_file_num(0)
        options.set_write_buffer_size(write_buffer_bytes)
        options.set_max_background_jobs(self.background_jobs)
        options.set_target_file_size_base(max(1 << 20, write_buffer_bytes))
        options.set_max_bytes_for_level_base(4 * write_buffer_bytes)
        options.set_compression_type(rocksdict.DBCompressionType.lz4())
        options.set_keep_log_file_num(2)
        options.set_max_log_file_size(self.info_log_bytes)
        options.set_stats_dump_period_sec(0)
        options.set_stats_persist_period_sec(0)
        options.set_enable_write_thread_adaptive_yield(False)
        # A large table is written out bit by bit; all at once at its end, a sync of the log would wait for it.
        options.set_bytes_per_sync(1 << 20)
        return options
