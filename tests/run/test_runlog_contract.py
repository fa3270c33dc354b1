"""What every run log promises: one suite over all stores, on real servers; buckets by the stand-ins of the test run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from ematix_flow.contracts.orchestration import AttemptState, LastRun, RunEvent, RunLog, Slot
from ematix_flow.contracts.runtime import RunRecord
from ematix_flow.errors import ConnectionFailed
from ematix_flow.run.process import this_process
from ematix_flow.run.runlogs.azure import AzureBlobRunLog
from ematix_flow.run.runlogs.gcs import GcsRunLog
from ematix_flow.run.runlogs.history import PauseChecker
from ematix_flow.run.runlogs.in_process import forget_process_log, process_log
from ematix_flow.run.runlogs.memory import InMemoryRunLog
from ematix_flow.run.runlogs.s3 import S3RunLog
from ematix_flow.run.runlogs.urls import from_url

MORNING = datetime(2026, 3, 1, 6, 0, 0, 123456, tzinfo=timezone.utc)
SQL_STORES = ("sqlite", "memory", "postgres", "mysql", "duckdb")
BUCKETS = ("s3", "gcs", "azure")
TABLES = (
    *("run_records", "run_events", "run_log", "attempt_state", "pipeline_claims"),
    *("slots", "pauses", "alerts_sent", "first_seen", "declared"),
)
ODD_NAMES = ("it's", 'say "hi"', "100%", "%s", "Ä ö 🐘", "a ", "a", "A", "a/b~c", "?", "@slots", "{later}", "\\", "_")


@dataclass
class Place:
    """Where run logs can be opened. `url` is what another process opens; None where there can be none."""

    kind: str
    url: str | None
    open: Callable[[], Any]
    empty: Callable[[], None] = lambda: None


@pytest.fixture(scope="module")
def place(request, tmp_path_factory) -> Iterator[Place]:
    """A store, the same for all tests of a class; each finds it empty."""
    kind: str = request.param
    with ExitStack() as opened:
        if kind in BUCKETS:
            yield bucket_place(kind, request)
        elif kind == "memory":
            only = InMemoryRunLog()
            yield Place(kind, None, lambda: only, lambda: wipe(only))
            only.close()
        else:
            if kind == "postgres":
                url = opened.enter_context(request.getfixturevalue("postgres_server").fresh_database())
            elif kind == "mysql":
                url = opened.enter_context(request.getfixturevalue("mariadb_server").fresh_database())
            else:
                url = f"{kind}://{tmp_path_factory.mktemp(kind)}/log.db"
            yield Place(kind, url, lambda: from_url(url))


def bucket_place(kind: str, request) -> Place:
    """A bucket, with another prefix for every test."""
    server = request.getfixturevalue({"s3": "s3_server", "gcs": "gcs_server", "azure": "azure_server"}[kind])
    name, client, prefix = server.new_bucket(), server.client(), [""]
    openers: dict[str, Callable[[], Any]] = {
        "s3": lambda: S3RunLog(name, prefix=prefix[0], client=client),
        "gcs": lambda: GcsRunLog(name, prefix=prefix[0], bucket_client=client.bucket(name)),
        "azure": lambda: AzureBlobRunLog(name, prefix=prefix[0], container_client=client.get_container_client(name)),
    }

    def empty() -> None:
        prefix[0] = uuid.uuid4().hex

    return Place(kind, None, openers[kind], empty)


def wipe(log: Any) -> None:
    log._together(lambda db: [db.change(f"DELETE FROM @{table}") for table in TABLES])


@pytest.fixture
def log(place: Place) -> Iterator[Any]:
    """An empty run log."""
    place.empty()
    found = place.open()
    if place.kind in SQL_STORES:
        wipe(found)
    yield found
    if place.kind != "memory":
        found.close()


every_store = pytest.mark.parametrize("place", [*SQL_STORES, *BUCKETS], indirect=True, scope="module")
every_database = pytest.mark.parametrize("place", SQL_STORES, indirect=True, scope="module")
several_processes = pytest.mark.parametrize("place", ["sqlite", "postgres", "mysql"], indirect=True, scope="module")


def _claim_rows(log: Any) -> list[str]:
    return sorted(name for (name,) in log._ask(lambda db: db.rows("SELECT pipeline_name FROM @pipeline_claims")))


def _move_back(log: Any, table: str, column: str, *, days: int) -> None:
    """As if what is in a table had been written so long ago."""
    before = f"{datetime.now(timezone.utc) - timedelta(days=days):%Y-%m-%dT%H:%M:%S.%fZ}"
    log._ask(lambda db: db.change(f"UPDATE @{table} SET {column} = ?", before))


def a_run(run_id: str = "r1", *, minutes: int = 0, pipeline: str = "p", **fields) -> RunRecord:
    status = fields.pop("status", "running")
    return RunRecord(run_id, pipeline, status, MORNING + timedelta(minutes=minutes), **fields)


def done(run_id: str, *, minutes: int = 0, pipeline: str = "p", status: str = "succeeded", **fields) -> RunRecord:
    ended = MORNING + timedelta(minutes=minutes, seconds=1)
    return a_run(run_id, minutes=minutes, pipeline=pipeline, status=status, finished_at=ended, **fields)


def at(minutes: float) -> datetime:
    return MORNING + timedelta(minutes=minutes)


def together(*deeds: Callable[[], Any]) -> list[Any]:
    """Do things at the same moment, each in a thread; what they gave, in their order."""
    answers: list[Any] = [None] * len(deeds)
    start = threading.Barrier(len(deeds))

    def act(number: int) -> None:
        start.wait()
        try:
            answers[number] = deeds[number]()
        except BaseException as exc:  # shown by the test
            answers[number] = exc

    threads = [threading.Thread(target=act, args=(number,)) for number in range(len(deeds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = [answer for answer in answers if isinstance(answer, BaseException)]
    assert not failed, failed
    return answers


@every_store
class TestHistory:
    """Records, last runs, attempts and events: every store keeps them."""

    def test_it_is_a_run_log(self, log: RunLog) -> None:
        assert isinstance(log, RunLog)

    def test_a_record_comes_back_as_it_was_written(self, log: RunLog) -> None:
        record = a_run(
            status="failed",
            finished_at=MORNING + timedelta(seconds=2),
            attempt=3,
            failed_step="load:main.t",
            failed_watermark="2026-02-28",
            error_summary="it broke: 'ä' [x] 100%",
            kind="replay",
            extras={"rows_inserted": 3, "steps": [{"name": "source"}], "deep": {"a": [1, None, "\u0000 ?"]}},
        )
        log.record_run_record(record)
        assert log.get_run("r1") == record

    def test_the_same_run_id_replaces_and_keeps_its_place(self, log: RunLog, place: Place) -> None:
        log.record_run_record(a_run("a first"))
        log.record_run_record(a_run("b second"))
        log.record_run_record(a_run("a first", status="succeeded", finished_at=MORNING))
        records, total = log.list_runs()
        found = [(record.run_id, record.status) for record in records]
        assert found == [("b second", "running"), ("a first", "succeeded")]
        assert total == 2

    def test_runs_are_listed_newest_first_with_filters_and_pages(self, log: RunLog) -> None:
        for i in range(6):
            status = "failed" if i % 3 == 0 else "succeeded"
            log.record_run_record(done(f"r{i}", minutes=i, pipeline="ab"[i % 2], status=status))
        records, total = log.list_runs(limit=2, offset=1)
        assert ([record.run_id for record in records], total) == (["r4", "r3"], 6)
        records, total = log.list_runs(pipeline="b", status="failed")
        assert ([record.run_id for record in records], total) == (["r3"], 1)
        assert log.list_runs(pipeline="none of it") == ([], 0)

    def test_a_unique_beginning_of_an_id_is_enough(self, log: RunLog) -> None:
        for run_id in ("abc1", "abd2", "ab", "100%", "1000", "Ab"):
            log.record_run_record(a_run(run_id))
        assert log.get_run("abc").run_id == "abc1"
        assert log.get_run("ab").run_id == "ab", "the whole id wins over longer ones"
        assert log.get_run("A").run_id == "Ab"
        assert log.get_run("a") is None, "two and more begin so"
        assert log.get_run("100%").run_id == "100%"
        assert log.get_run("%") is None
        assert log.get_run("") is None

    def test_names_may_hold_anything(self, log: RunLog) -> None:
        names = [*ODD_NAMES, "long " + "ü" * 400]
        for number, name in enumerate(names):
            log.record_run_record(done(name, minutes=number, pipeline=name))
            log.record_run(name, at(number), True, slot=at(-number))
            log.record_attempt(name, AttemptState(number, at(number), bool(number % 2)))
            log.add_event(RunEvent(name, at(number), name, "running", name))
        assert {record.run_id for record in log.list_runs()[0]} == set(names)
        last_runs = log.last_runs()
        for number, name in enumerate(names):
            assert [record.run_id for record in log.list_runs(pipeline=name)[0]] == [name]
            assert log.get_run(name).pipeline == name
            assert [event.step for event in log.events(name)] == [name]
            assert last_runs[name] == LastRun(at(number), True, at(number), at(-number))
        assert {name: state.attempt_count for name, state in log.attempts().items()} == {
            name: number for number, name in enumerate(names)
        }
        for name in names[1:]:
            log.clear_attempt_state(name)
        assert list(log.attempts()) == names[:1]

    def test_a_last_run_keeps_the_last_success_and_its_slot(self, log: RunLog) -> None:
        log.record_run("p", at(1), True, slot=at(0))
        log.record_run("p", at(2), False, slot=at(1))
        assert log.last_runs() == {"p": LastRun(at(2), False, at(1), at(0))}
        log.record_run("p", at(3), True, slot=at(-9))
        assert log.last_runs() == {"p": LastRun(at(3), True, at(3), at(0))}, "an older slot, of a backfill"
        log.record_run("p", at(4), True)
        assert log.last_runs() == {"p": LastRun(at(4), True, at(4), at(0))}
        log.record_run("never well", at(5), False)
        assert log.last_runs()["never well"] == LastRun(at(5), False)

    def test_the_last_error_is_that_of_the_last_failed_run_of_what_fails_now(self, log: RunLog) -> None:
        for name, success in {
            "fails": False,
            "well again": True,
            "silent": False,
            "lost": False,
            "a/b~c": False,
        }.items():
            log.record_run(name, at(9), success)
        for number, error in enumerate(("the first", "the second\nin two lines")):
            for name in ("fails", "well again", "a/b~c"):
                run_id = f"{name} {number}"
                log.record_run_record(done(run_id, minutes=number, pipeline=name, status="failed", error_summary=error))
        log.record_run_record(a_run("now", minutes=3, pipeline="fails"))
        log.record_run_record(done("gone", minutes=4, pipeline="fails", status="cancelled", error_summary="not this"))
        log.record_run_record(done("mute", minutes=1, pipeline="silent", status="failed"))
        assert log.last_errors() == {"fails": "the second\nin two lines", "a/b~c": "the second\nin two lines"}

    def test_attempt_states_are_replaced_and_forgotten(self, log: RunLog) -> None:
        log.record_attempt("p", AttemptState(1, at(1)))
        log.record_attempt("p", AttemptState(2, at(2), True))
        log.record_attempt("q", AttemptState(1))
        assert log.attempts() == {"p": AttemptState(2, at(2), True), "q": AttemptState(1)}
        log.clear_attempt_state("p")
        log.clear_attempt_state("p")
        assert log.attempts() == {"q": AttemptState(1)}

    def test_state_is_restored_into_the_process(self, log: RunLog) -> None:
        forget_process_log()
        log.restore_into_process()
        assert process_log().last_runs() == {}
        log.record_run("p", at(1), True, slot=at(0))
        log.record_run("p", at(2), False)
        log.record_attempt("p", AttemptState(1, at(2)))
        log.restore_into_process()
        log.restore_into_process()
        assert process_log().last_runs() == {"p": LastRun(at(2), False, at(1), at(0))}
        assert process_log().attempts() == {"p": AttemptState(1, at(2))}
        forget_process_log()

    def test_events_come_back_in_the_order_of_time(self, log: RunLog) -> None:
        told = [
            RunEvent("r", at(2), "load", "running"),
            RunEvent("r", at(2), "load", "succeeded", "3 rows", 12.5),
            RunEvent("r", at(1), "source", "succeeded"),
        ]
        for event in [*told, RunEvent("another", at(0), "source", "running")]:
            log.add_event(event)
        assert log.events("r") == [told[2], told[0], told[1]]
        assert log.events("unknown") == []

    def test_old_records_go_with_their_events_and_open_ones_stay(self, log: RunLog) -> None:
        log.record_run_record(a_run("still running", minutes=-1))
        for i in range(5):
            log.record_run_record(done(f"r{i}", minutes=i))
            log.add_event(RunEvent(f"r{i}", at(i), "load", "succeeded"))
        assert log.prune(max_records=3) == 2
        assert [record.run_id for record in log.list_runs()[0]] == ["r4", "r3", "r2", "still running"]
        assert [len(log.events(f"r{i}")) for i in range(5)] == [0, 0, 1, 1, 1]
        assert log.prune(max_age_days=36500) == 0
        assert log.prune(max_age_days=0) == 3
        assert [record.run_id for record in log.list_runs()[0]] == ["still running"]
        assert log.prune() == 0

    def test_a_closed_log_says_so_and_closing_twice_is_fine(self, log: RunLog, place: Place) -> None:
        other = InMemoryRunLog() if place.kind == "memory" else place.open()
        other.close()
        other.close()
        with pytest.raises(ConnectionFailed, match="closed"):
            other.list_runs()

    def test_a_secret_in_a_text_is_not_kept(self, log: RunLog) -> None:
        log.record_run_record(done("r", status="failed", error_summary="no way to mysql://ann:s3cret@db/x"))
        log.add_event(RunEvent("r", MORNING, "load", "failed", "password=s3cret"))
        assert "s3cret" not in str(log.get_run("r")) + str(log.events("r"))


@every_database
class TestRequests:
    """What people ask of runs and pipelines."""

    def test_a_request_is_consumed_once(self, log: RunLog, place: Place) -> None:
        run_id = log.enqueue_run("p", extras={"cascade": True})
        assert run_id.startswith("req-")
        assert [(r.run_id, r.status, r.extras) for r in log.pending_actions()] == [
            (run_id, "requested", {"cascade": True})
        ]
        others = [place.open() for _ in range(4)]
        won = together(*(lambda other=other: other.consume_requested_run(run_id) for other in others))
        for other in others:
            if other is not log:
                other.close()
        assert sorted(won) == [False, False, False, True]
        assert log.get_run(run_id).status == "running"
        assert log.pending_actions() == []
        log.return_requested_run(run_id)
        assert log.get_run(run_id) == replace(log.get_run(run_id), status="requested", extras={"cascade": True})
        assert log.consume_requested_run(run_id)

    def test_restart_and_rerun_name_the_run_before(self, log: RunLog) -> None:
        log.record_run_record(done("r1", status="failed"))
        again = log.get_run(log.enqueue_restart("r1", "load:t"))
        whole = log.get_run(log.enqueue_rerun("r1"))
        assert (again.pipeline, again.status) == ("p", "requested")
        assert again.extras == {"restart_from_step": "load:t", "prior_run_id": "r1"}
        assert whole.extras == {"rerun_full": True, "prior_run_id": "r1"}
        assert [record.run_id for record in log.pending_actions()] == [again.run_id, whole.run_id]

    def test_unknown_runs_are_a_key_error(self, log: RunLog) -> None:
        for ask in (
            lambda: log.enqueue_restart("nobody", "load"),
            lambda: log.enqueue_rerun("nobody"),
            lambda: log.set_pause("nobody", True),
            lambda: log.request_cancel("nobody"),
            lambda: log.consume_requested_run("nobody"),
            lambda: log.return_requested_run("nobody"),
        ):
            with pytest.raises(KeyError, match="nobody"):
                ask()

    def test_a_pause_survives_what_the_run_itself_writes(self, log: RunLog) -> None:
        log.record_run_record(a_run())
        checker = PauseChecker(log, "r1")
        assert not checker.should_pause()
        log.set_pause("r1", True)
        log.set_pause("r1", True)
        log.record_run_record(a_run(extras={"steps": []}))  # the run knows nothing of it
        assert checker.should_pause()
        assert [record.run_id for record in log.pending_actions()] == ["r1"]
        checker.acknowledge_pause()
        paused = log.get_run("r1")
        assert (paused.status, paused.extras["pause_requested"]) == ("paused", True)
        assert paused.extras["paused_at"].endswith("Z")
        log.set_pause("r1", False)
        assert not checker.should_pause()
        assert log.get_run("r1").extras["pause_requested"] is False
        assert log.pending_actions() == []

    def test_a_request_that_is_cancelled_never_runs_and_a_run_is_asked_to_stop(self, log: RunLog) -> None:
        asked = log.enqueue_run("p")
        log.request_cancel(asked)
        assert log.get_run(asked).status == "cancelled"
        assert not log.consume_requested_run(asked)
        log.record_run_record(a_run())
        log.request_cancel("r1")
        assert log.get_run("r1").status == "running"
        assert PauseChecker(log, "r1").should_cancel()
        assert [record.run_id for record in log.pending_actions()] == ["r1"]

    def test_a_pipeline_is_paused_until_it_is_resumed(self, log: RunLog) -> None:
        log.set_paused("p", True, by="ann", reason="the source moves")
        since = log.paused()["p"].since
        assert abs(since - log.clock()) < timedelta(minutes=1)
        log.set_paused("p", True, by="bob", reason="still")
        pause = log.paused()["p"]
        assert (pause.since, pause.by, pause.reason) == (since, "bob", "still")
        log.set_paused("p", False)
        log.set_paused("p", False)
        assert log.paused() == {}

    def test_a_run_of_a_dead_process_is_ended_when_the_log_is_opened(self, log: RunLog, place: Place) -> None:
        if place.kind == "memory":
            pytest.skip("it ends with its process")
        dead = replace(this_process(), pid=2**22 + 1).to_dict()
        steps = [{"name": "source", "status": "succeeded"}, {"name": "load", "status": "running"}]
        log.record_run_record(a_run("lost", extras={"process": dead, "steps": steps}))
        log.record_run_record(a_run("lost in a pause", status="paused", extras={"process": dead}))
        log.record_run_record(a_run("alive", extras={"process": this_process().to_dict()}))
        place.open().close()
        lost = log.get_run("lost")
        assert (lost.status, lost.failed_step) == ("failed", "load")
        assert lost.error_summary.startswith("worker lost")
        assert log.get_run("lost in a pause").status == "failed"
        assert log.get_run("alive").status == "running"


@every_database
class TestClaims:
    """Who does it: one holder, for as long as its lease lasts."""

    def test_a_free_name_is_taken_and_a_held_one_is_not(self, log: RunLog) -> None:
        before = log.clock()
        mine = log.claim("p", "ann", 30)
        assert mine.acquired
        assert (mine.holder, mine.fence) == ("ann", 1)
        lasts = (mine.expires_at - before).total_seconds()
        assert 30 <= lasts < 40
        for who in ("bob", "ann"):
            assert log.claim("p", who, 30) == replace(mine, acquired=False, token=None, fence=0), (
                "the holder does not get it twice either"
            )
        assert log.claim("q", "bob", 30).acquired
        assert [(c.pipeline, c.worker_id, c.token) for c in log.claims() if c.pipeline == "p"] == [
            ("p", "ann", mine.token)
        ]

    def test_a_claim_that_expired_is_taken_and_its_old_token_is_worth_nothing(self, log: RunLog) -> None:
        old = log.claim("p", "ann", 0)
        assert old.acquired
        assert not log.holds(old.token)
        assert [(c.pipeline, c.worker_id) for c in log.sweep_expired_leases()] == [("p", "ann")]
        assert len(log.claims()) == 1, "sweeping changes nothing"
        new = log.claim("p", "bob", 30)
        assert new.acquired
        assert new.fence > old.fence
        assert log.sweep_expired_leases() == []
        assert not log.heartbeat(old.token, 30)
        log.release(old.token)
        assert not log.break_claim("p", old.token)
        assert log.holds(new.token)

    def test_a_heartbeat_moves_the_expiry(self, log: RunLog) -> None:
        mine = log.claim("p", "ann", 5)
        assert log.heartbeat(mine.token, 60)
        (claim,) = log.claims()
        assert claim.expires_at > mine.expires_at + timedelta(seconds=50)
        assert log.heartbeat(mine.token, 0)
        assert not log.holds(mine.token)
        assert log.claim("p", "bob", 60).acquired

    def test_leases_are_measured_in_microseconds(self, log: RunLog) -> None:
        mine = log.claim("p", "ann", 0.25)
        assert mine.expires_at.microsecond != 0 or log.clock().microsecond != 0
        assert timedelta(0) < mine.expires_at - log.clock() <= timedelta(seconds=0.25)
        edge = mine.expires_at
        assert log.sweep_expired_leases(edge) == []
        (expired,) = log.sweep_expired_leases(edge + timedelta(microseconds=1))
        assert (expired.pipeline, expired.worker_id, expired.expires_at) == ("p", "ann", edge)

    def test_a_released_name_is_free_and_the_fence_goes_on(self, log: RunLog) -> None:
        fences = []
        for _ in range(3):
            mine = log.claim("p", "ann", 30)
            fences.append(mine.fence)
            log.release(mine.token)
            log.release(mine.token)
            assert log.claims() == []
            assert not log.holds(mine.token)
        assert fences == [1, 2, 3]

    def test_the_claim_of_a_dead_holder_is_broken_by_its_token_only(self, log: RunLog) -> None:
        mine = log.claim("p", "ann", 30)
        assert not log.break_claim("p", "another token")
        assert not log.break_claim("q", mine.token)
        assert log.break_claim("p", mine.token)
        assert not log.break_claim("p", mine.token)
        assert log.claim("p", "bob", 30).fence == 2

    def test_of_many_threads_one_wins_every_time(self, log: RunLog, place: Place) -> None:
        others = [place.open() for _ in range(4)]
        try:
            for number in range(15):
                claims = [
                    lambda other=other, who=who, name=f"p{number}": other.claim(name, who, 30)
                    for who, other in zip("abcd", others, strict=True)
                ]
                won = together(*claims)
                assert sorted(result.acquired for result in won) == [False, False, False, True]
                winner = next(result for result in won if result.acquired)
                assert {result.holder for result in won} == {winner.holder}
            mine = log.claim("expired", "ann", 0)
            for fence in range(2, 12):
                won = together(
                    *(lambda other=other: other.claim("expired", "bob", 0.0) for other in others[:1]),
                    *(lambda other=other: other.claim("expired", "cyd", 30) for other in others[1:]),
                )
                holders = [result for result in won if result.acquired and result.holder == "cyd"]
                assert len(holders) == 1, "one of those that wanted it for longer"
                assert holders[0].fence >= fence
                log.release(holders[0].token)
            assert not log.holds(mine.token)
        finally:
            for other in others:
                if other is not log:
                    other.close()


_RACER = """
import sys
from ematix_flow.run.runlogs.urls import from_url
log = from_url(sys.argv[1])
sys.stdin.readline()
won = [str(i) for i in range(100) if log.claim(f"race {i}", sys.argv[2], 60).acquired]
print(" ".join(won))
log.close()
"""


@several_processes
def test_of_two_processes_exactly_one_wins_each_claim(log: RunLog, place: Place) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", _RACER, place.url or "", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("ann", "bob")
    ]
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    won = [racer.communicate(timeout=60)[0].split() for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    assert sorted(won[0] + won[1], key=int) == [str(i) for i in range(100)]
    held = {claim.pipeline: claim.worker_id for claim in log.claims()}
    assert held == {f"race {i}": name for name, mine in zip(("ann", "bob"), won, strict=True) for i in mine}


@every_database
class TestSlots:
    """That it is done once: the pair of pipeline and time is written down by the first who sees it."""

    def test_a_slot_is_new_once(self, log: RunLog) -> None:
        first = Slot("p", at(0), eligible_at=at(1), reason="due", backfill=None)
        assert log.add_slots([first, first, Slot("q", at(0))]) == [first, Slot("q", at(0))]
        assert log.add_slots([Slot("p", at(0), status="running"), Slot("p", at(1))]) == [Slot("p", at(1))]
        assert log.add_slots([]) == []
        assert log.open_slots() == [first, Slot("p", at(1)), Slot("q", at(0))]
        assert log.open_slots("q") == [Slot("q", at(0))]

    def test_every_field_comes_back(self, log: RunLog) -> None:
        whole = Slot("p", at(0), "running", 3, at(1), at(2), "run-1", "100% of 'it' ?", "backfill-7")
        log.add_slots([whole])
        assert log.open_slots() == [whole]

    def test_odd_names_are_names(self, log: RunLog) -> None:
        slots = [Slot(name, at(0), run_id=name, reason=name, backfill=name) for name in ODD_NAMES]
        assert log.add_slots(slots) == slots
        assert {slot.pipeline for slot in log.open_slots()} == set(ODD_NAMES)
        for slot in slots:
            assert log.open_slots(slot.pipeline) == [slot]
            assert log.move_slot(replace(slot, status="failed"), expected="pending")
            assert log.claim(slot.pipeline, slot.pipeline, 30).acquired
            log.set_paused(slot.pipeline, True, reason=slot.pipeline)
            assert log.first_alert(slot.pipeline, MORNING)
        assert set(log.paused()) == {claim.pipeline for claim in log.claims()} == set(ODD_NAMES)

    def test_slots_of_a_pipeline_are_read_newest_first_within_limits(self, log: RunLog) -> None:
        log.add_slots([*(Slot("p", at(i)) for i in range(6)), Slot("q", at(9))])
        assert [slot.at for slot in log.slots("p", limit=2)] == [at(5), at(4)]
        assert [slot.at for slot in log.slots("p", since=at(1), until=at(3))] == [at(3), at(2), at(1)]
        assert log.slots("r") == []

    def test_the_last_slot_is_known_whatever_became_of_it_but_not_of_backfills(self, log: RunLog) -> None:
        log.add_slots([Slot("p", at(1)), Slot("p", at(2), "cancelled"), Slot("p", at(7), backfill="b")])
        log.add_slots([Slot("only backfilled", at(3), backfill="b")])
        assert log.last_slots() == {"p": at(2)}

    def test_a_pipeline_was_first_seen_when_it_was_first_looked_at(self, log: RunLog) -> None:
        assert log.first_seen(["p", *ODD_NAMES], at(0)) == dict.fromkeys(["p", *ODD_NAMES], at(0))
        assert log.first_seen(["p", "q"], at(5)) == {"p": at(0), "q": at(5)}
        assert log.first_seen([], at(9)) == {}
        many = [f"n{number}" for number in range(900)]
        assert set(log.first_seen(many, at(6)).values()) == {at(6)}

    def test_a_slot_is_moved_from_what_was_expected_only(self, log: RunLog) -> None:
        slot = Slot("p", at(0))
        log.add_slots([slot])
        running = replace(slot, status="running", attempt=1, run_id="r1")
        assert not log.move_slot(running, expected="failed")
        assert not log.move_slot(running, expected="pending", expected_attempt=1)
        assert log.move_slot(running, expected="pending", expected_attempt=0)
        assert not log.move_slot(running, expected="pending")
        assert log.open_slots() == [running]
        assert log.move_slot(replace(running, status="succeeded"), expected="running")
        assert log.open_slots() == []
        assert not log.move_slot(Slot("unknown", at(0)), expected="pending")

    def test_who_lost_the_lease_moves_nothing(self, log: RunLog) -> None:
        slot = Slot("p", at(0), "running", 1)
        log.add_slots([slot])
        old = log.claim("p", "ann", 0)
        over = replace(slot, status="succeeded")
        assert not log.move_slot(over, expected="running", token=old.token), "expired"
        new = log.claim("p", "bob", 30)
        assert not log.move_slot(over, expected="running", token=old.token), "somebody else's now"
        assert log.open_slots() == [slot]
        assert log.move_slot(over, expected="running", token=new.token)

    def test_threads_that_add_the_same_slots_share_them_out(self, log: RunLog, place: Place) -> None:
        others = [place.open() for _ in range(3)]
        slots = [Slot(f"p{i % 10}", at(i)) for i in range(300)]
        added = together(
            lambda: others[0].add_slots(slots),
            lambda: others[1].add_slots(reversed(slots)),
            lambda: others[2].add_slots(slots[100:]),
        )
        for other in others:
            if other is not log:
                other.close()
        keys = [(slot.pipeline, slot.at) for some in added for slot in some]
        assert len(keys) == len(set(keys)) == 300
        assert len(log.open_slots()) == 300

    def test_thousands_are_added_at_once(self, log: RunLog) -> None:
        slots = [Slot(f"p{i % 50:02}", at(i)) for i in range(2000)]
        assert len(log.add_slots(slots)) == 2000
        assert [slot.pipeline for slot in log.open_slots()] == sorted(slot.pipeline for slot in slots)

    def test_threads_that_move_the_same_slot_do_it_once(self, log: RunLog, place: Place) -> None:
        others = [place.open() for _ in range(3)]
        for number in range(10):
            slot = Slot("p", at(number))
            log.add_slots([slot])
            moved = together(
                *(
                    lambda other=other, who=str(who), slot=slot: other.move_slot(
                        replace(slot, status="running", run_id=who), expected="pending"
                    )
                    for who, other in enumerate(others)
                )
            )
            assert sorted(moved) == [False, False, True]
            assert log.slots("p", limit=1)[0].run_id == str(moved.index(True))
        for other in others:
            if other is not log:
                other.close()

    def test_finished_slots_go_with_old_records_but_never_the_latest_of_a_pipeline(self, log: RunLog) -> None:
        log.add_slots([Slot("p", at(i), "succeeded" if i < 3 else "pending") for i in range(4)])
        log.add_slots([Slot("quiet", at(0), "failed"), Slot("quiet", at(1), "succeeded")])
        log.add_slots([Slot("p", at(-99), "succeeded", backfill="b")])
        log.record_run_record(done("old"))
        assert log.prune(max_age_days=36500) == 0
        assert len(log.slots("p")) == 5, "changed today, however old their times are"
        assert log.prune(max_age_days=0) == 1
        assert [slot.at for slot in log.slots("p")] == [at(3)]
        assert [slot.at for slot in log.slots("quiet")] == [at(1)]

    def test_claims_of_single_slots_go_when_they_are_over_and_those_of_pipelines_stay(self, log: RunLog) -> None:
        names = ["p", "p@home", "p@2026-03-01T06:00:00Z", "p@2026-03-01T07:00:00.500000Z", "p@2026-03-01T08:00:00Z"]
        tokens = [log.claim(name, "ann", 60).token for name in names[:4]]
        for token in tokens[:3]:  # the fourth was killed
            log.release(token or "")
        _move_back(log, "pipeline_claims", "expires_at", days=1)
        assert log.claim(names[4], "ann", 60).acquired
        log.record_run_record(done("old"))
        log.prune(max_age_days=36500)
        assert _claim_rows(log) == sorted(names), "not that old"
        log.prune(max_age_days=0)
        assert _claim_rows(log) == sorted([names[0], names[1], names[4]]), "one is held"
        assert log.claim("p", "bob", 60).fence == 2
        assert log.claim(names[2], "bob", 60).acquired

    def test_what_is_left_of_a_pipeline_that_is_no_longer_declared_goes_with_old_records(self, log: RunLog) -> None:
        log.still_declared(["gone", "there", "never again"])
        log.add_slots([Slot("gone", at(0), "succeeded"), Slot("gone", at(1)), Slot("there", at(0), "succeeded")])
        log.add_slots([Slot("there", at(1)), Slot("elsewhere", at(0))])
        assert log.first_seen(["gone"], at(0)) == {"gone": at(0)}
        log.record_run_record(done("old"))
        log.prune(max_age_days=0)
        assert len(log.open_slots()) == 3, "all of them were declared today"
        _move_back(log, "slots", "changed_at", days=410)
        _move_back(log, "declared", "declared_at", days=410)
        log.prune(max_age_days=0)
        assert len(log.open_slots()) == 3, "nobody looked at any for long"
        log.still_declared(["there"])
        log.prune(max_age_days=500)
        assert len(log.open_slots()) == 3, "records are kept longer than that"
        log.prune(max_age_days=0)
        assert [(slot.pipeline, slot.at) for slot in log.open_slots()] == [("elsewhere", at(0)), ("there", at(1))]
        assert log.slots("gone") == []
        assert log.first_seen(["gone"], at(9)) == {"gone": at(9)}


@every_database
class TestAlerts:
    """What others are told, once."""

    def test_an_alert_is_sent_once_and_again_after_a_while(self, log: RunLog) -> None:
        assert log.first_alert("p failed", at(0))
        assert not log.first_alert("p failed", at(0))
        assert not log.first_alert("p failed", at(9), realert_after_s=600)
        assert log.first_alert("p failed", at(10), realert_after_s=600)
        assert not log.first_alert("p failed", at(11), realert_after_s=600)

    def test_what_is_over_may_be_told_again(self, log: RunLog) -> None:
        for key in ("p|failed|1", "p|failed|2", "p2|failed|1", "100%|x"):
            assert log.first_alert(key, at(0))
        log.forget_alerts("p|")
        assert [log.first_alert(key, at(1)) for key in ("p|failed|1", "p|failed|2", "p2|failed|1")] == [
            True,
            True,
            False,
        ]
        log.forget_alerts("100%")
        assert log.first_alert("100%|x", at(1))

    def test_of_many_that_want_to_tell_one_does(self, log: RunLog, place: Place) -> None:
        others = [place.open() for _ in range(4)]
        for number in range(10):
            told = together(*(lambda other=other, key=f"k{number}": other.first_alert(key, at(0)) for other in others))
            again = together(
                *(
                    lambda other=other, key=f"k{number}": other.first_alert(key, at(5), realert_after_s=60)
                    for other in others
                )
            )
            assert sorted(told) == sorted(again) == [False, False, False, True]
        for other in others:
            if other is not log:
                other.close()


@pytest.mark.parametrize("place", BUCKETS, indirect=True, scope="module")
def test_a_bucket_says_what_it_cannot_promise(log: RunLog) -> None:
    asked: list[Callable[[], Any]] = [
        lambda: log.claim("p", "ann", 30),
        lambda: log.heartbeat("t", 30),
        lambda: log.release("t"),
        lambda: log.add_slots([Slot("p", MORNING)]),
        lambda: log.open_slots(),
        lambda: log.last_slots(),
        lambda: log.first_seen(["p"], MORNING),
        lambda: log.still_declared(["p"]),
        lambda: log.move_slot(Slot("p", MORNING), expected="pending"),
        lambda: log.set_paused("p", True),
        lambda: log.enqueue_run("p"),
        lambda: log.first_alert("k", MORNING),
    ]
    for ask in asked:
        with pytest.raises(NotImplementedError, match="postgres"):
            ask()
    assert (list(log.claims()), dict(log.paused()), list(log.pending_actions())) == ([], {}, [])


_FORKING = """
import os, sys
from ematix_flow.run.runlogs.urls import from_url
log = from_url(sys.argv[1])
log.record_run("parent", log.clock(), True)
child = os.fork()
if child == 0:
    log.record_run("child", log.clock(), True)
    os._exit(0 if set(log.last_runs()) == {"parent", "child"} else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert set(log.last_runs()) == {"parent", "child"}
log.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@several_processes
def test_a_forked_process_uses_a_connection_of_its_own(log: RunLog, place: Place) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", _FORKING, place.url or ""], check=False)
    assert done.returncode == 0
    assert set(log.last_runs()) == {"parent", "child"}
