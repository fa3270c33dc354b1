"""The keys of messages: which row a delete is about that says nothing of it, and a tombstone always.

A key is JSON, or bytes that name a schema of the source's registry, or a plain text. Anything else is no key: Spark
would find a number in the last bytes of one, and another row would go.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, functions as F

from ematix_flow.contracts.streams import VALUE
from ematix_flow.spark.change_types import TEXTS, texts_of
from ematix_flow.spark.payload_registry import BARE, RegistryCodec

KEY, KEY_UNLIKE = "__key", "__key_unlike"
_BROKERS, _READ = "_key", "__key_read"
_UNCLEAN = r"\p{Cntrl}"


class MessageKeys:
    """How the keys of a source are read.

    Args:
        codec: Reads keys that name a schema; None when the source has no registry.
    """

    def __init__(self, codec: RegistryCodec | None = None) -> None:
        self._codec = codec

    def widen(self, messages: DataFrame) -> bool:
        """Learn the schemas that keys name; whether any was new."""
        if self._codec is None or _BROKERS not in messages.columns:
            return False
        return self._codec.widen(messages.select(F.col(_BROKERS).alias(VALUE)))

    def beside(self, frame: DataFrame, is_needed: Column) -> DataFrame:
        """The frame with `KEY`, texts by name (a bare value has none), and whether the schema is yet to be learned."""
        if _BROKERS not in frame.columns:
            return frame.withColumns({KEY: F.lit(None).cast(TEXTS), KEY_UNLIKE: F.lit(False)})
        told = _told(F.col(_BROKERS))
        if self._codec is None:
            return frame.withColumns({KEY: F.when(is_needed, told), KEY_UNLIKE: F.lit(False)})
        read = self._codec.beside(frame, F.when(is_needed, F.col(_BROKERS)), _READ, KEY_UNLIKE)
        framed = texts_of(F.col(_READ), read.schema[_READ].dataType, {BARE: ""})
        return read.withColumn(KEY, F.when(is_needed, F.coalesce(framed, told)))


def _told(key: Column) -> Column:
    """What a key says by itself."""
    text = F.when(F.is_valid_utf8(key.cast("string")), key.cast("string"))
    document = F.try_parse_json(text)
    body = F.coalesce(F.try_variant_get(document, "$.payload", "variant"), document)
    plain = F.when(document.isNull(), text)
    value = F.when(~text.rlike(_UNCLEAN), F.coalesce(body.try_cast("string"), plain))
    bare = F.when(value.isNotNull(), F.map_from_arrays(F.array(F.lit("")), F.array(value)))
    return F.coalesce(body.try_cast(TEXTS), bare)
