"""SQL of other systems as Spark SQL: read, its types found, mended where the two mean different things, written."""
