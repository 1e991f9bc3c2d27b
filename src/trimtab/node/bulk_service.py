"""The node's word to its bulk child and to those who want files in or out: what is open, who may, and how fast.

    bulk.state     the child asks twice a second, with the token its supervisor gave to both: key, rate, open sessions
    bulk.snapshot  copies of replicas (hard links) that a reader opens on this host, or downloads with the ticket
    bulk.ticket    leave to stage files under an open session, on every instance; bulk.tickets: under many
    bulk.limit     one rate for the whole cluster, split evenly over the instances that are Online
    bulk.time      what time it is, for whoever reads at a moment and has a clock that may be wrong

The key of tickets is made once, by the leader, when it is first needed, and lies in the metastore where only members
read it. A snapshot is given only of replicas that may answer reads now: the instance is Online and under its lease, and
each replica has taken over the loads up to the epoch that is asked for. It may hold more; the answer says which stamps
a reader at that epoch leaves out, as known when the copies had been made. Who makes replicas of it (`copying`) leaves
nothing out.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from trimtab.bulk import tickets
from trimtab.bulk.tickets import Claims, Right
from trimtab.governor.steps import Write
from trimtab.loads import bulk_settings, protocol
from trimtab.loads.bulk_settings import RATE_KEY, SECRET_KEY, BulkRate, BulkSecret
from trimtab.loads.protocol import BulkReport, BulkState, SnapshotReply, SnapshotRequest, SnapshotTablet, TimeReply
from trimtab.node.answering import Asked, Method, Refused
from trimtab.node.figures import Sample
from trimtab.node.leader_door import Decision, LeaderDoor
from trimtab.node.replicas.replica import Replica
from trimtab.node.replicas.snapshots import MAX_LEASE_MS, ROOT, SnapshotRecord
from trimtab.node.replicas.waiting import off_loop
from trimtab.node.router.epochs import at_epoch
from trimtab.node.waits import WaitedTooLong, Waits
from trimtab.topology.grades import Grade

if TYPE_CHECKING:
    from trimtab.node.control import ClusterControl
    from trimtab.node.instance import Instance

MAX_TABLETS = 1_000
TICKET_MS = MAX_LEASE_MS
_MARGIN_S = 0.1
_PARTIAL_S = 1.5  # for replicas that are just not ready, where others are
_PROOF = "proof"
_KEY_S = 5.0
# A child that has not asked for so long does not run.
_SILENT_S = 3.0


class BulkService:
    """Answers for one instance."""

    def __init__(self, instance: Instance, control: ClusterControl, door: LeaderDoor, waits: Waits) -> None:
        self._instance = instance
        self._control = control
        self._door = door
        self._waits = waits
        self._loop = asyncio.get_running_loop()
        self._settings = instance.watching.bulk
        self._loads = instance.watching.loads
        self._report = BulkReport()
        self._reported_s = float("-inf")
        self._snapshots_made = 0
        self._making: dict[str, asyncio.Event] = {}

    def methods(self) -> dict[str, Method]:
        return {
            protocol.BULK_STATE: self.state,
            protocol.SNAPSHOT: self.snapshot,
            protocol.SNAPSHOT_RENEW: self.renew,
            protocol.SNAPSHOT_RELEASE: self.release,
            protocol.TICKET: self.ticket,
            protocol.TICKETS: self.tickets,
            protocol.LIMIT: self.limit,
            protocol.BULK_KEY: self.make_key,
            protocol.TIME: self.time,
        }

    # The child

    async def state(self, asked: Asked) -> bytes:
        """What the child goes by. Only the child is told: the answer holds the key."""
        report = protocol.decode_bulk_report(asked.body)
        token = self._instance.settings.bulk_token
        if not token or not hmac.compare_digest(token, report.token):
            raise Refused("forbidden", "only the bulk child of this instance is told its state")
        self._report, self._reported_s = report, self._loop.time()
        await self._have_key(min(asked.deadline, self._loop.time() + _KEY_S))
        disk = self._instance.disk
        return protocol.encode(
            BulkState(
                instance_id=self._instance.settings.instance_id,
                key=self._settings.key,
                rate_bytes_s=self._settings.share_bytes_s(self._online()),
                sessions=list(self._loads.sessions),
                free_bytes=max(disk.free_bytes() - disk.reserve_bytes, 0),
                now_ms=self._instance.wall_ms(),
            )
        )

    @property
    def running(self) -> bool:
        """Whether the child has asked lately."""
        return self._loop.time() - self._reported_s < _SILENT_S

    def _online(self) -> int:
        members = self._instance.watching.view.members().values()
        return sum(each.grades.current.grade is Grade.ONLINE for each in members)

    # The key

    async def _have_key(self, deadline: float) -> bytes:
        """The key, made by the leader if there is none yet."""
        if not self._settings.key:
            await self.make_key(Asked(protocol.encode(protocol.KeyCall()), deadline, self._instance.hello))
            await self._waits.until(
                lambda: bool(self._settings.key), deadline - _MARGIN_S, "the key of tickets, which the leader makes"
            )
        return self._settings.key

    async def make_key(self, asked: Asked) -> bytes:
        """Only the leader makes it, and only once."""
        call = protocol.decode_key_call(asked.body)
        onward = protocol.encode(msgspec.structs.replace(call, forwarded=True))
        answer = await self._door.pass_on(protocol.BULK_KEY, onward, asked.deadline, forwarded=call.forwarded)
        if answer is not None:
            return answer

        def look() -> Decision:
            if SECRET_KEY in self._instance.watching.view.revisions:
                return None
            # The token is of the operating system's randomness, where there is one.
            seed = self._instance.rng.randbytes(tickets.KEY_BYTES) + self._instance.settings.bulk_token
            secret = BulkSecret(hashlib.sha256(seed).hexdigest(), self._instance.wall_ms())
            return Write({SECRET_KEY: 0}, {SECRET_KEY: bulk_settings.encode(secret)}), ()

        await self._door.decide(look, "bulk", ())
        return b""

    def _sign(self, claims: Claims) -> bytes:
        return tickets.sign(self._settings.key, claims)

    # Snapshots

    async def snapshot(self, asked: Asked) -> bytes:
        """Copies of replicas, as they are now. Refused `not_ready`: another replica may do, or this one later."""
        request = protocol.decode_snapshot(asked.body)
        deadline = asked.deadline
        refusals: list[tuple[int, Refused]] | None = [] if request.partial or request.only_tell else None
        if refusals is not None:
            # Who asks for many rather has those that are ready, and asks again for the others.
            deadline = min(deadline, self._loop.time() + _PARTIAL_S)
        await self._have_key(deadline)
        if request.only_tell:
            return await self._told(request, deadline)
        name = request.name or self._new_name(request.table)
        # Whoever asks again because no answer came gets the snapshot that the first request makes.
        while (making := self._making.get(name)) is not None:
            await making.wait()
        self._making[name] = done = asyncio.Event()
        try:
            record, found = await self._made(name, request, deadline, refusals)
        finally:
            del self._making[name]
            done.set()
        proof, tablets = await off_loop(self._instance.disk, partial(self._look_at, record))
        return self._reply(request, record, proof, tablets, refusals or (), found)

    async def _told(self, request: SnapshotRequest, deadline: float) -> bytes:
        """How the replicas stand, without a copy."""
        refusals: list[tuple[int, Refused]] = []
        replicas = await self._replicas(request, deadline, refusals)
        stand = [
            SnapshotTablet(each.tablet, "", [], each.adopted, each.repaired_through_ms, each.forgot_us, each.generation)
            for each in replicas
        ]
        return self._reply(request, SnapshotRecord("", 0), "", stand, refusals, False)

    def _reply(
        self,
        request: SnapshotRequest,
        record: SnapshotRecord,
        proof: str,
        tablets: list[SnapshotTablet],
        refusals: Sequence[tuple[int, Refused]],
        found: bool,
    ) -> bytes:
        settings, now_ms = self._instance.settings, self._instance.wall_ms()
        claims = Claims(Right.FETCH, record.name, now_ms + TICKET_MS, settings.instance_id)
        return protocol.encode(
            SnapshotReply(
                name=record.name,
                directory=self._instance.disk.directory,
                proof=proof,
                tablets=tablets,
                hidden=sorted(self._loads.hidden(request.table, request.epoch)),
                bulk_address=settings.bulk_address,
                ticket=self._sign(claims),
                generation=tablets[0].generation if tablets else 1,
                now_ms=now_ms,
                refused=[(tablet, refusal.code, refusal.text) for tablet, refusal in refusals],
                found=found,
            )
        )

    def _new_name(self, table: int) -> str:
        self._snapshots_made += 1
        return f"read-{table}-{self._snapshots_made}-{self._instance.rng.getrandbits(48):012x}"

    async def _made(
        self, name: str, request: SnapshotRequest, deadline: float, refusals: list[tuple[int, Refused]] | None
    ) -> tuple[SnapshotRecord, bool]:
        """The snapshot of that name, and whether it was there before. Given `refusals`, tablets may be missing."""
        snapshots = self._instance.holdings.snapshots
        known = snapshots.get(name)
        if known is not None and known.replicas and not await self._has_proof(name):
            # A crash came between the two, and nobody has been told of it.
            await snapshots.drop(name)
            known = None
        if known is not None:
            there = {(each.table, each.tablet) for each in known.replicas}
            wanted = {(request.table, tablet) for tablet in request.tablets}
            if not there <= wanted or (refusals is None and there != wanted):
                raise Refused("exists", f"the snapshot {name} is of other tablets; use another name")
            if refusals is not None:
                text = f"it is not in the snapshot {name}, which was made before; ask for another one"
                refusals += [(tablet, Refused("not_ready", text)) for _, tablet in sorted(wanted - there)]
            return await snapshots.renew(name, request.lease_ms), True
        replicas = await self._replicas(request, deadline, refusals)
        through = dict(zip(request.tablets, request.through, strict=False))
        if not replicas and refusals is not None:
            return SnapshotRecord(name, 0), False
        record = await snapshots.take(name, replicas, request.lease_ms, through=through, refused=refusals)
        # Only now: it may have folded more while it was copied.
        if forgotten := [each for each in replicas if 0 < request.as_of_us < each.forgot_us]:
            await snapshots.drop(name)
            latest_us = max(each.forgot_us for each in forgotten)
            raise Refused(
                "forgotten",
                f"{forgotten[0].title} can't be read as of {request.as_of_us} µs here: versions up to {latest_us} were "
                "folded, because a row had so many, or lost; ask for a later time",
            )
        if record.replicas:
            proof = f"{self._instance.rng.getrandbits(128):032x}".encode()
            disk = self._instance.disk
            await off_loop(disk, partial(disk.write_file, f"{ROOT}/{name}/{_PROOF}", proof, synced=False))
        return record, False

    async def _has_proof(self, name: str) -> bool:
        disk = self._instance.disk
        return await off_loop(disk, partial(disk.exists, f"{ROOT}/{name}/{_PROOF}"))

    async def _replicas(
        self, request: SnapshotRequest, deadline: float, refusals: list[tuple[int, Refused]] | None
    ) -> list[Replica]:
        tablets = list(dict.fromkeys(request.tablets))
        if not 0 < len(tablets) <= MAX_TABLETS:
            raise Refused("invalid", f"a snapshot is of 1 to {MAX_TABLETS} tablets, not of {len(tablets)}")
        if request.table not in self._instance.watching.tables.catalog.tables:
            raise Refused("not_found", f"there is no table {request.table}")
        self._check_serving()
        await self._see(request, deadline)
        here = frozenset(self._instance.watching.tables.held_by(self._instance.raft_id).get(request.table, ()))
        found = []
        for tablet in tablets:
            try:
                found.append(await self._replica(request, tablet, here, deadline))
            except Refused as refusal:
                if refusals is None:
                    raise
                refusals.append((tablet, refusal))
        return found

    def _check_reading(self, request: SnapshotRequest, tablet: int) -> None:
        """Refused: other replicas answer reads of the tablet than whoever asks believes."""
        if not request.reading:
            return
        watching = self._instance.watching
        believed = dict(zip(request.tablets, request.reading, strict=False)).get(tablet, [])
        members = watching.view.members()
        try:
            reads = {each for each in watching.tables.sets(request.table, tablet).reads if each in members}
        except LookupError:
            reads = set()
        if reads != set(believed):
            text = f"tablet {tablet} of table {request.table} is read from {sorted(reads)} now, not {sorted(believed)}"
            raise Refused("moved", f"{text}; look where its replicas are")

    def _check_serving(self) -> None:
        if not self._control.online or self._control.lease_left_ms() <= 0:
            name = self._instance.settings.instance_id
            raise Refused("not_ready", f"{name} is not Online, so its replicas may lack writes; ask another instance")

    async def _see(self, request: SnapshotRequest, deadline: float) -> None:
        """Return when the epoch can be seen here; Refused when it never will be."""
        table, epoch = request.table, request.epoch

        def here() -> bool:
            newest = self._loads.epoch_record(table).committed if request.copying else self._loads.visible(table)
            return newest >= epoch

        try:
            await self._waits.until(here, deadline - _MARGIN_S, f"epoch {epoch} of table {table}")
        except WaitedTooLong as error:
            raise Refused("not_ready", f"{error}; ask again or another instance") from error
        if not request.copying and not self._loads.readable(table, epoch, self._instance.wall_ms()):
            raise Refused(
                "invalid",
                f"epoch {epoch} of table {table} is too old to be read; begin the scan again "
                f"(the newest is {self._loads.visible(table)})",
            )

    async def _replica(self, request: SnapshotRequest, tablet: int, here: frozenset[int], deadline: float) -> Replica:
        """The replica that a reader at this epoch reads, or that others can be made from."""
        table = request.table
        self._check_reading(request, tablet)
        if tablet not in here:
            code = "gone" if request.copying else "not_ready"
            raise Refused(code, f"no replica of tablet {tablet} of table {table} is here")
        shelf = self._instance.holdings.shelf
        generation = self._loads.generation(table, None if request.copying else request.epoch)
        try:
            replica = await shelf.opened(table, tablet, deadline - _MARGIN_S, generation)
        except WaitedTooLong as error:
            raise Refused("not_ready", f"{error}; ask again or another instance") from error
        if not request.copying:
            replica, _hidden = at_epoch(self._loads, shelf, replica, table, tablet, request.epoch)
        elif replica.adopted < (needed := self._loads.needed(table, request.epoch)):
            text = f"{replica.title} has loads up to epoch {replica.adopted} only, not yet {needed}; ask again"
            raise Refused("not_ready", text)
        if not replica.readable:
            raise Refused("not_ready", f"the replica of {replica.title} is not whole here; ask another instance")
        return replica

    def _look_at(self, record: SnapshotRecord) -> tuple[str, list[SnapshotTablet]]:
        disk = self._instance.disk
        proof = disk.read_file(f"{ROOT}/{record.name}/{_PROOF}") or b""
        return proof.decode(), [
            SnapshotTablet(
                each.tablet,
                each.path,
                disk.files(each.path),
                each.adopted,
                each.repaired_through_ms,
                each.forgot_us,
                each.generation,
            )
            for each in record.replicas
        ]

    async def renew(self, asked: Asked) -> bytes:
        request = protocol.decode_renew_snapshot(asked.body)
        await self._instance.holdings.snapshots.renew(request.name, request.lease_ms)
        return b""

    async def release(self, asked: Asked) -> bytes:
        await self._instance.holdings.snapshots.drop(protocol.decode_release_snapshot(asked.body).name)
        return b""

    # Staging

    async def ticket(self, asked: Asked) -> bytes:
        """Leave to stage files under a session that is open."""
        request = protocol.decode_ticket(asked.body)
        if not 0 < request.life_ms <= TICKET_MS:
            raise Refused("invalid", f"a ticket lasts for 1 to {TICKET_MS} ms, not {request.life_ms}")
        if request.session not in self._loads.sessions:
            # It may have been opened a moment ago, and not be applied here yet.
            await self._control.read_barrier(max(asked.deadline - self._loop.time() - _MARGIN_S, 0.001))
        if request.session not in self._loads.sessions:
            raise Refused("unknown_session", f"the session {request.session[:64]} is not open")
        await self._have_key(asked.deadline)
        expires_ms = self._instance.wall_ms() + request.life_ms
        ticket = self._sign(Claims(Right.STAGE, request.session, expires_ms))
        return protocol.encode(protocol.TicketReply(ticket, expires_ms, self._addresses()))

    async def tickets(self, asked: Asked) -> bytes:
        """The same for many sessions; those that are not open get none."""
        request = protocol.decode_tickets(asked.body)
        if not 0 < request.life_ms <= TICKET_MS:
            raise Refused("invalid", f"a ticket lasts for 1 to {TICKET_MS} ms, not {request.life_ms}")
        if len(request.sessions) > MAX_TABLETS:
            raise Refused("invalid", f"tickets are given for {MAX_TABLETS} sessions at once")
        if any(session not in self._loads.sessions for session in request.sessions):
            await self._control.read_barrier(max(asked.deadline - self._loop.time() - _MARGIN_S, 0.001))
        await self._have_key(asked.deadline)
        expires_ms = self._instance.wall_ms() + request.life_ms
        given = {
            session: self._sign(Claims(Right.STAGE, session, expires_ms))
            for session in dict.fromkeys(request.sessions)
            if session in self._loads.sessions
        }
        return protocol.encode(protocol.TicketsReply(given, expires_ms, self._addresses()))

    def _addresses(self) -> dict[int, str]:
        members = self._instance.watching.view.members()
        return {raft_id: each.bulk_address for raft_id, each in sorted(members.items()) if each.bulk_address}

    # The limit

    async def limit(self, asked: Asked) -> bytes:
        """Tell the limit, or set it."""
        request = protocol.decode_limit(asked.body)
        if request.rate_bytes_s < 0:
            await self._control.read_barrier(max(asked.deadline - self._loop.time() - _MARGIN_S, 0.001))
            return self._limit_now()
        if wrong := bulk_settings.wrong_rate(request.rate_bytes_s):
            raise Refused("invalid", wrong)
        onward = protocol.encode(msgspec.structs.replace(request, forwarded=True))
        answer = await self._door.pass_on(protocol.LIMIT, onward, asked.deadline, forwarded=request.forwarded)
        if answer is not None:
            return answer

        def look() -> Decision:
            before = self._settings.rate_bytes_s
            if before == request.rate_bytes_s:
                return None
            expect = {RATE_KEY: self._instance.watching.view.revisions.get(RATE_KEY, 0)}
            shown = bulk_settings.show_rate
            text = f"the limit of bulk transfers was changed from {shown(before)} to {shown(request.rate_bytes_s)}"
            record = BulkRate(request.rate_bytes_s, self._instance.wall_ms())
            return Write(expect, {RATE_KEY: bulk_settings.encode(record)}), (text,)

        await self._door.decide(look, "limit", ())
        return self._limit_now()

    def _limit_now(self) -> bytes:
        online = self._online()
        settings = self._settings
        return protocol.encode(protocol.LimitReply(settings.rate_bytes_s, settings.share_bytes_s(online), online))

    # The time

    async def time(self, _asked: Asked) -> bytes:
        """Now, or the latest stamp that was given or taken here; others take none that is further ahead than clocks
        may differ, so neither does this answer.
        """
        clock, now_us = self._control.router.clock, self._control.clock_watch.judged_ms() * 1000
        return protocol.encode(TimeReply(max(now_us, min(clock.last_us, now_us + clock.max_skew_ms * 1000))))

    # Figures

    def figures(self) -> Iterator[Sample]:
        report = self._report
        yield Sample("bulk_running", "1 if the bulk child of this instance asks for its state.", self.running)
        yield Sample("bulk_connections", "Connections to it that are open.", report.connections)
        for direction, moved, files in (
            ("in", report.bytes_in, report.files_in),
            ("out", report.bytes_out, report.files_out),
        ):
            labels = (("direction", direction),)
            yield Sample(
                "bulk_bytes", "Bytes of files that it moved, since it was started.", moved, labels, counter=True
            )
            yield Sample("bulk_files", "Files that it moved as a whole.", files, labels, counter=True)
        yield Sample("bulk_refused", "Requests that it refused.", report.refused, counter=True)
        share = self._settings.share_bytes_s(self._online())
        yield Sample("bulk_limit_bytes_per_second", "What it may move; 0: no limit.", share)
