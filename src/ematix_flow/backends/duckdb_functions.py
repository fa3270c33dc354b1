"""The two functions that DuckDB lacks: changing case as everybody else does, not letter by letter.

DuckDB knows no capital of several letters (`ß` is `SS`), no final sigma, and no letters of the newest Unicode. The
functions are macros of one session, so nothing of them stays in the database.
"""

from __future__ import annotations

import functools
from typing import Any

from ematix_flow.declare.values import RECENT_LOWER, RECENT_UPPER

# What has case, and what stands between letters without changing their case, as Unicode tells them: it decides whether
# a capital sigma is the last letter of its word.
_CASED = (
    r"\p{Lu}\p{Ll}\p{Lt}\x{AA}\x{BA}\x{2160}-\x{217F}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}"
    r"\x{1F170}-\x{1F189}"
)
_BETWEEN = (
    r"\p{Mn}\p{Me}\p{Cf}\p{Lm}\p{Sk}\x{27}.:\x{B7}\x{387}\x{55F}\x{5F4}\x{2018}\x{2019}\x{2024}\x{2027}\x{FE13}"
    r"\x{FE52}\x{FE55}\x{FF07}\x{FF0E}\x{FF1A}"
)
_FINAL_SIGMA = rf"([{_CASED}][{_BETWEEN}]*)\x{{3A3}}([{_BETWEEN}]*(?:[^{_CASED}{_BETWEEN}]|\z))"
# Where Unicode has letters whose capital is more than one.
_SPELLED_OUT = (
    *((0xDF, 0xDF), (0x149, 0x149), (0x1F0, 0x1F0), (0x390, 0x3B0), (0x587, 0x587)),
    *((0x1E96, 0x1E9A), (0x1F50, 0x1FFC), (0xFB00, 0xFB17)),
)


def register(db: Any) -> None:
    """Make the functions known to a session. Called once for each that is opened."""
    for macro in _macros():
        db.execute(macro)


@functools.lru_cache(maxsize=1)
def _macros() -> tuple[str, ...]:
    small = f"replace(regexp_replace(v, '{_FINAL_SIGMA}', '\\1ς\\2', 'g'), '\u0130', 'i\u0307')"
    return (
        _macro("lower", "v", f"translate(lower({small}), '{RECENT_UPPER}', '{RECENT_LOWER}')"),
        _macro("upper", _capitals(), f"translate(upper(s), '{RECENT_LOWER}', '{RECENT_UPPER}')"),
    )


def _macro(name: str, prepared: str, changed: str) -> str:
    """A macro whose argument is worked out once: plain text by DuckDB itself, the rest by the rules above."""
    other = changed if prepared == "v" else f"list_transform([{prepared}], lambda s: {changed})[1]"
    body = f"CASE WHEN strlen(v) = length(v) THEN {name}(v) ELSE {other} END"
    return f"CREATE OR REPLACE TEMPORARY MACRO ematix_{name}(x) AS list_transform([x], lambda v: {body})[1]"


def _capitals() -> str:
    """The text with the letters spelled out whose capital is more than one letter."""
    letters = [chr(code) for low, high in _SPELLED_OUT for code in range(low, high + 1)]
    several = {letter: letter.upper() for letter in letters if len(letter.upper()) > 1}
    known = ", ".join("[" + ", ".join(f"'{text}'" for text in side) + "]" for side in (several, several.values()))
    spelled = f"list_transform(regexp_extract_all(v, '(?s).'), lambda c: coalesce(map({known})[c], c))"
    return f"CASE WHEN regexp_matches(v, '[{''.join(several)}]') THEN array_to_string({spelled}, '') ELSE v END"
