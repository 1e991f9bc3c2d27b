"""Bugs that a consensus implementation, a governor or a table store might have, each as a patch of one line.

They keep the simulator honest: each must be found, by invariants that know nothing of it, within 200 seeds. A patch
whose text is not in the source exactly once is an error, so that a bug never silently stops being planted.

Run as a script it plants one bug after another and reports the seed that found each; arguments select by name.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "trimtab"
SEEDS = 200


@dataclass(frozen=True)
class PlantedBug:
    """`old` becomes `new` in `file` (of the package); the bug is hunted in `scenario`.

    `seed` is one that has found it, for a quicker hunt: whoever changes schedules may have to look for another (run
    this as a script).
    """

    name: str
    file: str
    old: str
    new: str
    scenario: str = "chaos"
    seed: int = field(kw_only=True)


_FORGET = "        forget_before_ms=max(0, min(now_ms - options.gc_grace_s * 1000, repaired_through_ms, oldest_pending_ms)),\n"  # noqa: E501
_IF_COMMITTED = "        if load.state is not LoadState.COMMITTED:\n"
_UNLESS_SUCCEEDED = """\
            how = f"{_DID[found.state]}: {found.error or 'no reason is given'}"
            return _ended(job, JobState.FAILED, f"job {other}, which it waits for, {how}", now_ms)
    if all(succeeded(view, other) for other in job.waits_for):
"""
_GUARD = "        self._check(moving, (Stage.STREAMING,))\n        session = self._loads.sessions.get(moving.session)\n"

BUGS = (
    PlantedBug(
        "acknowledge before sync",
        "node/host.py",
        "            self.log.sync(lambda error: self._synced(responses, installs, error))\n",
        "            self._loop.call_soon(self._synced, responses, installs, None)\n",
        seed=0,
    ),
    PlantedBug(
        "vote twice in a term",
        "raft/election.py",
        "        or (raft.vote == NONE and raft.lead == NONE)\n",
        "        or raft.lead == NONE\n",
        seed=0,
    ),
    PlantedBug(
        "commit an old term by count",
        "raft/log.py",
        "        if index > self.committed and term != 0 and self.term_or_zero(index) == term:\n",
        "        if index > self.committed and term != 0 and self.term_or_zero(index) <= term:\n",
        seed=37,
    ),
    PlantedBug(
        "truncate without conflict",
        "raft/log.py",
        "            conflict = self.find_conflict(entries)\n",
        "            conflict: int | None = entries[0].index\n",
        seed=0,
    ),
    PlantedBug(
        "skip the quorum of a read index",
        "raft/reads.py",
        '    if raft.config.read_only == "lease" or raft.tracker.sole_voter(raft.id):\n',
        "    if True:\n",
        seed=36,
    ),
    PlantedBug(
        "apply twice after a restart",
        "metastore/machine.py",
        "        self.applied_index = state.applied_index\n",
        "        self.applied_index = state.applied_index - (state.applied_index > 1)\n",
        seed=0,
    ),
    PlantedBug(
        "forget the configuration in a snapshot",
        "raft/following.py",
        "    membership.restore_from(raft, conf_state)\n",
        "    del conf_state\n",
        seed=0,
    ),
    PlantedBug(
        "campaign with an unapplied change",
        "raft/election.py",
        "    if has_unapplied_conf_change(raft):\n",
        "    if False:\n",
        seed=8,
    ),
    PlantedBug(
        "count duplicate votes",
        "raft/tracker.py",
        "        self.votes.setdefault(node, granted)\n",
        "        self.votes[min({*self.ids} - {*self.votes}, default=0) if node in self.votes else node] = granted\n",
        seed=5,
    ),
    PlantedBug(
        "leave the applied index out of the batch",
        "metastore/machine.py",
        "        batch.put(STATE_KEY, pack_state(state))\n",
        "        self._store.write(batch); batch = self._store.batch(); batch.put(STATE_KEY, pack_state(state))\n",
        seed=0,
    ),
    # Beyond the ten that must be.
    PlantedBug(
        "a vote that is not persisted",
        "node/host.py",
        "            hard_state = HardState(term=message.term, vote=message.vote, commit=message.commit)\n",
        "            hard_state = HardState(term=message.term, vote=0, commit=message.commit)\n",
        seed=32,
    ),
    PlantedBug(
        "grant a vote to a shorter log",
        "raft/election.py",
        "    granted = can_vote and raft.log.is_up_to_date(message.index, message.log_term)\n",
        "    granted = can_vote\n",
        seed=0,
    ),
    PlantedBug(
        "a heartbeat's commit index is not bounded by what matches",
        "raft/sending.py",
        "        commit = min(progress.match, committed)\n",
        "        commit = committed\n",
        seed=0,
    ),
    PlantedBug(
        "answer a read before its index is applied",
        "node/reads.py",
        "        while self._confirmed and self._confirmed[0][0] <= applied:\n",
        "        while self._confirmed:\n",
        seed=0,
    ),
    PlantedBug(
        "cut the log above what the machine has made durable",
        "node/compaction.py",
        "    cut = min(applied_durable, last_applied - keep_entries)\n",
        "    cut = last_applied\n",
        seed=71,
    ),
    # Of whole clusters.
    PlantedBug(
        "two bootstrap leaders",
        "topology/discovery.py",
        "            elif len(self._visited) == len(self._peers) and self._smallest() == self.own_address:\n",
        "            elif self._smallest() == self.own_address:\n",
        "topology",
        seed=0,
    ),
    PlantedBug(
        "a raft id used again",
        "governor/writes.py",
        '        assert raft_id not in self._view.instances, "raft ids are never used again"\n',
        "        raft_id = max(self._view.members(), default=0) + 1\n",
        "topology",
        seed=6,
    ),
    PlantedBug(
        "a lease counted from receipt",
        "topology/leases.py",
        "        until_s = sent_s + grant.lease_ms / 1000\n",
        "        until_s = now_s + grant.lease_ms / 1000\n",
        "topology",
        seed=43,
    ),
    PlantedBug(
        "a barrier that skips without fencing",
        "topology/barriers.py",
        "        if self.unanswered_for and not self._fenced:\n",
        "        if False:\n",
        "topology",
        seed=39,
    ),
    PlantedBug(
        "orders of a stale term obeyed",
        "node/barriers.py",
        "        if term < known:\n",
        "        if False:\n",
        "topology",
        seed=10,
    ),
    PlantedBug(
        "the incarnation not raised",
        "topology/grades.py",
        "        target = Standing(grade, grades.target.incarnation + 1)\n",
        "        target = Standing(grade, grades.target.incarnation)\n",
        "topology",
        seed=0,
    ),
    # Of tables.
    PlantedBug(
        "a write answered before it is synced",
        "storage/mutation_log.py",
        "                self._log.sync(partial(self._synced, mutations, dones))\n",
        "                self._call_soon(partial(self._synced, mutations, dones, None))\n",
        "tables",
        seed=35,
    ),
    PlantedBug(
        "of equal timestamps the one that comes last wins",
        "rows/merge.py",
        "        if cell.stamp_us <= latest and ((known := cells.get(id)) is None or cell > known):\n",
        "        if cell.stamp_us <= latest and ((known := cells.get(id)) is None or cell[0] >= known[0]):\n",
        "tables",
        seed=6,
    ),
    PlantedBug(
        "replay from a foreign position",
        "node/replicas/replaying.py",
        "    positions = {incarnation: each.replica.position for incarnation, each in waiting.items()}\n",
        "    positions = dict.fromkeys(waiting, max([0, *(each.replica.position for each in waiting.values())]))\n",
        "tables",
        seed=24,
    ),
    PlantedBug(
        "a new replica takes over the incarnation of an old one",
        "storage/mutation_log.py",
        "        self.incarnation += 1\n",
        "        self.incarnation = max(self.incarnation, 1)\n",
        "tables",
        seed=2,
    ),
    PlantedBug(
        "equal timestamps collide",
        "rows/hashing.py",
        '    return murmur3_of()(value).to_bytes(HASH_BYTES, "big", signed=True)\n',
        "    return bytes(HASH_BYTES)\n",
        "tables",
        seed=1,
    ),
    PlantedBug(
        "a deletion forgotten before all replicas have it",
        "rows/folding.py",
        _FORGET,
        "        forget_before_ms=max(0, now_ms - options.gc_grace_s * 1000),\n",
        "tables",
        seed=7,
    ),
    PlantedBug(
        "a read repair that does not block",
        "node/router/reads.py",
        "            await self._bring_in_step(found, {each for each in full if not found.lacking[each]})\n",
        "            self._reads.spawn(self._bring_in_step(found, {e for e in full if not found.lacking[e]}))\n",
        "tables",
        seed=113,
    ),
    PlantedBug(
        "the fence ignored",
        "node/serving.py",
        "        if version < self._view.fence:\n",
        "        if False:\n",
        "tables",
        seed=66,
    ),
    PlantedBug(
        "a hint taken after a newer deletion is forgotten",
        "rows/folding.py",
        _FORGET,
        # As far back as a round of repair began, though hints from before it may live for a while.
        "        forget_before_ms=min(now_ms - options.gc_grace_s * 1000, "
        "repaired_through_ms + now_ms - oldest_pending_ms),\n",
        "tables",
        seed=139,
    ),
    # Of loads and jobs.
    PlantedBug(
        "a load committed without all replicas staged",
        "loads/rules.py",
        "    if missing := holders - sealed - missed:\n",
        "    if missing := frozenset[int]():\n",
        "loads",
        seed=4,
    ),
    PlantedBug(
        "a replica that came after the sealing taken for staged",
        "loads/rules.py",
        "    if request.places and request.places != situation.tables.held(request.table).digest():\n",
        "    if False:\n",
        "loads",
        seed=8,
    ),
    PlantedBug(
        "files taken over after their session was closed",
        "node/replicas/adopting.py",
        _IF_COMMITTED,
        "        if load is not None:\n            return load\n" + _IF_COMMITTED,
        "loads",
        seed=84,
    ),
    PlantedBug(
        "a load published before all have taken it over",
        "loads/publishing.py",
        "    if left := to_adopt(situation, record):\n",
        "    if left := frozenset[int]():\n",
        "loads",
        seed=4,
    ),
    PlantedBug(
        "a page of a scan read at another epoch",
        "node/router/paging.py",
        "            self._epoch = epoch\n",
        "            del epoch\n",
        "loads",
        seed=6,
    ),
    PlantedBug(
        "rows shown of a load that can't be seen yet",
        "node/router/epochs.py",
        "    return found, loads.hidden(table, epoch)\n",
        "    return found, frozenset()\n",
        "loads",
        seed=3,
    ),
    PlantedBug(
        "rows of a load folded into others while a scan must not see them",
        "node/replicas/holdings.py",
        "            apart = unsettled_stamps(loads, replica.table, now_ms)\n",
        "            apart = frozenset[int]()\n",
        "loads",
        seed=39,
    ),
    PlantedBug(
        "a hint of the old generation written into the new one",
        "node/router/replica_door.py",
        "                and replica.generation == write.generation\n",
        "",
        "loads",
        seed=1,
    ),
    PlantedBug(
        "two drivers of jobs at once",
        "jobs/rules.py",
        "    if before is not None and not before.gone:\n",
        "    if False:\n",
        "loads",
        seed=1,
    ),
    PlantedBug(
        "the word of a driver that is gone believed",
        "jobs/rules.py",
        "    if driver is None or driver.term != term or driver.gone:\n",
        "    if driver is None:\n",
        "loads",
        seed=28,
    ),
    PlantedBug(
        "a failed dependency taken as satisfied",
        "jobs/rules.py",
        _UNLESS_SUCCEEDED,
        "            continue\n"
        "    if all(other in view.jobs and view.jobs[other].state.final for other in job.waits_for):\n",
        "loads",
        seed=6,
    ),
    # Of moves.
    PlantedBug(
        "a copy adopted without looking at its session",
        "node/replicas/arrivals.py",
        _GUARD,
        "        return\n" + _GUARD,
        "moves",
        seed=16,
    ),
    PlantedBug(
        "a copy cut over to before its checksums are compared",
        "node/replicas/arrivals.py",
        "        if wrong:\n",
        "        if False:\n",
        "moves",
        seed=20,
    ),
    PlantedBug(
        "replicas that leave cleaned without a barrier",
        "tablets/selectors.py",
        "    Stage.USE_NEW: Selector(writes=NEW, reads=NEW, barrier=True),\n",
        "    Stage.USE_NEW: Selector(writes=NEW, reads=NEW, barrier=False),\n",
        "moves",
        seed=2,
    ),
    PlantedBug(
        "a replica rebuilt from one that lags behind",
        "tablets/stages.py",
        "        chosen += (able[first:] + able[:first])[:number]\n",
        "        chosen += (able[first:] + able[:first])[:1]\n",
        "moves",
        seed=122,
    ),
    PlantedBug(
        "an adjusted target that keeps its stage",
        "tablets/transitions.py",
        "        adjusted = _begun(proposal, session, kind, now_ms)\n",
        "        adjusted = msgspec.structs.replace(_begun(proposal, session, kind, now_ms), stage=current.stage)\n",
        "moves",
        seed=1,
    ),
    PlantedBug(
        "what was planned stays planned when it is pending",
        "governor/move_begins.py",
        '    _, after = _proposed(state, stable, None, proposal, up)\n    return after, ""\n',
        "    _, after = _proposed(state, stable, None, proposal, up)\n"
        '    return msgspec.structs.replace(after, planned=proposal.target) if after is not None else None, ""\n',
        "moves",
        seed=24,
    ),
    PlantedBug(
        "a trigger that acts twice",
        "tablets/transitions.py",
        "    if current is not None and proposal.trigger <= current.trigger:\n",
        "    if False:\n",
        "moves",
        seed=7,
    ),
    PlantedBug(
        "replicas that only ever become more",
        "tablets/balancer/live.py",
        "            target[at : at + 1] = arriving\n",
        "            target += arriving\n",
        "moves",
        seed=0,
    ),
    PlantedBug(
        "a balancer that proposes nothing for balance",
        "tablets/balancer/live.py",
        "    for move in plan.moves:\n",
        "    for move in (each for each in plan.moves if each.cause is not Cause.BALANCE):\n",
        "moves",
        seed=1,
    ),
    PlantedBug(
        "a copy that is said to have rows which are only in memory",
        "node/replicas/swapping.py",
        "                unfiled = Unfiled(meta, logged_from, adopted)\n",
        "                unfiled = Unfiled(meta, position, adopted)\n",
        "moves",
        seed=194,
    ),
    PlantedBug(
        "replicas dropped before others have been added",
        "tablets/transitions.py",
        "LEAVING_CLEANS = frozenset((Stage.CLEANUP, Stage.END_MIGRATION))\n",
        "LEAVING_CLEANS = frozenset((Stage.STREAMING, Stage.CLEANUP, Stage.END_MIGRATION))\n",
        "moves",
        seed=0,
    ),
    PlantedBug(
        "a move that does not say why",
        "tablets/transitions.py",
        "        why=proposal.why,\n",
        '        why="",\n',
        "moves",
        seed=0,
    ),
)


class NotPlanted(Exception):
    """The text to be replaced is not in the source exactly once: the patch has to follow the code."""


def plant(bug: PlantedBug, package: Path) -> None:
    """Patch a copy of the package."""
    path = package / bug.file
    text = path.read_text()
    if text.count(bug.old) != 1:
        raise NotPlanted(f"{bug.name!r}: {bug.file} holds {text.count(bug.old)} times, not once: {bug.old.strip()!r}")
    path.write_text(text.replace(bug.old, bug.new))


@functools.cache
def _copy_of_the_package() -> Path:
    """One for this process: to copy it takes longer than most bugs live."""
    folder = Path(tempfile.mkdtemp(prefix="planted-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # What is compiled already comes along: only a patched file is younger than that.
    shutil.copytree(SOURCE, folder / "trimtab")
    return folder


def hunt(bug: PlantedBug, *, first: int = 0, seeds: int = SEEDS, timeout_s: float = 1200) -> dict[str, object]:
    """Run seeds on a copy of the package with the bug in it until one fails; the report of `trimtab sim --json`."""
    folder = _copy_of_the_package()
    plant(bug, folder / "trimtab")
    try:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "trimtab", "sim", "--scenario", bug.scenario),
                *("--seeds", f"{first}:{first + seeds}", "--fail-fast", "--json"),
            ],
            env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    finally:
        shutil.copy2(SOURCE / bug.file, folder / "trimtab" / bug.file)
    try:
        report: dict[str, object] = json.loads(done.stdout)
    except ValueError as error:
        raise RuntimeError(f"the simulator did not report: {done.stdout}\n{done.stderr}") from error
    return report


def main(names: list[str]) -> None:
    for bug in BUGS:
        if names and not any(name in bug.name for name in names):
            continue
        began = time.monotonic()
        report = hunt(bug)
        failed = report["failed"]
        assert isinstance(failed, list)
        found = f"seed {failed[0]['seed']}: {failed[0]['why']}" if failed else "NOT FOUND"
        print(f"{bug.name:<55} {report['seeds']:>4} seeds {time.monotonic() - began:6.1f} s  {found}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
