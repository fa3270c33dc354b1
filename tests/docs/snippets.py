"""The fenced blocks of README.md, docs/ and examples/: found, run as a reader would, and compared with the page.

What a block is, is said by its first line:

* ```` ```python ````: run in order, one namespace per page. With a file name as first comment (`# shop.py`) it is
  written to that file and imported; a second block with the same name is added to the file.
* ```` ```sh ````: `flow …` lines go through the real command line, `python FILE` runs a file of the example, `export
  NAME=value` sets a variable. Every line must end with exit code 0, or with the one after `exits=`:
  ```` ```sh exits=2 ````.
* ```` ```toml ````: written to the file its first comment names. ```` ```csv file=NAME ```` and `json` likewise.
* ```` ```text ```` directly below one of these: what it printed, stdout and stderr together. `…` stands for anything on
  a line, a line of its own for any lines. Run ids, clock times, durations and the width of columns in what a command
  printed are examples: they are not compared.
* ```` ```text picture ````: a drawing.

Comments of a page that readers do not see: `<!-- setup: postgres NAME -->` (or `mysql`) gives the page a database of
its own, runs the SQL behind the name, if any, and puts the database's URL into the variable; `kafka` an address,
and `s3` an endpoint, with a bucket and a login in `LAKE_BUCKET`, `LAKE_KEY_ID` and `LAKE_SECRET`; `snowflake`
the address of a stand-in; `rabbitmq` a URL, `pubsub` an address, with a `TOPIC` and a `SUBSCRIPTION`;
`kinesis` an endpoint, with a stream in `STREAM` and a login in AWS's own variables. `<!-- not run: reason -->` in front
of a block keeps it from being run. The page of an example finds the files of its folder beside it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shlex
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = ("python", "sh", "toml", "csv", "json", "text")
_FENCE = re.compile(r"^(?P<ticks>```+)(?P<info>.*)$")
_COMMENT = re.compile(r"<!--\s*(?P<word>setup|not run)\s*:\s*(?P<rest>.*?)\s*-->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block. `follows` says that only empty lines lie between it and the block before."""

    page: str
    line: int
    language: str
    words: tuple[str, ...]
    text: str
    not_run: str | None
    follows: bool

    @property
    def place(self) -> str:
        """`docs/modes.md:12`, for messages."""
        return f"{self.page}:{self.line}"

    @property
    def options(self) -> Mapping[str, str]:
        """`file=…`, `exits=…`."""
        return dict(word.split("=", 1) for word in self.words if "=" in word)

    @property
    def is_picture(self) -> bool:
        """A drawing, not the output of something."""
        return "picture" in self.words


@dataclass(frozen=True)
class Page:
    """One document: its blocks, and the setup it asks for."""

    name: str
    blocks: tuple[Block, ...]
    setup: tuple[str, ...]


def pages() -> list[Page]:
    """README.md, every page below docs/, and the page of every example."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
    return [read_page(path) for path in paths]


def read_page(path: Path) -> Page:
    """The blocks and comments of one document."""
    name = str(path.relative_to(ROOT))
    found: list[Block] = []
    between: list[str] = []
    setup: list[str] = []
    opened: tuple[str, str, int] | None = None
    inside: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        fence = _FENCE.match(line)
        if opened is not None:
            if line.strip() == opened[0]:
                found.append(_block(name, opened[1], opened[2], inside, between, is_first=not found))
                opened, between = None, []
            else:
                inside.append(line)
        elif fence:
            opened, inside = (fence["ticks"], fence["info"].strip(), number), []
            setup += [m["rest"] for m in _COMMENT.finditer("\n".join(between)) if m["word"] == "setup"]
        else:
            between.append(line)
    assert opened is None, f"{name}:{opened[2] if opened else ''}: a block is not closed"
    return Page(name, tuple(found), tuple(setup))


def _block(page: str, info: str, line: int, inside: list[str], between: list[str], *, is_first: bool) -> Block:
    language, *words = info.split() or [""]
    reasons = [m["rest"] for m in _COMMENT.finditer("\n".join(between)) if m["word"] == "not run"]
    follows = not is_first and not "".join(between).strip()
    return Block(page, line, language, tuple(words), "\n".join(inside) + "\n", (reasons or [None])[-1], follows)


@dataclass
class Reader:
    """Somebody who follows one page, block by block, in an empty project folder."""

    folder: Path
    set_variable: Callable[[str, str], None]
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "__page__"})
    modules: set[str] = field(default_factory=set)
    said: str = ""
    by_command: bool = False

    def follow(self, block: Block) -> None:
        """Do what the block says; an assertion names the line of the page that is wrong."""
        if block.language != "text":
            self.by_command = block.language == "sh"
        if block.not_run is not None or block.is_picture:
            self.said = ""
        elif block.language == "python":
            self._python(block)
        elif block.language == "sh":
            self._commands(block)
        elif block.language in ("toml", "csv", "json"):
            self._file(block)
        else:
            self._compare(block)

    def leave(self) -> None:
        """Forget the modules of the page; the next one may use the same names."""
        for name in self.modules:
            sys.modules.pop(name, None)
        with contextlib.suppress(ValueError):
            sys.path.remove(str(self.folder))

    def _python(self, block: Block) -> None:
        first = block.text.partition("\n")[0]
        named = re.fullmatch(r"# (\w+)\.py", first)
        with _captured() as said:
            try:
                if named:
                    self._module(named[1], block.text)
                else:
                    # Declarations are known by the place they stand at: the page and its line.
                    code = compile("\n" * block.line + block.text, str(ROOT / block.page), "exec")
                    exec(code, self.namespace)
            except Exception:
                raise AssertionError(f"{block.place} raised\n{traceback.format_exc()}\n{said.getvalue()}") from None
        self.said = said.getvalue()

    def _module(self, name: str, text: str) -> None:
        path = self.folder / f"{name}.py"
        earlier = path.read_text(encoding="utf-8") + "\n\n" if path.exists() else ""
        path.write_text(earlier + text, encoding="utf-8")
        if str(self.folder) not in sys.path:
            sys.path.insert(0, str(self.folder))
        importlib.invalidate_caches()
        sys.modules.pop(name, None)
        self.modules.add(name)
        self.namespace.update(vars(importlib.import_module(name)))

    def _commands(self, block: Block) -> None:
        from ematix_flow.cli.main import main

        wanted = int(block.options.get("exits", 0))
        said: list[str] = []
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if not words:
                continue
            if words[0] == "export":
                self.set_variable(*words[1].split("=", 1))
                continue
            if words[0] == "python":
                said.append(self._program(block, words[1:], wanted))
                continue
            assert words[0] == "flow", (
                f"{block.place}: `{line}` is not a flow command; say why with <!-- not run: … -->"
            )
            expanded = [os.path.expandvars(word) for word in words[1:]]
            with _captured() as output:
                code = main(expanded)
            said.append(output.getvalue())
            assert code == wanted, f"{block.place}: `{line}` ended with {code}, not {wanted}:\n{output.getvalue()}"
        self.said = "".join(said)

    def _program(self, block: Block, words: list[str], wanted: int) -> str:
        done = subprocess.run(
            [sys.executable, *words], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert done.returncode == wanted, f"{block.place}: python {words} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def _file(self, block: Block) -> None:
        first = block.text.partition("\n")[0]
        name = block.options.get("file") or (first.removeprefix("# ").strip() if first.startswith("# ") else "")
        assert name, f"{block.place}: name the file, in the first comment or with file=NAME"
        path = Path(os.path.expanduser(name)) if name.startswith("~") else self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
        self.said = ""

    def _compare(self, block: Block) -> None:
        assert block.follows, f"{block.place}: a text block stands directly below what printed it, or is a `picture`"
        expected, printed = (steady(block.text), steady(self.said)) if self.by_command else (block.text, self.said)
        assert matches(expected, printed), f"{block.place} says\n{block.text}\nbut it printed\n{self.said}"


@contextlib.contextmanager
def _captured() -> Any:
    """Both streams, in the order of writing, without colour."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        yield said


_UNSTEADY = (
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<run id>"),
    (r"\b(?=[a-f]*\d)[0-9a-f]{8}\b", "<run>"),
    (r"\b20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z?", "<time>"),
    (r"\b\d+(\.\d+)? (s|ms)\b", "<duration>"),
    (r"[ ]{2,}", " "),
)


def steady(text: str) -> str:
    """Output of a command without what differs from run to run.

    >>> steady("done in 0.11 s   run fcb260d5")
    'done in <duration> run <run>'
    """
    for pattern, word in _UNSTEADY:
        text = re.sub(pattern, word, text)
    return text


def matches(expected: str, printed: str) -> bool:
    """Whether output is what a page says it is; `…` stands for anything on a line, alone on a line for any lines.

    >>> matches("run …\\ndone\\n", "run 7f3a   more\\ndone\\n"), matches("a\\n…\\nd", "a\\nb\\nc\\nd")
    (True, True)
    >>> matches("a", "b"), matches("a …", "b c")
    (False, False)
    """
    parts = []
    for line in expected.strip("\n").splitlines():
        if line.strip() == "…":
            parts.append(r"(?:[^\n]*\n)*?")
        else:
            parts.append(r"[^\n]*".join(re.escape(piece) for piece in line.rstrip().split("…")) + r"[ ]*\n")
    return re.fullmatch("".join(parts), printed.strip("\n") + "\n") is not None
