"""Staged files, carried from an instance that holds them to one that should.

A tablet may have moved, or a replica come back, between staging and commit. Tasks are over by then and their own copies
are gone; but every file has holders, and the load's ticket opens what was staged under it. So the driver fetches a file
from one of them and stages it where it is missing: the bytes are checked on both ways.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trimtab.bulk.client import BulkClient, BulkError
from trimtab.spark.load_plan import HeldFile, NotNow
from trimtab.spark.work_folder import WorkFolder

STAGING = "staging"


Connect = Callable[[str], BulkClient]


def spread(
    load: str,
    files: Sequence[HeldFile],
    target: int,
    bulk: Mapping[int, str],
    ticket: bytes,
    *,
    tls: ssl.SSLContext | None = None,
    connect: Connect | None = None,
    base: str | None = None,
    replace: bool = False,
) -> list[HeldFile]:
    """These files with `target` among their holders. BulkError: it could not be reached, or no holder could.

    NotNow: a file has no holder left. `replace`: the target may have them, but damaged.
    """
    opened: dict[str, BulkClient] = {}

    def client(raft_id: int) -> BulkClient:
        address = bulk[raft_id]
        if address not in opened:
            opened[address] = connect(address) if connect is not None else BulkClient(address, tls)
        return opened[address]

    try:
        with WorkFolder(base) as folder:
            return [_carry(load, each, target, bulk, ticket, client, folder, replace) for each in files]
    finally:
        for each in opened.values():
            each.close()


def _carry(
    load: str,
    held: HeldFile,
    target: int,
    bulk: Mapping[int, str],
    ticket: bytes,
    client: Callable[[int], BulkClient],
    folder: Path,
    replace: bool,
) -> HeldFile:
    file = held.file
    path = folder / f"{file.tablet}.{file.name}"
    failures: list[str] = []
    for holder in held.holders:
        if holder == target or holder not in bulk:
            continue
        try:
            source = f"{STAGING}/{load}/{file.tablet}/{file.name}"
            client(holder).fetch_to(path, source, ticket, size_bytes=file.size_bytes)
            break
        except BulkError as error:
            failures.append(str(error))
    else:
        raise NotNow(
            f"{file.name} of tablet {file.tablet} is on no instance that can be asked for it: "
            f"{'; '.join(failures) or 'all its holders are gone'}; load again"
        )
    client(target).stage(path, load, file.tablet, file.name, ticket, checksum=file.checksum, replace=replace)
    path.unlink()
    return HeldFile(file, (*held.holders, target))
