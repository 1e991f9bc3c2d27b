"""Metrics in Prometheus' text format, made of plain numbers at the moment of a scrape.

Nothing is counted for the sake of metrics while requests are served. Names begin with `trimtab_`, units are in the
names, counters end in `_total`; what Prometheus calls `process_*` comes from its own library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from trimtab.http.port import Figures
from trimtab.node.figures import Distribution
from trimtab.topology.grades import Grade
from trimtab.topology.records import RequestState

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

# name, what it is, how to read it
GAUGES: tuple[tuple[str, str, Callable[[Figures], float]], ...] = (
    ("raft_term", "Raft term of the cluster group.", lambda f: f.term),
    ("raft_commit_index", "Last index known to be committed.", lambda f: f.committed),
    ("raft_applied_index", "Last index applied to the metastore.", lambda f: f.applied),
    ("raft_leader_id", "Raft id of the leader as known here; 0 if none is.", lambda f: f.leader),
    ("raft_is_leader", "1 if this instance leads.", lambda f: f.leads),
    ("raft_members", "Members of the cluster group.", lambda f: f.members),
    ("raft_voters", "Members that vote.", lambda f: f.voters),
    ("metastore_revision", "Revision of the metastore.", lambda f: f.revision),
    ("topology_version", "Version of the topology that this instance routes by.", lambda f: f.version),
    ("topology_fence", "Requests stamped with an older topology version are refused.", lambda f: f.fence),
    ("lease_left_seconds", "What is left of the lease of this instance; 0 without one.", lambda f: f.lease_ms / 1000),
    ("serving_open_requests", "Data requests admitted here that have not ended.", lambda f: f.open_requests),
    ("last_event", "Number of the newest event.", lambda f: f.last_event),
    ("disk_full", "1 if this instance takes no writes for lack of space.", lambda f: f.disk_full),
)
COUNTERS: tuple[tuple[str, str, Callable[[Figures], float]], ...] = (
    ("log_entries", "Raft entries written to the log.", lambda f: f.log_entries),
    ("log_bytes", "Bytes written to the log.", lambda f: f.log_bytes),
)


class Scrape(Collector):
    """Collects the figures of one instance."""

    def __init__(self, figures: Callable[[], Figures]) -> None:
        self._figures = figures

    def describe(self) -> Iterable[Metric]:
        """Registering asks for names; nothing needs to be measured for that."""
        return ()

    def collect(self) -> Iterable[Metric]:
        figures = self._figures()
        about = GaugeMetricFamily(
            "trimtab_instance_info",
            "Who this instance is.",
            labels=("cluster_id", "instance_id", "raft_id", "release"),
        )
        about.add_metric((figures.cluster_id, figures.instance_id, str(figures.raft_id), figures.release), 1)
        yield about
        for name, text, read in GAUGES:
            yield GaugeMetricFamily(f"trimtab_{name}", text, value=read(figures))
        for name, text, read in COUNTERS:
            yield CounterMetricFamily(f"trimtab_{name}", text, value=read(figures))
        yield _syncs(figures)
        yield from _labelled(figures)
        yield from _parts(figures)


def _labelled(figures: Figures) -> Iterable[Metric]:
    grades = GaugeMetricFamily("trimtab_instances", "Instances by their current grade.", labels=("grade",))
    for grade in Grade:
        grades.add_metric((grade.value,), figures.grades.get(grade.value, 0))
    yield grades
    requests = GaugeMetricFamily("trimtab_requests", "Topology and global requests by state.", labels=("state",))
    for state in RequestState:
        requests.add_metric((state.value,), figures.requests.get(state.value, 0))
    yield requests
    heard = GaugeMetricFamily(
        "trimtab_heartbeat_age_seconds",
        "How long ago the leader heard from an instance; only the leader knows.",
        labels=("instance_id",),
    )
    for instance_id, age_ms in sorted(figures.heard_ms.items()):
        heard.add_metric((instance_id,), age_ms / 1000)
    yield heard
    steps = CounterMetricFamily(
        "trimtab_governor_steps", "Steps of the governor on this instance.", labels=("kind", "outcome")
    )
    for (kind, outcome), count in sorted(figures.steps.items()):
        steps.add_metric((kind, outcome), count)
    yield steps


def _parts(figures: Figures) -> Iterable[Metric]:
    families: dict[str, Metric] = {}
    for part in figures.parts:
        name = f"trimtab_{part.name}"
        if isinstance(part, Distribution):
            families[name] = _histogram(name, part.text, part.limits, part.counts, part.total)
            continue
        kind = CounterMetricFamily if part.counter else GaugeMetricFamily
        family = families.setdefault(name, kind(name, part.text, labels=[label for label, _ in part.labels]))
        assert isinstance(family, kind), f"{name} is both a counter and a gauge"
        family.add_metric([value for _, value in part.labels], part.value)
    return families.values()


def _syncs(figures: Figures) -> Metric:
    return _histogram(
        "trimtab_log_sync_seconds",
        "How long syncs of the log took; one covers everything that was waiting.",
        figures.sync_limits_s,
        figures.sync_counts,
        figures.log_sync_seconds,
    )


def _histogram(name: str, text: str, limits: Sequence[float], counts: Sequence[int], total: float) -> Metric:
    buckets: list[tuple[str, float]] = []
    below = 0
    for limit, count in zip(limits, counts, strict=False):
        below += count
        buckets.append((str(limit), below))
    buckets.append(("+Inf", sum(counts)))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=total)


class Metrics:
    """The page a scraper gets."""

    def __init__(self, figures: Callable[[], Figures]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(Scrape(figures))
        ProcessCollector(registry=self._registry)

    def page(self) -> bytes:
        return generate_latest(self._registry)
