"""A small Raft cluster that obeys the directives of interaction traces and says what it does, in the traces' words.

Its application appends the data of every entry and takes a snapshot at each applied index. Messages wait until they are
delivered; nodes are visited in order of their ids. Everything is deterministic, election timeouts included.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from tests.conformance.raft.datadriven import Argument, Case, parse_directive
from trimtab.raft.config import NO_LIMIT, Config
from trimtab.raft.describe import (
    MESSAGE_NAMES,
    describe_entries,
    describe_message,
    describe_ready,
    parse_changes,
)
from trimtab.raft.errors import LocalMessageRefused, ProposalDropped, RaftError, UnknownPeer
from trimtab.raft.messages import (
    LOCAL_APPEND,
    LOCAL_APPLY,
    AnyConfChange,
    ConfChange,
    ConfChangeTransition,
    ConfChangeV2,
    ConfState,
    Entry,
    EntryType,
    HardState,
    Message,
    MessageType,
    Snapshot,
    SnapshotMetadata,
    decode_conf_change,
)
from trimtab.raft.node import RawNode, StateType
from trimtab.raft.progress import describe_progress
from trimtab.raft.roles import ROLE_NAMES
from trimtab.raft.storage import Compacted, MemoryStorage, SnapshotOutOfDate, Unavailable

_LEVELS = ("DEBUG", "INFO", "WARN", "ERROR", "FATAL", "NONE")
_LOCAL = (LOCAL_APPEND, LOCAL_APPLY)
_TYPES = {name: kind for kind, name in MESSAGE_NAMES.items()}
_TRANSITIONS = {
    "auto": ConfChangeTransition.AUTO,
    "implicit": ConfChangeTransition.JOINT_IMPLICIT,
    "explicit": ConfChangeTransition.JOINT_EXPLICIT,
}
# What the traces print where we raise an error of our own.
_ERROR_TEXTS: dict[type[RaftError], str] = {
    ProposalDropped: "raft proposal dropped",
    UnknownPeer: "raft: cannot step as peer not found",
    LocalMessageRefused: "raft: cannot step raft local message",
    Compacted: "requested index is unavailable due to compaction",
    Unavailable: "requested entry at index is unavailable",
    SnapshotOutOfDate: "requested index is older than the existing snapshot",
}
# A trace that does not come to rest within so many rounds is a bug, not a long trace.
_MAX_ROUNDS = 10_000


class DirectiveError(Exception):
    """A directive failed in a way that the trace is expected to show."""


class HistoryStorage(MemoryStorage):
    """Hands out the newest snapshot of the application, whatever the log was compacted to."""

    __slots__ = ("history",)

    def __init__(self, first: Snapshot) -> None:
        super().__init__()
        self.history = [first]

    def snapshot(self) -> Snapshot:
        return self.history[-1]


class Node:
    def __init__(self, config: Config, storage: HistoryStorage) -> None:
        self.config = config
        self.storage = storage
        self.raw = RawNode(config)
        self.append_work: list[Message] = []
        self.apply_work: list[Message] = []

    @property
    def id(self) -> int:
        return self.config.id

    def append(self, state: HardState | None, entries: list[Entry], snapshot: Snapshot | None) -> None:
        if state is not None and state != HardState():
            self.storage.set_hard_state(state)
        if snapshot is not None:
            if entries:
                raise DirectiveError("can't apply snapshot and entries at the same time")
            self.storage.apply_snapshot(snapshot)
        else:
            self.storage.append(entries)

    def apply(self, entries: list[Entry]) -> None:
        for entry in entries:
            last = self.storage.history[-1]
            conf_state = last.metadata.conf_state
            update = entry.data
            if entry.type != EntryType.NORMAL:
                change = decode_conf_change(entry)
                update = change.context
                conf_state = self.raw.apply_conf_change(change)
            metadata = SnapshotMetadata(conf_state=conf_state, index=entry.index, term=entry.term)
            self.storage.history.append(Snapshot(metadata=metadata, data=last.data + update))


class Environment:
    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.messages: list[Message] = []
        self.level = 0
        self._output: list[str] = []
        self._random = random.Random(1)
        self._handlers: dict[str, Callable[[list[Argument]], None]] = {
            "_breakpoint": lambda _: None,
            "add-nodes": self._add_nodes,
            "campaign": lambda arguments: self._node(arguments).raw.campaign(),
            "compact": self._compact,
            "deliver-msgs": self._deliver_directive,
            "process-ready": lambda arguments: self._each(arguments, "handling Ready", self._process_ready),
            "process-append-thread": lambda arguments: self._each(
                arguments, "processing append thread", self._process_append
            ),
            "process-apply-thread": lambda arguments: self._each(
                arguments, "processing apply thread", self._process_apply
            ),
            "log-level": lambda arguments: self._set_level(arguments[0].key),
            "raft-log": lambda arguments: self._raft_log(self._node(arguments)),
            "raft-state": self._raft_state,
            "set-randomized-election-timeout": self._set_timeout,
            "stabilize": self._stabilize_directive,
            "status": self._status,
            "tick-election": lambda arguments: self._tick(arguments, self._node(arguments).config.election_tick),
            "tick-heartbeat": lambda arguments: self._tick(arguments, self._node(arguments).config.heartbeat_tick),
            "transfer-leadership": self._transfer,
            "forget-leader": lambda arguments: self._node(arguments).raw.forget_leader(),
            "send-snapshot": self._send_snapshot,
            "propose": self._propose,
            "report-unreachable": self._report_unreachable,
        }

    # The outside

    def run(self, case: Case) -> str:
        """What the directive prints."""
        self._output = []
        try:
            if case.command == "propose-conf-change":
                self._propose_conf_change(case)
            else:
                self._run_one(case.command, case.arguments)
                for line in case.input.splitlines():
                    command, arguments = parse_directive(line)
                    try:
                        self._run_one(command, arguments)
                    except (RaftError, DirectiveError) as error:
                        self._write(self._error_text(error))
        except (RaftError, DirectiveError) as error:
            # Errors show even when the level silences everything else.
            self._output.append(self._error_text(error))
        text = "".join(self._output) or "ok"
        return text if text.endswith("\n") else text + "\n"

    def _run_one(self, command: str, arguments: list[Argument]) -> None:
        if command not in self._handlers:
            raise DirectiveError("unknown command")
        self._handlers[command](arguments)

    @staticmethod
    def _error_text(error: Exception) -> str:
        return _ERROR_TEXTS.get(type(error), str(error)) if isinstance(error, RaftError) else str(error)

    # Output

    def _write(self, text: str) -> None:
        if self.level < len(_LEVELS) - 1:
            self._output.append(text)

    def _log(self, line: str) -> None:
        if _LEVELS.index(line.split(" ", 1)[0]) >= self.level:
            self._write(line + "\n")

    @contextmanager
    def _indented(self) -> Iterator[None]:
        outer, self._output = self._output, []
        yield
        inner, self._output = self._output, outer
        for line in "".join(inner).splitlines():
            self._write(f"  {line}\n")

    def _set_level(self, name: str) -> None:
        if name.upper() not in _LEVELS:
            raise DirectiveError(f"log levels must be either of {list(_LEVELS)}")
        self.level = _LEVELS.index(name.upper())

    # Arguments

    def _ids(self, arguments: list[Argument]) -> list[int]:
        return [int(argument.key) for argument in arguments if not argument.values]

    def _node(self, arguments: list[Argument]) -> Node:
        return self.nodes[int(arguments[0].key) - 1]

    def _named(self, arguments: list[Argument], key: str) -> int:
        return int(next(argument.values[0] for argument in arguments if argument.key == key))

    def _each(self, arguments: list[Argument], doing: str, process: Callable[[Node], None]) -> None:
        ids = self._ids(arguments)
        for node in ids:
            if len(ids) > 1:
                self._write(f"> {node} {doing}\n")
                with self._indented():
                    process(self.nodes[node - 1])
            else:
                process(self.nodes[node - 1])

    # Making nodes

    def _add_nodes(self, arguments: list[Argument]) -> None:
        voters: tuple[int, ...] = ()
        learners: tuple[int, ...] = ()
        index = 0
        content = b""
        flags: dict[str, bool] = {}
        limits: dict[str, int] = {}
        read_only: Literal["safe", "lease"] = "safe"
        for argument in arguments[1:]:
            value = argument.values[0]
            match argument.key:
                case "voters":
                    voters = tuple(int(text) for text in argument.values)
                case "learners":
                    learners = tuple(int(text) for text in argument.values)
                case "index":
                    index = int(value)
                case "content":
                    content = value.encode()
                case "read-only":
                    if value not in ("safe", "lease-based"):
                        raise DirectiveError(f'invalid read-only option "{value}"')
                    read_only = "lease" if value == "lease-based" else "safe"
                case "inflight" | "max-committed-size-per-ready" | "max-size-per-msg" | "max-inflight-bytes":
                    limits[argument.key] = int(value)
                case (
                    "async-storage-writes"
                    | "prevote"
                    | "checkquorum"
                    | "disable-conf-change-validation"
                    | "step-down-on-removal"
                ):
                    flags[argument.key] = value == "true"
                case _:
                    raise AssertionError(f"add-nodes does not know {argument.key}")
        bootstrap = bool(voters or learners or index or content)
        metadata = SnapshotMetadata(ConfState(voters, learners), index, 1 if bootstrap else 0)
        for _ in range(int(arguments[0].key)):
            if bootstrap and index <= 1:
                raise DirectiveError("index must be specified as > 1 due to bootstrap")
            storage = HistoryStorage(Snapshot(metadata, content))
            if bootstrap:
                storage.apply_snapshot(Snapshot(metadata, content))
            config = Config(
                id=len(self.nodes) + 1,
                election_tick=3,
                heartbeat_tick=1,
                storage=storage,
                random=self._random.randrange,
                applied=index,
                async_storage_writes=flags.get("async-storage-writes", False),
                max_size_per_msg=limits.get("max-size-per-msg", NO_LIMIT),
                max_committed_size_per_ready=limits.get("max-committed-size-per-ready", 0),
                max_uncommitted_entries_size=0,
                max_inflight_msgs=limits.get("inflight", 2**31 - 1),
                max_inflight_bytes=limits.get("max-inflight-bytes", 0),
                check_quorum=flags.get("checkquorum", False),
                pre_vote=flags.get("prevote", False),
                read_only=read_only,
                disable_conf_change_validation=flags.get("disable-conf-change-validation", False),
                step_down_on_removal=flags.get("step-down-on-removal", False),
                log=self._log,
            )
            self.nodes.append(Node(config, storage))

    # Work

    def _process_ready(self, node: Node) -> None:
        ready = node.raw.ready()
        self._write(describe_ready(ready))
        asynchronous = node.config.async_storage_writes
        if not asynchronous:
            node.append(ready.hard_state, list(ready.entries), ready.snapshot)
            node.apply(list(ready.committed_entries))
        for message in ready.messages:
            if message.to not in _LOCAL:
                self.messages.append(message)
            elif message.type == MessageType.STORAGE_APPEND:
                node.append_work.append(message)
            else:
                node.apply_work.append(message)
        if not asynchronous:
            node.raw.advance()

    def _process_append(self, node: Node) -> None:
        if not node.append_work:
            self._write("no append work to perform")
            return
        message = node.append_work.pop(0)
        self._begin_storage_work(message)
        state = HardState(message.term, message.vote, message.commit)
        node.append(state, list(message.entries), message.snapshot)
        self._finish_storage_work(message)

    def _process_apply(self, node: Node) -> None:
        if not node.apply_work:
            self._write("no apply work to perform")
            return
        message = node.apply_work.pop(0)
        self._begin_storage_work(message)
        node.apply(list(message.entries))
        self._finish_storage_work(message)

    def _begin_storage_work(self, message: Message) -> None:
        responses, message.responses = message.responses, ()
        self._write(f"Processing:\n{describe_message(message)}\n")
        message.responses = responses

    def _finish_storage_work(self, message: Message) -> None:
        self._write("Responses:\n")
        for response in message.responses:
            self._write(describe_message(response) + "\n")
        self.messages.extend(message.responses)

    def _deliver_directive(self, arguments: list[Argument]) -> None:
        kind = None
        recipients: list[tuple[int, bool]] = []
        for argument in arguments:
            if not argument.values:
                recipients.append((int(argument.key), False))
            elif argument.key == "drop":
                recipients += [(int(value), True) for value in argument.values]
            elif argument.key == "type":
                kind = _TYPES[argument.values[0]]
            else:
                raise AssertionError(f"deliver-msgs does not know {argument.key}")
        handled = [self._deliver(to, drop=drop, kind=kind) for to, drop in recipients]
        if not any(handled):
            self._write("no messages\n")

    def _deliver(self, to: int, *, drop: bool = False, kind: MessageType | None = None) -> int:
        taken = [message for message in self.messages if self._is_for(message, to, drop=drop, kind=kind)]
        self.messages = [message for message in self.messages if not self._is_for(message, to, drop=drop, kind=kind)]
        for message in taken:
            self._write(f"{'dropped: ' if drop else ''}{describe_message(message)}\n")
            if not drop:
                try:
                    self.nodes[to - 1].raw.step(message)
                except RaftError as error:
                    self._write(self._error_text(error) + "\n")
        return len(taken)

    @staticmethod
    def _is_for(message: Message, to: int, *, drop: bool, kind: MessageType | None) -> bool:
        local = message.from_ == message.to or message.from_ in _LOCAL or message.to in _LOCAL
        return message.to == to and not (drop and local) and kind in (None, message.type)

    def _stabilize_directive(self, arguments: list[Argument]) -> None:
        level = self.level
        for argument in arguments:
            if argument.key == "log-level":
                self._set_level(argument.values[0])
        try:
            self._stabilize([self.nodes[node - 1] for node in self._ids(arguments)] or self.nodes)
        finally:
            self.level = level

    def _stabilize(self, nodes: list[Node]) -> None:
        for _ in range(_MAX_ROUNDS):
            worked = False
            for node in nodes:
                if node.raw.has_ready():
                    worked = True
                    self._write(f"> {node.id} handling Ready\n")
                    with self._indented():
                        self._process_ready(node)
            for node in nodes:
                if any(message.to == node.id for message in self.messages):
                    worked = True
                    self._write(f"> {node.id} receiving messages\n")
                    with self._indented():
                        self._deliver(node.id)
            for node in nodes:
                if node.append_work:
                    worked = True
                    self._write(f"> {node.id} processing append thread\n")
                    while node.append_work:
                        with self._indented():
                            self._process_append(node)
            for node in nodes:
                if node.apply_work:
                    worked = True
                    self._write(f"> {node.id} processing apply thread\n")
                    while node.apply_work:
                        with self._indented():
                            self._process_apply(node)
            if not worked:
                return
        raise AssertionError(f"the cluster did not come to rest within {_MAX_ROUNDS} rounds")

    # Asking for things

    def _propose(self, arguments: list[Argument]) -> None:
        self._node(arguments).raw.propose(arguments[1].key.encode())

    def _propose_conf_change(self, case: Case) -> None:
        v1 = False
        transition = ConfChangeTransition.AUTO
        for argument in case.arguments[1:]:
            value = argument.values[0]
            if argument.key == "v1":
                v1 = value == "true"
            elif argument.key == "transition":
                if value not in _TRANSITIONS:
                    raise DirectiveError(f"unknown transition {value}")
                transition = _TRANSITIONS[value]
            else:
                raise DirectiveError(f"unknown command {argument.key}")
        try:
            changes = parse_changes(case.input)
        except ValueError as error:
            raise DirectiveError(str(error)) from error
        change: AnyConfChange = ConfChangeV2(transition, changes)
        if v1:
            if len(changes) > 1 or transition != ConfChangeTransition.AUTO:
                raise DirectiveError("v1 conf change can only have one operation and no transition")
            change = ConfChange(changes[0].type, changes[0].node_id)
        self._node(case.arguments).raw.propose_conf_change(change)

    def _transfer(self, arguments: list[Argument]) -> None:
        self.nodes[self._named(arguments, "from") - 1].raw.transfer_leader(self._named(arguments, "to"))

    def _report_unreachable(self, arguments: list[Argument]) -> None:
        reporter, peer = self._ids(arguments)
        self.nodes[reporter - 1].raw.report_unreachable(peer)

    def _send_snapshot(self, arguments: list[Argument]) -> None:
        sender, to = self._ids(arguments)
        node = self.nodes[sender - 1]
        message = Message(MessageType.SNAP, to, sender, term=node.raw.raft.term, snapshot=node.storage.snapshot())
        self.messages.append(message)
        self._write(describe_message(message))

    def _set_timeout(self, arguments: list[Argument]) -> None:
        self._node(arguments).raw.raft.randomized_election_timeout = self._named(arguments, "timeout")

    def _tick(self, arguments: list[Argument], ticks: int) -> None:
        for _ in range(ticks):
            self._node(arguments).raw.tick()

    def _compact(self, arguments: list[Argument]) -> None:
        node = self._node(arguments)
        node.storage.compact(int(arguments[1].key))
        self._raft_log(node)

    # Looking

    def _raft_log(self, node: Node) -> None:
        first, last = node.storage.first_index(), node.storage.last_index()
        if last < first:
            self._write(f"log is empty: first index={first}, last index={last}")
        else:
            self._write(describe_entries(node.storage.entries(first, last + 1, NO_LIMIT)))

    def _raft_state(self, arguments: list[Argument]) -> None:
        for node in self.nodes:
            raft = node.raw.raft
            role = "Voter" if node.id in raft.tracker.config.voters else "Non-Voter"
            self._write(f"{node.id}: {ROLE_NAMES[raft.state]} ({role}) Term:{raft.term} Lead:{raft.lead}\n")

    def _status(self, arguments: list[Argument]) -> None:
        raft = self._node(arguments).raw.raft
        if raft.state is StateType.LEADER:
            self._write(describe_progress(raft.tracker.progress))
