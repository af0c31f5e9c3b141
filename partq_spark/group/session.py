"""One flow of a group, without threads and without Spark: bind, beat, observe, deliver, acknowledge, unbind.

A session holds what this process has in hand and says what it may deliver. It decides nothing about who gets what: the
coordinator does, and the session only acts on a state that names this very instance, after it has read its own name
in the checkpoint (OWN-03), which is ahead of its deliveries, and while its lease lasts by its own clock.

A main thread calls everything; a heartbeat thread may call `beat` beside it. Nothing is locked: what both touch is
`Life`, whose every attribute is one assignment. All waiting goes through `Effects.sleep`. An instance that ended, for
any reason, is replaced by a new one at the next `observe`, with the mapping that is known.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from partq_spark.base.effects import Effects, RunAll, in_a_row
from partq_spark.base.errors import Corrupt, Fenced, Invalid, PartqError, Unavailable
from partq_spark.group import claims
from partq_spark.group.binding import Binder, Life
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.claims import Holding, Standing, View
from partq_spark.group.codec import decode_state
from partq_spark.group.membership import GroupInQueue, GroupMembership, SessionSettings
from partq_spark.group.model import Checkpoint, GroupState, Owner, Partition, Phase
from partq_spark.group.ownership import Ownership, Reincarnated
from partq_spark.objects.api import Unchanged

MAX_TRIES: Final = 5
"""Instances that one `observe` may begin."""

_FIRST_LOOK: Final = 0.05
_LOOKS_GROW: Final = 1.3
"""An answer takes some milliseconds where it comes at once: look soon at first, in parts of the usual interval."""

_log = logging.getLogger("partq.flow")


class Session(GroupMembership):
    """One flow, by name, as one process has it."""

    def __init__(
        self,
        ownership: Ownership,
        group: GroupInQueue,
        checkpoints: CheckpointStore,
        flow: str,
        settings: SessionSettings | None = None,
        effects: Effects | None = None,
        run: RunAll = in_a_row,
    ) -> None:
        super().__init__(group, checkpoints, flow, settings, effects, run)
        self._ownership = ownership
        timeout_s = self._settings.session_timeout_s
        self._binder = Binder(ownership, group, flow, session_timeout_s=timeout_s, effects=self._effects)
        self._life: Life | None = None
        self._told_over = ""  # the instance of which it was said last
        self._doubts: dict[int, float] = {}  # since when the checkpoint says otherwise than the present state
        self._state: GroupState | None = None
        self._state_token: str | None = None
        self._remark = ""

    @property
    def instance(self) -> str | None:
        """The present instance, which may have ended; None while unbound."""
        return self._life.says.instance if self._life is not None else None

    # --- coming and going ---------------------------------------------------------------------------------------------

    def bind(self, mapping: Mapping[int, int] | None = None, *, wait_s: float) -> View:
        """Join the group, presenting the partitions (with epochs) that this client already had, if any.

        Waits for at most `wait_s` for the coordinator's answer, and before that up to a session timeout where the
        name was bound by a process that may still live. Raises `Invalid` if it does live, or the session is bound;
        `Unavailable` if the store does not answer.
        """
        if self._life is not None:
            raise Invalid(f"flow {self._flow!r} of group {self._group} is bound already: unbind it first")
        self._holdings.mapping = dict(mapping or {})
        life = self._life = self._binder.bind(self._holdings.mapping)
        until_s = self._effects.now_s() + wait_s
        pause_s = self._ownership.documents.look_interval_s * _FIRST_LOOK
        while True:
            try:
                life = self._observed_life()
                answered = self._is_answered(life)
            except Unavailable:
                answered = False
            except PartqError:
                self._life = None
                with suppress(PartqError):  # or the coordinator gives partitions to nobody for a session timeout
                    self._binder.leave(life)
                raise
            left_s = until_s - self._effects.now_s()
            if answered or left_s <= 0:
                return self._view(life)
            self._effects.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * _LOOKS_GROW, self._ownership.documents.look_interval_s)
            self._beat_if_due()

    def _beat_if_due(self) -> None:
        """The heartbeat's thread may not run yet."""
        life = self._life
        if life is not None and self._effects.now_s() - life.renewed_s >= self._settings.beat_interval_s:
            with suppress(Unavailable):
                self.beat()

    def unbind(self) -> None:
        """Acknowledge what is left to acknowledge, then leave the group. Repeating it is harmless. Raises `Unavailable`
        if the store did not answer: the group will notice the silence.
        """
        life = self._life
        if life is None:
            return
        try:
            self.flush()
        finally:
            life.end("it has unbound")
            self._life = None
            self._holdings.clear()
            self._binder.leave(life)

    def close(self) -> None:
        self._ownership.close()

    # --- being alive --------------------------------------------------------------------------------------------------

    def beat(self) -> None:
        """One heartbeat, one round trip; by any thread. What it learns is acted upon by the main thread. Raises
        `Unavailable` if the store did not answer: beat again.
        """
        life = self._life
        if life is None or not self._is_alive(life):
            return
        sent_s = self._effects.now_s()
        try:
            life.state_token = self._ownership.beat(self._group.key, life.says)
        except (Fenced, Reincarnated, Corrupt) as error:  # a damaged one is met again when it binds anew, until mended
            life.end(str(error))
        else:
            life.renew(sent_s)

    def note(self, text: str | None) -> None:
        """Tell people something of this flow, until it is something else; None: nothing. The next heartbeat says it."""
        self._remark = text or ""

    def _tell(self, closes: int = 0) -> None:
        """What the next heartbeat says: at once, where a partition was closed, which a handoff may wait for. The
        mapping is for the coordinator, until it has seen it.
        """
        life = self._life
        if life is None or not life.seen:
            return
        life.says = replace(
            life.says,
            mapping={},
            closes=life.says.closes + closes,
            note=self._holdings.refused or self._remark,
            progress=self._holdings.progress(),
        )
        if closes:
            with suppress(Unavailable):  # it is no more than a hint
                self.beat()

    def lease_left_s(self) -> float:
        """Until the group may take this instance for gone, by this process's clock alone; below 0 once it may have."""
        life = self._life
        return -1.0 if life is None or not self._is_alive(life) else life.left_s(self._effects.now_s())

    @property
    def has_news(self) -> bool:
        """The last heartbeat found another state than the last `observe`, or the instance has ended; costs nothing."""
        life = self._life
        return life is not None and (not self._is_alive(life) or life.state_token not in (None, self._state_token))

    def wait_news(self, timeout_s: float) -> bool:
        """For an idle main thread, or a thread beside it: wait until the group's state has changed, at most so long.

        False: it has not. Where nobody tells, the state is looked at, by one cheap request.
        """
        news = self._ownership.wait_news(timeout_s)
        return bool(news) if news is not None else not self._is_state_unchanged()

    # --- what is mine -------------------------------------------------------------------------------------------------

    def observe(self) -> View:
        """Look at the group's state; give up what is lost, claim what is new, acknowledge what is due.

        An instance that has ended is replaced here, see `bind`. Raises `Unavailable`, `Corrupt`, and `Invalid` if
        another process lives under this name now.
        """
        return self._view(self._observed_life())

    def deliver(self, ends: Mapping[int, int]) -> bool:
        """Announce that the messages up to `ends` (partition to exclusive end) are about to be delivered.

        True: deliver them now. False: nothing of it may be delivered, observe again. Only partitions that the last
        view has as deliverable, and no end below its position. In this order: the checkpoints, the state, the lease; a
        handoff that begins after the state was looked at finds the checkpoints open.
        """
        life, held = self._life, self._holdings.by_partition
        if life is None or self._state_token is None or not self._is_alive(life):
            return False
        for partition, end in ends.items():
            holding = held.get(partition)
            if holding is None or holding.checkpoint is None or holding.paused:
                return False
            if end < holding.announced:
                raise Invalid(
                    f"partition {partition} of group {self._group} is delivered up to {holding.announced} and cannot "
                    f"be delivered up to {end}: begin at the view's position"
                )
        if not ends:
            return True
        try:
            self._announce(ends)
        except (Fenced, Corrupt, Invalid):
            for partition in ends:
                if self._own_checkpoint(partition, life.says.owner, held[partition].epoch) is None:
                    self._holdings.lose(partition)
            return False
        if not self._is_state_unchanged() or not self._is_alive(life):
            return False
        for partition, end in ends.items():
            held[partition].announced = end
        self._tell()
        return True

    # --- guards; others are `Life.is_alive` and `FlowHoldings.is_same_epoch` ------------------------------------------

    def _is_alive(self, life: Life) -> bool:
        """Its lease lasts, in the life of the store in which it bound."""
        return life.is_alive(self._effects.now_s(), self._ownership.documents.lives)

    def _is_state_unchanged(self) -> bool:
        """Whether the group's state is still the one that was looked at last."""
        known = self._state_token
        return known is not None and isinstance(self._ownership.read_state(self._group.key, known=known), Unchanged)

    def _names_me(self, checkpoint: Checkpoint, me: Owner, epoch: int) -> bool:
        """What the state grants is this very instance's by the checkpoint, too."""
        return checkpoint.is_of(self._group.queue_id, me, epoch)

    # --- looking ------------------------------------------------------------------------------------------------------

    def _observed_life(self) -> Life:
        life = self._present_life()
        for _ in range(MAX_TRIES):
            try:
                state = self._look()
                self._place(life, state)
                if not life.ended:
                    self._settle(life, state)
            except (Fenced, Reincarnated) as error:
                life.end(str(error))
            if not life.ended:
                return life
            life = self._present_life()
        raise Unavailable(f"flow {self._flow!r} of group {self._group} lost {MAX_TRIES} instances in a row; try again")

    def _present_life(self) -> Life:
        """The instance, replaced by a new one if it has ended."""
        life = self._life
        if life is None:
            raise Invalid(f"flow {self._flow!r} of group {self._group} is not bound: call bind first")
        if self._is_alive(life):
            return life
        if life.says.instance != self._told_over:
            self._told_over = life.says.instance
            _log.warning("%s: instance %s ended: %s", self._name, life.says.instance, life.ended)
        if life.seen and self._settings.keep_offsets:
            self._group.head(self._flow)  # raises where the group is gone
        # Or the next instance would mark what nobody had. It is not worth a failure.
        with suppress(Unavailable):
            self._close(self._holdings.by_partition.values())
        self._holdings.drop()
        self._life = self._binder.bind(self._holdings.mapping)
        return self._life

    def _look(self) -> GroupState | None:
        """The group's state now; None if there is none, or only a former queue's, or a damaged one: whoever leads
        writes another one.
        """
        state, token = None, None
        with suppress(Corrupt):
            found = self._ownership.read_state(self._group.key, known=self._state_token)
            if isinstance(found, Unchanged):
                return self._state
            if found is not None:
                state = decode_state(found.body, self._effects.now_s(), f"state of group {self._group}")
                token = found.token
        is_mine = state is not None and state.queue_id == self._group.queue_id
        self._state, self._state_token = (state, token) if is_mine else (None, None)
        self._doubts.clear()
        return self._state

    def _place(self, life: Life, state: GroupState | None) -> None:
        """What the coordinator thinks of this instance."""
        flow = claims.flow_of(state, life.says.owner)
        if flow is not None:
            life.seen = True
            for active in claims.updates_since(flow, life.updates):
                _log.info("%s is %s now", self._name, "active" if active else "inactive")
            life.updates = max(life.updates, flow.updates)
        elif life.seen and state is not None:
            life.end("the coordinator has given it up")

    def _settle(self, life: Life, state: GroupState | None) -> None:
        """Give up what is lost, claim what is new, write down what is due."""
        if state is None or not life.seen:
            self._holdings.hold_back()
        else:
            # A drained handoff waits for it, where this flow raised what the state did not let it deliver any more.
            self._tell(self._close(self._holdings.taken(state, life.says.owner)))
            self._claim(life, self._holdings.settle(state, life.says.owner))
        self._write(everything=False)

    def _claim(self, life: Life, grants: Mapping[int, Partition]) -> None:
        """Read the checkpoints of what is newly granted, then, if need be, the head."""
        fresh: dict[int, Checkpoint] = {}
        for partition, grant in grants.items():
            if self._holdings.has_claimed((partition,)):
                continue
            checkpoint = self._own_checkpoint(partition, life.says.owner, grant.epoch)
            if checkpoint is not None:
                fresh[partition] = checkpoint
                self._doubts.pop(partition, None)
                continue
            # The state may be about to change. If it stays, a new bind makes the coordinator look at that.
            now_s = self._effects.now_s()
            if now_s - self._doubts.setdefault(partition, now_s) >= self._settings.beat_interval_s:
                life.end(f"the checkpoint of partition {partition} does not name it, although the state does")
        if fresh:
            self._hold(fresh, [partition for partition in fresh if grants[partition].phase is Phase.PAUSED])

    def _own_checkpoint(self, partition: int, me: Owner, epoch: int) -> Checkpoint | None:
        """None: it does not name this instance, is damaged or may not be read. That stops its own partition, of which
        the coordinator will say why, and no other.
        """
        try:
            found = self._checkpoints.read(partition)
        except Invalid:
            self._doubts.pop(partition, None)  # nor could another instance read it
            return None
        except Corrupt:
            return None
        return found if found is not None and self._names_me(found, me, epoch) else None

    # --- writing ------------------------------------------------------------------------------------------------------

    def _deny(self, partition: int, holding: Holding, error: Fenced | Corrupt | Invalid) -> None:
        if not isinstance(error, Invalid):  # else it is held back, and others hear of it by the next heartbeat
            _log.info("%s lost partition %d: %s", self._name, partition, error)
            self._holdings.lose(partition)

    def _close(self, holdings: Iterable[Holding]) -> int:
        """Say of each what was announced, and no more; how many have nothing in hand now. Where that cannot be said, a
        handoff takes its time, and more is marked.
        """
        closes = 0
        for holding in list(holdings):
            if holding.checkpoint is not None:
                with suppress(Fenced, Corrupt, Invalid):
                    closes += self._close_one(holding)
        return closes

    # --- bookkeeping --------------------------------------------------------------------------------------------------

    def _is_answered(self, life: Life) -> bool:
        """The coordinator has taken notice, and everything that it gives at once is claimed."""
        state = self._state
        if state is None or not life.seen or claims.is_settling(state, life.says.owner):
            return False
        return self._holdings.has_claimed(claims.granted(state, life.says.owner))

    def _view(self, life: Life) -> View:
        """What is in hand now."""
        return View(
            instance=life.says.instance,
            standing=claims.standing(self._state, life.says.owner) if life.seen else Standing.UNANSWERED,
            claims=self._holdings.claims() if self._state is not None else {},
        )
