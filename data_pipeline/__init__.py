"""From files of ratings to blocked Parquet datasets: pyarrow and numpy, nothing of the models."""
