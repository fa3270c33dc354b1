"""The engine room: the only place with pyspark at the top of a file."""
