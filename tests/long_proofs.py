"""Tests that `make prove` runs and `make test` leaves out: more of what is tested there already, at seconds each.

Every pattern is held against a test's id. What is left out here has a sibling in `make test`: the same on another
system or route, another mode of the same thing, another point of the same crash. PostgreSQL has it all in both.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

# On these systems Spark's route differs from PostgreSQL's in how rows are read and staged, and nowhere else.
_ON_EVERY_SYSTEM = "|".join(
    (
        "test_append_adds_all_rows_every_time_and_stamps_them",
        "test_truncate_replaces_everything_or_nothing",
        "test_merge_inserts_updates_and_leaves_the_rest_alone",
        "test_scd2_by_event_time_is_right_whatever_the_order_of_arrival",
        "test_incremental_append_by_instant_is_exact_to_the_microsecond",
        "test_every_type_keeps_every_value",
        "test_hostile_names_are_just_names",
        "test_repeating_a_logical_run_changes_nothing",
        "test_a_value_that_does_not_fit_stops_the_load",
        "test_a_bad_value_takes_back_the_schema_change_too",
        "test_each_target_has_its_own_mode_counts_and_history",
    )
)
PATTERNS = (
    r"test_lake_catalogs\.py::",
    r"test_lookups\.py::test_rows_are_joined_with_a_table_of_another_system\[(mysql|duckdb|delta)\]",
    r"test_udfs\.py::test_a_list_of_structs_is_gathered_on_every_kind_of_target\[(mysql|delta)\]",
    rf"test_(mysql|sqlite|duckdb)\.py::Test(Mysql|Sqlite|Duckdb)::(?!{_ON_EVERY_SYSTEM})\w+\[.*spark.*\]",
    r"::Test(Mysql|Files|Duckdb|Sqlite)::test_a_text_that_is_(no_)?json\w*\[(source-\w+|\w+-JSONB)\]",
    r"::TestPostgres::test_a_text_that_is_(no_)?json\w*\[(source-\w+|\w+-JSONB)\]",
    r"::TestMysql::test_every_source_(delivers|appends)_the_same_values",
    r"::Test(Mysql|Duckdb|Sqlite)::test_a_mark_left_by_one_route\w+\[(double|date|timestamp|text)\]",
    r"::Test(Mysql|Duckdb)::test_a_dry_run\w+\[pushdown\]",
    # Those of Delta run in `make test` on the native engine (`test_native.py`), but for the parts of the contract that
    # `left_to_prove` takes out of every lake, on both engines.
    r"test_(delta|iceberg)\.py::Test(Delta|Iceberg)::\w+\[.*(pushdown|scd1).*\]",
    r"test_delta\.py::TestDelta::test_hard_deletes\w+\[spark\]",
    r"test_(delta|iceberg)\.py::Test(Delta|Iceberg)::test_merge_(refuses|compares|keys|prefers)\w+",
    r"test_warehouse_snowflake\.py::TestModes::test_rows_of_the_same_warehouse_are_pushed_down\[(append|truncate)\]",
    r"test_warehouse_snowflake\.py::TestModes::test_rows_from_files_come_through_spark\[(append|truncate)\]",
    r"test_warehouse_snowflake\.py::TestModes::test_(names_without|a_filter|truncate)\w+",
    r"test_warehouse_snowflake\.py::TestModes::test_(a_key_twice|merge_with_hard)\w+",
    r"test_warehouse_snowflake\.py::TestNames::test_other_names\w+",
    r"test_warehouse_snowflake\.py::TestTables::test_(a_column_is_widened|a_dry_run|a_new_column|a_table_that_is_as)\w*",
    r"test_warehouse_snowflake\.py::TestBooks::test_(history|a_second)\w+",
    r"test_warehouse_snowflake\.py::TestTypes::test_a_table_that_is_as_declared\w+",
    # Of BigQuery `make test` has the text of every statement, and the settings of every job (`test_warehouse_sql.py`).
    r"test_warehouse_bigquery\.py::",
    r"test_lake_maintenance\.py::test_(many_tasks_make\w+|versions_stay\w+)\[delta\]",
    r"test_lake_maintenance\.py::test_many_tasks_that_write\w+\[iceberg\]",
    # `tests/cli/test_maintain.py` and `docs/lake-tables.md` put small files together.
    r"test_lake_maintenance\.py::test_small_files_become\w+",
    r"test_lake_maintenance_kill\.py::",
    # The same stories are told to SQLite and DuckDB.
    r"test_change_targets\.py::test_(a_lake_ends_as_the_source|a_lake_table_that_is_gone|a_lake_goes_on_with)\w+",
    r"test_change_targets\.py::test_\w+\[iceberg\]",
    r"test_change_targets\.py::test_a_history_goes_by_the_log\w+\[delta\]",
    r"test_delta\.py::TestDelta::test_(truncate_replaces|append_of_a_key)\w+\[spark\]",
    # Iceberg has these in `make test`.
    r"test_delta\.py::TestDelta::test_(a_merge_that_changes|a_new_not_null_column_is_added|columns_that_only|a_row_stored_twice|a_version_that_another|an_older_version)\w+",
    r"test_lake_s3\.py::test_every_mode_works_in_a_bucket",
    r"test_lake_s3\.py::TestS3(Iceberg::|Delta::(?!test_two_pipelines_that_merge_at_once))",
    r"test_lake_s3_kill\.py::",
    # A bucket differs from a folder in how a table is committed and locked, which test_files_s3.py has in full.
    r"test_files_contract\.py::TestS3Files::(\w+\[pushdown\]|test_(a_preview|a_dry_run|hostile|append_of|every_append)\w+)",
    r"test_files_contract\.py::TestS3Files::test_(a_new_nullable|every_type|incremental|a_column_that_only|a_table_made)\w+",
    r"test_files_contract\.py::TestS3Files::test_(nothing_of_a_load|a_bad_value|truncate)\w+",
    r"test_files_s3\.py::test_every_format\w+\[(csv|orc|json_lines)\]",
    r"test_files_s3\.py::test_a_killed_run\w+\[staged\]",
    r"test_files_s3\.py::test_of_two_processes_at_once\w+",
    r"test_files\.py::test_a_run_killed_before_any_change_on_disk\w+\[truncate\]",
    r"test_files\.py::test_a_process_that_is_really_killed\w+\[staged\]",
    r"test_kill\.py::test_a_(run_killed_in_the_middle_of_staging|task_killed_after)\w+\[(mysql|duckdb|sqlite)\]",
    r"test_kill\.py::test_a_killed_pushdown\w+\[(duckdb|mysql)-settled-(append|truncate|merge)\]",
    r"test_kill\.py::test_a_killed_spark_load\w+\[(duckdb-.*|sqlite-.*|mysql-append.*|postgres-merge.*)\]",
    r"test_kill\.py::test_the_staging_of_a_living_run_is_left_alone\[(mysql|duckdb|sqlite)\]",
    r"test_kafka\.py::test_a_task_killed_after_its_commit_doubles_nothing",
    r"test_kafka\.py::test_a_run_killed_when_all_is_sent_is_not_sent_again",
    r"test_crowds\.py::(\w+\[.*postgres.*|test_the_histories\w+\[delta.*)\]",
    r"test_(merge|history)_property\.py::test_\w+_on_mysql_are",
    r"test_type_matrix\.py::\w+\[(ORC|CSV|JSON lines|Iceberg)\]",
    r"test_type_matrix\.py::test_a_value_that_a_system_has_no_place_for\w+\[MySQL\]",
    r"test_type_matrix\.py::test_every_value_goes_from_one_kind_of_lake_table\w+",
    r"test_native_delta\.py::test_both_engines_write_the_same_history",
    r"test_native\.py::test_a_slice_of_the_contract",
    r"test_given_sessions\.py::test_(a_connect_session|lake_tables)\w+",
    r"test_iceberg\.py::TestIceberg::test_hard_deletes\w+\[spark\]",
    r"test_lake_kill\.py::test_a_killed_load\w+\[iceberg-",
    r"test_cdc\.py::test_a_feed_is_mirrored\w+\[sqlite\]",
    # A run log in SQLite has every point in `make test`.
    r"tests/orchestrate/\w+\.py::test_a_process_killed_at_any_step\w+\[postgres-(body-done|outcome-noted|slot-ended)\]",
    r"tests/orchestrate/\w+\.py::test_a_scheduler_killed_at_any_step\w+\[postgres-(due-written|dispatched)\]",
    r"tests/orchestrate/test_run_due\.py::test_(a_failure_by_hand|giving_up|paused_pipelines|a_run_is_paused)\w+\[postgres\]",
    r"tests/orchestrate/test_run_due\.py::test_a_cancelled_run\w+\[postgres-as-it-is\]",
    r"tests/orchestrate/test_reloading\.py::test_a_scheduler_takes_up\w+\[(sqlite-workers|postgres-subprocess).*\]",
    r"test_scheduler\.py::test_a_leader_frozen_at_a_step\w+\[(?!postgres-claimed)",
    r"test_scheduler\.py::test_a_leader_frozen_past_its_lease\w+",  # at any moment, where it mostly sleeps
    r"test_clock_jumps\.py::test_a_clock_that_is_set_under_the_run_logs_server",
    r"tests/orchestrate/test_scheduler_crowds\.py::test_told_to_stop\w+\[(sqlite-workers|postgres-subprocess).*\]",
    r"tests/orchestrate/test_(clock_jumps|scheduler_crowds)\.py::test_(a_clock|two_schedulers|of_a)\w+\[sqlite\]",
    r"tests/orchestrate/test_run_log_away\.py::test_work_out_of_touch\w+\[False\]",
    # Servers that take minutes to build where nothing of them is there yet.
    r"test_files_contract\.py::Test(Gcs|Azure)Files::",
    r"test_files_(gcs|azure)\.py::",
    r"test_runlog_contract\.py::.*\[(gcs|azure)",
    r"test_runlog_stores\.py::test_(gcs|azure)_is_found",
    r"test_kinesis_client\.py::test_shards_that_were_split_or_merged",
    r"test_core\.py::test_kinesis_batches_keep_their_limits_and_children_follow_their_parents",
    # Servers and Java machines of their own.
    r"tests/stream/test_warehouse_target\.py::",
    r"tests/stream/test_kafka_to_kafka\.py::test_a_killed_pipeline",
    r"tests/stream/test_(broker_away|restarts|cdc_debezium)\.py::",
    r"tests/stream/test_seed_commands\.py::test_(a_declared|a_document_is_run|one_topic|the_older)",
    r"tests/stream/test_lake_sources\.py::test_(a_delta_table_that_was_made_anew|an?_\w+_table_whose_)",
    r"tests/stream/test_avro\.py::test_messages_wait_for_a_registry_that_is_away",
    r"tests/stream/test_consume_cli\.py::test_all_streams_of_a_module_run_beside_each_other",
    r"tests/stream/test_supervisor\.py::test_a_stream_survives_the_death_of_its_java_machine",
    r"tests/stream/test_targets\.py::\w+\[(duckdb|iceberg|mysql)\]",
    r"tests/stream/test_cdc\.py::\w+\[(duckdb|iceberg|mysql|delta-.*)\]",
    r"tests/stream/test_cdc\.py::\w+\[delta\]",
    r"tests/stream/test_reopened_sessions\.py::\w+\[(delta|sqlite|duckdb|mysql|iceberg)\]",
    r"tests/stream/test_random_streams\.py::\w+\[(tumbling|inner)-",
    r"tests/stream/test_queues\.py::test_messages_that_come_again_among_others\w+\[(pubsub|kinesis)\]",
    r"tests/stream/test_broker_dead_letters\.py::test_what_is_to_be_rejected_outlives_the_disk",
    r"tests/stream/test_state_store\.py::test_a_stream_that_remembers\w+\[(?!batch-applied-tumbling)",
    r"tests/stream/test_windows\.py::test_a_stream_that_is_killed\w+\[stepped\]",
    r"tests/stream/test_dead_letters\.py::test_of_rows\w+\[True-dlq\]",
    r"tests/stream/test_dead_letters\.py::test_a_replay_that_is_killed_does_not_double_a_row\[replay-applied\]",
    r"tests/stream/test_faults\.py::test_a_killed_stream_goes_on_as_if_nothing_had_happened\[batch-applied\]",
    r"tests/stream/test_faults\.py::test_a_killed_stream_into_another_kind",
    r"tests/stream/test_faults\.py::test_a_lost_commit_file\w+\[deleted\]",
    # `test_faults.py` has the second machine for PostgreSQL, `tests/backends/test_kafka.py` who may write to Kafka.
    r"tests/stream/test_two_machines\.py::",
    r"tests/stream/test_postgres_capture\.py::(test_every_event\w+|\w+\[DeltaMirror\])",
    r"tests/stream/test_mysql_capture\.py::",
    r"tests/stream/test_targets\.py::test_every_message\w+\[sqlite\]",
    r"tests/stream/test_targets\.py::test_a_new_field_in_the_middle\w+\[delta\]",
    r"tests/stream/test_targets\.py::test_a_surprise_in_the_middle\w+\[files\]",
    r"tests/stream/test_cdc_random\.py::test_any_feed\w+\[1\]",
    r"tests/stream/test_window_(limits|udafs)\.py::\w+\[shape1-SessionSteps\]",
)
_ANY = re.compile("|".join(f"(?:{pattern})" for pattern in PATTERNS))


def is_long_proof(test: str) -> bool:
    """Whether a test is left to `make prove`."""
    return _ANY.search(test) is not None


@cache
def proves_more(module: Path) -> bool:
    """Whether tests of a module have more examples, systems or points in `make prove`."""
    text = module.read_text(encoding="utf-8")
    return any(word in text for word in ("EMATIX_PROVE", "left_to_prove", "IS_PROOF"))
