"""agl-csv-tracker: the metrics of every run, one value a line, in one CSV file."""

import csv
from datetime import datetime
from typing import Any


class CsvTracker:
    """Appends each step's and each evaluation's metrics to a file.

    Args:
        path: The file; its columns are ``run`` (when it started), ``step``, ``metric`` and
            ``value``.
    """

    def __init__(self, path: str = "agl-metrics.csv") -> None:
        self.path = path
        self.run = ""

    def on_run_start(self) -> None:
        self.run = datetime.now().isoformat(timespec="milliseconds")

    def on_step_end(self, step: int, metrics: dict[str, Any]) -> None:
        with open(self.path, "a", newline="") as file:
            rows = csv.writer(file)
            if file.tell() == 0:
                rows.writerow(["run", "step", "metric", "value"])
            rows.writerows([self.run, step, name, value] for name, value in metrics.items())

    # The names of an evaluation's metrics begin with val/.
    on_evaluation_end = on_step_end
