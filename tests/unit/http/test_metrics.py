from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from trimtab.http.metrics import Metrics
from trimtab.http.port import Figures


def page(figures: Figures) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = Metrics(lambda: figures).page().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_number_arrives_under_its_name_and_unit() -> None:
    seen = page(Figures(term=4, committed=90, applied=88, leads=True, leader=2, lease_ms=2_500, log_bytes=7, fence=3))
    assert seen["trimtab_raft_term", ()] == 4
    assert seen["trimtab_raft_commit_index", ()] == 90
    assert seen["trimtab_raft_applied_index", ()] == 88
    assert seen["trimtab_raft_is_leader", ()] == 1
    assert seen["trimtab_raft_leader_id", ()] == 2
    assert seen["trimtab_lease_left_seconds", ()] == 2.5
    assert seen["trimtab_log_bytes_total", ()] == 7
    assert seen["trimtab_topology_fence", ()] == 3
    assert seen["process_resident_memory_bytes", ()] > 1e6


def test_grades_and_request_states_are_there_also_when_nobody_has_them() -> None:
    seen = page(Figures(grades={"Online": 3}, requests={"failed": 2}))
    assert seen["trimtab_instances", (("grade", "Online"),)] == 3
    assert seen["trimtab_instances", (("grade", "Expelled"),)] == 0
    assert seen["trimtab_requests", (("state", "failed"),)] == 2
    assert seen["trimtab_requests", (("state", "running"),)] == 0


def test_the_leader_tells_whom_it_heard_and_what_its_governor_did() -> None:
    seen = page(Figures(heard_ms={"i 2\n": 1_500}, steps={("sync", "done"): 4, ("sync", "failed"): 1}))
    assert seen["trimtab_heartbeat_age_seconds", (("instance_id", "i 2\n"),)] == 1.5
    assert seen["trimtab_governor_steps_total", (("kind", "sync"), ("outcome", "done"))] == 4
    assert seen["trimtab_governor_steps_total", (("kind", "sync"), ("outcome", "failed"))] == 1


def test_syncs_are_a_histogram_that_adds_up() -> None:
    seen = page(Figures(log_syncs=6, log_sync_seconds=0.5, sync_limits_s=(0.001, 0.01), sync_counts=(1, 3, 2)))
    assert seen["trimtab_log_sync_seconds_bucket", (("le", "0.001"),)] == 1
    assert seen["trimtab_log_sync_seconds_bucket", (("le", "0.01"),)] == 4
    assert seen["trimtab_log_sync_seconds_bucket", (("le", "+Inf"),)] == 6
    assert seen["trimtab_log_sync_seconds_count", ()] == 6
    assert seen["trimtab_log_sync_seconds_sum", ()] == 0.5
