"""The tables of a run log in a database, as the steps that lead from one version to the next.

One entry per version, forward only: an entry is never changed once it was released, the next one is added below it.
`run_log`, `attempt_state` and `pipeline_claims` begin with the columns they have always had, so that a log of an older
program with these tables is taken over as it is.
"""

from __future__ import annotations

VERSION_TABLE = "ematix_flow_run_log_version"

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE IF NOT EXISTS @run_records (
            run_id {name} PRIMARY KEY,
            pipeline {name} NOT NULL,
            status {word} NOT NULL,
            started_at {instant} NOT NULL,
            finished_at {instant},
            attempt {number} NOT NULL,
            failed_step {text},
            failed_watermark {text},
            error_summary {text},
            kind {word} NOT NULL,
            extras {text} NOT NULL
        )
        """,
        "CREATE INDEX run_records_by_time ON @run_records (started_at)",
        "CREATE INDEX run_records_by_pipeline ON @run_records (pipeline, started_at)",
    ),
    (
        # The order of records that began in the same moment, and what others wish of a run.
        "ALTER TABLE @run_records ADD COLUMN place {word}",
        "ALTER TABLE @run_records ADD COLUMN pause_requested {number}",
        "ALTER TABLE @run_records ADD COLUMN cancel_requested {number}",
        "UPDATE @run_records SET place = run_id",
        "DROP INDEX run_records_by_time ON run_records",
        "DROP INDEX run_records_by_pipeline ON run_records",
        "CREATE INDEX run_records_in_order ON @run_records (started_at, place)",
        "CREATE INDEX run_records_of_pipeline ON @run_records (pipeline, started_at, place)",
        "CREATE INDEX run_records_of_status ON @run_records (status, started_at, place)",
        """
        CREATE TABLE IF NOT EXISTS @run_log (
            pipeline_name {name} PRIMARY KEY,
            last_run_at {instant} NOT NULL,
            success {number} NOT NULL
        )
        """,
        "ALTER TABLE @run_log ADD COLUMN last_success_at {instant}",
        "ALTER TABLE @run_log ADD COLUMN last_success_slot {instant}",
        """
        CREATE TABLE IF NOT EXISTS @attempt_state (
            pipeline_name {name} PRIMARY KEY,
            attempt_count {number} NOT NULL,
            last_attempt_at {instant},
            gave_up {number} NOT NULL
        )
        """,
        """
        CREATE TABLE IF NOT EXISTS @pipeline_claims (
            pipeline_name {name} PRIMARY KEY,
            claim_token {word} NOT NULL,
            worker_id {name} NOT NULL,
            claimed_at {instant} NOT NULL,
            expires_at {instant} NOT NULL
        )
        """,
        "ALTER TABLE @pipeline_claims ADD COLUMN fence {number} DEFAULT 0",
        "CREATE INDEX pipeline_claims_by_token ON @pipeline_claims (claim_token)",
        """
        CREATE TABLE IF NOT EXISTS @slots (
            pipeline_name {name} NOT NULL,
            slot_at {instant} NOT NULL,
            status {word} NOT NULL,
            attempt {number} NOT NULL,
            eligible_at {instant},
            first_failed_at {instant},
            run_id {name},
            reason {text},
            backfill {name},
            changed_at {instant} NOT NULL,
            added_by {word} NOT NULL,
            PRIMARY KEY (pipeline_name, slot_at)
        )
        """,
        "CREATE INDEX slots_by_status ON @slots (status, pipeline_name, slot_at)",
        "CREATE INDEX slots_by_adding ON @slots (added_by)",
        """
        CREATE TABLE IF NOT EXISTS @pauses (
            pipeline_name {name} PRIMARY KEY,
            since {instant} NOT NULL,
            paused_by {text} NOT NULL,
            reason {text} NOT NULL
        )
        """,
        """
        CREATE TABLE IF NOT EXISTS @alerts_sent (
            alert_key {name} PRIMARY KEY,
            sent_at {instant} NOT NULL,
            sent_by {word} NOT NULL
        )
        """,
        """
        CREATE TABLE IF NOT EXISTS @run_events (
            event_id {word} PRIMARY KEY,
            run_id {name} NOT NULL,
            happened_at {instant} NOT NULL,
            step {text} NOT NULL,
            status {text} NOT NULL,
            detail {text} NOT NULL,
            duration_ms {real}
        )
        """,
        "CREATE INDEX run_events_of_run ON @run_events (run_id, happened_at, event_id)",
    ),
    (
        # Since when a pipeline is looked at: times before its first slot count from there.
        """
        CREATE TABLE IF NOT EXISTS @first_seen (
            pipeline_name {name} PRIMARY KEY,
            seen_at {instant} NOT NULL
        )
        """,
        # Where leases go by the steady clock of a machine: what its zero is called, by the machine's start.
        """
        CREATE TABLE IF NOT EXISTS @lease_clocks (
            boot {name} PRIMARY KEY,
            zero_us {number} NOT NULL
        )
        """,
    ),
    (
        # When a pipeline was last among the declared ones: what is left of one that is gone can be removed.
        # Nothing is known of the time before, so that all begin as declared.
        """
        CREATE TABLE IF NOT EXISTS @declared (
            pipeline_name {name} PRIMARY KEY,
            declared_at {instant} NOT NULL
        )
        """,
        "INSERT INTO @declared (pipeline_name, declared_at) SELECT DISTINCT pipeline_name, {moment} FROM @slots"
        " WHERE pipeline_name NOT IN (SELECT pipeline_name FROM @declared)",
    ),
)
