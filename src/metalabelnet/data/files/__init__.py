"""Data sets from files: image folders, CSV and Parquet tables, `.npz` files, and their clean sets."""
