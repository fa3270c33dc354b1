flow run-due --module my_pipelines
