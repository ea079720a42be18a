"""Model calls out of the spans of an attempt, whoever recorded them and in whatever form."""
