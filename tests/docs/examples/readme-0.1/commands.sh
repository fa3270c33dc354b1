flow run-due --module my_pipelines # fires schedules in last interval
flow run --module my_pipelines sync_customers # one-shot
flow preview --module my_pipelines sync_customers # what would it do?
flow validate --module my_pipelines sync_customers # EXPLAIN against the DB
