"""Finding a Java runtime that Spark can use, without starting one.

Spark 4.0 runs on Java 17 and 21. Newer ones fail while the context starts, so a `JAVA_HOME` that points at one is
passed over and a fitting Java elsewhere on the machine is taken instead.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ematix_flow.errors import MissingJava

log = logging.getLogger(__name__)

USABLE_MAJORS = (17, 21)
"""Java versions that Spark 4.0 runs on, the preferred one first."""

OWN_VARIABLE = "EMATIX_FLOW_JAVA_HOME"

INSTALL_HINT = (
    "install Java 17: Debian/Ubuntu `sudo apt install openjdk-17-jre-headless`, "
    "macOS `brew install openjdk@17`, Windows `winget install EclipseAdoptium.Temurin.17.JRE`, "
    f"conda `conda install -c conda-forge openjdk=17`; or point {OWN_VARIABLE} at one"
)


@dataclass(frozen=True)
class JavaHome:
    """One Java installation.

    Attributes:
        path: The home folder, the one that holds `bin/java`.
        version: The version it gives itself, such as `17.0.15`.
        build: The exact build when known; class archives belong to one build.
    """

    path: Path
    version: str
    build: str

    @property
    def major(self) -> int:
        """The number people say: 17 for `17.0.15`, 8 for `1.8.0_402`."""
        return major_of(self.version)

    @property
    def executable(self) -> Path:
        """The `java` program of this home."""
        return self.path / "bin" / _PROGRAM

    @property
    def is_usable(self) -> bool:
        """Whether our Spark runs on it."""
        return self.major in USABLE_MAJORS


def major_of(version: str) -> int:
    """The major number of a Java version; 0 when it has none.

    >>> major_of("17.0.15"), major_of("1.8.0_402"), major_of("21-ea"), major_of("?")
    (17, 8, 21, 0)
    """
    numbers = re.findall(r"\d+", version)
    if not numbers:
        return 0
    return int(numbers[1]) if numbers[0] == "1" and len(numbers) > 1 else int(numbers[0])


def find_java() -> JavaHome:
    """The Java that Spark is to be started with.

    Asked in order: `EMATIX_FLOW_JAVA_HOME`, `JAVA_HOME`, `java` on the PATH, the usual folders (there, Java 17 goes
    before 21). An unusable one is passed over, except one that `EMATIX_FLOW_JAVA_HOME` asks for by name.

    Raises:
        MissingJava: Nothing usable; the error lists what was found.
    """
    seen: list[str] = []
    own = os.environ.get(OWN_VARIABLE)
    if own:
        java = _inspect(Path(own).expanduser())
        if java and java.is_usable:
            return java
        found = f"holds Java {java.version}" if java else "holds no Java"
        raise MissingJava(
            f"{OWN_VARIABLE} points at a folder that {found}; Spark needs Java 17 or 21.",
            tried=[f"{OWN_VARIABLE}={own}"],
            fix=f"point {OWN_VARIABLE} at the home of a Java 17, or unset it",
        )
    for origin, home in _named_homes():
        java = _inspect(home)
        if java is None:
            seen.append(f"{origin}: no Java there")
        elif java.is_usable:
            return _chosen(java, origin, seen)
        else:
            seen.append(f"{origin}: Java {java.version}")
    elsewhere = [java for home in _usual_homes() if (java := _inspect(home))]
    usable = sorted((java for java in elsewhere if java.is_usable), key=lambda java: USABLE_MAJORS.index(java.major))
    if usable:
        return _chosen(usable[0], "usual folders", seen)
    seen += [f"{java.path}: Java {java.version}" for java in elsewhere]
    what = "None of the Java runtimes found can run Spark, which needs 17 or 21." if elsewhere or seen else None
    raise MissingJava(
        what or "Spark needs Java 17 or 21, and no Java was found.",
        tried=seen or [OWN_VARIABLE, "JAVA_HOME", "PATH", "usual folders"],
        fix=INSTALL_HINT,
    )


# ── one home ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_PROGRAM = "java.exe" if sys.platform == "win32" else "java"


def _chosen(java: JavaHome, origin: str, passed_over: list[str]) -> JavaHome:
    if passed_over:
        log.debug("Java %s from %s is used; passed over: %s", java.version, origin, "; ".join(passed_over))
    return java


def _inspect(home: Path) -> JavaHome | None:
    """What is installed at `home`, read from its `release` file; only without one is Java asked itself."""
    if not os.access(home / "bin" / _PROGRAM, os.X_OK):
        return None
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = _ask_java(home)
    facts = dict(re.findall(r'^\s*([\w.]+)\s*=\s*"?([^"\n]*)"?', text, flags=re.MULTILINE))
    version = facts.get("JAVA_VERSION") or facts.get("java.version")
    if not version:
        return None
    build = facts.get("JAVA_RUNTIME_VERSION") or facts.get("java.runtime.version") or version
    return JavaHome(home, version.strip(), f"{facts.get('IMPLEMENTOR', '')} {build}".strip())


def _ask_java(home: Path) -> str:
    """The properties a running Java tells of itself; empty when it does not run (the macOS stub, another machine's)."""
    command = [str(home / "bin" / _PROGRAM), "-XshowSettings:properties", "-version"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return ""


# ── where to look ────────────────────────────────────────────────────────────────────────────────────────────────────


def _named_homes() -> Iterator[tuple[str, Path]]:
    """The homes the environment speaks of."""
    java_home = os.environ.get("JAVA_HOME")
    if java_home:
        yield "JAVA_HOME", Path(java_home)
    program = shutil.which("java")
    if program:
        yield "PATH", Path(os.path.realpath(program)).parent.parent


def _usual_homes() -> Iterator[Path]:
    """The homes that package managers use, each once even when several names lead to it."""
    user = Path.home()
    patterns = [
        (Path("/usr/lib/jvm"), "*"),
        (Path("/Library/Java/JavaVirtualMachines"), "*/Contents/Home"),
        (Path("/opt/homebrew/opt"), "openjdk*/libexec/openjdk.jdk/Contents/Home"),
        (Path("/usr/local/opt"), "openjdk*/libexec/openjdk.jdk/Contents/Home"),
        (user / ".sdkman/candidates/java", "*"),
        (user / ".jdks", "*"),
    ]
    if sys.platform == "win32":
        programs = Path(os.environ.get("PROGRAMFILES", r"C:\Program Files"))
        patterns += [(programs / vendor, "*") for vendor in ("Eclipse Adoptium", "Java", "Microsoft", "Zulu")]
    if os.environ.get("CONDA_PREFIX"):
        patterns.append((Path(os.environ["CONDA_PREFIX"]), "lib/jvm"))
    known: set[Path] = set()
    for folder, pattern in patterns:
        for home in sorted(folder.glob(pattern)):
            real = home.resolve()
            if real not in known:
                known.add(real)
                yield real
