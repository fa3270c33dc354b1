"""Changes of a batch in their order: which of them count, which say what a later one says again, and who is the newest.

What a target has applied before is not known here. So events land one by one, each with what the target's gate needs to
judge it, and only the columns of those that may be applied are filled. `plan/change_feed.py` has the rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce

from pyspark.sql import Column, DataFrame, Window, functions as F, types as t

from ematix_flow.backends.transport import quoted
from ematix_flow.contracts.change_feeds import (
    ALONE,
    AT,
    COUNTS_AS,
    CREATED,
    DELETE,
    DELETED,
    EVERY_KEY,
    FURTHEST,
    KEY,
    LAST_GONE,
    LAST_ROW,
    LATE,
    LONGEST_KEY,
    NEWEST,
    NEWEST_READ,
    NOTHING,
    NTH,
    OP,
    PARTITION_LETTERS,
    PK,
    PLACE,
    POSITION,
    SEQ,
    SKIPPED,
    SNAPSHOT,
    STALE,
    TIP,
    TRUNCATE,
    TS,
    TURN,
    UNCOUNTED,
    UPDATED,
    UPSERT,
    bit_of,
    full_masks,
    masks,
)
from ematix_flow.declare.columns import ColumnType
from ematix_flow.declare.stream import CDC
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.plan.change_feed import ECHO, LOG_LETTERS, OFFSET_KIND, MomentSql, newer_sql
from ematix_flow.spark.change_events import CHANGE, COLUMNS, FIELDS, IGNORED, SKIPPED_OP, TOMBSTONE
from ematix_flow.spark.change_types import Field, value_of
from ematix_flow.spark.fitting import failing
from ematix_flow.spark.types import from_spark_type, to_spark_type

_ARRIVED, _KEYS, _PARTS = "__arrived", "__keys", "__parts"
_MOMENT, _CHANGES_BEFORE, _READS_BEFORE, _LATER = "__moment", "__changes_before", "__reads_before", "__later"
_COUNTS, _LOG = "__counts", "__log"
_TIME_LETTERS = 24
"""What a history puts behind a key, at most."""


@dataclass(frozen=True)
class FeedColumns:
    """The table's side of a feed: its key, what images may write into it, and how an image names the key."""

    keys: tuple[ColumnSpec, ...]
    columns: tuple[ColumnSpec, ...]
    cdc: CDC

    @property
    def counts_seconds(self) -> bool:
        """Whether a small number is a time in seconds; Debezium never writes one."""
        return self.cdc.envelope != "debezium"


def met_columns(rows: DataFrame) -> dict[str, ColumnType]:
    """The columns of the images so far, with the types they would have in a table made for them."""
    facts = rows.schema[CHANGE].metadata
    met = {
        field.name: from_spark_type(field.dataType) for field in t.StructType.fromJson(facts.get(COLUMNS, {})).fields
    }
    for fields in feed_fields(rows).values():
        met |= {field.name: field.column_type for field in fields}
    return met


def feed_fields(rows: DataFrame) -> dict[str, list[Field]]:
    """The fields of the feed's own schemas, by schema."""
    known: Mapping[str, Sequence[Mapping[str, object]]] = rows.schema[CHANGE].metadata.get(FIELDS, {})
    return {key: [Field(**part) for part in parts] for key, parts in known.items()}  # type: ignore[arg-type]


def landed_changes(rows: DataFrame, feed: FeedColumns, *, tolerance_ms: int) -> DataFrame:
    """The changes as they land for a table that mirrors the source: one row an event, two when a key changed."""
    events = _judging_tombstones(_in_step(_events(rows, feed)))
    by_arrival = Window.partitionBy(PK).orderBy(_ARRIVED)
    before = by_arrival.rowsBetween(Window.unboundedPreceding, -1)
    whole = Window.partitionBy(PK)
    is_timed = F.col(TS).isNotNull() & (F.col(OP) != NOTHING)
    is_read = F.col(SNAPSHOT) == 1
    moment = F.struct(F.col(TS).alias("ts"), F.col(POSITION).alias("position"))
    events = events.withColumn(_MOMENT, F.when(is_timed, moment))
    own = {kind: F.when(condition, F.col(_MOMENT)) for kind, condition in (("c", ~is_read), ("r", is_read))}
    events = events.withColumns(
        {
            _CHANGES_BEFORE: F.max(own["c"]).over(before),
            _READS_BEFORE: F.max(own["r"]).over(before),
            "__changes_all": F.max(own["c"]).over(whole),
            "__reads_all": F.max(own["r"]).over(whole),
            "__is_last": F.lead(F.lit(False), 1, True).over(by_arrival) & F.col(OP).isin(UPSERT, DELETE),
        }
    )
    newer = newer_sql(
        MomentSql(TS, POSITION, SNAPSHOT),
        MomentSql(f"{_CHANGES_BEFORE}.ts", f"{_CHANGES_BEFORE}.position"),
        MomentSql(f"{_READS_BEFORE}.ts", f"{_READS_BEFORE}.position"),
    )
    events = events.withColumn("__newer", F.coalesce(F.expr(newer), F.lit(False)))
    is_echo = F.col("__is_echo")
    events = events.withColumn(_COUNTS, F.col("__newer") & F.col(OP).isin(UPSERT, DELETE) & ~is_echo)
    lateness = F.col(f"{_CHANGES_BEFORE}.ts") - F.col(TS)
    stale = F.when(lateness > tolerance_ms, LATE).otherwise(STALE)
    is_event = F.col(OP).isin(UPSERT, DELETE) & (F.col(COUNTS_AS) != UNCOUNTED)
    counted = F.when(is_echo, F.lit(UNCOUNTED)).when(is_event & ~F.col(_COUNTS), stale)
    tip = (
        F.when(_is_tip(own["c"], _CHANGES_BEFORE, "__changes_all"), NEWEST)
        .when(_is_tip(own["r"], _READS_BEFORE, "__reads_all"), NEWEST_READ)
        .otherwise(0)
    )
    last = F.when(~F.col("__is_last"), 0).when(F.col(OP) == DELETE, LAST_GONE).otherwise(LAST_ROW)
    tip = tip + F.coalesce(last, F.lit(0)) + F.when(F.col("__is_alone"), ALONE).otherwise(0)
    place = F.when(F.col("__is_last") | F.col("__is_alone"), _place())
    return _in_turns(events, feed).select(
        *[F.col(f"{_KEYS}.{quoted(key.name)}").alias(key.name) for key in feed.keys],
        *[_kept(column) for column in feed.columns],
        F.when(F.col(_COUNTS) | (F.col(OP) == TRUNCATE), F.col(OP)).otherwise(NOTHING).cast("smallint").alias(OP),
        F.coalesce(counted, F.col(COUNTS_AS)).cast("smallint").alias(COUNTS_AS),
        *[F.col(name) for name in (PK, TS, POSITION)],
        F.col(SNAPSHOT).cast("smallint").alias(SNAPSHOT),
        F.col(f"{_ARRIVED}.number").alias(SEQ),
        F.col(TURN).cast("bigint").alias(TURN),
        tip.cast("smallint").alias(TIP),
        place.alias(PLACE),
        *[F.col(name) for name in masks(len(feed.columns))],
    )


def _in_step(events: DataFrame) -> DataFrame:
    """The events with times that go with their places: none is earlier than that of a place before it in its log."""
    is_placed = F.col(TS).isNotNull() & ~F.col(POSITION).startswith(OFFSET_KIND)
    events = events.withColumn(_LOG, F.when(is_placed, F.substring(POSITION, 1, LOG_LETTERS)))
    so_far = Window.partitionBy(PK, _LOG).orderBy(POSITION).rangeBetween(Window.unboundedPreceding, Window.currentRow)
    return events.withColumn(TS, F.when(F.col(_LOG).isNotNull(), F.max(TS).over(so_far)).otherwise(F.col(TS)))


def _judging_tombstones(events: DataFrame) -> DataFrame:
    """Tombstones with what is known of them: they have neither a time nor a place, but come right behind another event.

    Behind a delete one is the delete's echo: Debezium sends it. Behind anything else it is a delete itself, made right
    after that, and stands or falls with it. Of one that comes first the gate knows what was before it.
    """
    by_arrival = Window.partitionBy(PK).orderBy(_ARRIVED)
    is_tombstone = F.col("__is_tombstone")
    events = events.withColumns({f"__{name}_before": F.lag(name).over(by_arrival) for name in (OP, TS, POSITION, _LOG)})
    before = F.col(f"__{OP}_before")
    inherited = {TS: F.col(f"__{TS}_before"), POSITION: F.concat(F.col(f"__{POSITION}_before"), F.lit(ECHO))}
    inherited[_LOG] = F.col(f"__{_LOG}_before")
    return events.withColumns(
        {
            **{name: F.when(is_tombstone, value).otherwise(F.col(name)) for name, value in inherited.items()},
            "__is_echo": F.coalesce(is_tombstone & (before == DELETE), F.lit(False)),
            "__is_alone": is_tombstone & before.isNull() & (F.col(OP) == DELETE),
        }
    )


def _place() -> Column:
    """Where an event stands in its topic, as a text that sorts; NULL where the source does not say."""
    partition, offset = (F.col(f"{_ARRIVED}.{name}") for name in ("partition", "offset"))
    padded = [F.lpad(part.cast("string"), size, "0") for part, size in ((partition, PARTITION_LETTERS), (offset, 20))]
    return F.when(offset >= 0, F.concat_ws(":", *padded))


def _is_tip(own: Column, before: str, whole: str) -> Column:
    """Whether an event is the first to be as new as any of its key in the batch."""
    return own.isNotNull() & (own == F.col(whole)) & (F.col(before).isNull() | (F.col(before) < own))


def _in_turns(events: DataFrame, feed: FeedColumns) -> DataFrame:
    """Every event with its turn: its place among those of its key that no later one makes superfluous."""
    names = masks(len(feed.columns))
    full = full_masks(len(feed.columns))
    # Only a change of the same log is sure to count whenever this one does, be it a row that was read or none.
    one = F.when(F.col(TS).isNull(), 0).otherwise(
        F.lit(1) + F.when(F.col(POSITION).isNull(), 2).otherwise(0) + F.col(SNAPSHOT)
    )
    events = events.withColumn("__class", one)
    newest_first = Window.partitionBy(PK, _LOG, "__class").orderBy(F.col(_ARRIVED).desc())
    newest_first = newest_first.rowsBetween(Window.unboundedPreceding, -1)
    is_delete = F.col(OP) == DELETE
    # A row that goes takes everything with it; one that is only marked keeps what was written before.
    gone = dict.fromkeys(names, 0) if feed.cdc.delete_mode == "soft" else full
    own = {name: F.when(is_delete, F.lit(gone[name]).cast("bigint")).otherwise(F.col(name)) for name in names}
    later = {f"{_LATER}{name}": F.bit_or(F.when(F.col(_COUNTS), own[name])).over(newest_first) for name in names}
    events = events.withColumns(later)
    said_again = reduce(
        lambda one, other: one & other,
        [
            own[name].bitwiseAND(F.bitwise_not(F.coalesce(F.col(f"{_LATER}{name}"), F.lit(0).cast("bigint")))) == 0
            for name in names
        ],
    )
    # An event with no column but its key makes a row, too.
    applies = F.col(_COUNTS) & ~(said_again & F.col(f"{_LATER}{names[0]}").isNotNull())
    so_far = Window.partitionBy(PK).orderBy(_ARRIVED).rowsBetween(Window.unboundedPreceding, 0)
    events = events.withColumn("__applies", applies)
    turn = F.when(F.col("__applies"), F.sum(F.col("__applies").cast("int")).over(so_far)).otherwise(0)
    return events.withColumn(TURN, F.when(F.col(OP) == TRUNCATE, F.col("__newer").cast("int")).otherwise(turn))


def _kept(column: ColumnSpec) -> Column:
    """A column's value where it may be applied."""
    name = F.col(quoted(column.name))
    return F.when((F.col(TURN) > 0) & (F.col(OP) == UPSERT), name).alias(column.name)


def landed_history(rows: DataFrame, feed: FeedColumns, *, now: datetime) -> DataFrame:
    """The changes as they land for a table of versions: of several at one time the last, with what they have together.

    What an image lacks beyond that is for the target to say, which knows the versions before it.
    """
    events = _in_step(_events(rows, feed))
    by_arrival = Window.partitionBy(PK).orderBy(_ARRIVED)
    behind = by_arrival.rowsBetween(1, Window.unboundedFollowing)
    in_order = (F.col(POSITION).asc_nulls_first(), F.col(_ARRIVED))
    is_tombstone = F.col("__is_tombstone")
    # A tombstone has no time. Behind a delete it is its echo, and what comes behind it was made later than it.
    is_echo = F.coalesce(is_tombstone & (F.lag(OP).over(by_arrival) == DELETE), F.lit(False))
    is_past = is_tombstone & (F.count(F.when(~is_tombstone, 1)).over(behind) > 0)
    events = events.withColumns({"__is_echo": is_echo, "__is_past": is_past})
    is_version = F.col(OP).isin(UPSERT, DELETE) & ~F.col("__is_echo") & ~F.col("__is_past")
    events = events.withColumn("__is_version", is_version)
    newest_first = Window.partitionBy(PK, TS, "__is_version").orderBy(
        F.col(POSITION).desc_nulls_last(), F.col(_ARRIVED).desc()
    )
    so_far = Window.partitionBy(PK, TS).orderBy(*in_order).rowsBetween(Window.unboundedPreceding, 0)
    ends = F.col("__is_version") & (F.col(OP) == DELETE)
    events = events.withColumns(
        {"__last": F.row_number().over(newest_first) == 1, "__part": F.sum(ends.cast("int")).over(so_far)}
    )
    carried = Window.partitionBy(PK, TS, "__part").orderBy(*in_order)
    values, full = [], full_masks(len(feed.columns))
    for place, column in enumerate(feed.columns):
        mask, bit = bit_of(place)
        has = F.col(mask).bitwiseAND(F.lit(bit).cast("bigint")) != 0
        given = F.struct(F.col(quoted(column.name)).alias("value"))
        known = F.last(F.when(has, given), ignorenulls=True).over(carried)
        values.append(F.when(F.col(OP) == UPSERT, known["value"]).alias(column.name))
    # A key that was deleted within the same millisecond begins anew: nothing older is for its image.
    held = [
        F.when(F.col("__part") > 0, F.lit(full[name]).cast("bigint"))
        .otherwise(F.bit_or(F.col(name)).over(carried))
        .alias(name)
        for name in masks(len(feed.columns))
    ]
    at = F.coalesce(F.timestamp_millis(F.col(TS)), F.lit(now).cast("timestamp"))
    lands = (F.col("__is_version") & F.col("__last")) | (F.col(OP) == TRUNCATE)
    is_placed = F.col("__is_version") & F.col("__last") & F.col(_LOG).isNotNull()
    moment = F.struct(F.col(TS).alias("ts"), F.col(POSITION).alias("position"))
    in_log = Window.partitionBy(PK, _LOG).orderBy(POSITION).rangeBetween(Window.unboundedPreceding, Window.currentRow)
    events = events.withColumns(
        {
            "__is_furthest": is_placed & (moment == F.max(F.when(is_placed, moment)).over(Window.partitionBy(PK))),
            "__nth": F.sum(is_placed.cast("int")).over(in_log),
        }
    )
    tip = F.when(lands & F.col(TS).isNotNull() & (F.col(OP) != TRUNCATE), NEWEST).otherwise(0)
    tip = tip + F.when(F.col("__is_furthest"), FURTHEST).otherwise(0)
    return events.select(
        *[F.col(f"{_KEYS}.{quoted(key.name)}").alias(key.name) for key in feed.keys],
        *values,
        F.col(OP).cast("smallint").alias(OP),
        F.when(F.col("__is_echo"), UNCOUNTED).otherwise(F.col(COUNTS_AS)).cast("smallint").alias(COUNTS_AS),
        # What a gate remembers of a history is the place of every version, not only of the newest.
        F.concat_ws("@", PK, TS).alias(PK),
        *[F.col(name) for name in (TS, POSITION)],
        F.col(SNAPSHOT).cast("smallint").alias(SNAPSHOT),
        F.col(f"{_ARRIVED}.number").alias(SEQ),
        F.lit(0).cast("bigint").alias(TURN),
        tip.cast("smallint").alias(TIP),
        F.lit(None).cast("string").alias(PLACE),
        *held,
        F.when(lands, at).alias(AT),
        F.when(F.col("__is_version"), F.col(PK)).alias(KEY),
        F.when(is_placed, F.col("__nth")).alias(NTH),
    )


def misfit_of(rows: DataFrame, feed: FeedColumns) -> Column:
    """Why a change cannot be applied, without any value of it; NULL for one that can."""
    change, reasons = F.col(CHANGE), []
    fields = feed_fields(rows)
    touches = ~change["op"].isin(IGNORED, SKIPPED_OP, "truncate", TOMBSTONE)
    is_delete = change["op"] == "delete"
    for key in feed.keys:
        text = F.when(is_delete, _old_key(change, key, feed)).otherwise(_new_key(change, key, feed))
        reasons.append(F.when(touches & text.isNull(), F.lit(f"it has no value for the key '{key.name}'")))
        unfit = text.isNotNull() & _typed(text, key, fields, feed).isNull()
        reasons.append(F.when(touches & unfit, F.lit(f"column '{key.name}' does not fit {key.type}")))
    for column in feed.columns:
        text = _text(change["after"], column.name)
        unfit = text.isNotNull() & _typed(text, column, fields, feed).isNull()
        reasons.append(
            F.when(touches & ~is_delete & unfit, F.lit(f"column '{column.name}' does not fit {column.type}"))
        )
    return F.coalesce(*reasons)


# ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _events(rows: DataFrame, feed: FeedColumns) -> DataFrame:
    """One row an event, typed: what is to be done, to which key, and with which columns."""
    change, fields = F.col(CHANGE), feed_fields(rows)
    arrived = F.struct(
        F.coalesce(change["arrived"]["partition"], F.lit(-1)).alias("partition"),
        F.coalesce(change["arrived"]["offset"], F.lit(-1)).alias("offset"),
        F.monotonically_increasing_id().alias("number"),
    )
    # Chosen behind the numbers, over which Spark moves no condition: it would write all that an event is read with into
    # this one, a hundred times over, and think about that longer than a small batch takes.
    counted = rows.select(CHANGE, arrived.alias(_ARRIVED)).where(change["op"] != IGNORED)
    new = F.struct(*[_fitted(_new_key(change, k, feed), k, fields, feed) for k in feed.keys])
    op = change["op"]
    # A tombstone is mostly the echo of a delete: one whose key is of another kind is no reason to stop.
    old = F.struct(*[_fitted(_old_key(change, k, feed), k, fields, feed, spared=op == TOMBSTONE) for k in feed.keys])
    is_delete = op.isin("delete", TOMBSTONE)
    keyed = counted.select(
        "*", F.when(is_delete, old).otherwise(new).alias("__new"), F.when(op == "update", old).alias("__old")
    )
    has_new = _is_whole("__new", feed)
    kind = (
        F.when(op == "truncate", TRUNCATE)
        .when((op == SKIPPED_OP) | ~has_new, NOTHING)
        .when(is_delete, DELETE)
        .otherwise(UPSERT)
    )
    soft = feed.cdc.delete_mode == "soft"
    counts_as = (
        F.when(op == "truncate", UPDATED if soft else DELETED)
        .when(op == TOMBSTONE, F.when(has_new, UPDATED if soft else DELETED).otherwise(UNCOUNTED))
        .when((op == SKIPPED_OP) | ~has_new, SKIPPED)
        .when(is_delete, UPDATED if soft else DELETED)
        .when(op == "update", UPDATED)
        .otherwise(CREATED)
    )
    main = F.struct(F.col("__new").alias("keys"), kind.alias("op"), counts_as.alias("counts"))
    moved = _is_whole("__old", feed) & has_new & (F.col("__old") != F.col("__new"))
    gone = F.struct(F.col("__old").alias("keys"), F.lit(DELETE).alias("op"), F.lit(UNCOUNTED).alias("counts"))
    parts = F.when(F.coalesce(moved, F.lit(False)), F.array(gone, main)).otherwise(F.array(main))
    split = keyed.select(CHANGE, _ARRIVED, F.explode(parts).alias(_PARTS))
    keys = F.col(f"{_PARTS}.keys")
    text = F.to_json(keys)
    short = F.when(
        F.length(text) > LONGEST_KEY - _TIME_LETTERS, F.concat(F.lit("sha256:"), F.sha2(text, 256))
    ).otherwise(text)
    is_row = F.col(f"{_PARTS}.op").isin(UPSERT, DELETE)
    values = []
    for column in feed.columns:
        given = F.when(F.col(f"{_PARTS}.op") == UPSERT, _text(change["after"], column.name))
        values.append(_fitted(given, column, fields, feed))
    return split.select(
        _ARRIVED,
        keys.alias(_KEYS),
        F.col(f"{_PARTS}.op").alias(OP),
        F.col(f"{_PARTS}.counts").alias(COUNTS_AS),
        F.when(is_row, short).when(F.col(f"{_PARTS}.op") == TRUNCATE, F.lit(EVERY_KEY)).alias(PK),
        change["ts"].alias(TS),
        change["position"].alias(POSITION),
        F.when(change["op"] == "read", 1).otherwise(0).alias(SNAPSHOT),
        (change["op"] == TOMBSTONE).alias("__is_tombstone"),
        *values,
        *_masks(change["after"], feed),
    )


def _is_whole(keys: str, feed: FeedColumns) -> Column:
    known = [F.col(f"{keys}.{quoted(key.name)}").isNotNull() for key in feed.keys]
    return F.coalesce(reduce(lambda one, other: one & other, known), F.lit(False))


def _new_key(change: Column, key: ColumnSpec, feed: FeedColumns) -> Column:
    """The text of a key's column after the change."""
    found = [_text(change["after"], name) for name in _key_names(key, feed)]
    return F.coalesce(*found, *([change["key_value"]] if len(feed.keys) == 1 else []))


def _old_key(change: Column, key: ColumnSpec, feed: FeedColumns) -> Column:
    """The text of a key's column before the change; of a delete also from the message's key."""
    images = [_text(change[image], name) for image in ("before", "key") for name in _key_names(key, feed)]
    alone = [_text(change["key"], ""), change["key_value"]] if len(feed.keys) == 1 else []
    is_delete = change["op"].isin("delete", TOMBSTONE)
    after = [F.when(is_delete, _text(change["after"], name)) for name in _key_names(key, feed)]
    return F.coalesce(*images, *after, *(F.when(is_delete, found) for found in alone))


def _key_names(key: ColumnSpec, feed: FeedColumns) -> tuple[str, ...]:
    """What images call a column of the key: its own name, or the end of the path that was given for it."""
    path = feed.cdc.key_field
    named = (path.rpartition(".")[2],) if path and len(feed.keys) == 1 else ()
    return tuple(dict.fromkeys([*named, key.name]))


def _text(image: Column, name: str) -> Column:
    return F.try_element_at(image, F.lit(name))


def _masks(after: Column, feed: FeedColumns) -> list[Column]:
    """Which columns an image has."""
    sums: dict[str, Column] = {name: F.lit(0).cast("bigint") for name in masks(len(feed.columns))}
    for place, column in enumerate(feed.columns):
        name, bit = bit_of(place)
        has = F.coalesce(F.map_contains_key(after, column.name), F.lit(False))
        sums[name] = sums[name].bitwiseOR(F.when(has, F.lit(bit)).otherwise(F.lit(0)).cast("bigint"))
    return [column.alias(name) for name, column in sums.items()]


def _typed(text: Column, column: ColumnSpec, fields: Mapping[str, Sequence[Field]], feed: FeedColumns) -> Column:
    """A text of an image in the type of its column, by what the feed's schemas say of it; NULL when it is none."""
    known = {block: next((f for f in found if f.name == column.name), None) for block, found in fields.items()}
    value = value_of(text, None, column.type, column.name, counts_seconds=feed.counts_seconds)
    for kind in dict.fromkeys(field for field in known.values() if field is not None):
        blocks = [block for block, found in known.items() if found == kind]
        meant = value_of(text, kind, column.type, column.name, counts_seconds=feed.counts_seconds)
        value = F.when(F.col(f"{CHANGE}.block").isin(blocks), meant).otherwise(value)
    return value


def _fitted(
    text: Column,
    column: ColumnSpec,
    fields: Mapping[str, Sequence[Field]],
    feed: FeedColumns,
    spared: Column | None = None,
) -> Column:
    """The same, and an error that names the column where a text is no value of its type; NULL where it is spared."""
    typed = _typed(text, column, fields, feed)
    failure = failing(column.name, str(column.type)).cast(to_spark_type(column.type))
    fails = text.isNotNull() if spared is None else text.isNotNull() & ~spared
    return F.coalesce(typed, F.when(fails, failure)).alias(column.name)
