"""The store goes away while queries publish and read, and comes back: patient ones go on, an impatient one fails."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from partq_spark.log.admin import create_queue
from partq_spark.objects import open_store
from tests.spark.crash.relay import State
from tests.support.messages import assert_published, open_queue, write_files
from tests.support.processes import Program, spark_environment
from tests.support.servers import Azurite, running

SCRIPT = Path(__file__).with_name("relay.py")
BEFORE, FILES, ROWS = 2, 12, 30
OUTAGE_S = 4.0
"""At least: the store stays away until the impatient query has failed."""
IMPATIENCE_S = 1.0


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.azurite
@pytest.mark.timeout(500)
def test_store_goes_away_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(Azurite()) as azurite:
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string)
        url = azurite.fresh_url()
        store = open_store(url, retry_timeout_s=10)
        for queue in ("flow", "relayed", "dropped"):
            create_queue(store, "default", queue, 3)
        folder = tmp_path / "driver"
        environment = spark_environment(folder, {"AZURE_STORAGE_CONNECTION_STRING": azurite.connection_string})
        plan = {
            "store": url,
            "input": f"{tmp_path}/input",
            "checkpoints": f"{tmp_path}/checkpoints",
            "retry": {"publish": "2m", "relay": "2m", "impatient": f"{IMPATIENCE_S}s"},
        }

        def states() -> dict[str, State]:
            path = folder / "states.json"
            found: dict[str, State] = json.loads(path.read_text()) if path.exists() else {}
            return found

        handles = {queue: open_queue(url, queue) for queue in ("flow", "relayed", "dropped")}

        def count(queue: str) -> int:
            return sum(handles[queue].refresh().next)

        write_files(tmp_path / "input", BEFORE, ROWS)
        with Program.script(SCRIPT, plan, name="driver", folder=folder, environment=environment) as driver:
            driver.wait_until(
                lambda: count("relayed") == count("dropped") == BEFORE * ROWS, "the first rows everywhere"
            )
            runs = {name: each["run"] for name, each in states().items()}
            rows = write_files(tmp_path / "input", FILES, ROWS)
            driver.wait_until(lambda: count("flow") > BEFORE * ROWS, "more rows")

            azurite.shut_down()
            down_at_s = time.time()
            failed = driver.wait_until(lambda: states()["impatient"]["ended_at_s"], "the impatient query's end")
            error = states()["impatient"]["error"]
            time.sleep(max(0.0, down_at_s + OUTAGE_S - time.time()))
            azurite.start()

            (folder / "restart").write_text("impatient")
            driver.wait_until(lambda: count("relayed") == count("dropped") == FILES * ROWS, "all rows everywhere")
            for queue in ("flow", "relayed", "dropped"):
                assert_published(url, queue, rows, order="key")
            after = states()

        assert {name for name in runs if after[name]["run"] == runs[name]} == {"publish", "relay"}
        assert all(each["active"] for each in after.values())
        assert driver.text().count("trying again for up to 120 s") >= 2

        # Bounded: the option's time, and what Spark takes on a busy machine. The error says what happened, although
        # Spark lets the sink abort the batch, without a store, before it raises it.
        assert failed is not None
        assert failed - down_at_s < IMPATIENCE_S + 20
        assert "failed to abort" not in driver.text()
        assert f"store {url}" in error
        assert f"option retryTimeout, {IMPATIENCE_S:g} s" in error
        assert azurite.account in error
        assert azurite.key not in error
        assert azurite.key not in driver.text()
