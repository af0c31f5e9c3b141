"""The sdist makes the wheel; the Dockerfile's words are right, and what it installs is enough for what the manifests
run; the manifests are what Kubernetes takes, name one another rightly, and run what partq has.

No image is built (the file and docs/operate.md say so): its Python environment is put together from what is
installed here. No cluster takes part: Kubernetes' own schemas are asked, for an early and a late version.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement

from tests.cast.sidecars import Sidecar
from tests.docs.blocks import blocks
from tests.docs.spark_options import checked_options
from tests.release.check import build, check_contents
from tests.support.command_line import takes
from tests.support.waiting import wait_until
from tools.servers import Prometheus, RedisServer, running

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
FOLDER = ROOT / "conf/kubernetes"
VERSIONS = ("1.29", "1.37")  # before 1.29 a Job's pods have its name under another label
Manifest = dict[str, Any]

OURS: list[Manifest] = [
    each for file in sorted(FOLDER.glob("*.yaml")) for each in yaml.safe_load_all(file.read_text(encoding="utf-8"))
]
IN_DOCUMENTS: list[Manifest] = [
    each
    for block in blocks()
    if block.language == "yaml"
    for each in yaml.safe_load_all(block.text)
    if "apiVersion" in each
]


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
    return build(source, "wheel", folder)


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


@pytest.mark.redis
@pytest.mark.crash
@pytest.mark.prometheus
@pytest.mark.slow
def test_the_image_has_what_the_manifest_runs_and_prometheus_sees_it(tmp_path: Path, redis_server: RedisServer) -> None:
    python = environment(tmp_path)
    # azure:, which the manifest's store is, and what a query's pod imports beside it.
    needed = "import azure.identity, opentelemetry.trace, partq_spark.objects.azure, pyspark_partq"
    subprocess.run([python, "-c", needed], check=True, timeout=60)
    (container,) = (each for each in containers() if each["command"][:2] == ["partq", "coordinator"])
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


def test_the_image_runs_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = DOCKERFILE.partition(" AS coordinator\n")[2].partition("\nFROM ")[0]
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", stage, re.MULTILINE)
    (command,) = re.findall(r"^CMD (.*)$", stage, re.MULTILINE)
    assert json.loads(entry) == ["partq"]
    assert takes(json.loads(command), monkeypatch).exit_code == 0
    assert re.search(r"^USER 10001$", stage, re.MULTILINE), "not as root, as the manifests ask"


# --- manifests ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "manifest", [*OURS, *IN_DOCUMENTS], ids=lambda each: f"{each['kind']}-{each['metadata']['name']}"
)
def test_kubernetes_takes_it(manifest: Manifest, version: str) -> None:
    assert kubernetes_validate.validate(manifest, version, strict=True) == version


def pod_templates() -> Iterator[Manifest]:
    for manifest in OURS:
        spec = manifest.get("spec", {})
        template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
        if template:
            yield template


def containers() -> list[Manifest]:
    return [container for template in pod_templates() for container in template["spec"]["containers"]]


def test_selectors_find_their_pods() -> None:
    labels = [template["metadata"]["labels"] for template in pod_templates()]
    for manifest in OURS:
        spec = manifest.get("spec", {})
        selector = spec.get("selector", spec.get("podSelector"))
        if selector:
            wanted = selector.get("matchLabels", selector)
            assert [each for each in labels if wanted.items() <= each.items()], manifest["metadata"]


def test_what_a_pod_names_is_there() -> None:
    """But for the secret and the claim with the data, which the page and the manifest say to make."""
    maps = {each["metadata"]["name"] for each in OURS if each["kind"] == "ConfigMap"}
    accounts = {each["metadata"]["name"] for each in OURS if each["kind"] == "ServiceAccount"}
    claims = {
        claim["metadata"]["name"] for each in OURS for claim in each.get("spec", {}).get("volumeClaimTemplates", [])
    }
    for template in pod_templates():
        spec = template["spec"]
        assert spec.get("serviceAccountName") in {None, *accounts}
        volumes = {each["name"] for each in spec.get("volumes", [])}
        assert {each["configMap"]["name"] for each in spec.get("volumes", []) if "configMap" in each} <= maps
        for container in spec["containers"]:
            assert {each["name"] for each in container["volumeMounts"]} <= volumes | claims
            sources = container["envFrom"]
            assert {each["configMapRef"]["name"] for each in sources if "configMapRef" in each} <= maps
            assert {each["secretRef"]["name"] for each in sources if "secretRef" in each} == {"partq"}


def test_every_variable_is_one_that_partq_reads() -> None:
    known = set(re.findall(r"^#?(\w+)=", (ROOT / "conf/partq.env").read_text(encoding="utf-8"), re.MULTILINE))
    given = {name for each in OURS if each["kind"] == "ConfigMap" for name in each["data"] if name.isupper()}
    given |= {each["name"] for container in containers() for each in container.get("env", [])}
    page = (ROOT / "docs/operate.md").read_text(encoding="utf-8")
    secret = set(re.findall(r"--from-literal=(\w+)=", page))
    env = [each.get("valueFrom", {}) for container in containers() for each in container.get("env", ())]
    keys = {each["secretKeyRef"]["key"] for each in env if "secretKeyRef" in each}
    assert keys <= secret
    given |= secret
    assert given - known == {"POD_NAME", "JOB_NAME"}, "those of the examples' own"


def test_every_image_is_one_that_the_page_builds() -> None:
    page = (ROOT / "docs/operate.md").read_text(encoding="utf-8")
    built = dict(re.findall(r"docker build --target (\w+) -t (\S+)", page))
    targets = set(re.findall(r"^FROM \S+ AS (\w+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(built) <= targets
    assert {container["image"] for container in containers()} == set(built.values())


def test_the_command_line_takes_what_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    run = [[*each["command"], *each.get("args", [])] for each in containers()]
    ours = [words[1:] for words in run if words[0] == "partq"]
    assert len(ours) == 2
    for words in ours:
        path = [str(Path(__file__)) if word.startswith("/data/") else word for word in words]
        done = takes(path, monkeypatch)
        assert done.exit_code == 0, done.output


def test_what_asks_a_container_names_its_port() -> None:
    """Probes and the policy; and it is the port that is served."""
    (served,) = re.findall(
        r"^#PARTQ_COORDINATOR_HEALTH_PORT=(\d+)$", (ROOT / "conf/partq.env").read_text(), re.MULTILINE
    )
    given = [port for container in containers() for port in container.get("ports", ())]
    assert given == [{"name": "health", "containerPort": int(served)}]
    ports = {"health"}
    probes = [each[name] for each in containers() for name in ("livenessProbe", "readinessProbe") if name in each]
    assert {probe["httpGet"]["port"] for probe in probes} == ports
    policies = [each["spec"] for each in OURS if each["kind"] == "NetworkPolicy"]
    assert {port["port"] for spec in policies for rule in spec["ingress"] for port in rule["ports"]} == ports


def test_the_programs_in_the_manifests_are_such_as_partq_takes() -> None:
    found = [text for each in OURS for name, text in each.get("data", {}).items() if name.endswith(".py")]
    assert found
    for text in found:
        assert list(checked_options(ast.parse(text)))
