"""Change events become changes: Debezium, Maxwell and envelopes of one's own are brought to one form.

A decoded frame has one column, `CHANGE`: what was done, when, to which key, and the images before and after as texts by
name, so that a column that an image lacks is known to be lacking and no digit of a number is lost. What is known of the
images (their columns, and the feed's own schema) travels with the column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, functions as F, types as t

from ematix_flow.backends.transport import quoted
from ematix_flow.contracts.streams import VALUE
from ematix_flow.declare.stream import CDC
from ematix_flow.plan.change_feed import LOG_LETTERS, OFFSET_KIND
from ematix_flow.spark.change_keys import KEY, KEY_UNLIKE, MessageKeys
from ematix_flow.spark.change_types import TEXTS, Field, fields_of_avro, fields_of_block, text_of, texts_of
from ematix_flow.spark.json_schema import learned
from ematix_flow.spark.payload_registry import AvroCodec
from ematix_flow.spark.payloads import BAD, RAW, SAMPLE, UNKNOWN, Codec, hidden

CHANGE = "_change"
COLUMNS, FIELDS = "columns", "fields"
"""What the column's metadata hold: the columns of images as they were met, and the fields by schema."""

AVRO = "avro"
TOMBSTONE, IGNORED, SKIPPED_OP = "tombstone", "ignored", "skipped"

_TEXT, _DOCUMENT, _BODY, _IS_TOMBSTONE = "__text", "__document", "__body", "__is_tombstone"
_SCHEMA, _PAYLOAD = "schema", "payload"
_UNCHANGED = (
    "__debezium_unavailable_value",
    "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==",
    '["__debezium_unavailable_value"]',
)
"""What Debezium writes for a large value that a change did not touch and the log does not hold."""

_OPS = {
    "debezium": {"c": "create", "u": "update", "d": "delete", "r": "read", "t": "truncate"},
    "maxwell": {
        **{"insert": "create", "update": "update", "delete": "delete", "bootstrap-insert": "read"},
        **dict.fromkeys(("bootstrap-start", "bootstrap-complete"), IGNORED),
    },
    "custom": {},
}
_SOURCE_FIELDS = ("lsn", "file", "pos", "row", "scn", "rs_id", "ssn", "change_lsn", "event_serial_no")
_MOST_BLOCKS = 500
_KIND_LETTERS = len(OFFSET_KIND)
_SECONDS_BELOW = 10**11


@dataclass(frozen=True)
class Envelope:
    """Where in an event things are, and what its words mean."""

    op: str
    before: str | None
    after: str
    ts: str | None
    key: str | None
    ops: Mapping[str, str]
    is_maxwell: bool
    is_flat_possible: bool

    @staticmethod
    def of(cdc: CDC) -> Envelope:
        """The declared envelope, with the usual places where none is given."""
        usual: dict[str, tuple[str, str, str, str]] = {
            "debezium": ("op", "before", "after", "source.ts_ms"),
            "maxwell": ("type", "old", "data", "ts"),
        }
        op, before, after, ts = usual.get(cdc.envelope, ("", "", "", ""))
        return Envelope(
            cdc.op_field or op,
            cdc.before_field or before or None,
            cdc.after_field or after,
            (ts if cdc.ts_field is None else cdc.ts_field) or None,
            cdc.key_field,
            {**_OPS[cdc.envelope], **(cdc.op_map or {})},
            cdc.envelope == "maxwell",
            cdc.envelope == "debezium",
        )


class Tree:
    """What is taken out of a message, as one type: structs that follow the paths, with a kind at the end of each."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self._kinds = kinds
        root: dict[str, Any] = {}
        for path, kind in kinds.items():
            *way, last = path.split(".")
            place = root
            for name in way:
                found = place.setdefault(name, {})
                if not isinstance(found, dict):
                    raise KeyError(path)
                place = found
            if isinstance(place.get(last), dict):
                raise KeyError(path)
            place[last] = kind
        self.kind = _struct(root)

    @staticmethod
    def of(read: Envelope) -> Tree:
        """The tree of an envelope; a path that leads into an image is left to be looked up by itself."""
        wanted: Mapping[str, str] = {read.after: TEXTS, **({read.before: TEXTS} if read.before else {})}
        others = [read.op, *([read.ts] if read.ts else []), *(["position", "xoffset"] if read.is_maxwell else [])]
        for path in (*others, *(f"source.{name}" for name in _SOURCE_FIELDS), _SCHEMA):
            with suppress(KeyError):
                wanted = Tree({**wanted, path: "string"})._kinds
        with suppress(KeyError):
            wanted = Tree({**wanted, _PAYLOAD: "variant"})._kinds
        return Tree(wanted)

    def at(self, parts: str, path: str | None, kind: str = "string") -> Column:
        """What is at a path; NULL for no path, and of one that is not in the tree what the message itself says."""
        if path is None:
            return F.lit(None).cast(kind)
        if path not in self._kinds:
            return _at(_BODY, path, kind)
        return F.col(".".join([parts, *(quoted(name) for name in path.split("."))]))


def _struct(fields: Mapping[str, Any]) -> str:
    inner = (f"{quoted(name)}: {_struct(kind) if isinstance(kind, dict) else kind}" for name, kind in fields.items())
    return f"struct<{', '.join(inner)}>"


class ChangeCodec(Codec):
    """JSON events. What images hold is learned from them, kept, and only ever grows.

    Args:
        schema: The columns of images that were met before.
        refuses: Whether an event that cannot be applied is a bad message; else it is skipped and counted.
        keys: How the keys of messages are read.
    """

    wants = "each must be a change event, a JSON object in UTF-8"

    def __init__(
        self,
        cdc: CDC,
        schema: t.StructType | None,
        remember: Callable[[t.StructType], None],
        *,
        refuses: bool,
        keys: MessageKeys | None = None,
    ) -> None:
        self.envelope = Envelope.of(cdc)
        self.schema = schema or t.StructType([])
        self.passed: tuple[str, ...] = ()
        self._remember, self._refuses = remember, refuses
        self._keys = keys or MessageKeys()
        self._blocks: dict[str, tuple[Field, ...]] = {}
        self._is_empty = False

    @property
    def columns(self) -> tuple[str, ...]:
        return (CHANGE,)

    def prepare(self, messages: DataFrame) -> None:
        if not self.schema.fields:
            self._is_empty = messages.isEmpty()
            self._learn(self._opened(messages))

    def has_nothing(self) -> bool:
        return self._is_empty

    def widen(self, messages: DataFrame) -> bool:
        has_keys = self._keys.widen(messages)
        return self._learn(self._opened(messages).where(self._is_unlike())) or has_keys

    def decoded(self, messages: DataFrame) -> DataFrame:
        opened = self._opened(messages)
        is_object = F.col(_DOCUMENT).isNotNull() & F.ltrim(_TEXT).startswith("{")
        reason = F.when(~F.is_valid_utf8(F.col(_TEXT)), F.lit("not UTF-8")).when(
            F.col(_TEXT).isNotNull() & ~is_object, F.lit("not a JSON object")
        )
        marked = opened.withColumns({"__reason": reason, "__unlike": self._is_unlike()})
        return finished(
            with_change(self.envelope, marked, self._keys),
            refuses=self._refuses,
            facts=facts_of(self.schema, self._blocks),
            passed=self.passed,
        )

    # ── what is in a message ─────────────────────────────────────────────────────────────────────────────────────────

    def _opened(self, messages: DataFrame) -> DataFrame:
        """The messages with their parts, each a column of its own: Spark would work out a part for every mention."""
        read = self.envelope
        opened = messages.select("*", F.col(VALUE).cast("string").alias(_TEXT))
        # Numbers stay exact in a variant; `from_json` would make doubles of them.
        opened = opened.withColumn(_DOCUMENT, F.try_parse_json(F.col(_TEXT)))
        # All that is wanted comes out of a message at once: every look at a variant costs as much as reading it.
        tree = Tree.of(read)
        opened = opened.withColumn("__outer", F.try_variant_get(F.col(_DOCUMENT), "$", tree.kind))
        opened = opened.withColumn("__inner", F.col("__outer"))
        body = F.col(_DOCUMENT)
        if read.op.split(".")[0] != _PAYLOAD:
            # Connect's JSON converter puts the event beside its schema.
            wrapped = tree.at("__outer", read.op).isNull() & F.col(f"__outer.{_PAYLOAD}").isNotNull()
            inner = F.try_variant_get(F.col(f"__outer.{_PAYLOAD}"), "$", tree.kind)
            opened = opened.withColumn("__inner", F.when(wrapped, inner).otherwise(F.col("__outer")))
            body = F.when(wrapped, F.col(f"__outer.{_PAYLOAD}")).otherwise(body)
        opened = opened.withColumn(_BODY, body)
        parts = {
            "__op": tree.at("__inner", read.op),
            "__ts": tree.at("__inner", read.ts),
            "__key_value": _at(_BODY, read.key),
            "__after": tree.at("__inner", read.after),
            "__before": tree.at("__inner", read.before, TEXTS),
            "__block": F.md5(F.col(f"__outer.{_SCHEMA}")),
            **{f"__{name}": tree.at("__inner", f"source.{name}") for name in _SOURCE_FIELDS},
        }
        if read.is_maxwell:
            given = tree.at("__inner", "position")
            parts |= {"__file": F.substring_index(given, ":", 1), "__pos": F.substring_index(given, ":", -1)}
            parts["__row"] = tree.at("__inner", "xoffset")
        opened = opened.withColumns(parts)
        lacks = F.col(_TEXT).contains(_UNCHANGED[0]) | F.col(_TEXT).contains(_UNCHANGED[1])
        opened = opened.withColumns(
            {
                name: F.when(lacks, without_unchanged(F.col(name))).otherwise(F.col(name))
                for name in ("__after", "__before")
            }
        )
        if read.is_flat_possible:
            opened = _unflattened(opened)
        if read.is_maxwell:
            old = F.map_filter("__after", lambda name, _: ~F.map_contains_key(F.col("__before"), name))
            before = F.when(F.col("__op") == "delete", F.col("__after")).when(
                F.col("__before").isNotNull(), F.map_concat(old, F.col("__before"))
            )
            opened = opened.withColumn("__before", before)
        is_empty = F.col(_TEXT).isNull() | (F.trim(_TEXT) == "{}")
        return opened.withColumn(_IS_TOMBSTONE, is_empty)

    # ── what is learned ──────────────────────────────────────────────────────────────────────────────────────────────

    def _is_unlike(self) -> Column:
        """Whether an image has a column that was not met yet, or comes with a schema that was not."""
        names = F.map_keys(F.coalesce("__after", "__before"))
        known = F.array(*[F.lit(name) for name in self.schema.names])
        news = F.size(F.array_except(names, known) if self.schema.names else names) > 0
        block = F.col("__block")
        new_block = ~block.isin([*self._blocks]) if self._blocks else block.isNotNull()
        return F.coalesce(news, F.lit(False)) | F.coalesce(new_block, F.lit(False))

    def _learn(self, opened: DataFrame) -> bool:
        shown = F.coalesce(_at(_BODY, self.envelope.after), _at(_BODY, self.envelope.before))
        if self.envelope.is_flat_possible:
            shown = F.coalesce(shown, F.when(F.col("__after").isNotNull(), F.col(_BODY).try_cast("string")))
        found = [row[0] for row in opened.select(shown).dropna().limit(SAMPLE).collect()]
        schema = learned(self.schema, (text.encode() for text in found))
        if self.envelope.is_flat_possible:
            schema = t.StructType([field for field in schema.fields if not field.name.startswith("__")])
        new = opened.where(F.col("__block").isNotNull() & ~F.col("__block").isin([*self._blocks, ""]))
        text = F.first(F.col(f"__outer.{_SCHEMA}")).alias("text")
        blocks = new.groupBy("__block").agg(text).limit(_MOST_BLOCKS).collect()
        for row in blocks:
            try:
                self._blocks[row["__block"]] = fields_of_block(row["text"], self.envelope.after)
            except (ValueError, KeyError, AttributeError):
                self._blocks[row["__block"]] = ()  # no schema of Connect's: values are read by the target's columns
        if schema == self.schema:
            return bool(blocks)
        self.schema = schema
        self._remember(schema)
        return True


def _path(path: str) -> str:
    """A dotted path in the words of variants."""
    return "$" + "".join(f'["{name}"]' for name in path.split("."))


def _at(document: str, path: str | None, kind: str = "string") -> Column:
    """What is at a dotted path of a document; NULL where nothing is, or something of another kind."""
    return F.lit(None).cast(kind) if path is None else F.try_variant_get(F.col(document), _path(path), kind)


def _unflattened(opened: DataFrame) -> DataFrame:
    """Debezium's flattened rows: the image is the message, and what was done stands in fields beside it."""
    is_flat = F.col("__op").isNull() & F.col("__after").isNull() & F.col("__before").isNull()
    may_be = is_flat & F.col(_TEXT).contains('"__')
    flat = F.when(may_be, F.col(_BODY).try_cast(TEXTS))
    opened = opened.withColumn("__flat", flat)
    fields = F.col("__flat")
    marked = fields["__deleted"]
    op = F.coalesce(
        F.when(F.lower(marked) == "true", F.lit("d")), fields["__op"], F.when(marked.isNotNull(), F.lit("u"))
    )
    found = {
        "__op": F.coalesce("__op", op),
        "__ts": F.coalesce("__ts", fields["__source_ts_ms"], fields["__ts_ms"]),
        "__after": F.coalesce("__after", F.map_filter(fields, lambda name, _: ~name.startswith("__"))),
    }
    for name in ("lsn", "file", "pos"):
        found[f"__{name}"] = F.coalesce(f"__{name}", fields[f"__{name}"], fields[f"__source_{name}"])
    return opened.withColumns(found)


class StructuredChangeCodec(Codec):
    """Events that another codec decodes: Avro and Protobuf of a registry, or rows that come with their columns."""

    def __init__(self, cdc: CDC, inner: Codec, *, refuses: bool, keys: MessageKeys | None = None) -> None:
        self.envelope = Envelope.of(cdc)
        self.wants = inner.wants
        self._inner, self._refuses, self._keys = inner, refuses, keys or MessageKeys()
        self._is_empty = False

    @property
    def columns(self) -> tuple[str, ...]:
        return (CHANGE,)

    def prepare(self, messages: DataFrame) -> None:
        self._inner.prepare(messages)
        # Tombstones alone tell the inner codec nothing, and take rows away all the same.
        self._is_empty = self._inner.has_nothing() and (VALUE not in messages.columns or messages.isEmpty())

    def has_nothing(self) -> bool:
        return self._is_empty

    def widen(self, messages: DataFrame) -> bool:
        has_keys = self._keys.widen(messages)
        return self._inner.widen(messages) or has_keys

    def decoded(self, messages: DataFrame) -> DataFrame:
        rows = self._inner.decoded(messages)
        if VALUE in messages.columns:
            gone = messages.where(F.col(VALUE).isNull())
            names = [name for name in rows.columns if name in messages.columns]
            empty = gone.select(*names, F.lit(None).cast("binary").alias(RAW), F.lit(False).alias(UNKNOWN))
            rows = rows.unionByName(empty, allowMissingColumns=True)
        read = self.envelope
        kind = self._kind(rows, read.after) or self._kind(rows, read.before)
        image = kind if isinstance(kind, t.StructType) else t.StructType([])
        opened = rows.withColumns(
            {
                "__op": self._text(rows, read.op),
                "__ts": self._text(rows, read.ts),
                "__key_value": self._text(rows, read.key),
                "__after": self._image(rows, read.after),
                "__before": self._image(rows, read.before),
                "__block": F.lit(AVRO),
                **{f"__{name}": self._text(rows, f"source.{name}") for name in _SOURCE_FIELDS},
                _IS_TOMBSTONE: F.col(RAW).isNull() if RAW in rows.columns else F.lit(False),
                "__reason": F.col(BAD),
                "__unlike": F.col(UNKNOWN),
            }
        )
        facts = facts_of(image, {AVRO: self._fields()})
        return finished(with_change(read, opened, self._keys), refuses=self._refuses, facts=facts)

    def _fields(self) -> tuple[Field, ...]:
        if not isinstance(self._inner, AvroCodec):
            return ()
        return fields_of_avro(self._inner.writers(), self.envelope.after)

    def _kind(self, rows: DataFrame, path: str | None) -> t.DataType | None:
        kind: t.DataType | None = rows.schema
        for name in (path or "").split("."):
            kind = kind[name].dataType if isinstance(kind, t.StructType) and name in kind.names else None
        return kind

    def _column(self, rows: DataFrame, path: str | None) -> Column:
        if path is None or self._kind(rows, path) is None:
            return F.lit(None)
        return F.col(".".join(quoted(name) for name in path.split(".")))

    def _text(self, rows: DataFrame, path: str | None) -> Column:
        kind = self._kind(rows, path)
        return F.lit(None).cast("string") if kind is None else text_of(self._column(rows, path), kind)

    def _image(self, rows: DataFrame, path: str | None) -> Column:
        """An image as texts by name; all its fields are there, but for what Debezium says it does not know."""
        kind, column = self._kind(rows, path), self._column(rows, path)
        if isinstance(kind, t.MapType):
            return F.transform_values(column, lambda _, value: value.cast("string"))
        return without_unchanged(texts_of(column, kind))


def without_unchanged(image: Column) -> Column:
    """An image without the values that it only says it does not have."""
    return F.map_filter(image, lambda _, value: value.isNull() | ~value.isin(*_UNCHANGED))


def with_change(envelope: Envelope, opened: DataFrame, keys: MessageKeys) -> DataFrame:
    """The events with `CHANGE`, one form for all envelopes."""
    meant = F.lit(None).cast("string")
    op = F.col("__op")
    for word, meaning in envelope.ops.items():
        meant = F.when(op == word, F.lit(meaning)).otherwise(meant)
    # Only what takes a row away may have to be told which by the message's key; reading it costs as much as an image.
    needs_key = F.col(_IS_TOMBSTONE) | F.coalesce(meant == "delete", F.lit(False))
    staged = keys.beside(opened, needs_key).withColumns(
        {"__meant": meant, "__unlike": F.col("__unlike") | F.col(KEY_UNLIKE)}
    )
    alone = F.when(F.col(KEY).isNotNull(), F.lit(TOMBSTONE)).otherwise(F.lit(IGNORED))
    staged = staged.withColumn("__done", F.when(F.col(_IS_TOMBSTONE), alone).otherwise(F.col("__meant")))
    done = F.col("__done")
    reason = (
        F.when(F.coalesce(done, F.lit("")).isin(TOMBSTONE, IGNORED, "truncate"), F.lit(None).cast("string"))
        .when(op.isNull(), F.lit(f"it has no '{envelope.op}'"))
        .when(done.isNull(), F.lit(f"its '{envelope.op}' is none that is known"))
        .when((done != "delete") & F.col("__after").isNull(), F.lit(f"it has no '{envelope.after}'"))
    )
    staged = staged.withColumn("__skipped", reason)
    arrived = [
        (F.col(name) if name in opened.columns else F.lit(None)).cast(kind).alias(name.strip("_"))
        for name, kind in (("_partition", "int"), ("_offset", "bigint"))
    ]
    change = F.struct(
        F.when(F.col("__skipped").isNotNull(), F.lit(SKIPPED_OP)).otherwise(done).alias("op"),
        F.col("__skipped").alias("reason"),
        millis(F.col("__ts")).alias("ts"),
        position_of(opened).alias("position"),
        F.col("__after").alias("after"),
        F.col("__before").alias("before"),
        F.when(done.isin("delete", TOMBSTONE), F.col(KEY)).alias("key"),
        F.col("__key_value").alias("key_value"),
        F.col("__block").alias("block"),
        F.struct(*arrived).alias("arrived"),
    )
    return staged.withColumn("__change", change)


def millis(text: Column) -> Column:
    """A time in milliseconds; small numbers are seconds, and what is no whole number is no time."""
    number = F.coalesce(text.try_cast("bigint"), text.try_cast("decimal(20,3)").try_cast("bigint"))
    return F.when(F.abs(number) < _SECONDS_BELOW, number * 1000).otherwise(number)


def position_of(frame: DataFrame) -> Column:
    """The place in the source's log as a text that sorts; without one, the place in the broker's.

    Its first letters say in which log (`LOG_LETTERS`), and what follows is as long for every place of that log.
    """
    place = {name: F.col(f"__{name}") for name in _SOURCE_FIELDS}

    def padded(column: Column, digits: int) -> Column:
        return F.lpad(F.coalesce(column, F.lit("0")), digits, "0")

    def whole(column: Column, digits: int) -> Column:
        return padded(column, LOG_LETTERS - _KIND_LETTERS + digits)

    number = F.substring_index(place["file"], ".", -1)
    name = F.substring(F.md5(F.regexp_replace(place["file"], r"\.[^.]*$", "")), 1, LOG_LETTERS - _KIND_LETTERS)
    file = F.concat_ws(":", name, padded(number, 12), padded(place["pos"], 20), padded(place["row"], 10))
    # Several changes of Oracle may have one SCN: its redo record, and the place there, tell them apart.
    redo = F.concat_ws(":", whole(place["scn"], 30), F.trim(place["rs_id"]), padded(place["ssn"], 20))
    change = F.concat_ws(
        ":", F.lit("0" * (LOG_LETTERS - _KIND_LETTERS)), place["change_lsn"], padded(place["event_serial_no"], 10)
    )
    offset = F.col("_offset").cast("string") if "_offset" in frame.columns else F.lit(None).cast("string")
    return F.coalesce(
        F.concat(F.lit("lsn:"), F.when(place["lsn"].isNotNull(), whole(place["lsn"], 20))),
        F.concat(F.lit("bin:"), F.when(place["file"].isNotNull() & place["pos"].isNotNull(), file)),
        F.concat(F.lit("scn:"), F.when(place["scn"].isNotNull(), redo)),
        F.concat(F.lit("mss:"), F.when(place["change_lsn"].isNotNull(), change)),
        F.concat(F.lit(OFFSET_KIND), F.when(offset.isNotNull(), whole(offset, 20))),
    )


def facts_of(columns: t.StructType, fields: Mapping[str, Sequence[Field]]) -> dict[str, Any]:
    """What travels with the column."""
    return {COLUMNS: columns.jsonValue(), FIELDS: {key: [f.to_dict() for f in found] for key, found in fields.items()}}


def finished(events: DataFrame, *, refuses: bool, facts: dict[str, Any], passed: Sequence[str] = ()) -> DataFrame:
    """The decoded form of a batch: changes, and the reasons against those that are none."""
    skipped = F.col("__skipped") if refuses else F.lit(None).cast("string")
    raw = F.col(VALUE) if VALUE in events.columns else F.col(RAW)
    return events.select(
        F.col("__change").alias(CHANGE, metadata=facts),
        *hidden(events, (CHANGE,), passed),
        raw.alias(RAW),
        F.coalesce(F.col("__reason"), skipped).alias(BAD),
        F.col("__unlike").alias(UNKNOWN),
    )
