"""The log of an instance: structured lines on standard error, few of them, and never a reason to stop serving.

    text   2026-01-31T12:00:00.000Z i1 ready raft_id=1 listen=127.0.0.1:3301
    json   {"time": "2026-01-31T12:00:00.000Z", "instance": "i1", "level": "info", "event": "ready", "raft_id": 1, ...}

Warnings and errors say so in front of the event. By default an instance tells its start, changes of the leader
and of its own grade, and what went wrong; the rest is for `--log-level debug`.

A line that can't be written is dropped, and the next one that can says how many were. That includes a pipe whose reader
has stopped reading: writing would block the event loop, and with it Raft. So the descriptor is asked first, and a line
is never longer than what a pipe that is ready takes without blocking.

The node logs through structlog (`open_log`); the supervisor and its other children through `PlainLog`: same lines.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
FORMATS = ("text", "json")
STANDARD_ERROR = 2

# Linux calls a pipe writable when this much fits (PIPE_BUF).
_LINE_LIMIT_BYTES = 4096
_CUT_EVENT = 500
_WARNING = "warning: "

Render = Callable[[Mapping[str, Any]], str]


@dataclass(frozen=True)
class LogSettings:
    level: str = "info"
    format: str = "text"

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"{self.level!r} is no log level; choose one of {', '.join(LEVELS)}")
        if self.format not in FORMATS:
            raise ValueError(f"{self.format!r} is no log format; choose one of {', '.join(FORMATS)}")


class Log(Protocol):
    """What code that logs needs: a sentence or a name for what happened, and fields."""

    def debug(self, event: str, **fields: Any) -> Any: ...

    def info(self, event: str, **fields: Any) -> Any: ...

    def warning(self, event: str, **fields: Any) -> Any: ...

    def error(self, event: str, **fields: Any) -> Any: ...


class Sink:
    """A descriptor that takes lines, and loses them rather than wait."""

    def __init__(self, descriptor: int = STANDARD_ERROR) -> None:
        self.lost = 0
        self._descriptor = descriptor

    def msg(self, line: str) -> None:
        """Write a line, or drop it. (The name is structlog's.)"""
        if self.lost:
            noun = "line" if self.lost == 1 else "lines"
            if not self._write(f"({self.lost} {noun} of the log could not be written here)"):
                self.lost += 1
                return
            self.lost = 0
        if not self._write(line):
            self.lost += 1

    debug = info = warning = error = msg

    def _write(self, line: str) -> bool:
        data = line.encode(errors="backslashreplace")
        if len(data) >= _LINE_LIMIT_BYTES:
            data = data[: _LINE_LIMIT_BYTES - 4].decode(errors="ignore").encode() + "…".encode()
        try:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLOUT)
            if not any(state & select.POLLOUT for _, state in poll.poll(0)):
                return False
            os.write(self._descriptor, data + b"\n")
        except OSError:
            # A full disk, a reader that left: the caller counts it, and the next line tells.
            return False
        return True


class PlainLog:
    """The log of the supervisor: what structlog would write, without structlog."""

    def __init__(self, instance_id: str, settings: LogSettings, sink: Sink | None = None) -> None:
        self._instance_id = instance_id
        self._least = LEVELS[settings.level]
        self._render = RENDERERS[settings.format]
        self._sink = sink or Sink()

    def debug(self, event: str, **fields: Any) -> None:
        self._tell("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._tell("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._tell("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._tell("error", event, fields)

    def _tell(self, level: str, event: str, fields: dict[str, Any]) -> None:
        if LEVELS[level] >= self._least:
            line = {"time": now_text(), "instance": self._instance_id, "level": level, "event": event, **fields}
            self._sink.msg(self._render(line))


def open_log(instance_id: str, settings: LogSettings, sink: Sink | None = None) -> Log:
    """The log of the node, with structlog's `bind` and friends for who wants them."""
    import structlog

    render = RENDERERS[settings.format]

    def finish(_logger: object, level: str, event: Any) -> str:
        return render({"time": now_text(), "level": level, **event})

    log = structlog.wrap_logger(
        sink or Sink(),
        processors=[finish],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[settings.level]),
        cache_logger_on_first_use=True,
        instance=instance_id,
    )
    return cast(Log, log)


def story_of(log: Log) -> Callable[[str], None]:
    """For code that tells plain sentences; one that begins with `warning: ` is a warning."""

    def tell(text: str) -> None:
        if text.startswith(_WARNING):
            log.warning(text.removeprefix(_WARNING))
        else:
            log.info(text)

    return tell


def now_text() -> str:
    now_ms = time.time_ns() // 1_000_000
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now_ms // 1000))}.{now_ms % 1000:03d}Z"


def render_text(line: Mapping[str, Any]) -> str:
    """One line, whatever the event and the fields hold."""
    level = line["level"]
    urgency = f"{level}: " if LEVELS.get(level, 0) >= LEVELS["warning"] else ""
    parts = [line["time"], line["instance"], f"{urgency}{_one_line(str(line['event']))}"]
    parts += [f"{key}={_field(value)}" for key, value in line.items() if key not in _HEAD]
    return " ".join(parts)


def render_json(line: Mapping[str, Any]) -> str:
    head = {key: line[key] for key in _HEAD}
    text = json.dumps(head | dict(line), default=str)
    if len(text) < _LINE_LIMIT_BYTES:
        return text
    # Cut where it stays an object: whoever parses the log must not stumble over the longest of its lines.
    return json.dumps(head | {"event": str(line["event"])[:_CUT_EVENT], "cut": True}, default=str)


def _one_line(text: str) -> str:
    return text if text.isprintable() else text.replace("\n", "\\n").replace("\r", "\\r")


def _field(value: Any) -> str:
    text = str(value)
    return text if text.isprintable() and text and " " not in text and '"' not in text else json.dumps(text)


_HEAD = ("time", "instance", "level", "event")
RENDERERS: dict[str, Render] = {"text": render_text, "json": render_json}
