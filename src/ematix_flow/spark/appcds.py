"""Class archives: Java loads Spark's classes ready-made from a file instead of parsing thousands of them again.

An archive fits one Java build, one Spark and one class path, so these make its name. It is recorded once by
`spark/training.py`, in the background after a first run or in the foreground by `build`, and used by every later
start. One that is missing, damaged or of another build costs nothing but the time it would have saved.

`EMATIX_FLOW_APPCDS` = `auto` (default), `use` (never record in the background), `off`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

import ematix_flow
from ematix_flow.backends.jars import cache_root
from ematix_flow.contracts.session import SessionNeeds, SparkSettings
from ematix_flow.errors import InvalidConfig, listed
from ematix_flow.spark.jvm import Launch

log = logging.getLogger(__name__)

Mode = Literal["auto", "use", "off"]
VARIABLE = "EMATIX_FLOW_APPCDS"

_LESSON = "2"
"""Which classes the training loads. Another number makes archives of an older training unknown."""

_STALE_LOCK_S = 15 * 60
_UNUSED_S = 30 * 24 * 3600
_PAUSE_AFTER_FAILURE_S = 24 * 3600


def mode() -> Mode:
    """What the user wants done about archives."""
    told = os.environ.get(VARIABLE, "auto").strip().lower() or "auto"
    if told not in get_args(Mode):
        raise InvalidConfig(f"{VARIABLE} is set to something unknown.", fix=f"one of {listed(get_args(Mode))}")
    return cast(Mode, told)


@dataclass(frozen=True)
class Archive:
    """The archive that belongs to one way of starting Java; it may not exist yet."""

    path: Path

    @property
    def is_usable(self) -> bool:
        """Whether it is there and is, to the byte count and time stamp, the file that was recorded.

        Java checks the head of an archive but trusts its body, and a body that was cut or overwritten could take the
        process down.
        """
        try:
            noted = json.loads(self._note.read_text(encoding="ascii"))
            now = self.path.stat()
        except (OSError, ValueError):
            return False
        return bool(noted == _note_of(now))

    @property
    def is_worth_recording(self) -> bool:
        """Whether a background recording makes sense: none there, none under way, none failed lately.

        A cache in the temporary folder is somebody's throw-away home and would not live to use its archive.
        """
        return not (
            self.is_usable
            or _is_young(self._lock, _STALE_LOCK_S)
            or _is_young(self._failure, _PAUSE_AFTER_FAILURE_S)
            or Path(tempfile.gettempdir()).resolve() in self.path.resolve().parents
        )

    def using(self) -> list[str]:
        """The JVM flags that use it, and a note in the file that it was used."""
        with suppress(OSError):
            now = self.path.stat()
            os.utime(self.path, ns=(time.time_ns(), now.st_mtime_ns))
        return [f"-XX:SharedArchiveFile={self.path}", "-Xshare:auto"]

    def discard(self) -> None:
        """Remove an archive that Java could not start with."""
        for path in (self._note, self.path):
            path.unlink(missing_ok=True)

    @contextmanager
    def recording(self, is_accepted: Callable[[Path], bool]) -> Iterator[Path | None]:
        """A place to record to; put in place when the block ends well and the file is accepted.

        Gives None when another process is recording. Nobody ever sees half an archive: one that Java was stopped
        over while writing looks like a file, so being there is not enough.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self._take_lock():
            yield None
            return
        partial = self.path.with_suffix(f".{os.getpid()}.part")
        try:
            yield partial
            if partial.is_file() and is_accepted(partial):
                self._put_in_place(partial)
            else:
                self._failure.touch()
        except BaseException:
            self._failure.touch()
            raise
        finally:
            partial.unlink(missing_ok=True)
            self._lock.unlink(missing_ok=True)

    def _put_in_place(self, partial: Path) -> None:
        made = partial.stat()
        note = self._note.with_suffix(f".{os.getpid()}.note.part")
        note.write_text(json.dumps(_note_of(made)), encoding="ascii")
        os.replace(partial, self.path)
        os.replace(note, self._note)
        self._failure.unlink(missing_ok=True)
        _remove_unused(self.path.parent)

    def _take_lock(self) -> bool:
        if self._lock.exists() and not _is_young(self._lock, _STALE_LOCK_S):
            self._lock.unlink(missing_ok=True)  # whoever held it died: a recording takes a minute at most
        try:
            os.close(os.open(self._lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True

    @property
    def _note(self) -> Path:
        return self.path.with_suffix(".json")

    @property
    def _lock(self) -> Path:
        return self.path.with_suffix(".lock")

    @property
    def _failure(self) -> Path:
        return self.path.with_suffix(".failed")


def archive_for(launch: Launch, spark_version: str) -> Archive:
    """The archive of this Java, Spark and class path. Jars count by name, size and time, as Java itself compares."""
    digest = hashlib.sha256()
    flags = [flag for flag in (*launch.options, *launch.user_options()) if not flag.startswith("-D")]
    for part in (launch.java.build, str(launch.java.path), spark_version, _LESSON, *flags):
        digest.update(part.encode() + b"\0")
    for entry in launch.full_class_path():
        stat = entry.stat() if entry.is_file() else None
        digest.update(f"{entry}\0{stat.st_size if stat else 0}\0{stat.st_mtime_ns if stat else 0}\0".encode())
    name = f"java{launch.java.major}-spark{spark_version}-{digest.hexdigest()[:16]}.jsa"
    return Archive(cache_root() / "appcds" / name)


def is_accepted_by_java(launch: Launch, path: Path) -> bool:
    """Whether Java can use this archive with this class path; asked of a Java that does nothing else."""
    class_path = os.pathsep.join(str(entry) for entry in launch.full_class_path())
    flags = [*launch.options, *launch.user_options(), f"-XX:SharedArchiveFile={path}", "-Xshare:on"]
    command = [str(launch.java.executable), *flags, "-cp", class_path, "-version"]
    return subprocess.run(command, capture_output=True, timeout=120, check=False).returncode == 0


def record_in_background(needs: SessionNeeds, settings: SparkSettings) -> None:
    """Start recording in a process of its own, at low priority, cut off from this one's terminal and pipes.

    Called when a session that had no archive has ended. A failure here is no concern of the user's run.
    """
    cwd = cache_root()
    try:
        cwd.mkdir(parents=True, exist_ok=True)
        subprocess.Popen(
            training_command(needs, settings),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=training_environment(),
            cwd=cwd,
            start_new_session=True,
        )
    except (OSError, RuntimeError) as exc:
        log.debug("No class archive is recorded: %s", exc)


def build(needs: SessionNeeds | None = None, settings: SparkSettings | None = None, *, timeout_s: float = 300) -> bool:
    """Record the archive now and wait; True when it is there afterwards. For `make demo` and `flow jars fetch`."""
    command = training_command(needs or SessionNeeds(), settings or SparkSettings())
    cache_root().mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=training_environment(),
        cwd=cache_root(),
        timeout=timeout_s,
        check=False,
    )
    return done.returncode == 0


def training_command(needs: SessionNeeds, settings: SparkSettings) -> list[str]:
    """How to start a recording. Only what shapes the class path goes along; user settings may hold secrets."""
    shaping = ("spark.driver.extraClassPath", "spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
    order = {
        "jars": sorted(needs.jars),
        "master": settings.master,
        "conf": {key: value for key, value in settings.conf.items() if key in shaping},
        "driver_memory": settings.driver_memory,
    }
    return [sys.executable, "-m", "ematix_flow.spark.training", json.dumps(order)]


def training_environment() -> dict[str, str]:
    """This environment, with our package importable even when it runs from a source folder."""
    package = str(Path(next(iter(ematix_flow.__path__))).parent)
    paths: Sequence[str] = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _note_of(stat: os.stat_result) -> dict[str, int | bool]:
    return {"bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns, "accepted": True}


def _is_young(path: Path, age_s: float) -> bool:
    try:
        return time.time() - path.stat().st_mtime < age_s
    except OSError:
        return False


def _remove_unused(folder: Path) -> None:
    """Drop archives nobody used for a month and what dead recordings left; each is well over 100 MB."""
    now = time.time()
    for path in folder.iterdir():
        with suppress(OSError):
            stat = path.stat()
            if path.suffix == ".jsa" and now - max(stat.st_atime, stat.st_mtime) > _UNUSED_S:
                Archive(path).discard()
            elif path.suffix in (".part", ".lock", ".failed") and now - stat.st_mtime > _UNUSED_S / 15:
                path.unlink()
