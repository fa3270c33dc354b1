"""The documented examples: copies kept beside the tests, and the documents themselves where they are at hand.

The documents lie beside the checkout (`../shared/seeds`) and are not part of the repository. The copies in `examples/`
are what the tests run; `test_seed_examples.py` compares them with the documents when those are there. A copy ends in
the language of its block and not in `.py`, so that nothing imports or formats it: it must stay as it is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent / "examples"
SEEDS = Path(__file__).resolve().parents[3] / "shared" / "seeds"

NOT_OURS = ("███████╗", "pip install ematix-flow\n", "use ematix_flow_core", "cargo run", "# Build the Rust workspace")
"""How blocks begin that show no use of this project: a logo, an installation, another program."""


@dataclass(frozen=True)
class Block:
    """One fenced block of a document, without its fences."""

    language: str
    text: str


def example(name: str) -> str:
    """A documented example, for instance `readme-0.3/pipelines.python`."""
    return (EXAMPLES / name).read_text(encoding="utf-8")


def kept(document: str) -> dict[str, str]:
    """Every kept example of a document: its file name and its text."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted((EXAMPLES / document).iterdir())}


def blocks(document: str) -> list[Block]:
    """The fenced blocks of a document in `SEEDS`, in order."""
    found: list[Block] = []
    language: str | None = None
    lines: list[str] = []
    for line in (SEEDS / document).read_text(encoding="utf-8").splitlines():
        if not line.startswith("```"):
            lines.append(line)
        elif language is None:
            language, lines = line.removeprefix("```"), []
        else:
            found.append(Block(language, "".join(f"{inside}\n" for inside in lines)))
            language = None
    return found


def command_lines(name: str) -> list[str]:
    """The commands of a shell example, as written."""
    return [line for line in example(name).splitlines() if line.startswith("flow ")]
