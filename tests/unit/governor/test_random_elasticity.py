"""Random stories: instances come, go, die and return, replication changes, leaders too; in the end all is in order."""

from __future__ import annotations

import random

import pytest
from tests.unit.governor.driver import NoMajority
from tests.unit.governor.elastic import Elastic, elastic
from tests.unit.governor.holdings import HEAL_AFTER_MS

from trimtab.catalog.errors import SchemaError
from trimtab.tablets.departures import going, stays_because
from trimtab.topology.lifecycle import RequestRefused, create
from trimtab.topology.protocol import CreateRequest
from trimtab.topology.records import RequestKind

SEEDS = range(20)
DEEDS = 14


class Story:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = elastic(
            self.random.randint(4, 6), self.random.randint(1, 3), tablets=self.random.choice((4, 8, 16))
        )
        self.next = 10
        self.told: list[str] = []

    def tell(self, what: str) -> None:
        self.told.append(what)

    def deed(self) -> None:
        deeds = (self.join, self.leave, self.remove, self.replace, self.kill, self.start, self.replicate, self.cancel)
        self.random.choice((*deeds, self.elect, self.wait, self.hold))()

    def members(self, up: bool) -> list[str]:
        world = self.world
        return [row.instance_id for i, row in sorted(world.view.members().items()) if world.up(i) is up]

    def join(self) -> None:
        if len(self.world.view.members()) < 8:
            self.next += 1
            self.tell(f"join i{self.next}")
            self.world.join(f"i{self.next}", domain={"host": f"h{self.next}"})

    def replace(self) -> None:
        down = self.members(up=False)
        if down and not any(row.replaces for row in self.world.view.members().values()):
            name = self.random.choice(down)
            self.next += 1
            self.tell(f"replace {name} by i{self.next}")
            self.world.join(f"i{self.next}", replaces=name, domain={"host": f"h{self.next}"})

    def ask(self, kind: RequestKind, name: str) -> None:
        world = self.world
        state = world.state()
        gone = {*state.lost, *going(world.view)}
        try:
            record = create(
                world.view,
                CreateRequest(kind, name),
                state.alive,
                world.now_ms,
                holds=world.tables.holdings,
                keeps=lambda raft_id, kind: stays_because(world.view, world.tables, raft_id, kind, gone),
            )
        except RequestRefused as refused:
            self.tell(f"{kind.value} {name}: {refused}")
            return
        self.tell(f"{kind.value} {name}")
        world.put_request(record)

    def leave(self) -> None:
        if up := self.members(up=True):
            self.ask(RequestKind.LEAVE, self.random.choice(up))

    def remove(self) -> None:
        if down := self.members(up=False):
            self.ask(RequestKind.REMOVE, self.random.choice(down))

    def kill(self) -> None:
        up = self.members(up=True)
        voters = [i for i in self.world.voters if self.world.up(i)]
        victim = self.random.choice(up)
        enough = len(voters) - (self.world.id_of(victim) in voters)
        if len(up) > 3 and 2 * enough > len(self.world.voters):
            self.tell(f"kill {victim}")
            self.world.kill(victim)

    def start(self) -> None:
        if down := self.members(up=False):
            name = self.random.choice(down)
            self.tell(f"start {name}")
            self.world.start(name)

    def replicate(self) -> None:
        number = self.random.randint(1, 4)
        try:
            self.world.replicate(number)
            self.tell(f"replication {number}")
        except SchemaError as refused:
            self.tell(f"replication {number}: {refused}")

    def cancel(self) -> None:
        requests = [
            n for n, r in self.world.state().open_requests.items() if r.kind in (RequestKind.LEAVE, RequestKind.REMOVE)
        ]
        if requests:
            number = self.random.choice(requests)
            self.tell(f"cancel {number}")
            self.world.cancel(number)

    def elect(self) -> None:
        self.tell("elect")
        self.world.elect()

    def hold(self) -> None:
        self.world.hold_jobs = not self.world.hold_jobs
        self.tell(f"hold {self.world.hold_jobs}")

    def wait(self) -> None:
        ms = self.random.choice((2_000, 10_000, HEAL_AFTER_MS))
        self.tell(f"wait {ms}")
        self.world.pass_time(ms)

    def run(self) -> None:
        for _ in range(DEEDS):
            try:
                self.deed()
                steps = self.random.choice((0, 1, 3, 10, 40))
                for _ in range(steps):
                    self.step()
            except NoMajority:
                self.world.elect()
        self.settle()

    def step(self) -> None:
        world = self.world
        world.behave()
        step = world.next_step()
        if step is not None:
            world.carry_out(step)
        elif world.leader:
            world.replan()

    def settle(self) -> None:
        world = self.world
        world.hold_jobs = False
        for name in self.members(up=False):
            world.start(name)
        world.pass_time(130_000)  # whoever was to join and can't is given up by then
        wanted = sum(world.tables.catalog.keyspaces["shop"].replication.values())
        assert not world.state().open_requests
        assert world.factors() == {wanted}
        world.assert_even()
        world.assert_still()
        members = set(world.view.members())
        assert {i for _, replicas in world.tables.maps[1] for i in replicas} <= members


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_all_is_in_order_in_the_end(seed: int) -> None:
    story = Story(seed)
    try:
        story.run()
    except BaseException:
        print("\n".join(story.told))
        raise


def test_stories_differ_by_their_seed_only() -> None:
    one, other = Story(3), Story(3)
    one.run()
    other.run()
    assert (one.told, one.world.story) == (other.told, other.world.story)
    assert isinstance(one.world, Elastic)
