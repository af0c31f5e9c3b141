"""The manifests are what Kubernetes takes, name one another rightly, and run what partq has.

By Kubernetes' own schemas, for an early and a late version, with nothing that they do not know. No cluster takes part.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.docs.blocks import blocks
from tests.docs.spark_options import checked_options
from tests.support.command_line import takes

ROOT = Path(__file__).parents[2]
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
    page = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")
    secret = set(re.findall(r"--from-literal=(\w+)=", page))
    env = [each.get("valueFrom", {}) for container in containers() for each in container.get("env", ())]
    keys = {each["secretKeyRef"]["key"] for each in env if "secretKeyRef" in each}
    assert keys <= secret
    given |= secret
    assert given - known == {"POD_NAME", "JOB_NAME"}, "those of the examples' own"


def test_every_image_is_one_that_the_page_builds() -> None:
    page = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")
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
    """Probes and the policy; what is behind that port, `test_image` tries."""
    ports = {port["name"] for container in containers() for port in container.get("ports", ())}
    probes = [each[name] for each in containers() for name in ("livenessProbe", "readinessProbe") if name in each]
    assert {probe["httpGet"]["port"] for probe in probes} == ports
    policies = [each["spec"] for each in OURS if each["kind"] == "NetworkPolicy"]
    assert {port["port"] for spec in policies for rule in spec["ingress"] for port in rule["ports"]} == ports


def test_the_programs_in_the_manifests_are_such_as_partq_takes() -> None:
    found = [text for each in OURS for name, text in each.get("data", {}).items() if name.endswith(".py")]
    assert found
    for text in found:
        assert list(checked_options(ast.parse(text)))
