"""The files of ``deploy/``: valid against the formats' own schemas, and true to the program."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from suffixspec_index.log.redis_url import read_place

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
VERSIONS = ("1.28", "1.32", "1.37")

Object = dict[str, Any]


def compose() -> Object:
    loaded: Object = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


def manifests() -> list[Object]:
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    found: list[Object] = []
    for name in kustomization["resources"]:
        found += yaml.safe_load_all((KUBERNETES / name).read_text())
    return found


def of_kind(*kinds: str) -> list[Object]:
    return [found for found in manifests() if found["kind"] in kinds]


def workloads() -> list[Object]:
    return of_kind("Deployment", "StatefulSet")


def containers() -> Iterator[tuple[Object, Object]]:
    """Pod specs with each of their containers."""
    for workload in workloads():
        spec = workload["spec"]["template"]["spec"]
        for container in spec["containers"]:
            yield spec, container


# --- the program's command line ------------------------------------------------------------------


def commands() -> Iterator[list[str]]:
    """Every ``serve`` that a file runs."""
    for service in compose()["services"].values():
        if service["command"][0] == "serve":
            yield service["command"]
    for _, container in containers():
        if "args" in container:
            yield container["args"]
    for line in re.findall(r"^CMD (\[.*\])$", (DEPLOY / "Dockerfile").read_text(), re.M):
        yield yaml.safe_load(line)


def test_the_program_knows_every_option() -> None:
    import typer
    from typer.main import get_command

    from suffixspec.commands.serve import serve as command

    app = typer.Typer()
    app.command()(command)
    serve = get_command(app)
    known = {name for parameter in serve.params for name in parameter.opts}
    used = {a.partition("=")[0] for c in commands() for a in c if a.startswith("--")}
    assert used <= known
    assert {"--host", "--log", "--keys-file"} <= used


def test_every_url_of_a_log_can_be_read_and_holds_no_password() -> None:
    urls = [a.partition("=")[2] for c in commands() for a in c if a.startswith("--log=")]
    assert len(urls) == 3
    for url in urls:
        place = read_place(url, {})
        assert place.password is None
        assert place.password_file
        assert place.max_bytes == 256 << 20


def test_settings_in_the_environment_exist() -> None:
    from suffixspec.settings import load_settings

    for config in of_kind("ConfigMap"):
        for name, value in config["data"].items():
            if name.startswith("SUFFIXSPEC_"):
                setting = name.removeprefix("SUFFIXSPEC_").lower().replace("__", ".")
                load_settings(flags={setting: value})
    assert "SUFFIXSPEC_SERVICE__DATA_DIR=" in (DEPLOY / "Dockerfile").read_text()


# --- compose -------------------------------------------------------------------------------------


def test_compose_follows_the_specification() -> None:
    spec = pytest.importorskip("compose_spec")
    spec.PyCompose.from_yaml(yaml.safe_dump(compose())).validate()
    wrong = compose()
    wrong["services"]["redis"]["healthcheck"]["interval"] = "soon"
    with pytest.raises(ValueError, match="soon"):
        spec.PyCompose.from_yaml(yaml.safe_dump(wrong)).validate()


def test_docker_accepts_the_compose_file() -> None:
    docker = shutil.which("docker")
    asked = docker and subprocess.run([docker, "compose", "version"], capture_output=True)
    if not docker or not asked or asked.returncode:
        pytest.skip("docker compose is not installed")
    done = subprocess.run(
        [docker, "compose", "-f", str(DEPLOY / "compose.yaml"), "config", "--quiet"],
        capture_output=True,
        text=True,
        env=os.environ | {"TORCH_INDEX": ""},
    )
    assert done.returncode == 0, done.stderr


def test_compose_names_only_what_it_declares() -> None:
    file = compose()
    for service in file["services"].values():
        assert set(service["secrets"]) <= set(file["secrets"])
        assert set(service["networks"]) <= set(file["networks"])
        assert {v.partition(":")[0] for v in service["volumes"]} <= set(file["volumes"])
        assert set(service.get("depends_on", {})) <= set(file["services"])
        assert service["healthcheck"]["test"]
        assert service["deploy"]["resources"]["limits"]["memory"]
    replicas = [s for s in file["services"].values() if s["image"].startswith("suffixspec")]
    assert len(replicas) == 2
    ports = [port for replica in replicas for port in replica["ports"]]
    assert len(set(ports)) == len(ports) == 4
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert "redis_password" in str(file["services"]["redis"]["command"])


# --- the image -----------------------------------------------------------------------------------


def test_the_image_is_built_from_what_is_there_and_runs_without_root() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    for source in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.M):
        for name in source.split():
            assert (ROOT / name).exists()
            assert f"!{name}" in ignored
    stages = re.findall(r"^FROM \S+ AS (\S+)$", text, re.M)
    assert stages[-1] == "engine"  # the default
    assert set(re.findall(r"--from=(\S+)", text)) <= set(stages)
    assert {s["build"]["target"] for s in compose()["services"].values() if "build" in s} == {
        "engine"
    }
    runtime = text.partition(" AS runtime")[2]
    assert re.search(r"^USER 10001:10001$", runtime, re.M)
    assert "USER root" not in text


# --- kubernetes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_follow_the_schemas_of_kubernetes(version: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for manifest in manifests():
        kubernetes_validate.validate(manifest, version, strict=True)


def test_selectors_find_their_pods() -> None:
    labels = [w["spec"]["template"]["metadata"]["labels"] for w in workloads()]
    for workload in workloads():
        wanted = workload["spec"]["selector"]["matchLabels"]
        assert wanted.items() <= workload["spec"]["template"]["metadata"]["labels"].items()
    for service in of_kind("Service"):
        assert any(service["spec"]["selector"].items() <= found.items() for found in labels)
    for budget in of_kind("PodDisruptionBudget"):
        wanted = budget["spec"]["selector"]["matchLabels"]
        (covered,) = [
            w for w in workloads() if wanted.items() <= w["spec"]["selector"]["matchLabels"].items()
        ]
        assert budget["spec"]["minAvailable"] < covered["spec"]["replicas"]


def test_ports_that_are_named_exist() -> None:
    for _, container in containers():
        named = {port["name"] for port in container["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert probe in container
            for check in ("httpGet", "tcpSocket"):
                if check in container[probe]:
                    assert container[probe][check]["port"] in named
    named = {port["name"] for _, container in containers() for port in container["ports"]}
    for service in of_kind("Service"):
        assert all(port["targetPort"] in named for port in service["spec"]["ports"])


def test_volumes_and_secrets_that_are_named_exist() -> None:
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    secrets = {made["name"]: made["files"] for made in kustomization["secretGenerator"]}
    configs = {config["metadata"]["name"] for config in of_kind("ConfigMap")}
    for workload in workloads():
        spec = workload["spec"]["template"]["spec"]
        volumes = {volume["name"] for volume in spec["volumes"]}
        volumes |= {v["metadata"]["name"] for v in workload["spec"].get("volumeClaimTemplates", ())}
        for container in spec["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        for volume in spec["volumes"]:
            assert "secret" not in volume or volume["secret"]["secretName"] in secrets
            assert "configMap" not in volume or volume["configMap"]["name"] in configs
    for made in secrets.values():
        for file in made:
            path = file.partition("=")[2]
            ignored = subprocess.run(
                ["git", "check-ignore", "-q", str(KUBERNETES / path)], cwd=ROOT
            )
            assert ignored.returncode == 0, f"{path} could be committed"


def test_paths_that_the_program_is_given_are_mounted() -> None:
    for _, container in containers():
        mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
        for path in re.findall(r"(?:=|cat )(/[\w./-]+)", str(container)):
            assert any(path.startswith(mount) for mount in mounts), path


def test_pods_have_no_more_rights_than_they_need() -> None:
    for spec, container in containers():
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["automountServiceAccountToken"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        assert container["resources"]["requests"]["memory"]
        assert container["resources"]["limits"]["memory"]


def test_a_pod_has_time_to_drain() -> None:
    (deployment,) = of_kind("Deployment")
    spec = deployment["spec"]["template"]["spec"]
    config = {k: v for c in of_kind("ConfigMap") for k, v in c["data"].items()}
    leave = int(spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    drain = int(config["SUFFIXSPEC_SERVICE__DRAIN_SECONDS"])
    assert leave + drain < spec["terminationGracePeriodSeconds"]


def test_redis_as_deployed_never_evicts_and_keeps_what_it_has() -> None:
    (config,) = [c["data"]["redis.conf"] for c in of_kind("ConfigMap") if "redis.conf" in c["data"]]
    for text in (config, str(compose()["services"]["redis"]["command"])):
        for line in ("maxmemory 1gb", "maxmemory-policy noeviction", "appendonly yes", "dir /data"):
            assert line in text
