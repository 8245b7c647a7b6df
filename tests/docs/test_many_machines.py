"""The page on many machines: its manifests parse, name each other, and run commands and options that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from fairreplay.cli.app import app
from fairreplay.config.load import DEFAULT_NAME
from fairreplay.errors import BadInputError, ClusterError, StoreBusyError, StoreError, UsageError
from fairreplay.store import objects
from tests.docs.blocks import blocks

PAGE = Path(__file__).parents[2] / "docs" / "many-machines.md"
TEXT = PAGE.read_text(encoding="utf-8")
MANIFESTS = [document for language, code in blocks(PAGE) if language == "yaml" for document in yaml.safe_load_all(code)]
CLUSTER, CRON = ({one["kind"]: one for one in MANIFESTS}[kind] for kind in ("RayCluster", "CronJob"))
POD = CRON["spec"]["jobTemplate"]["spec"]["template"]["spec"]
(REVIEW,) = POD["containers"]
ENV = {one["name"]: one["value"] for one in REVIEW["env"]}


def ray_option(line: str) -> None:
    from ray.scripts.scripts import cli

    name, *arguments = shlex.split(line)
    cli.commands[name].make_context(name, arguments).close()


def lines() -> list[str]:
    """Every command of the manifests and the page: of the shell's, what comes before ``||``."""
    scripts = [argument for argument in REVIEW["args"] if "\n" in argument]
    indented = re.findall(r"^    (\S.*)", re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL), re.MULTILINE)
    return [line.split("||")[0].split(" #")[0].strip() for line in [*"".join(scripts).splitlines(), *indented]]


def test_every_command_and_option_of_the_page_exists() -> None:
    seen = []
    for line in lines():
        words = re.sub(r"^(?:[A-Z_]+=\S+ )+", "", line)
        program, _, rest = words.partition(" ")
        seen.append(program)
        if program == "ray":
            ray_option(rest)
        elif program == "fairreplay":
            name, *arguments = shlex.split(rest)
            typer.main.get_command(app).commands[name].make_context(name, arguments).close()  # type: ignore[attr-defined]
    assert seen.count("ray") >= 4
    assert seen.count("fairreplay") >= 8
    assert set(seen) <= {"ray", "fairreplay", "pip", "code=$?", "exit"}


def test_the_manifests_belong_together() -> None:
    assert (CLUSTER["apiVersion"], CRON["apiVersion"]) == ("ray.io/v1", "batch/v1")
    head = f"{CLUSTER['metadata']['name']}-head-svc:6379"  # as KubeRay's operator names a head's service
    assert ENV["RAY_ADDRESS"] == head
    assert f"--address={head}" in REVIEW["args"][0]
    images = {
        *(one["image"] for one in CLUSTER["spec"]["headGroupSpec"]["template"]["spec"]["containers"]),
        *(one["image"] for group in CLUSTER["spec"]["workerGroupSpecs"] for one in containers(group)),
        REVIEW["image"],
    }
    assert len(images) == 1
    assert f"rayproject/ray:{CLUSTER['spec']['rayVersion']}-" in TEXT
    assert {one["name"] for one in REVIEW["volumeMounts"]} == {one["name"] for one in POD["volumes"]}
    mounted = {one["mountPath"] for one in REVIEW["volumeMounts"]}
    assert ENV["FAIRREPLAY_CONFIG"] in {f"{folder}/{DEFAULT_NAME}" for folder in mounted}
    assert CRON["spec"]["concurrencyPolicy"] == "Forbid"
    assert re.fullmatch(r"[-0-9*/,]+( [-0-9*/,]+){4}", CRON["spec"]["schedule"])


def containers(group: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = group["template"]["spec"]["containers"]
    return found


def test_what_is_tried_again_is_what_may_go_better_then() -> None:
    (rule,) = CRON["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    final = {UsageError.exit_code, BadInputError.exit_code, 4, StoreError.exit_code}
    assert set(rule["onExitCodes"]["values"]) == final
    assert final.isdisjoint({ClusterError.exit_code, StoreBusyError.exit_code})
    assert POD["restartPolicy"] == "Never"


@pytest.mark.parametrize("name", ["RAY_ADDRESS", "FAIRREPLAY_STORE", "FAIRREPLAY_CONFIG"])
def test_the_variables_are_those_that_are_read(name: str) -> None:
    sources = (Path(__file__).parents[2] / "fairreplay").rglob("*.py")
    assert name in ENV
    assert any(f'"{name}"' in path.read_text(encoding="utf-8") for path in sources)


def test_the_times_of_the_lock_are_those_of_the_code() -> None:
    assert f"renewed every {objects.RENEW_S} s" in " ".join(TEXT.split())
    assert f"{objects.LEASE_S // 60} minutes after it was last renewed" in " ".join(TEXT.split())
