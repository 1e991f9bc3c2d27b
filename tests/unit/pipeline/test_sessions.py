"""What a driver asks of its session's Java."""

from __future__ import annotations

import pytest

from trimtab.pipeline.sessions import Sessions, java_options


def test_a_java_that_only_says_what_is_to_be_done_is_lean() -> None:
    assert java_options({}, {}) == ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]


@pytest.mark.parametrize("name", ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS"])
def test_a_collector_that_somebody_chose_stays_for_java_refuses_two(name: str) -> None:
    assert java_options({name: "-Xss2m -XX:+UseG1GC"}, {}) == ["-XX:TieredStopAtLevel=1"]


@pytest.mark.parametrize("name", ["spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions"])
def test_so_does_one_that_is_a_setting_of_the_session(name: str) -> None:
    assert java_options({}, {name: "-XX:+UseG1GC"}) == ["-XX:TieredStopAtLevel=1"]
    assert java_options({}, {name: "-XX:ParallelGCThreads=2"}) == ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]


def test_settings_of_spark_of_somebodys_own_are_left_alone() -> None:
    assert java_options({"SPARK_CONF_DIR": "/etc/spark"}, {}) == []


def test_options_that_a_driver_is_given_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS"):
        monkeypatch.delenv(name, raising=False)
    conf = {"spark.driver.extraJavaOptions": "-Da=b"}
    made = Sessions(["127.0.0.1:1"], **conf)
    assert made._conf["spark.driver.extraJavaOptions"] == "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Da=b"
