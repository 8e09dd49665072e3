"""Labels from a table: CSV, TSV, Parquet, JSON lines, SageMaker's augmented manifest."""
