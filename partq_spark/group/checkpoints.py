"""How far a group has acknowledged each partition, and whose the partition is: one small blob per partition (seed 004).

A checkpoint carries the fence: a flow that lost a partition fails at its next write, however late that arrives
(CHK-05). It is changed by compare-and-swap only, and only forward in (epoch, offset) (CHK-04). Its owner says how far
it is (`write`), the coordinator replaces the owner (`fence`), a person goes back by a new epoch (`rewind`).

Nothing here knows who should have what, nor when a checkpoint is to be written. Reading is tried again by the object
store; a swap whose outcome is unknown is settled by reading (`objects.retrying`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from partq_spark.base.effects import Effects, format_rfc3339
from partq_spark.base.errors import Conflict, Corrupt, Fenced, Invalid, PartqError
from partq_spark.group.codec import NUMBER, decode_checkpoint, encode_checkpoint
from partq_spark.group.model import UNBOUNDED, Checkpoint, GroupKey, Owner
from partq_spark.log.groups import removed
from partq_spark.log.model import Origin, at
from partq_spark.objects.api import Document, ObjectStore
from partq_spark.objects.retrying import Register, few_tries


@dataclass(frozen=True, kw_only=True, slots=True)
class Rewound:
    """What a rewind did: messages `[after.offset, before.offset)` were acknowledged and will be delivered again."""

    before: Checkpoint
    after: Checkpoint


class FenceRefused(Conflict):
    """The checkpoint has an epoch or an owner that the fence does not know of, and was left as it is: decide anew,
    with an epoch above `epoch`.
    """

    def __init__(self, message: str, epoch: int) -> None:
        super().__init__(message)
        self.epoch = epoch


class NotDrained(Conflict):
    """A drained fence met a checkpoint that is open: its owner raised it before it knew of the pause, and closes it."""


def checkpoint_folder(key: GroupKey) -> str:
    """Where a group's checkpoints lie in the object store, ending in '/' (CHK-01)."""
    return f"{key.namespace}/{key.queue}/{key.group}/checkpoint/"


class CheckpointStore:
    """The checkpoints of one group of one queue. Safe for use by several threads: it keeps nothing between calls.

    `key` has its names in lower case already. `since`: the sequence number of the head that the group was made with:
    what a former group of the name left counts for nothing, and a flow of a former one cannot write (every write
    raises `Fenced`) once the present one has written. `ends`: where each partition ended lately, for `marked` alone.
    `effects` is for the pauses between tries and for `updated`.
    """

    def __init__(
        self,
        store: ObjectStore,
        key: GroupKey,
        queue_id: str,
        *,
        since: int = 0,
        ends: tuple[int, ...] | None = None,
        effects: Effects | None = None,
    ) -> None:
        self._store = store
        self._key = key
        self._folder = checkpoint_folder(key)
        self._queue_id = queue_id
        self.since = since
        self._ends = ends
        self._effects = effects if effects is not None else Effects()

    def name_of(self, partition: int) -> str:
        """The blob of a partition."""
        return f"{self._folder}{partition}"

    def marked(self, found: Checkpoint) -> int:
        """How many messages its owner marks, at most: none but those that there are."""
        below = found.redelivered_below
        if self._ends is not None:
            below = min(below, at(self._ends, found.partition))
        return max(below - (found.offset or 0), 0)

    # --- reading ------------------------------------------------------------------------------------------------------

    def list_readable(self) -> tuple[Mapping[int, Checkpoint], Mapping[int, Corrupt]]:
        """All checkpoints by partition, by one listing with metadata (CHK-02), without ETags, and what is wrong with
        those that cannot be read. What has no partition's name is somebody else's. Raises `Unavailable`.
        """
        found: dict[int, Checkpoint] = {}
        damaged: dict[int, Corrupt] = {}
        for info in self._store.list(self._folder, values=True):
            last_part = info.name[len(self._folder) :]
            if NUMBER.fullmatch(last_part):
                partition = int(last_part)
                try:
                    found[partition] = self._decoded(partition, info.metadata, None)
                except Corrupt as problem:
                    damaged[partition] = problem if info.metadata else self._why(partition, problem)
        return dict(sorted(found.items())), dict(sorted(damaged.items()))

    def _why(self, partition: int, problem: Corrupt) -> Corrupt:
        """What is wrong with one that a listing shows without metadata: perhaps that it may not be read."""
        try:
            self.read(partition)
        except Invalid as error:
            return Corrupt(f"checkpoint {self.name_of(partition)} cannot be read: {error}")
        except PartqError:
            pass  # as was found
        return problem

    def read(self, partition: int) -> Checkpoint | None:
        """One checkpoint as it is now; None: there is none. Raises `Corrupt`, `Unavailable`."""
        document = self._store.load(self.name_of(partition))
        if not isinstance(document, Document):
            return None
        return self._decoded(partition, document.metadata, document.etag)

    def _decoded(self, partition: int, metadata: Mapping[str, str], etag: str | None) -> Checkpoint:
        return decode_checkpoint(self.name_of(partition), partition, metadata, etag, self._queue_id, self.since)

    # --- writing ------------------------------------------------------------------------------------------------------

    def fence(
        self,
        partition: int,
        *,
        to: Owner | None,
        epoch: int,
        replaces: Owner | None = None,
        start: int | None,
        known_epoch: int = 0,
        drained: bool = False,
        finished: int = 0,
        confirm: Callable[[Checkpoint | None], None] = lambda _: None,
    ) -> Checkpoint:
        """Give the partition to `to` (None: nobody) at `epoch`: whatever another owner writes from now on fails.

        `offset` and `may_reach` stay; a partition without a checkpoint begins at `start` (None: it is kept without,
        `checkpoints=none`). What the former owner may have delivered is marked, on top of what is marked already; a
        checkpoint that is missing although somebody had the partition (`known_epoch` above 0) was deleted: everything
        is. A `drained` fence replaces a closed checkpoint only. Where the group has `finished` everything before an
        offset, nothing is above that, unless somebody went back meanwhile. An epoch that the checkpoint has already is
        accepted only where its owner is `replaces`, the former instance of the same flow (LOS-01). A fence that is in
        place already is success, so that it may be repeated by anybody. `confirm` is told what is about to be replaced,
        each time that it was read; if it raises, nothing is changed.

        Raises `FenceRefused` with the epoch found if that is higher, or has another owner than the fence knows of, and
        `NotDrained`; nothing was changed. `Unavailable`: the outcome is unknown, repeat the call.
        """

        def fenced(found: Checkpoint | None) -> Checkpoint:
            if found is not None and found.is_of(self._queue_id, to, epoch):
                return found
            if found is not None and not self._may_fence(found, to, epoch, replaces):
                raise FenceRefused(
                    f"checkpoint {self.name_of(partition)} is {_owned(found)} and cannot be fenced for "
                    f"{to.flow if to else 'nobody'} at epoch {epoch}: decide anew with a higher epoch",
                    found.epoch,
                )
            if drained and found is not None and found.is_open:
                raise NotDrained(f"checkpoint {self.name_of(partition)} is open again: its owner closes it")
            confirm(found)
            return _finished(self._fenced(partition, found, start, known_epoch), finished, to, epoch, self._now())

        return self._change(partition, fenced)

    def _fenced(self, partition: int, found: Checkpoint | None, start: int | None, known_epoch: int) -> Checkpoint:
        """What the next owner takes over."""
        if found is not None and not found.is_void:
            return replace(found, redelivered_below=found.marked_below, queue_id=self._queue_id, since=self.since)
        return Checkpoint(
            partition=partition,
            epoch=0,
            owner=None,
            offset=start,
            redelivered_below=UNBOUNDED if found is None and known_epoch > 0 else 0,
            may_reach=start or 0,
            updated="",
            queue_id=self._queue_id,
            since=self.since,
            etag=found.etag if found is not None else None,
        )

    def write(
        self, held: Checkpoint, *, offset: int | None, may_reach: int, marked: int, origin: Origin | None, swap: bool
    ) -> Checkpoint:
        """What an owner says of a partition that it holds as `held`: acknowledged before `offset` (None: offsets are
        not kept), delivered up to `may_reach`, and its own mark. Returns it as it is now held. `origin`: the newest
        publish that was read when `offset` was acknowledged.

        One request where nobody else wrote; none where nothing changes, unless `swap` asks for it. After a failed or
        unknown outcome the checkpoint is read: while flow, instance and epoch are still those of `held`, the offset is
        merged forward, and it is swapped whatever it says, so that a write on its way fails. Raises `Fenced` if the
        partition is somebody else's now, `Unavailable` if the outcome is unknown; both may be repeated safely.
        """
        if held.etag is None:
            raise Invalid(
                f"checkpoint {self.name_of(held.partition)} comes from a listing and cannot be written: read it first"
            )
        must_swap = swap

        def said(found: Checkpoint | None) -> Checkpoint:
            nonlocal must_swap
            mine = self._still_held(found, held)
            done = max(offset, mine.offset or 0) if offset is not None else None
            wanted = replace(
                mine,
                offset=done,
                may_reach=max(may_reach, done or 0),
                redelivered_below=marked,
                origin=mine.origin if done == mine.offset else origin,
            )
            if wanted == mine and not must_swap:
                return mine
            must_swap = True  # from the first try on
            return replace(wanted, updated=self._now())

        return self._change(held.partition, said, known=held)

    def rewind(self, partition: int, offset: int) -> Rewound:
        """Go back to `offset`, at a new epoch without an owner: everything from there on is delivered again, marked. A
        flow that owns the partition loses it. Raises `Invalid` where there is no offset to go back from.
        """
        tried: list[Checkpoint] = []  # what each try went back from

        def rewound(found: Checkpoint | None) -> Checkpoint:
            name = self.name_of(partition)
            if (
                tried
                and found is not None
                and (found.epoch, found.owner, found.offset) == (tried[-1].epoch + 1, None, offset)
            ):
                return found  # the rewind that went out before its answer was lost
            if found is None or found.offset is None:
                raise Invalid(f"checkpoint {name} has no offset: there is nothing to rewind")
            if not 0 <= offset <= found.offset:
                raise Invalid(
                    f"checkpoint {name} is at offset {found.offset} and cannot be rewound to {offset}: "
                    f"give an offset from 0 to {found.offset}"
                )
            tried.append(found)
            return replace(
                found,
                epoch=found.epoch + 1,
                owner=None,
                offset=offset,
                may_reach=offset,
                origin=None,  # by the log as it is now
                redelivered_below=max(found.redelivered_below, found.offset, found.may_reach),
                updated=self._now(),
            )

        after = self._change(partition, rewound)
        return Rewound(before=tried[-1], after=after)

    # --- guards: one method each --------------------------------------------------------------------------------------

    def _may_fence(self, found: Checkpoint, to: Owner | None, epoch: int, replaces: Owner | None) -> bool:
        """Epochs grow; only a flow that comes back as a new instance takes its former instance's place at the same."""
        if found.epoch == epoch and to is not None and replaces is not None and found.owner == replaces:
            return to.flow == replaces.flow
        return found.epoch < epoch

    def _is_held(self, found: Checkpoint, held: Checkpoint) -> bool:
        """The same queue, flow, instance and epoch: what was written meanwhile was written by this very owner."""
        return found.is_of(held.queue_id, held.owner, held.epoch)

    def _still_held(self, found: Checkpoint | None, held: Checkpoint) -> Checkpoint:
        """`found`, as its owner has it. Raises `Fenced` if `held` is somebody else's now."""
        if found is None or not self._is_held(found, held):
            raise Fenced(
                f"checkpoint {self.name_of(held.partition)} is {_owned(found)}, not {_owned(held)}: "
                "stop delivering this partition"
            )
        return found

    # --- the swap -----------------------------------------------------------------------------------------------------

    def _change(
        self, partition: int, decide: Callable[[Checkpoint | None], Checkpoint], *, known: Checkpoint | None = None
    ) -> Checkpoint:
        """Swap in what `decide` makes of the present checkpoint, until it finds nothing to change. `known` saves the
        first read. Raises `Fenced` if the present one belongs to a group that was made after this one.
        """

        def present(document: Document) -> Checkpoint:
            found = self._decoded(partition, document.metadata, document.etag)
            if found.queue_id == self._queue_id and found.since > self.since:
                raise Fenced(removed(self._key, "was made again since, and this process stops"))
            return found

        name = self.name_of(partition)
        register = Register(self._store, name, what=f"checkpoint {name}", decode=present, encode=encode_checkpoint)
        if known is not None:
            register.keep(known, known.etag)
        found = register.change(decide, few_tries(self._effects), known=known is not None)
        return found if found.etag == register.etag else replace(found, etag=register.etag)

    def _now(self) -> str:
        return format_rfc3339(self._effects.time_us())


def _finished(made: Checkpoint, end: int, to: Owner | None, epoch: int, now: str) -> Checkpoint:
    """For `to` at `epoch`; of a partition that is finished at `end`, with nothing above that. One whose offset is below
    was rewound meanwhile, and is not finished.
    """
    if end and (made.offset is None or made.offset >= end):
        below, reach = min(made.redelivered_below, end), min(made.may_reach, end)
        made = replace(made, offset=end, redelivered_below=below, may_reach=max(reach, end))
    return replace(made, owner=to, epoch=epoch, updated=now)


def _owned(checkpoint: Checkpoint | None) -> str:
    """Whose it is, in words."""
    if checkpoint is None:
        return "gone"
    if checkpoint.owner is None:
        return f"nobody's at epoch {checkpoint.epoch}"
    owner = checkpoint.owner
    return f"flow {owner.flow}'s (instance {owner.instance}) at epoch {checkpoint.epoch}"
