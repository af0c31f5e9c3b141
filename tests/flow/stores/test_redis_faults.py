"""What happens to a real Redis happens here: restarts, rollbacks, silence, no memory, failover, broken lines."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from partq_spark.errors import Conflict, Fenced, Unavailable
from partq_spark.flow.model import GroupKey, Lease, OwnershipRecord
from partq_spark.flow.stores import redis_client
from partq_spark.flow.stores.api import OwnershipStore, Reincarnated, StateDocument
from partq_spark.flow.stores.redis import RedisOwnership
from tests.flow.stores.conftest import a_record, delivery, last_beat, together
from tests.flow.stores.redis_servers import Line, SpecialRedis, command, open_redis
from tests.support.servers import RedisServer, running

pytestmark = pytest.mark.redis

KEY = GroupKey("default", "orders", "billing")
RECORD = a_record()
ME = RECORD.instance


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server of this test's own."""
    with running(RedisServer()) as made:
        yield made


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisOwnership]:
    """A user of it."""
    opened = open_redis(server)
    yield opened
    opened.close()


def verbs(store: OwnershipStore) -> dict[str, Callable[[], object]]:
    """Every call of the contract but `wait_news` and `incarnation`, as it would be done on a group that is running."""
    lease = Lease(token="l", name="n", beat=1)
    claim = OwnershipRecord(key=KEY, partition=0, owner=None, epoch=1, version="", modified="")
    return {
        "read_state": lambda: store.read_state(KEY),
        "swap_state": lambda: store.swap_state(KEY, b"{}", token="t2", expected="t1"),
        "read_flows": lambda: store.read_flows(KEY),
        "read_flow": lambda: store.read_flow(KEY, "billing-1"),
        "read_beats": lambda: store.read_beats(KEY),
        "bind": lambda: store.bind(KEY, RECORD, replaces=None),
        "beat": lambda: store.beat(KEY, "billing-1", ME),
        "deliver": lambda: store.deliver(KEY, "billing-1", ME, {1: delivery(1)}, state_token="t1"),
        "report": lambda: store.report(KEY, "billing-1", ME, {1: delivery(1)}),
        "note": lambda: store.note(KEY, "billing-1", ME, "slow"),
        "unbind": lambda: store.unbind(KEY, "billing-1", ME),
        "forget_flow": lambda: store.forget_flow(KEY, "billing-1", ME, state_token="t1"),
        "read_lease": lambda: store.read_lease(KEY),
        "take_lease": lambda: store.take_lease(KEY, lease, expected=None),
        "renew_lease": lambda: store.renew_lease(KEY, lease),
        "release_lease": lambda: store.release_lease(KEY, "l"),
        "list_ownership": lambda: store.list_ownership(KEY),
        "claim_ownership": lambda: store.claim_ownership([claim]),
        "announce": lambda: store.announce(KEY),
        "drop_group": lambda: store.drop_group(KEY),
    }


def begin(store: OwnershipStore) -> None:
    """A state and a bound flow."""
    store.swap_state(KEY, b"{}", token="t1", expected=None)
    store.bind(KEY, RECORD, replaces=None)


def token_of(store: OwnershipStore) -> str | None:
    """The state's token."""
    found = store.read_state(KEY)
    return found.token if isinstance(found, StateDocument) else None


# --- restarts ---------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("OWN-03")
def test_a_restart_is_noticed_by_every_call_before_it_does_anything(server: RedisServer, store: RedisOwnership) -> None:
    life = store.incarnation()
    begin(store)
    server.kill()
    server.start()
    for name, verb in verbs(store).items():
        with pytest.raises(Reincarnated, match=life):
            verb()
        assert command(server, "DBSIZE") == ":0\r\n", name
    new = store.incarnation()
    assert new != life
    assert store.incarnation() == new
    assert store.read_state(KEY) is None
    with pytest.raises(Fenced):
        store.beat(KEY, "billing-1", ME)
    begin(store)
    assert store.beat(KEY, "billing-1", ME) == "t1"


def test_who_never_asked_for_the_life_learns_it_by_the_first_call(server: RedisServer, store: RedisOwnership) -> None:
    begin(store)
    server.kill()
    server.start()
    with pytest.raises(Reincarnated):
        store.read_state(KEY)


def test_a_call_after_a_restart_never_answers_with_the_old_life(server: RedisServer, store: RedisOwnership) -> None:
    lives = {store.incarnation()}
    for _ in range(3):
        server.kill()
        server.start()
        lives.add(store.incarnation())
    assert len(lives) == 4


@pytest.mark.conformance("OWN-04")
def test_a_redis_that_came_back_with_an_old_copy_is_noticed(server: RedisServer, store: RedisOwnership) -> None:
    life = store.incarnation()
    begin(store)
    command(server, "SAVE")
    store.swap_state(KEY, b"{}", token="t2", expected="t1")
    store.report(KEY, "billing-1", ME, {1: delivery(5)})
    server.kill()
    server.start()
    with pytest.raises(Reincarnated):
        store.deliver(KEY, "billing-1", ME, {1: delivery(6)}, state_token="t2")
    assert store.incarnation() != life
    assert token_of(store) == "t1"
    assert store.read_flows(KEY)["billing-1"].deliveries == {}
    assert store.deliver(KEY, "billing-1", ME, {1: delivery(6)}, state_token="t2") is False
    with pytest.raises(Conflict):
        store.swap_state(KEY, b"{}", token="t3", expected="t2")


@pytest.mark.conformance("OWN-03")
def test_everything_flushed_looks_like_a_group_that_never_was(server: RedisServer, store: RedisOwnership) -> None:
    life = store.incarnation()
    begin(store)
    store.take_lease(KEY, Lease(token="l", name="n", beat=0), expected=None)
    command(server, "FLUSHALL")
    assert store.incarnation() == life
    assert store.read_state(KEY) is None
    with pytest.raises(Fenced):
        store.beat(KEY, "billing-1", ME)
    with pytest.raises(Conflict):
        store.renew_lease(KEY, Lease(token="l", name="n", beat=1))


@pytest.mark.parametrize("lost", ["flows", "beats"])
def test_a_flow_of_which_a_part_was_evicted_binds_anew(server: RedisServer, store: RedisOwnership, lost: str) -> None:
    begin(store)
    command(server, "DEL", f"partq:{{{KEY}}}:{lost}")
    with pytest.raises(Fenced):
        store.beat(KEY, "billing-1", ME)
    assert not any(record.bound for record in store.read_flows(KEY).values())
    store.bind(KEY, a_record(), replaces=None)
    assert store.read_flows(KEY)["billing-1"].bound


def test_scripts_that_were_flushed_are_sent_again(server: RedisServer, store: RedisOwnership) -> None:
    begin(store)
    for _ in range(2):
        command(server, "SCRIPT", "FLUSH")
        assert store.beat(KEY, "billing-1", ME) == "t1"
        assert store.deliver(KEY, "billing-1", ME, {1: delivery(1)}, state_token="t1")
    found = store.read_flow(KEY, "billing-1")
    assert found is not None
    assert found[1].count == 4


def test_an_idle_connection_that_was_closed_is_replaced_before_anything_is_sent(
    server: RedisServer, store: RedisOwnership
) -> None:
    begin(store)
    for _ in range(3):
        command(server, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no")
        assert store.beat(KEY, "billing-1", ME) == "t1"


# --- silence ----------------------------------------------------------------------------------------------------------


def test_a_redis_that_stands_still_ends_every_call_in_time(server: RedisServer) -> None:
    store = open_redis(server, call_timeout_s=0.1)
    store.incarnation()
    begin(store)
    server.freeze()
    try:
        for name, verb in {**verbs(store), "incarnation": store.incarnation}.items():
            if name == "claim_ownership":
                continue  # an unknown outcome is no error there
            started_s = time.monotonic()
            with pytest.raises(Unavailable, match=r"did not answer within 0\.1 s"):
                verb()
            assert time.monotonic() - started_s < 0.6, name
        started_s = time.monotonic()
        assert store.wait_news(0.1) is None
        assert time.monotonic() - started_s < 0.6
    finally:
        server.thaw()
    assert store.incarnation()
    assert token_of(store) == "t1"
    store.close()


def test_a_redis_that_is_not_there_is_named(server: RedisServer, store: RedisOwnership) -> None:
    begin(store)
    server.kill()
    with pytest.raises(Unavailable, match=rf"redis://127\.0\.0\.1:{server.port}/0 cannot be reached.*refused"):
        store.read_state(KEY)
    with pytest.raises(Unavailable, match="refused"):
        store.incarnation()
    assert store.wait_news(0.1) is None


def test_a_host_that_has_no_address_is_named(redis_server: RedisServer) -> None:
    from partq_spark.flow.stores import open_ownership

    with pytest.raises(Unavailable, match=r"redis://nowhere\.invalid:6379/0 cannot be reached"):
        open_ownership("redis://nowhere.invalid:6379/0").read_state(KEY)


def test_more_threads_than_connections_wait_for_their_turn(server: RedisServer, store: RedisOwnership) -> None:
    begin(store)

    def beat(_: int) -> None:
        for _ in range(50):
            assert store.beat(KEY, "billing-1", ME) == "t1"

    together(beat, 40)
    found = store.read_flow(KEY, "billing-1")
    assert found is not None
    assert found[1].count == 2000
    assert int(command(server, "CLIENT", "LIST").count("\nid=")) <= 17


def test_a_fork_speaks_on_connections_of_its_own(store: RedisOwnership) -> None:
    begin(store)
    child = os.fork()
    if child == 0:
        try:
            for _ in range(200):
                assert store.beat(KEY, "billing-1", ME) == "t1"
            os._exit(0)
        finally:
            os._exit(1)
    for _ in range(200):
        assert isinstance(store.read_state(KEY), StateDocument)
    _, status = os.waitpid(child, 0)
    assert status == 0


# --- refused for now --------------------------------------------------------------------------------------------------


def test_no_memory_left_is_said_and_nothing_is_half_done(server: RedisServer, store: RedisOwnership) -> None:
    begin(store)
    before = store.read_flows(KEY), token_of(store)
    command(server, "CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "1")
    for name in ("swap_state", "beat", "deliver", "report", "unbind", "take_lease"):
        with pytest.raises(Unavailable, match="maxmemory reached"):
            verbs(store)[name]()
    with pytest.raises(Unavailable, match="maxmemory reached"):
        store.bind(KEY, a_record("billing-2"), replaces=None)
    assert (
        store.claim_ownership([OwnershipRecord(key=KEY, partition=0, owner=None, epoch=1, version="", modified="")])
        == {}
    )
    assert (store.read_flows(KEY), token_of(store)) == before
    command(server, "CONFIG", "SET", "maxmemory", "0")
    assert store.list_ownership(KEY) == {}
    assert store.beat(KEY, "billing-1", ME) == "t1"


def test_a_primary_without_its_replicas_takes_nothing_and_says_so(server: RedisServer, store: RedisOwnership) -> None:
    """With `min-replicas-to-write`: who still reaches it must not believe that it renewed anything there."""
    begin(store)
    before = store.read_flows(KEY), token_of(store)
    command(server, "CONFIG", "SET", "min-replicas-to-write", "1")
    for name in ("swap_state", "beat", "deliver", "report", "unbind", "take_lease"):
        with pytest.raises(Unavailable, match="NOREPLICAS"):
            verbs(store)[name]()
    assert (store.read_flows(KEY), token_of(store)) == before
    command(server, "CONFIG", "SET", "min-replicas-to-write", "0")
    assert store.beat(KEY, "billing-1", ME) == "t1"


def test_a_read_only_replica_is_read_and_not_written(server: RedisServer, store: RedisOwnership) -> None:
    begin(store)
    with running(
        SpecialRedis("--replicaof", "127.0.0.1", str(server.port), "--repl-diskless-sync-delay", "0")
    ) as replica:
        other = open_redis(replica)
        deadline_s = time.monotonic() + 20
        while token_of(other) != "t1" and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert token_of(other) == "t1"
        for name in ("swap_state", "beat", "deliver", "unbind", "take_lease"):
            with pytest.raises(Unavailable, match="read-only replica"):
                verbs(other)[name]()
        command(replica, "CONFIG", "SET", "replica-serve-stale-data", "no")
        server.kill()
        deadline_s = time.monotonic() + 20
        while time.monotonic() < deadline_s:
            try:
                other.read_state(KEY)
            except Unavailable as error:
                assert "lost its master" in str(error)  # noqa: PT017 - it takes a moment until it knows
                break
        command(replica, "REPLICAOF", "NO", "ONE")
        assert other.beat(KEY, "billing-1", ME) == "t1"
        other.close()


def test_a_redis_that_is_still_loading_is_named(server: RedisServer) -> None:
    slow = ("--key-load-delay", "50000", "--loading-process-events-interval-bytes", "1024", "--rdbcompression", "no")
    special = SpecialRedis(*slow)
    with running(special):
        writer = open_redis(special)
        begin(writer)
        for number in range(60):
            command(special, "SET", f"more-{number}", "x" * 2000)
        command(special, "SAVE")
        special.kill()
        special.start()
        with pytest.raises(Unavailable, match="still loading"):
            open_redis(special).read_state(KEY)


# --- a line that breaks before the answer -----------------------------------------------------------------------------


@pytest.fixture
def line(server: RedisServer) -> Iterator[Line]:
    """A line to the server."""
    with Line(server.port) as made:
        yield made


@pytest.fixture
def far(server: RedisServer, line: Line) -> Iterator[RedisOwnership]:
    """A user at the other end of the line."""
    opened = open_redis(server, port=line.port)
    yield opened
    opened.close()


def lose_answer(line: Line, act: Callable[[], object]) -> None:
    """The call ends as unknown, though the server has done it."""
    cuts = line.cuts
    line.cut_next(b"EVALSHA")
    with pytest.raises(Unavailable, match="known when it is read again"):
        act()
    assert line.cuts == cuts + 1


def test_a_lost_answer_is_settled_by_reading_or_repeating(
    server: RedisServer, store: RedisOwnership, line: Line, far: RedisOwnership
) -> None:
    begin(store)  # so that the scripts are known
    store.deliver(KEY, "billing-1", ME, {}, state_token="t1")
    store.report(KEY, "billing-1", ME, {})
    store.unbind(KEY, "billing-1", ME)
    store.take_lease(KEY, Lease(token="x", name="n", beat=0), expected=None)
    store.renew_lease(KEY, Lease(token="x", name="n", beat=1))
    store.release_lease(KEY, "x")
    far.incarnation()

    lose_answer(line, lambda: far.swap_state(KEY, b"{}", token="t2", expected="t1"))
    assert token_of(far) == "t2"
    again, former = a_record(), last_beat(far, KEY)
    lose_answer(line, lambda: far.bind(KEY, again, replaces=former))
    far.bind(KEY, again, replaces=former)
    assert far.read_flows(KEY) == {"billing-1": again}
    new = {1: delivery(5)}
    lose_answer(line, lambda: far.deliver(KEY, "billing-1", again.instance, new, state_token="t2"))
    assert far.read_flows(KEY)["billing-1"].deliveries == new
    assert far.deliver(KEY, "billing-1", again.instance, new, state_token="t2")
    lose_answer(line, lambda: far.report(KEY, "billing-1", again.instance, {1: delivery(4)}))
    assert far.read_flows(KEY)["billing-1"].deliveries == {1: delivery(4)}
    lose_answer(line, lambda: far.beat(KEY, "billing-1", again.instance))
    assert far.beat(KEY, "billing-1", again.instance) == "t2"
    lease = Lease(token="l", name="n", beat=0)
    lose_answer(line, lambda: far.take_lease(KEY, lease, expected=None))
    found = far.read_lease(KEY)
    assert found is not None
    assert found.lease == lease
    lose_answer(line, lambda: far.renew_lease(KEY, Lease(token="l", name="n", beat=1)))
    assert far.renew_lease(KEY, Lease(token="l", name="n", beat=2)).state_token == "t2"


@pytest.mark.parametrize("verb", ["deliver", "report", "bind"])
def test_a_call_that_arrives_late_does_not_undo_what_was_said_since(
    server: RedisServer, store: RedisOwnership, line: Line, verb: str
) -> None:
    """The caller has given it up and gone on, on another connection."""
    store.swap_state(KEY, b"{}", token="t1", expected=None)
    if verb != "bind":
        store.bind(KEY, RECORD, replaces=None)
        store.report(KEY, "billing-1", ME, {})  # the server knows the script
    far = open_redis(server, port=line.port, call_timeout_s=0.2)
    far.incarnation()
    line.hold_next(b"EVALSHA")
    held_up: dict[str, Callable[[], object]] = {
        "deliver": lambda: far.deliver(KEY, "billing-1", ME, {1: delivery(5)}, state_token="t1"),
        "report": lambda: far.report(KEY, "billing-1", ME, {1: delivery(5)}),
        "bind": lambda: far.bind(KEY, RECORD, replaces=None),
    }
    with pytest.raises(Unavailable, match="did not answer"):
        held_up[verb]()
    if verb == "bind":
        far.bind(KEY, RECORD, replaces=None)
    assert far.deliver(KEY, "billing-1", ME, {1: delivery(10)}, state_token="t1")
    line.released.set()
    time.sleep(0.2)  # nobody waits for the late one, so nobody can say when it has come
    assert store.read_flows(KEY)["billing-1"].deliveries == {1: delivery(10)}
    far.close()


@pytest.mark.conformance("OWN-02")
def test_a_claim_whose_answer_is_lost_counts_as_not_claimed(
    store: RedisOwnership, line: Line, far: RedisOwnership, caplog: pytest.LogCaptureFixture
) -> None:
    claim = OwnershipRecord(key=KEY, partition=3, owner=None, epoch=1, version="", modified="")
    store.claim_ownership([claim])
    store.drop_group(KEY)
    far.incarnation()
    line.cut_next(b"EVALSHA")
    assert far.claim_ownership([claim]) == {}
    assert line.cuts == 1
    assert "count as not claimed" in caplog.text
    assert list(far.list_ownership(KEY)) == [3]


def test_every_call_is_one_round_trip(store: RedisOwnership, line: Line, far: RedisOwnership) -> None:
    begin(store)
    for some in (store, far):  # the first connection asks who is there, the first use of a script sends it
        some.incarnation()
        for name, verb in verbs(some).items():
            if name in ("swap_state", "bind", "take_lease"):
                some.drop_group(KEY)
                some.swap_state(KEY, b"{}", token="t1", expected=None)
                some.bind(KEY, RECORD, replaces=None)
            if name in ("unbind", "forget_flow", "renew_lease", "release_lease", "drop_group"):
                continue
            before = line.requests
            verb()
            if some is far:
                assert line.requests == before + 1, name


# --- news -------------------------------------------------------------------------------------------------------------


def test_news_come_again_after_the_subscription_was_lost(server: RedisServer, store: RedisOwnership) -> None:
    flow = open_redis(server, group=KEY)
    for listening in (store, flow):
        assert listening.wait_news(5) is None
        assert listening.wait_news(0.01) == frozenset()
    command(server, "CLIENT", "KILL", "TYPE", "pubsub")
    for listening in (store, flow):
        assert listening.wait_news(5) is None
        assert listening.wait_news(5) is None  # subscribed again, and looked at everything
        assert listening.wait_news(0.01) == frozenset()
    store.announce(KEY)
    for listening in (store, flow):
        assert listening.wait_news(5) == frozenset({KEY})
    server.kill()
    assert store.wait_news(0.05) is None
    assert store.wait_news(0.05) is None
    server.start()
    assert store.wait_news(5) is None
    flow.close()


def test_a_subscription_whose_server_is_silent_is_given_up(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_client, "_PING_AFTER_S", 0.1)
    store = open_redis(server, call_timeout_s=0.2)
    assert store.wait_news(1) is None
    assert store.wait_news(0.5) == frozenset()  # asked several times whether it is there
    server.freeze()
    try:
        started_s = time.monotonic()
        assert store.wait_news(30) is None
        assert time.monotonic() - started_s < 2
    finally:
        server.thaw()
    store.close()


def test_closing_ends_a_wait(server: RedisServer, store: RedisOwnership) -> None:
    assert store.wait_news(5) is None
    timer = threading.Timer(0.1, store.close)
    timer.start()
    started_s = time.monotonic()
    store.wait_news(20)
    assert time.monotonic() - started_s < 5
    timer.join()
    with pytest.raises(Unavailable, match="was closed"):
        store.read_state(KEY)


def test_channels_of_others_are_no_news(server: RedisServer, store: RedisOwnership) -> None:
    assert store.wait_news(5) is None
    for channel in ("partq:news", "partq:{a}:news", "partq:{a/b/c/d}:news", "partq:{a/b/c:news", "partq:{\x7f}:news"):
        command(server, "PUBLISH", channel, "x")
    assert store.wait_news(0.2) == frozenset()
