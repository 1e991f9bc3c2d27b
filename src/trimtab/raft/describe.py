"""Raft in words: messages, entries and Readies as the lines that traces and stories print.

The format is that of etcd's raft, line for line, because its traces are compared with ours.
"""

from collections.abc import Iterable

import msgspec

from trimtab.raft.messages import (
    LOCAL_APPEND,
    LOCAL_APPLY,
    NONE,
    ConfChangeSingle,
    ConfChangeType,
    ConfState,
    Entry,
    EntryType,
    HardState,
    Message,
    MessageType,
    Snapshot,
    decode_conf_change,
)
from trimtab.raft.ready import Ready, SoftState
from trimtab.raft.roles import ROLE_NAMES

MESSAGE_NAMES: dict[MessageType, str] = {kind: "Msg" + kind.name.title().replace("_", "") for kind in MessageType}
ENTRY_NAMES: dict[EntryType, str] = {
    EntryType.NORMAL: "EntryNormal",
    EntryType.CONF_CHANGE: "EntryConfChange",
    EntryType.CONF_CHANGE_V2: "EntryConfChangeV2",
}
_CHANGE_LETTERS = {
    ConfChangeType.ADD_NODE: "v",
    ConfChangeType.ADD_LEARNER_NODE: "l",
    ConfChangeType.REMOVE_NODE: "r",
    ConfChangeType.UPDATE_NODE: "u",
}
_ESCAPES = {
    ord('"'): '\\"',
    ord("\\"): "\\\\",
    7: "\\a",
    8: "\\b",
    9: "\\t",
    10: "\\n",
    11: "\\v",
    12: "\\f",
    13: "\\r",
}


def describe_member(node: int) -> str:
    if node == NONE:
        return "None"
    if node == LOCAL_APPEND:
        return "AppendThread"
    if node == LOCAL_APPLY:
        return "ApplyThread"
    return f"{node:x}"


def describe_changes(changes: Iterable[ConfChangeSingle]) -> str:
    """`v1 l2 r3 u4`: make a voter, make a learner, remove, update."""
    return " ".join(f"{_CHANGE_LETTERS[change.type]}{change.node_id}" for change in changes)


def parse_changes(text: str) -> tuple[ConfChangeSingle, ...]:
    """The inverse of describe_changes. Raises ValueError."""
    letters = {letter: kind for kind, letter in _CHANGE_LETTERS.items()}
    changes = []
    for token in text.split():
        if len(token) < 2:
            raise ValueError(f"unknown token {token}")
        if token[0] not in letters:
            raise ValueError(f"unknown input: {token}")
        changes.append(ConfChangeSingle(letters[token[0]], int(token[1:])))
    return tuple(changes)


def quote(data: bytes) -> str:
    """Bytes as a quoted string; what is not printable text is escaped."""
    parts = []
    for character in data.decode("utf-8", errors="surrogateescape"):
        code = ord(character)
        if code in _ESCAPES:
            parts.append(_ESCAPES[code])
        elif 0xDC80 <= code <= 0xDCFF:
            parts.append(f"\\x{code - 0xDC00:02x}")
        elif character.isprintable():
            parts.append(character)
        elif code < 0x80:
            parts.append(f"\\x{code:02x}")
        elif code < 0x10000:
            parts.append(f"\\u{code:04x}")
        else:
            parts.append(f"\\U{code:08x}")
    return f'"{"".join(parts)}"'


def describe_entry(entry: Entry) -> str:
    if entry.type == EntryType.NORMAL:
        detail = quote(entry.data)
    else:
        try:
            detail = describe_changes(decode_conf_change(entry).as_v2().changes)
        except msgspec.DecodeError as error:
            detail = str(error)
    text = f"{entry.term}/{entry.index} {ENTRY_NAMES[entry.type]}"
    return f"{text} {detail}" if detail else text


def describe_entries(entries: Iterable[Entry]) -> str:
    return "".join(describe_entry(entry) + "\n" for entry in entries)


def describe_hard_state(state: HardState) -> str:
    vote = f" Vote:{state.vote}" if state.vote != NONE else ""
    return f"Term:{state.term}{vote} Commit:{state.commit}"


def describe_soft_state(state: SoftState) -> str:
    return f"Lead:{state.lead} State:{ROLE_NAMES[state.state]}"


def _describe_list(ids: Iterable[int]) -> str:
    return f"[{' '.join(str(node) for node in ids)}]"


def describe_conf_state(state: ConfState) -> str:
    return (
        f"Voters:{_describe_list(state.voters)} VotersOutgoing:{_describe_list(state.voters_outgoing)} "
        f"Learners:{_describe_list(state.learners)} LearnersNext:{_describe_list(state.learners_next)} "
        f"AutoLeave:{str(state.auto_leave).lower()}"
    )


def describe_snapshot(snapshot: Snapshot) -> str:
    metadata = snapshot.metadata
    return f"Index:{metadata.index} Term:{metadata.term} ConfState:{describe_conf_state(metadata.conf_state)}"


def describe_message(message: Message, indent: str = "") -> str:
    """One line, or several when there are several entries, a snapshot or responses."""
    text = (
        f"{indent}{describe_member(message.from_)}->{describe_member(message.to)} {MESSAGE_NAMES[message.type]} "
        f"Term:{message.term} Log:{message.log_term}/{message.index}"
    )
    if message.reject:
        text += f" Rejected (Hint: {message.reject_hint})"
    if message.commit != 0:
        text += f" Commit:{message.commit}"
    if message.vote != NONE:
        text += f" Vote:{message.vote}"
    if len(message.entries) == 1:
        text += f" Entries:[{describe_entry(message.entries[0])}]"
    elif message.entries:
        lines = "".join(f"\n{indent}  {describe_entry(entry)}" for entry in message.entries)
        text += f" Entries:[{lines}\n{indent}]"
    if message.snapshot is not None and message.snapshot.metadata.index != 0:
        text += f"\n{indent}  Snapshot: {describe_snapshot(message.snapshot)}"
    if message.responses:
        lines = "".join("\n" + describe_message(response, indent + "  ") for response in message.responses)
        text += f" Responses:[{lines}\n{indent}]"
    return text


def describe_ready(ready: Ready) -> str:
    text = ""
    if ready.soft_state is not None:
        text += describe_soft_state(ready.soft_state) + "\n"
    if ready.hard_state is not None:
        text += f"HardState {describe_hard_state(ready.hard_state)}\n"
    if ready.read_states:
        states = " ".join(f"{{{state.index} {_describe_list(state.context)}}}" for state in ready.read_states)
        text += f"ReadStates [{states}]\n"
    if ready.entries:
        text += "Entries:\n" + describe_entries(ready.entries)
    if ready.snapshot is not None:
        text += f"Snapshot {describe_snapshot(ready.snapshot)}\n"
    if ready.committed_entries:
        text += "CommittedEntries:\n" + describe_entries(ready.committed_entries)
    if ready.messages:
        text += "Messages:\n" + "".join(describe_message(message) + "\n" for message in ready.messages)
    if not text:
        return "<empty Ready>"
    return f"Ready MustSync={str(ready.must_sync).lower()}:\n{text}"
