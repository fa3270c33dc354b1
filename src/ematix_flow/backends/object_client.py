"""What a store of objects must offer to be a place for files, and how it says no: one client per vendor keeps to this.

Nothing here knows of tables, Spark or paths: a key is the whole name of an object in its bucket. `bucket_store.py`
makes a place for files of it. Every refusal of a vendor's library comes out as `StoreRefused`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

AT_ONCE = 16
"""How many small requests are under way at the same time."""

_Item = TypeVar("_Item")


class StoreRefused(OSError):
    """A request was refused or got no answer: one sentence, where, and what to do; never a key."""

    def __init__(self, message: str, where: str, fix: str) -> None:
        super().__init__(message)
        self.message, self.where, self.fix = message, where, fix


class StoreForbidden(StoreRefused, PermissionError):
    """The login may not do this."""


@dataclass(frozen=True)
class StoredObject:
    """An object as a listing tells it. Some programs mark a folder by an object, which is none of ours."""

    key: str
    size: int
    modified: datetime
    is_folder: bool = False


@dataclass(frozen=True)
class Listing:
    """Objects, and what time it was at the store when it listed them."""

    objects: tuple[StoredObject, ...]
    now: datetime


@dataclass(frozen=True)
class OnlyIf:
    """The condition of a write: the object is still that version or, without one, is not there."""

    version: str | None


class ObjectClient(Protocol):
    """One bucket, asked as one login. Connects when it is first asked.

    Attributes:
        conditions: The store's own words for "only if absent" and "only if unchanged", for messages.
        no_version: A version that no object has.
    """

    conditions: tuple[str, str]
    no_version: str

    def list(self, prefix: str, *, at_most: int | None = None) -> Listing:
        """The objects whose keys begin so, with those that only mark folders."""
        ...

    def size(self, key: str) -> int | None:
        """The size of an object in bytes; None when it is not there, or only marks a folder."""
        ...

    def get(self, key: str) -> tuple[bytes, str] | None:
        """A small object and its version; None when it is not there."""
        ...

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Some bytes of an object, both ends included."""
        ...

    def put(self, key: str, body: bytes, only_if: OnlyIf | None = None) -> str:
        """Write a small object; its new version.

        Raises:
            VersionChanged: the condition does not hold; nothing was written.
        """
        ...

    def copy(self, source: str, destination: str) -> None:
        """Copy an object of any size within the bucket."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are already gone are fine."""
        ...

    def end_uploads(self, prefix: str) -> None:
        """Forget uploads that nobody will complete, where a store keeps them until it is told."""
        ...

    def folder_marks(self, folder: str) -> Sequence[str]:
        """The keys by which Spark's connector marks a folder; none where it does not."""
        ...


def at_once(action: Callable[[_Item], None], items: Sequence[_Item]) -> None:
    """Do the same to each item, several at a time; the first error comes out."""
    from concurrent.futures import ThreadPoolExecutor

    if len(items) < 2:
        for item in items:
            action(item)
        return
    with ThreadPoolExecutor(min(AT_ONCE, len(items))) as pool:
        list(pool.map(action, items))
