"""Prepare charts and questions: pictures in ``images``, one parquet file to train, one to test.

    python prepare_data.py                     # 32 small charts, drawn here, always the same
    python prepare_data.py chartqa/data        # ChartQA's own parquet files, from that folder
    python prepare_data.py chartqa/data --limit 200

Nothing is downloaded; README.md beside this file says where ChartQA is. Everything goes to ``data``
beside this file, or to ``CHARTQA_DATA_DIR``.
"""

import argparse
import hashlib
import io
import json
import random
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from chart_tasks import PARTS, parquet_file
from env_var import data_folder

THINGS = (
    *("apples", "bikes", "books", "boats", "boots", "cakes", "chairs", "clocks", "coats", "cups"),
    *("desks", "dolls", "drums", "eggs", "flags", "gloves", "hats", "kites", "knives", "lamps"),
    *("maps", "masks", "pans", "pears", "pens", "pianos", "plums", "rings", "ropes", "rugs"),
    *("tents", "toys"),
)
PLACES = ("Berlin", "Cairo", "Delhi", "Lima", "Oslo", "Quito", "Rome", "Tokyo")
KINDS = ("bar", "line", "pie")
NUM_TEST_CHARTS = 8
DESCRIPTION = "Description"
"""The field of a small chart's PNG file that has its data, for the scripted model."""

Record = dict[str, Any]


def small_charts() -> list[Record]:
    """What the small charts show: four values each."""
    draw = random.Random(0)
    charts: list[Record] = []
    for number, thing in enumerate(THINGS):
        values = draw.sample(range(10, 99), 4)
        values = dict(zip(draw.sample(PLACES, 4), values, strict=True))
        charts.append({"kind": KINDS[number % 3], "thing": thing, "values": values})
    return charts


def questions_about(chart: Record) -> list[tuple[str, str]]:
    """Three questions about a small chart, with their answers."""
    thing, values = chart["thing"], chart["values"]
    few, *_, many = sorted(values, key=values.__getitem__)
    asked = next(iter(values))
    return [
        (f"How many {thing} were sold in {asked}?", str(values[asked])),
        (f"Where were most {thing} sold?", many),
        (
            f"How many more {thing} were sold in {many} than in {few}?",
            str(values[many] - values[few]),
        ),
    ]


def draw_chart(chart: Record) -> bytes:
    """A small chart as a PNG file, with its data in the file's description."""
    from matplotlib.figure import Figure

    names, values = list(chart["values"]), list(chart["values"].values())
    figure = Figure(figsize=(4, 3), dpi=80)
    axes = figure.subplots()
    axes.set_title(f"{chart['thing'].capitalize()} sold")
    if chart["kind"] == "pie":
        axes.pie(values, labels=[f"{n}: {v}" for n, v in zip(names, values, strict=True)])
    elif chart["kind"] == "bar":
        axes.bar_label(axes.bar(names, values))
    else:
        axes.plot(names, values, marker="o")
        for name, value in zip(names, values, strict=True):
            axes.annotate(str(value), (name, value))
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={DESCRIPTION: json.dumps(chart)})
    return file.getvalue()


def small_records(part: str) -> Iterator[Record]:
    """The small set in the form of ChartQA's: ``image``, ``query``, ``label``."""
    charts = small_charts()
    chosen = charts[:-NUM_TEST_CHARTS] if part == "train" else charts[-NUM_TEST_CHARTS:]
    for chart in chosen:
        picture = draw_chart(chart)
        for question, answer in questions_about(chart):
            yield {"image": {"bytes": picture}, "query": question, "label": [answer]}


def chartqa_records(folder: Path, part: str) -> Iterator[Record]:
    """ChartQA's records, from parquet files like ``train-00000-of-00003.parquet``."""
    import pyarrow.parquet

    files = sorted(folder.glob(f"{part}-*.parquet"))
    if not files:
        raise SystemExit(f"{folder} has no {part}-*.parquet; expected ChartQA's own files")
    for file in files:
        for batch in pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=64):
            if missing := {"image", "query", "label"} - set(batch.schema.names):
                raise SystemExit(
                    f"{file} has no column {', '.join(sorted(missing))}; it has "
                    f"{', '.join(batch.schema.names)}"
                )
            yield from batch.to_pylist()


def save(records: Iterator[Record], part: str, folder: Path) -> tuple[int, int]:
    """Write a part's pictures, each once, and its parquet file; returns both numbers."""
    import pyarrow
    import pyarrow.parquet
    from PIL import Image

    images = folder / "images" / part
    images.mkdir(parents=True, exist_ok=True)
    saved: set[Path] = set()
    rows: list[Record] = []
    for number, record in enumerate(records):
        picture = record["image"]["bytes"]
        with Image.open(io.BytesIO(picture)) as opened:
            ending = str(opened.format).lower()
        path = images / f"{hashlib.sha256(picture).hexdigest()[:16]}.{ending}"
        if path not in saved:
            path.write_bytes(picture)
            saved.add(path)
        label = record["label"]
        rows.append(
            {
                "id": f"{part}-{number}",
                "image": str(path.relative_to(folder)),
                "question": record["query"],
                "answers": [label] if isinstance(label, str) else label,
            }
        )
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), parquet_file(folder, part))
    return len(rows), len(saved)


def main() -> int:
    """Read the command line, and prepare both parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", nargs="?", type=Path, help="folder with ChartQA's parquet files")
    parser.add_argument("--out", type=Path, help="default: CHARTQA_DATA_DIR, else data")
    parser.add_argument("--limit", type=int, help="questions of each part at most")
    options = parser.parse_args()
    folder = (options.out or data_folder()).resolve()
    for part in PARTS:
        source = options.source
        records = chartqa_records(source, part) if source else small_records(part)
        questions, charts = save(islice(records, options.limit), part, folder)
        print(f"{part}: {questions} questions about {charts} charts in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
