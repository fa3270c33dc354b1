"""The books of files: the manifest of a table, replaced with its rows in one step, is what counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ematix_flow.backends.files_store import Store
from ematix_flow.backends.files_table import TableFolder
from ematix_flow.backends.json_books import JsonBooks, Mark, PipelineState
from ematix_flow.declare.fileformats import FileFormat


class FileBooks(JsonBooks):
    """Reads and writes the books of one root folder."""

    def __init__(self, store: Store, file_format: FileFormat) -> None:
        super().__init__(store)
        self.file_format = file_format

    def tidy(self, folders: Sequence[str]) -> None:
        for folder in folders:
            TableFolder(self.store, folder, self.file_format).sweep()

    def state(self, pipeline: str, folders: Sequence[str]) -> PipelineState:
        """What the manifests and the books know together; of two watermarks the newer one counts."""
        known = self.store.read_json(self.book_path("watermarks", pipeline))
        marks = [Mark(known["column_name"], known["last_value"], known["generation"])] if known else []
        generation: int = self.ledger(pipeline)["generation"]
        applied: dict[str, Mapping[str, Any]] = {}
        for folder in folders:
            manifest = TableFolder(self.store, folder, self.file_format).manifest()
            if manifest is not None:
                found = manifest.pipeline(pipeline)
                generation = max(generation, found.generation)
                applied.update(found.applied)
                marks.extend([found.mark] if found.mark else [])
        newest = max(marks, key=lambda mark: mark.generation, default=None)
        return PipelineState(generation, newest, applied)
