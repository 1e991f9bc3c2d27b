"""`trimtab move`, and tablets that are under way in `trimtab tablets`."""

from __future__ import annotations

import pytest
from tests.unit.cli.typing_commands import Typist
from tests.unit.client.fake_cluster import fails

from trimtab.cli.moving import move_text
from trimtab.tablets import move_protocol


@pytest.fixture
def users(typist: Typist) -> Typist:
    typist.cluster.replicas = 1
    typist.cluster.create("shop.users", "id bigint, name text", "id", tablets=2)
    return typist


def test_a_move_is_written_down_shown_and_undone(users: Typist) -> None:
    code, out, _ = users("move", "shop.users", "0", "--from", "i1", "--to", "i2")
    assert code == 0
    assert out == "shop.users:0 goes to i2. `trimtab tasks wait shop.users:0` waits for it, `--undo` takes it back.\n"
    shown = users.json("tablets", "shop.users")[0]
    assert (shown["replicas"], shown["pending"], shown["stage"]) == (["i1"], ["i2"], "allow_write_both_read_old")
    assert "i1 -> i2 allow_write_both_read_old" in users("tablets")[1]
    assert users("move", "shop.users", "0", "--undo")[1].startswith("shop.users:0 goes back to i1.")
    assert users.json("tablets", "shop.users")[0]["stage"] is None


def test_a_move_that_is_waited_for_ends_where_the_tablet_is(users: Typist) -> None:
    def ends(request: object) -> None:
        users.cluster.move(0, (2,))
        request.reply(move_protocol.encode(move_protocol.MoveReply("pending", [2])))  # type: ignore[attr-defined]

    users.cluster.script(move_protocol.ASK, ends)
    shown = users.json("move", "shop.users", "0", "--from", "i1", "--to", "i2", "--wait")
    assert shown == {"id": "shop.users:0", "state": "done", "replicas": ["i2"], "error": None}


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["shop.users", "0"], 2, "a move needs --from ID and --to ID"),
        (["shop.users", "0", "--from", "i1"], 2, "a move needs --from ID and --to ID"),
        (["shop.users", "0", "--undo", "--to", "i2"], 2, "--undo takes back"),
        (["shop.users", "x", "--undo"], 2, "TABLET"),
        (["shop.nothing", "0", "--from", "i1", "--to", "i2"], 1, "there is no table shop.nothing"),
        (["users", "0", "--from", "i1", "--to", "i2"], 1, "write KEYSPACE.TABLE"),
        (
            ["shop.users", "0", "--from", "i1", "--to", "i9"],
            1,
            "there is no instance 'i9' in the cluster; it has i1, i2",
        ),
        (["shop.users", "0", "--from", "i9", "--to", "i1"], 1, "there is no instance 'i9'"),
        (["shop.users", "9999999999", "--from", "i1", "--to", "i2"], 1, "a tablet is a number"),
        (["shop.users", "1", "--undo"], 1, "tablet 1 is not under way"),
    ],
)
def test_a_move_that_can_t_be_says_why_and_changes_nothing(
    users: Typist, arguments: list[str], code: int, text: str
) -> None:
    assert text in users.refused("move", *arguments, code=code)
    assert users.cluster.under_way == {}


def test_what_the_cluster_refuses_is_said_in_its_words(users: Typist) -> None:
    why = "i2 is on the host h1, as is i1; it is done all the same if it is forced"
    users.cluster.script(move_protocol.ASK, fails("conflict", why))
    assert users.refused("move", "shop.users", "0", "--from", "i1", "--to", "i2") == f"trimtab: {why}.\n"


def test_a_move_in_a_few_words() -> None:
    move = {"from": ["i1"], "to": ["i4"], "progress_bytes": 42, "total_bytes": 100, "state": "running"}
    assert move_text(move, "streaming") == "i1 -> i4 streaming 42 %"
    assert move_text(move | {"state": "paused"}, "streaming") == "i1 -> i4 streaming 42 % (paused)"
    assert move_text(move, "use_new") == "i1 -> i4 use_new"
    assert move_text(move | {"from": []}, "streaming") == "+ i4 streaming 42 %"
    assert move_text(move | {"to": []}, "cleanup") == "- i1 cleanup"
    assert move_text(move | {"to": [], "from": []}, "streaming") == "repair streaming 42 %"
