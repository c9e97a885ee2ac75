"""Tables: csv and parquet files, the data dictionary, the contents of columns, and their encoding."""
