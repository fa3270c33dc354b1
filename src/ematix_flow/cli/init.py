"""`flow init`: a new project that runs, with tests that pass and files to deploy it with."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow._version import __version__
from ematix_flow.errors import InvalidConfig

if TYPE_CHECKING:
    from importlib.abc import Traversable

    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser

# Files are shipped under another name, so that nobody takes them for code or settings of this package.
_SUFFIX = ".template"
_FALLBACK_NAME = "pipelines"


def configure(parser: CommandParser) -> None:
    """A folder, and whether what is there may be replaced."""
    parser.add_argument("path", metavar="PATH", help="the folder of the project; made when it is missing")
    parser.add_argument("--force", action="store_true", help="replace files that are there already")
    parser.say(
        "The project keeps everything in one SQLite file until you connect it to something else.",
        example="flow init shop",
        then="cd shop && flow run example_sync --module pipelines",
    )


def run(args: Namespace, console: Console) -> int:
    """Write the files; exit code 1, and nothing is changed, when one is there already."""
    folder = Path(args.path).expanduser().absolute()
    project = {folder / name: text for name, text in project_files(folder.name).items()}
    there = [path for path in project if path.exists() or path.is_symlink()]
    if there and not args.force:
        names = ", ".join(str(path.relative_to(folder)) for path in there)
        console.error(
            InvalidConfig(
                f"{folder} already has {names}; nothing was written.",
                fix="choose another folder, or replace them with --force",
            )
        )
        return 1
    try:
        for path, text in project.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise InvalidConfig(f"{exc.filename or folder} cannot be written: {exc.strerror}.") from exc
    if console.is_json:
        console.json({"path": str(folder), "files": [str(path.relative_to(folder)) for path in project]})
        return 0
    console.line(f"flow init: scaffolded {len(project)} files in {folder}")
    for path in project:
        console.line(f"  {path.relative_to(folder)}")
    return 0


def project_files(name: str) -> dict[str, str]:
    """The files of a new project by their paths in it, for a project of that name."""
    words = {"@NAME@": resource_name(name), "@VERSION@": __version__}
    found = {}
    for path, text in _templates(files("ematix_flow.assets") / "project"):
        for word, value in words.items():
            text = text.replace(word, value)
        found[path] = text
    return dict(sorted(found.items(), key=lambda item: (item[0].count("/"), item[0])))


def resource_name(name: str) -> str:
    """A name that units, images and Kubernetes take.

    >>> resource_name("My Shop_2"), resource_name("42"), resource_name("…")
    ('my-shop-2', 'p42', 'pipelines')
    """
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:50].strip("-")
    if not plain:
        return _FALLBACK_NAME
    return plain if plain[0].isalpha() else f"p{plain}"


def _templates(folder: Traversable, inside: str = "") -> Iterator[tuple[str, str]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _templates(entry, f"{inside}{entry.name}/")
        elif entry.name.endswith(_SUFFIX):
            yield inside + entry.name.removesuffix(_SUFFIX), entry.read_text(encoding="utf-8")
