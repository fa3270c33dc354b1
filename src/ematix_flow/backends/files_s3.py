"""Files in a bucket of S3, or of a store that speaks its protocol: what local files are, with another store."""

from __future__ import annotations

from typing import ClassVar

from ematix_flow.backends.files import FilesBackend
from ematix_flow.backends.files_store import Store
from ematix_flow.backends.files_store_s3 import S3Store
from ematix_flow.contracts.session import SessionNeeds
from ematix_flow.declare.connection import Connection, ObjectStoreS3Connection


class S3FilesBackend(FilesBackend):
    """The files of one bucket. A table is `<schema>/<table>/` in it, or a prefix of the user's own."""

    connection_type: ClassVar[type[Connection]] = ObjectStoreS3Connection
    # Where the bucket is and who asks is told to the session when it is used (`S3Store.prepare`): settings of a start
    # would show in process lists.
    needs = FilesBackend.needs | SessionNeeds(jars=frozenset({"hadoop-aws"}))

    def open_store(self, connection: Connection) -> Store:
        assert isinstance(connection, ObjectStoreS3Connection)
        return S3Store(connection)
