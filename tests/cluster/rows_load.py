"""Clients that write and read rows while a test makes trouble, and what they were told.

    facts       a row of its own for every write: whatever was acknowledged must be there in the end
    registers   a few rows, each raised step by step by one writer and read by everybody; see `register_checker`

Each client is a process with several threads that share one `trimtab.connect`. It writes down every outcome (a line of
JSON) as soon as it knows it. Run as a program: python -m tests.cluster.rows_load ADDRESSES NUMBER JOURNAL STOP CLIENTS
FIRST PAUSE_S.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import trimtab
from tests.cluster.patience import create_keyspace, create_table
from tests.cluster.register_checker import Read, Write, violations
from tests.conftest import ROOT, Processes

FACTS = "load.facts"
REGISTERS = "load.registers"
WRITERS = 6  # of one client
READERS = 2
REGISTERS_PER_WRITER = 2
_EACH = 3  # every so many writes is one of a register
_SPAN = 10_000_000  # numbers of one writer's facts
_PAUSE_S = 0.02  # after a failure
_MAX_WRITES = 1_000_000
_TIMEOUT_S = 30.0


def create_tables(db: trimtab.Database, replication: int | dict[str, int] = 3, tablets: int = 4) -> None:
    create_keyspace(db, "load", replication)
    for name, columns in ((FACTS, {"id": "bigint", "value": "text"}), (REGISTERS, {"id": "int", "n": "bigint"})):
        create_table(db, name, columns, tablets)


def value_of(fact: int) -> str:
    return f"{fact:>100}"


@dataclass
class History:
    """What the clients were told. `facts`: whether each was acknowledged."""

    facts: dict[int, bool] = field(default_factory=dict)
    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)

    def add(self, line: list[Any]) -> None:
        kind, *rest = line
        if kind == "fact":
            self.facts[rest[0]] = rest[1]
        elif kind == "write":
            self.writes.append(Write(*rest))
        elif kind == "read":
            self.reads.append(Read(*rest))
        else:
            self.errors[rest[0]] = self.errors.get(rest[0], 0) + 1

    @property
    def acknowledged(self) -> list[int]:
        return [fact for fact, known in self.facts.items() if known]

    def unknown(self) -> set[int]:
        """Facts and registers that were written without it being known whether that happened."""
        facts = {fact for fact, known in self.facts.items() if not known}
        return facts | {write.register for write in self.writes if not write.acknowledged}

    def registers(self) -> dict[int, int]:
        """The least that each register must hold in the end."""
        least: dict[int, int] = {}
        for write in self.writes:
            if write.acknowledged:
                least[write.register] = max(write.value, least.get(write.register, 0))
        return least

    def check(self) -> None:
        """No reader saw what can't be."""
        wrong = violations(self.writes, self.reads)
        assert not wrong, f"{len(wrong)} violations, such as: {wrong[:5]}"

    def lost(self, facts: dict[int, Any], registers: dict[int, Any]) -> list[str]:
        """What was acknowledged and is not among these rows."""
        gone = [f"fact {each}" for each in self.acknowledged if facts.get(each) != value_of(each)]
        behind = [
            f"register {each} is {registers.get(each)} and was {least}"
            for each, least in self.registers().items()
            if (registers.get(each) or 0) < least
        ]
        return gone + behind

    def __str__(self) -> str:
        return (
            f"{len(self.acknowledged)} of {len(self.facts)} facts and {sum(w.acknowledged for w in self.writes)} of "
            f"{len(self.writes)} steps of registers acknowledged, {len(self.reads)} reads, errors {self.errors}"
        )


class Load:
    """So many client processes, started here and stopped by `stop`. Each thread of them rests `pause_s` in between.

    `first`: the number of the first client. Clients of different numbers have different rows.
    """

    def __init__(
        self,
        processes: Processes,
        folder: Path,
        addresses: Sequence[str],
        clients: int = 2,
        *,
        first: int = 0,
        pause_s: float = 0.0,
    ) -> None:
        self._folder = folder
        self._stop = folder / "stop"
        self._journals = [folder / f"client{number}.jsonl" for number in range(clients)]
        self._read_bytes = dict.fromkeys(self._journals, 0)
        self._outcomes = 0
        self._clients: list[subprocess.Popen[bytes]] = []
        folder.mkdir()
        for number, journal in enumerate(self._journals):
            command = [sys.executable, "-m", "tests.cluster.rows_load", ",".join(addresses), str(first + number)]
            command += [str(journal), str(self._stop), str(clients), str(first), str(pause_s)]
            self._clients.append(processes.start(command, cwd=ROOT, output=folder / f"client{number}.log"))

    def outcomes(self) -> int:
        """How many writes have an outcome so far."""
        for journal in self._journals:
            if journal.exists():
                with journal.open("rb") as lines:
                    lines.seek(self._read_bytes[journal])
                    whole, newline, _ = lines.read().rpartition(b"\n")
                self._read_bytes[journal] += len(whole + newline)
                self._outcomes += whole.count(b'["fact"') + whole.count(b'["write"')
        return self._outcomes

    def await_more(self, count: int, timeout_s: float = 300) -> None:
        """Wait for so many writes more."""
        goal = self.outcomes() + count
        deadline = time.monotonic() + timeout_s
        while self.outcomes() < goal:
            assert time.monotonic() < deadline, f"the clients stand still before {goal}: {self._said()}"
            assert all(client.poll() is None for client in self._clients), self._said()
            time.sleep(0.05)

    def stop(self) -> History:
        self._stop.touch()
        for client in self._clients:
            assert client.wait(60) == 0, self._said()
        history = History()
        for journal in self._journals:
            with journal.open() as lines:
                for line in lines:
                    history.add(json.loads(line))
        return history

    def errors(self) -> list[str]:
        """What clients were told instead of an answer, each once."""
        lines = (line for journal in self._journals for line in journal.read_text().splitlines())
        return sorted({line for line in lines if line.startswith('["error"')})

    def _said(self) -> str:
        return "\n".join(log.read_text() for log in sorted(self._folder.glob("*.log")))


class Client:
    """One process of a load."""

    def __init__(
        self,
        db: trimtab.Database,
        number: int,
        clients: int,
        journal: IO[str],
        stop: Path,
        *,
        first: int = 0,
        pause_s: float = 0.0,
    ) -> None:
        self._facts = db.table(FACTS, consistency="QUORUM", timeout=_TIMEOUT_S)
        self._registers = db.table(REGISTERS, consistency="QUORUM", timeout=_TIMEOUT_S)
        self._number = number
        each = WRITERS * REGISTERS_PER_WRITER
        self._all_registers = range(first * each, (first + clients) * each)
        self._journal = journal
        self._lock = threading.Lock()
        self._stop = stop
        self._pause_s = pause_s
        self._failure: BaseException | None = None

    def run(self) -> None:
        threads = [threading.Thread(target=self._guarded, args=(self._write, each)) for each in range(WRITERS)]
        threads += [threading.Thread(target=self._guarded, args=(self._read, each)) for each in range(READERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _guarded(self, work: Any, number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            self._failure = error

    def _told(self, *line: Any) -> None:
        text = json.dumps(line)
        with self._lock:
            self._journal.write(text + "\n")

    def _running(self) -> bool:
        time.sleep(self._pause_s)
        return not self._stop.exists() and self._failure is None

    def _write(self, number: int) -> None:
        writer = self._number * WRITERS + number
        values = {writer * REGISTERS_PER_WRITER + each: 0 for each in range(REGISTERS_PER_WRITER)}
        fact = writer * _SPAN
        for turn in range(_MAX_WRITES):
            if not self._running():
                return
            if turn % _EACH:
                fact += 1
                self._told("fact", fact, self._put(self._facts, {"id": fact, "value": value_of(fact)}))
            else:
                register = list(values)[turn // _EACH % len(values)]
                values[register] += 1
                began = time.monotonic()
                done = self._put(self._registers, {"id": register, "n": values[register]})
                self._told("write", register, values[register], began, time.monotonic(), done)

    def _put(self, table: Any, row: dict[str, Any]) -> bool:
        try:
            table.put(row)
        except trimtab.Error as error:
            self._failed(error)
            return False
        return True

    def _read(self, number: int) -> None:
        rng = random.Random(f"{self._number} {number}")
        for _ in range(_MAX_WRITES):
            if not self._running():
                return
            register = rng.choice(self._all_registers)
            began = time.monotonic()
            try:
                row = self._registers.get(id=register)
            except trimtab.Error as error:
                self._failed(error)
                continue
            self._told("read", register, row["n"] if row else 0, began, time.monotonic())

    def _failed(self, error: trimtab.Error) -> None:
        self._told("error", type(error).__name__, str(error)[:300])
        time.sleep(_PAUSE_S)


def main(addresses: str, number: str, journal: str, stop: str, clients: str, first: str, pause_s: str) -> None:
    with trimtab.connect(addresses, timeout=_TIMEOUT_S) as db, Path(journal).open("w", buffering=1) as lines:
        made = Client(db, int(number), int(clients), lines, Path(stop), first=int(first), pause_s=float(pause_s))
        made.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
