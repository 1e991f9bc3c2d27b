"""What a delay owes to the machine is told from what it owes to us."""

import pytest

from trimtab.node import processor_waits
from trimtab.node.processor_waits import ProcessorWaits, stolen_s

STAT = b"""cpu  100 0 0 0 0 0 0 %d 0 0
cpu0 50 0 0 0 0 0 0 %d 0 0
cpu1 50 0 0 0 0 0 0 %d 0 0
intr 5 6 7
"""


class Machine:
    """What the two files of the system say."""

    def __init__(self, folder, monkeypatch):
        self._thread, self._processors, self._where = folder / "schedstat", folder / "stat", folder / "where"
        self.waited_s, self.stolen_ticks, self.processor = 1.0, [7, 3], 1
        self.write()
        monkeypatch.setattr(processor_waits, "_OF_THREAD", str(self._where))
        monkeypatch.setattr(processor_waits, "_PER_THREAD", str(self._thread))
        monkeypatch.setattr(processor_waits, "_PER_PROCESSOR", str(self._processors))

    def write(self):
        self._thread.write_text(f"12345 {int(self.waited_s * 1e9)} 17\n")
        self._processors.write_bytes(STAT % (sum(self.stolen_ticks), *self.stolen_ticks))
        self._where.write_text(f"17 (a name) of 2) S{' 0' * 35} {self.processor} 0 0\n")

    def wait(self, seconds=0.0, stolen=(0, 0)):
        self.waited_s += seconds
        self.stolen_ticks = [before + more for before, more in zip(self.stolen_ticks, stolen, strict=True)]
        self.write()


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def test_each_processor_is_counted_and_a_line_that_is_cut_off_is_not():
    assert stolen_s(STAT % (10, 7, 3)) == [pytest.approx(0.07), pytest.approx(0.03)]
    assert stolen_s(b"cpu  1 0 0 0 0 0 0 9 0 0\ncpu0 1 0 0 0 0 0 0 9 0 0\ncpu1 1 0 0 0 0 0 0 1") == [
        pytest.approx(0.09)
    ]
    assert stolen_s(b"cpu  1 2 3\ncpu0 1 2 3\n") == [0.0]
    assert stolen_s(STAT.replace(b"cpu1", b"cpu3") % (10, 7, 3)) == pytest.approx([0.07, 0, 0, 0.03]), "two are off"
    assert stolen_s(b"") == []


def test_a_wait_of_the_thread_is_found_and_no_more_than_the_delay(machine):
    waits = ProcessorWaits()
    machine.wait(0.03)
    assert waits.within(0.04) == pytest.approx(0.03)
    assert waits.within(0.04) == 0.0
    machine.wait(0.03)
    assert waits.within(0.01) == pytest.approx(0.01)


def test_a_machine_that_was_stopped_is_found_by_what_the_own_processor_lost(machine):
    waits = ProcessorWaits()
    machine.wait(0.01, stolen=(9, 5))
    assert waits.within(0.08) == pytest.approx(0.05), "what it waited meanwhile is in it"
    assert waits.within(0.08) == 0.0
    machine.processor = 0
    machine.wait(0.02, stolen=(1, 5))
    assert waits.within(0.08) == pytest.approx(0.02)


@pytest.mark.parametrize(("few", "looks"), [(2, 1), (1, processor_waits._SELDOM)])
def test_what_was_lost_before_is_no_part_of_a_delay(machine, monkeypatch, few, looks):
    monkeypatch.setattr(processor_waits, "_FEW", few)
    waits = ProcessorWaits()
    machine.wait(stolen=(9, 9))
    for _ in range(looks):
        assert waits.within(0.0001) == 0.0
    assert waits.within(0.08) == 0.0


def test_a_system_that_does_not_tell_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setattr(processor_waits, "_PER_THREAD", str(tmp_path / "none"))
    (tmp_path / "odd").write_text("not what is expected")
    monkeypatch.setattr(processor_waits, "_PER_PROCESSOR", str(tmp_path / "odd"))
    monkeypatch.setattr(processor_waits, "_OF_THREAD", str(tmp_path / "odd"))
    assert ProcessorWaits().within(0.5) == 0.0


def test_this_system_is_read():
    assert 0.0 <= ProcessorWaits().within(0.5) <= 0.5
