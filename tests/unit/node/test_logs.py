"""Log lines are structured, few, and never in the way."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trimtab.node.logs import Log, LogSettings, PlainLog, Sink, open_log, story_of

Open = Callable[[str, LogSettings, Sink], Log]
both = pytest.mark.parametrize("make", [PlainLog, open_log], ids=["supervisor", "node"])


@contextmanager
def written(path: Path) -> Iterator[tuple[Sink, Callable[[], list[str]]]]:
    with path.open("wb") as file:
        yield Sink(file.fileno()), lambda: path.read_text().splitlines()


@both
def test_a_text_line_has_time_instance_event_and_fields(make: Open, tmp_path: Path) -> None:
    with written(tmp_path / "log") as (sink, lines):
        make("i1", LogSettings(), sink).info("ready on 127.0.0.1:1", raft_id=3, why="a b", empty="")
        (line,) = lines()
    when, rest = line.split(" ", 1)
    assert len(when) == len("2026-01-31T12:00:00.000Z") and when.endswith("Z")
    assert rest == 'i1 ready on 127.0.0.1:1 raft_id=3 why="a b" empty=""'


@both
def test_a_json_line_is_one_object(make: Open, tmp_path: Path) -> None:
    with written(tmp_path / "log") as (sink, lines):
        make("i1", LogSettings(format="json"), sink).warning("two\nlines", domain={"rack": "r1"}, path=tmp_path)
        (line,) = lines()
    found = json.loads(line)
    assert list(found) == ["time", "instance", "level", "event", "domain", "path"]
    assert (found["instance"], found["level"], found["event"]) == ("i1", "warning", "two\nlines")
    assert found["domain"] == {"rack": "r1"} and found["path"] == str(tmp_path)


@both
@pytest.mark.parametrize(("level", "count"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_the_level_decides_what_is_told(make: Open, tmp_path: Path, level: str, count: int) -> None:
    with written(tmp_path / "log") as (sink, lines):
        log = make("i1", LogSettings(level), sink)
        log.debug("a")
        log.info("b")
        log.warning("c")
        log.error("d")
        assert len(lines()) == count
        assert lines()[-1].endswith("i1 error: d")


@both
def test_an_event_stays_on_one_line_whatever_it_holds(make: Open, tmp_path: Path) -> None:
    with written(tmp_path / "log") as (sink, lines):
        make("i1", LogSettings(), sink).info("50% {of}\nit\r", why="x\ny")
        (line,) = lines()
    assert line.endswith('i1 50% {of}\\nit\\r why="x\\ny"')


def test_sentences_of_existing_code_become_lines_and_warnings_stay_warnings(tmp_path: Path) -> None:
    with written(tmp_path / "log") as (sink, lines):
        tell = story_of(open_log("i1", LogSettings(), sink))
        tell("following member 2 in term 7")
        tell("warning: TLS is off")
        first, second = lines()
    assert first.endswith(" i1 following member 2 in term 7") and second.endswith(" i1 warning: TLS is off")


def test_a_reader_that_stopped_reading_blocks_nobody_and_hears_how_much_it_missed() -> None:
    reader, writer = os.pipe()
    sink = Sink(writer)
    log = PlainLog("i1", LogSettings(), sink)
    for _ in range(100):
        log.info("x" * 3000)
    assert 0 < sink.lost < 100
    lost = sink.lost
    os.read(reader, 1 << 20)
    log.info("again")
    assert f"({lost} lines of the log could not be written here)\n".encode() in os.read(reader, 1 << 20)
    assert sink.lost == 0
    os.close(reader)
    log.info("nobody reads any more")
    os.close(writer)
    log.info("not even a descriptor")
    assert sink.lost == 2


@pytest.mark.parametrize("kind", ["text", "json"])
def test_a_line_is_never_longer_than_a_pipe_takes_at_once(tmp_path: Path, kind: str) -> None:
    with written(tmp_path / "log") as (sink, lines):
        PlainLog("i1", LogSettings(format=kind), sink).info("ß" * 9000, more="x" * 9000)
        (line,) = lines()
    assert len(line.encode()) <= 4096
    if kind == "json":
        assert json.loads(line)["cut"]


def test_text_that_is_no_unicode_is_written_escaped(tmp_path: Path) -> None:
    with written(tmp_path / "log") as (sink, lines):
        PlainLog("i1", LogSettings(), sink).info("file \udcff")
        assert lines()[0].endswith("file \\udcff")


@pytest.mark.parametrize("wrong", [{"level": "loud"}, {"format": "xml"}])
def test_an_unknown_level_or_format_lists_what_there_is(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="choose one of"):
        LogSettings(**wrong)
