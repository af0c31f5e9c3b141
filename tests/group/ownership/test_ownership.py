"""What a group keeps beside its log, over every kind of documents: any calls of several users, one after another, have
the answers of a plain oracle, which everybody then sees; and what is told of lives, places and names.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.base.errors import Conflict, Fenced, Invalid
from partq_spark.group.model import FlowRecord, GroupKey, Lease, Owner, OwnershipRecord, Progress
from partq_spark.group.ownership import Ownership, open_ownership
from tests.group.ownership.conftest import KEY, RECORD, a_record, last_beat, token_of
from tests.objects.conftest import memory_store
from tests.support.ownership import OwnershipServer, in_objects
from tests.support.properties import examples
from tests.support.way import Hooked
from tools.servers import RedisServer

FLOWS = ("billing-1", "billing-2", "billing-20")
NEIGHBOUR = GroupKey(KEY.namespace, KEY.queue, f"{KEY.group}-2")


class Told:
    """The oracle: everything in plain dictionaries, with numbers where the stores have tokens."""

    def __init__(self) -> None:
        self.state: str | None = None
        self.records: dict[str, FlowRecord] = {}
        self.hearts: dict[str, int] = {}  # how often each has moved
        self.lease: Lease | None = None
        self.owned: dict[int, OwnershipRecord] = {}

    def moved(self, flow: str, record: FlowRecord) -> None:
        self.records[flow] = record
        self.hearts[flow] = self.hearts.get(flow, 0) + 1

    def bound(self, flow: str, instance: str) -> FlowRecord:
        found = self.records.get(flow)
        if found is None or not found.bound or found.instance != instance:
            raise Fenced(f"flow {flow}")
        return found


class Group:
    """Several users of one group: each call is made of the store and of the oracle, and has to end alike."""

    def __init__(self, open_one: Callable[[], Ownership], seed: int) -> None:
        self.draw = Random(seed)
        self.users = [open_one() for _ in range(3)]
        self.told = Told()
        self.seen: list[tuple[str, str | None, int | None]] = []  # somebody's look at a heartbeat, to be presented
        self.instances: dict[str, list[str]] = {flow: [RECORD.instance] for flow in FLOWS}
        self.processes: dict[str, Ownership] = {}  # an instance is one process, and one user
        self.swaps = 0
        self.leases = ["a"]  # the tokens of all that ever led

    @property
    def user(self) -> Ownership:
        return self.draw.choice(self.users)

    def both(self, real: Callable[[], Any], oracle: Callable[[], Any]) -> Any:
        """What both answer, or None where both refuse it in the same way."""
        try:
            expected = oracle()
        except (Conflict, Fenced) as error:
            with pytest.raises(type(error), match=str(KEY)):
                real()
            return None
        found = real()
        assert expected is ... or found == expected
        return found

    def named(self) -> tuple[str, str]:
        """A flow, and mostly its present instance."""
        flow = self.draw.choice(FLOWS)
        return flow, self.draw.choice(self.instances[flow][-2:] + self.instances[flow][-1:] * 3)

    def of(self, instance: str) -> Ownership:
        return self.processes.get(instance, self.users[0])

    def state_token(self) -> str:
        return self.draw.choice([self.told.state or "none", self.told.state or "none", f"t{self.swaps - 1}"])

    # --- the verbs ----------------------------------------------------------------------------------------------------

    def swap_state(self) -> None:
        token, expected = f"t{self.swaps}", self.draw.choice([self.told.state, self.told.state, None, "old"])
        self.swaps += 1

        def oracle() -> None:
            if self.told.state != expected:
                raise Conflict("state")
            self.told.state = token

        self.both(lambda: self.user.swap_state(KEY, b"{}", token=token, expected=expected), oracle)

    def look(self) -> None:
        flow = self.draw.choice(FLOWS)
        self.seen.append((flow, last_beat(self.user, KEY, flow), self.told.hearts.get(flow)))

    def bind(self) -> None:
        """Some present a look of long ago, or none; a bind whose answer was lost is repeated."""
        flow = self.draw.choice(FLOWS)
        if self.draw.random() < 0.6:
            self.look()
            flow = self.seen[-1][0]
        _, replaces, heart = next((each for each in reversed(self.seen) if each[0] == flow), (flow, None, None))
        record = a_record(flow, p1=Progress(self.draw.randrange(9), 0))
        found = self.told.records.get(flow)
        if found is not None and found.bound and self.draw.random() < 0.2:
            self.of(found.instance).bind(KEY, found, replaces=None)
            return
        self.processes[record.instance] = user = self.user

        def oracle() -> None:
            if flow in self.told.records and heart != self.told.hearts[flow]:
                raise Conflict("name")
            self.told.moved(flow, record)
            self.instances[flow].append(record.instance)

        self.both(lambda: user.bind(KEY, record, replaces=replaces), oracle)

    def beat(self) -> None:
        """Often it says nothing new."""
        flow, instance = self.named()
        record = self.told.records.get(flow)
        if record is None or record.instance != instance:
            record = a_record(flow, instance)
        if self.draw.random() < 0.6:
            done = self.draw.randrange(99)
            spread = {self.draw.randrange(300): Progress(done + self.draw.randrange(3), done) for _ in range(3)}
            record = replace(
                record,
                mapping=self.draw.choice([{}, {p: self.draw.randrange(1, 3) for p in range(self.draw.randrange(9))}]),
                closes=record.closes + self.draw.randrange(2),
                note=self.draw.choice(["", "acknowledges after 4.1 s", "x" * 200]),
                progress=self.draw.choice([{}, spread]),
            )

        def oracle() -> str | None:
            self.told.bound(flow, instance)
            self.told.moved(flow, record)
            return self.told.state

        self.both(lambda: self.of(instance).beat(KEY, record), oracle)

    def unbind(self) -> None:
        """Also of what is not bound, or of another's: nothing happens."""
        flow, instance = self.named()
        found = self.told.records.get(flow)
        if found is not None and found.bound and found.instance == instance:
            self.told.moved(flow, replace(found, bound=False))
        self.of(instance).unbind(KEY, flow, instance)

    def forget_flow(self) -> None:
        (flow, instance), token = self.named(), self.state_token()

        def oracle() -> bool:
            found = self.told.records.get(flow)
            if token == self.told.state and found is not None and found.instance == instance:
                del self.told.records[flow]
            return token == self.told.state

        self.both(lambda: self.user.forget_flow(KEY, flow, instance, state_token=token), oracle)

    def take_lease(self) -> None:
        self.leases.append(f"l{len(self.leases)}")
        taken = Lease(token=self.leases[-1], name="host-1 pid 12 ü", beat=0, timers={"12": 0.25})
        held = self.told.lease
        expected = self.draw.choice([held, held, None, replace(held or taken, beat=77)])

        def oracle() -> None:
            if expected != held:
                raise Conflict("lease")
            self.told.lease = taken

        self.both(lambda: self.user.take_lease(KEY, taken, expected=expected), oracle)

    def renew_lease(self) -> None:
        held = self.told.lease
        beat = 0 if held is None else held.beat + self.draw.choice([-1, 0, 1, 1, 3])
        token = self.draw.choice([self.draw.choice(self.leases), *([] if held is None else [held.token] * 3)])
        lease = Lease(token=token, name=f"step {self.draw.random()}", beat=beat)

        def oracle() -> Any:
            if held is None or held.token != lease.token or beat <= held.beat:
                raise Conflict("lease")
            self.told.lease = lease
            return ...

        pulse = self.both(lambda: self.user.renew_lease(KEY, lease), oracle)
        if pulse is not None:
            assert pulse.state_token == self.told.state
            assert {name: beat.value for name, beat in pulse.flows.items()} == self.told.records

    def release_lease(self) -> None:
        token = self.draw.choice(self.leases[-2:])
        if self.told.lease is not None and self.told.lease.token == token:
            self.told.lease = None
        self.user.release_lease(KEY, token)

    def claim(self) -> None:
        """Some of the versions are those that are there; the others do not end them."""
        wanted, fits = [], set()
        for partition in self.draw.sample([0, 3, 12], 2):
            found = self.told.owned.get(partition)
            version = self.draw.choice(["" if found is None else found.version, "old", ""])
            if version == ("" if found is None else found.version):
                fits.add(partition)
            owner = self.draw.choice([None, Owner("a", "0123456789abcdef")])
            epoch = self.draw.randrange(9)
            wanted.append(OwnershipRecord(partition=partition, owner=owner, epoch=epoch, version=version))
        claimed = self.user.claim_ownership(KEY, wanted)
        assert {*claimed} == fits
        for each in wanted:
            if each.partition in fits:
                found = claimed[each.partition]
                assert replace(found, version=each.version, modified="") == each
                assert found.version not in ("", each.version)
                assert abs(datetime.fromisoformat(found.modified).timestamp() - time.time()) < 600
        self.told.owned |= claimed

    def drop_group(self) -> None:
        self.told = Told()
        self.seen.clear()  # hearts are counted from the beginning again
        self.user.drop_group(KEY)

    def look_at_everything(self, reader: Ownership) -> None:
        told = self.told
        assert token_of(reader) == told.state
        seen = reader.look_at_flows(KEY)
        assert ({name: beat.value for name, beat in seen.beats.items()}, seen.damaged) == (told.records, {})
        assert all(0 <= beat.age_s < 30 for beat in seen.beats.values())
        for flow in FLOWS:
            found = reader.read_flow(KEY, flow)
            assert (found and found.value) == told.records.get(flow)
        lease = reader.read_lease(KEY, aged=self.draw.random() < 0.5)
        assert (lease and lease.value) == told.lease
        assert lease is None or 0 <= lease.age_s < 30
        assert reader.list_ownership(KEY) == dict(sorted(told.owned.items()))
        assert list(reader.read_flows(NEIGHBOUR)) == ["billing-1"], "another group is nobody's matter"


VERBS = (
    *(Group.swap_state, Group.look, Group.bind, Group.bind, Group.bind, Group.beat, Group.beat, Group.beat, Group.beat),
    *(Group.unbind, Group.forget_flow, Group.take_lease, Group.renew_lease, Group.renew_lease, Group.release_lease),
    *(Group.claim, Group.drop_group),
)


@pytest.mark.conformance("FLO-06", "FLO-08", "OWN-02")
@pytest.mark.parametrize("kind", ["memory", "objects", "contradicted", pytest.param("redis", marks=pytest.mark.redis)])
def test_any_calls_of_several_users_are_answered_as_by_one(kind: str, request: pytest.FixtureRequest) -> None:
    redis: RedisServer | None = request.getfixturevalue("redis_server") if kind == "redis" else None

    @examples(60 if redis is None else 8)
    @given(st.integers(0, 2**32))
    def calls(seed: int) -> None:
        server, objects = OwnershipServer(), memory_store()
        way, met = Hooked(objects), Random(seed)

        def contradict(verb: str, name: str) -> None:
            if verb in ("swap", "remove") and met.random() < 0.5:
                raise Conflict(f"{name}: something in between sent it again, which met its success (test)")

        way.after = contradict if kind == "contradicted" else None

        def open_one() -> Ownership:
            if redis is not None:
                return open_ownership(redis.url, store=objects)
            return server.open() if kind == "memory" else in_objects(way)

        group = Group(open_one, seed)
        group.users[0].bind(NEIGHBOUR, RECORD, replaces=None)
        for _ in range(60):
            group.draw.choice(VERBS)(group)
            group.look_at_everything(group.user)
        group.look_at_everything(late := open_one())
        late.drop_group(NEIGHBOUR)
        late.drop_group(KEY)
        for each in (*group.users, late):
            each.close()

    calls()


@pytest.mark.parametrize("name", ["", "a b", "a/b", ".hidden", "ä", "x" * 129, "a\n"])
@pytest.mark.parametrize("what", ["flow", "instance"])
def test_a_name_that_cannot_be_kept_is_refused(what: str, name: str) -> None:
    with pytest.raises(Invalid, match="flow name"):
        OwnershipServer().open().bind(KEY, replace(RECORD, **{what: name}), replaces=None)  # type: ignore[arg-type]
