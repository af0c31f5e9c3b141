"""The sdist makes the wheel; the Dockerfile's words are right, and what it installs is enough for what the manifest
runs. No image is built (the file and docs/kubernetes.md say so): its Python environment is put together from what is
installed here.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml
from packaging.requirements import Requirement

from tests.cast.sidecars import Sidecar
from tests.release.check import build, check_contents
from tests.support.command_line import takes
from tests.support.servers import Prometheus, RedisServer, running
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def copied() -> list[str]:
    """What is copied from the project into the image."""
    lines = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    return [name for line in lines for name in line.split()]


def test_what_is_copied_is_there_and_let_through() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert lines[1] == "*", "all but what is named"
    let_through = {line[1:] for line in lines if line.startswith("!")}
    assert set(copied()) == let_through
    assert [name for name in copied() if not (ROOT / name).exists()] == []


def built(folder: Path) -> Path:
    """The wheel, from what is copied."""
    source = folder / "source"
    source.mkdir()
    for name in copied():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=60)
    (wheel,) = folder.glob("partq-*.whl")  # as the Dockerfile finds it
    return wheel


def environment(folder: Path) -> str:
    """The Python of the image: the wheel, and of what is installed here what its extras in the Dockerfile ask for."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "image")], check=True, timeout=60)
    (site,) = (folder / "image").glob("lib/*/site-packages")
    wheel = built(folder)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        needs = re.findall(r"^Requires-Dist: (.*)$", archive.read(metadata).decode(), re.MULTILINE)
    (extras,) = re.findall(r'^RUN pip install .*\.whl\)\[([\w,]+)\]"', DOCKERFILE, re.MULTILINE)
    wanted = [(Requirement(each), extra) for each in needs for extra in ("", *extras.split(","))]
    seen: set[tuple[str, str]] = set()
    while wanted:
        need, extra = wanted.pop()
        if need.marker is not None and not need.marker.evaluate({"extra": extra}):
            continue
        found = distribution(need.name)
        for name in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / name).exists():
                (site / name).symlink_to(Path(str(found.locate_file(name))))
        for more in {"", *need.extras} - {extra for name, extra in seen if name == need.name}:
            seen.add((need.name, more))
            wanted += [(Requirement(each), more) for each in found.requires or ()]
    return str(folder / "image/bin/python")


def coordinator_container() -> dict[str, Any]:
    for manifest in yaml.safe_load_all((ROOT / "conf/kubernetes/coordinator.yaml").read_text(encoding="utf-8")):
        if manifest["kind"] == "Deployment":
            (container,) = manifest["spec"]["template"]["spec"]["containers"]
            return dict(container)
    raise AssertionError


@pytest.mark.redis
@pytest.mark.crash
@pytest.mark.prometheus
@pytest.mark.slow
def test_what_the_image_has_is_enough_for_what_the_manifest_runs_and_prometheus_sees_it(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    python = environment(tmp_path)
    # azure:, which the manifest's store is, and what a query's pod imports beside it.
    needed = "import azure.identity, opentelemetry.trace, partq_spark.objects.azure, pyspark_partq"
    subprocess.run([python, "-c", needed], check=True, timeout=60)
    container = coordinator_container()
    token = "0123456789abcdef" * 4
    given = {each["name"]: each.get("value", token) for each in container["env"]}
    given |= {"PARTQ_COORDINATOR_NAME": "c1", "PARTQ_STORE": f"file://{tmp_path}/store"}
    command = (python, "-c", "from partq_spark.cli.main import main; main()", *container["command"][1:])
    with Sidecar(tmp_path, "c1", {**given, "PARTQ_OWNERSHIP": redis_server.url}, command) as sidecar:
        wait_until(sidecar.is_ready, "the coordinator, or see c1.log", wait_s=60)
        (started,) = sidecar.lines("started")
        assert started["page"] is True

        def status(path: str, **headers: str) -> int:
            """Asked for as from outside: 127.0.0.2 is not where health is served by default."""
            try:
                with urlopen(Request(f"http://127.0.0.2:{sidecar.port}{path}", headers=headers), timeout=20) as answer:
                    return int(answer.status)
            except HTTPError as error:
                with error:
                    return error.code

        probes = [container[probe]["httpGet"] for probe in ("livenessProbe", "readinessProbe")]
        assert [status(probe["path"], Host="10.1.2.3:8095") for probe in probes] == [200, 200]
        assert [status(path, Authorization=f"Bearer {token}") for path in ("/metrics", "/")] == [200, 200]
        assert status("/metrics") == 401
        config = yaml.safe_load((ROOT / "conf/prometheus/kubernetes.yml").read_text(encoding="utf-8"))
        (job,) = config["scrape_configs"]
        assert "authorization" in job
        with running(Prometheus({job["job_name"]: [f"127.0.0.2:{sidecar.port}"]}, token=token)) as prometheus:
            wait_until(lambda: bool(prometheus.ask("query", query="partq_coordinator_ready == 1")["result"]), "scrape")
            query = 'ALERTS{alertname="PartqNoCoordinator"}'  # pending or firing; seen before the first scrape, perhaps
            wait_until(lambda: not prometheus.ask("query", query=query)["result"], "silence of the alert")


@pytest.mark.slow
def test_the_sdist_is_whole_and_makes_the_same_wheel(tmp_path: Path) -> None:
    """As far as can be told without installing what they need, which `scripts/release-check` does."""
    check_contents(build(ROOT, "wheel", tmp_path), build(ROOT, "sdist", tmp_path), tmp_path / "source")


def test_the_manifest_names_the_port_that_is_served() -> None:
    container = coordinator_container()
    (port,) = re.findall(r"^#PARTQ_COORDINATOR_HEALTH_PORT=(\d+)$", (ROOT / "conf/partq.env").read_text(), re.MULTILINE)
    assert container["ports"] == [{"name": "health", "containerPort": int(port)}]


def test_the_image_runs_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = DOCKERFILE.partition(" AS coordinator\n")[2].partition("\nFROM ")[0]
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", stage, re.MULTILINE)
    (command,) = re.findall(r"^CMD (.*)$", stage, re.MULTILINE)
    assert json.loads(entry) == ["partq"]
    assert takes(json.loads(command), monkeypatch).exit_code == 0
    assert re.search(r"^USER 10001$", stage, re.MULTILINE), "not as root, as the manifests ask"
