"""How long a run of Trigger.AvailableNow waits, and for what."""

from __future__ import annotations

from partq_spark.group.claims import Claim, Standing, View
from partq_spark.query.available_now import AvailableNowTarget, Outlook
from tests.query.world import World

WAIT_S = 12.0  # rebalance delay, max-handoff-time and session timeout together


def view(standing: Standing, *partitions: int) -> View:
    claims = {
        p: Claim(partition=p, epoch=1, position=0, acknowledged=0, redelivered_below=0, paused=False)
        for p in partitions
    }
    return View(instance="i", standing=standing, claims=claims)


def test_a_flow_that_is_forgotten_while_it_waits_for_messages_waits_anew_for_an_answer() -> None:
    """What it waited for acknowledgements does not count as waiting for a coordinator, which has answered it before."""
    world = World(partitions=1, delay_s=4.0, handoff_s=3.0)
    world.publish(5)
    head = world.queue.refresh()
    target = AvailableNowTarget([5])

    def outlook(at_s: float, seen: View) -> Outlook:
        return target.outlook(seen, {0: 1}, head, session_timeout_s=5.0, now_s=at_s)

    held, forgotten = view(Standing.ACTIVE, 0), view(Standing.UNANSWERED)
    assert outlook(100.0, held) is Outlook.WAIT
    assert outlook(99.9 + WAIT_S, forgotten) is Outlook.WAIT
    assert outlook(99.8 + 2 * WAIT_S, forgotten) is Outlook.WAIT
    assert outlook(99.9 + 2 * WAIT_S, forgotten) is Outlook.UNANSWERED

    assert outlook(200.0, held) is Outlook.LATE, "its wait for messages began at 100 s"
