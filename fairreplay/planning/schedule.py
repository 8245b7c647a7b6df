"""The entry of a scheduler that runs ``review``: crontab line, systemd units, Kubernetes CronJob. Paths are quoted."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from fairreplay.errors import UsageError

DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
NAME: Final = "fairreplay-review"
MOUNT: Final = "/data"
WEEK: Final = timedelta(days=7)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class When:
    """A time of the day in the scheduler's zone; ``day`` (0 = Sunday) where ``every`` is a week or more."""

    every: timedelta
    hour: int
    minute: int
    day: int

    @property
    def is_weekly(self) -> bool:
        return self.every >= WEEK

    @property
    def cron(self) -> str:
        """The five fields. Cron knows no fortnight: ``review --every`` passes over the runs in between."""
        if self.every < timedelta(days=1):
            return f"{self.minute} * * * *"
        return f"{self.minute} {self.hour} * * {self.day if self.is_weekly else '*'}"

    @property
    def calendar(self) -> str:
        """As systemd writes it."""
        if self.every < timedelta(days=1):
            return f"*-*-* *:{self.minute:02}:00"
        day = f"{DAYS[self.day].capitalize()} " if self.is_weekly else ""
        return f"{day}*-*-* {self.hour:02}:{self.minute:02}:00"


def when(every: timedelta, at: str, day: str) -> When:
    """Raises UsageError: ``at`` is no HH:MM, ``day`` no day of the week."""
    match = re.fullmatch(r"([01]?[0-9]|2[0-3]):([0-5][0-9])", at)
    if match is None:
        raise UsageError(f'--at {at!r}: must be a time of the day such as "03:00"')
    if day[:3].lower() not in DAYS:
        raise UsageError(f"--day {day!r}: must be one of {', '.join(DAYS)}")
    return When(every, int(match[1]), int(match[2]), DAYS.index(day[:3].lower()))


def checked(command: Sequence[str]) -> tuple[str, ...]:
    """``command`` if one line can hold it.

    Raises:
        UsageError: an argument holds a control character.
    """
    for argument in command:
        if _CONTROL.search(argument):
            raise UsageError(f"{argument!r}: no scheduler takes a control character in a path; rename it")
    return tuple(command)


def crontab(command: Sequence[str], folder: str, moment: When) -> dict[str, str]:
    """One line for ``crontab -e``; ``%`` would be a line break there."""
    line = f"cd {shlex.quote(folder)} && {shlex.join(checked(command))}"
    checked([folder])
    escaped = line.replace("%", "\\%")
    return {"crontab": f"{moment.cron} {escaped}\n"}


def units(command: Sequence[str], folder: str, moment: When) -> dict[str, str]:
    """A service that runs once, and the timer that starts it; what was missed while the machine was off is made up."""
    checked([folder])
    start = " ".join(map(_systemd, checked(command)))
    service = (
        "[Unit]\n"
        "Description=FairReplay review\n"
        "Documentation=man:systemd.service(5)\n"
        "\n"
        "[Service]\n"
        "Type=oneshot\n"
        f"WorkingDirectory={folder.replace('%', '%%')}\n"
        f"ExecStart={start}\n"
        "# 75: another run holds the store\n"
        "SuccessExitStatus=75\n"
        "Nice=10\n"
    )
    timer = (
        "[Unit]\n"
        "Description=FairReplay review\n"
        "\n"
        "[Timer]\n"
        f"OnCalendar={moment.calendar}\n"
        "Persistent=true\n"
        "RandomizedDelaySec=10min\n"
        "\n"
        "[Install]\n"
        "WantedBy=timers.target\n"
    )
    return {f"{NAME}.service": service, f"{NAME}.timer": timer}


def _systemd(argument: str) -> str:
    """An argument of ``ExecStart``: ``%`` and ``$`` stand for themselves."""
    plain = argument.replace("%", "%%").replace("$", "$$")
    if re.fullmatch(r"[A-Za-z0-9_@%+=:,./$-]+", plain):
        return plain
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def cron_job(command: Sequence[str], moment: When, image: str) -> dict[str, str]:
    """A CronJob whose relative paths stand on a volume claim; two never run at once. JSON strings are YAML."""
    arguments = "\n".join(f"                - {_yaml(argument)}" for argument in checked(command)[1:])
    text = f"""\
apiVersion: batch/v1
kind: CronJob
metadata:
  name: {NAME}
spec:
  schedule: {json.dumps(moment.cron)}
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: 3600
  successfulJobsHistoryLimit: 3
  failedJobsHistoryLimit: 3
  jobTemplate:
    spec:
      backoffLimit: 0
      template:
        spec:
          restartPolicy: Never
          containers:
            - name: review
              image: {json.dumps(checked([image])[0])}
              workingDir: {MOUNT}
              command: ["fairreplay"]
              args:
{arguments}
              resources:
                requests: {{cpu: "2", memory: 4Gi}}
                limits: {{memory: 8Gi}}
              volumeMounts:
                - name: data
                  mountPath: {MOUNT}
          volumes:
            - name: data
              persistentVolumeClaim:
                claimName: fairreplay
"""
    return {f"{NAME}.yaml": text}


def _yaml(argument: str) -> str:
    """A YAML string whose ``$(`` Kubernetes does not take for a variable."""
    return json.dumps(argument.replace("$(", "$$("), ensure_ascii=False)
