"""Every fenced block of README.md, docs/ and examples/ runs, page by page; see `snippets.py` for how they are read."""

from __future__ import annotations

import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from ematix_flow import connect
from ematix_flow.testing.registry import isolated_registry
from tests.docs.snippets import LANGUAGES, ROOT, Block, Page, Reader, pages

PAGES = pages()
FIXTURES = {
    "postgres": "pg_url",
    "mysql": "mysql_url",
    "kafka": "kafka_address",
    "s3": "s3_endpoint",
    "snowflake": "snowflake_url",
    "rabbitmq": "rabbitmq_url",
    "pubsub": "pubsub_address",
    "kinesis": "kinesis_endpoint",
}
BLOCKS = [block for page in PAGES for block in page.blocks]


@pytest.mark.xdist_group("documentation")  # the pages share one Spark session
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_can_be_followed_from_top_to_bottom(
    page: Page, tmp_project: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    for words in page.setup:
        what, name, *statement = words.split(maxsplit=2)
        assert what in FIXTURES, f"{page.name}: setup '{words}' is not known"
        url = request.getfixturevalue(FIXTURES[what])
        monkeypatch.setenv(name, url)
        if statement:
            with connect(url=url) as db:
                db.execute(statement[0])
    if page.name.startswith("examples/"):
        shutil.copytree((ROOT / page.name).parent, tmp_project, dirs_exist_ok=True)
    reader = Reader(tmp_project, monkeypatch.setenv, modules={file.stem for file in tmp_project.glob("*.py")})
    reader.leave()  # another test may have left one of the same name
    with isolated_registry():
        try:
            for block in page.blocks:
                reader.follow(block)
        finally:
            reader.leave()


def test_every_block_says_what_it_is() -> None:
    unknown = [block.place for block in BLOCKS if block.language not in LANGUAGES]
    assert not unknown, f"these blocks are neither of {LANGUAGES}: {unknown}"


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    skipped = [block for block in BLOCKS if block.not_run is not None]
    assert all(len(block.not_run or "") > 10 for block in skipped), [block.place for block in skipped]
    assert len(skipped) <= 6, [block.place for block in skipped]


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        path = ROOT / page.name
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
            if target.startswith(("http://", "https://", "mailto:")):
                continue
            file, _, anchor = target.partition("#")
            found = (path.parent / file).resolve() if file else path
            if not found.exists() or (anchor and anchor not in _anchors(found)):
                broken.append(f"{page.name}: {target}")
    assert not broken, broken


def test_pictures_are_well_formed_and_shown_on_a_page() -> None:
    shown = "\n".join((ROOT / page.name).read_text(encoding="utf-8") for page in PAGES)
    pictures = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
    assert pictures
    for picture in pictures:
        assert ElementTree.parse(picture).getroot().tag.endswith("svg")
        assert f"pictures/{picture.name}" in shown, f"no page shows {picture.name}"


def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    ("language", "words", "text", "complaint"),
    [
        ("python", (), "raise ValueError('no')\n", "raised"),
        ("sh", (), "flow lst\n", "ended with 2, not 0"),
        ("sh", ("exits=2",), "flow --version\n", "ended with 0, not 2"),
        ("sh", (), "rm -r /\n", "is not a flow command"),
        ("text", (), "two\n", "but it printed"),
        ("toml", (), "[spark]\n", "name the file"),
    ],
)
def test_a_block_that_is_wrong_fails_with_its_line(
    language: str, words: tuple[str, ...], text: str, complaint: str, tmp_project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(tmp_project, monkeypatch.setenv)
    reader.follow(Block("docs/page.md", 3, "python", (), "print('one')\n", None, follows=False))
    with pytest.raises(AssertionError, match=complaint) as failure:
        reader.follow(Block("docs/page.md", 7, language, words, text, None, follows=True))
    assert str(failure.value).startswith("docs/page.md:7")
