"""Convert a real data set, and index its passages, into ``data`` beside this file.

    python prepare_data.py musique musique_ans_v1.0_train.jsonl musique_ans_v1.0_dev.jsonl
    python prepare_data.py parquet dataset_tiny.parquet --passages chunks_candidate_tiny.pkl
    python prepare_data.py index                     # a FAISS index by vectors; needs a GPU or time

``musique`` reads MuSiQue as it is published: lines with ``question``, ``answer``,
``answer_aliases`` and ``paragraphs`` (``title``, ``paragraph_text``), whose paragraphs become the
passages. ``parquet`` reads columns ``question`` and ``answer`` (or ``golden_answers``), a tenth of
which is kept to measure with, and a list of passages: texts, or dicts with ``contents`` or
``text``, as JSON lines or as a pickle. A pickle runs what its author wrote: load none that you do
not trust. Without an index the passages are found by their words.
"""

import argparse
import json
import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from retriever import ENCODER, build_index
from wiki_tasks import FOLDER, read_lines

Line = dict[str, Any]


def from_musique(files: Iterable[Path]) -> tuple[list[list[Line]], list[str]]:
    """The questions of each file, and the passages of all, each once."""
    passages: dict[str, None] = {}
    parts: list[list[Line]] = []
    for file in files:
        part: list[Line] = []
        for record in read_lines(file):
            if record.get("answerable", True):
                right = [record["answer"], *record.get("answer_aliases", [])]
                part.append({"question": record["question"], "answers": right})
            for paragraph in record["paragraphs"]:
                passages[f"{paragraph['title']}. {paragraph['paragraph_text']}"] = None
        parts.append(part)
    return parts, list(passages)


def from_parquet(file: Path) -> list[list[Line]]:
    """Nine tenths of its questions, and every tenth one."""
    import pyarrow.parquet

    lines: list[Line] = []
    for record in pyarrow.parquet.read_table(file).to_pylist():
        right = record.get("golden_answers") or record.get("answer")
        if not right:
            raise ValueError(
                f"{file}: a row without 'answer' and 'golden_answers'; it has {sorted(record)}"
            )
        right = [right] if isinstance(right, str) else list(right)
        lines.append({"question": record["question"], "answers": right})
    return [[line for n, line in enumerate(lines) if n % 10], lines[::10]]


def read_passages(file: Path) -> list[str]:
    """Of a list of texts or of dicts."""
    if file.suffix in (".pkl", ".pickle"):
        with file.open("rb") as data:
            records: Iterable[Any] = pickle.load(data)
    else:
        records = read_lines(file)
    return [
        record if isinstance(record, str) else str(record.get("contents") or record["text"])
        for record in records
    ]


def write_lines(path: Path, lines: Iterable[Line]) -> None:
    """As JSON lines."""
    path.write_text("".join(_dumped(lines)), encoding="utf-8")


def _dumped(lines: Iterable[Line]) -> Iterator[str]:
    return (json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def main() -> None:
    """Convert, and say what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=FOLDER / "data")
    kinds = parser.add_subparsers(dest="kind", required=True)
    musique = kinds.add_parser("musique")
    musique.add_argument("train", type=Path)
    musique.add_argument("test", type=Path)
    parquet = kinds.add_parser("parquet")
    parquet.add_argument("questions", type=Path)
    parquet.add_argument("--passages", type=Path, required=True)
    index = kinds.add_parser("index")
    index.add_argument("--encoder", default=ENCODER, help="of sentence-transformers")
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    if options.kind == "index":
        passages = [str(line["contents"]) for line in read_lines(out / "passages.jsonl")]
        build_index(passages, out, options.encoder)
        print(f"an index of {len(passages)} passages is in {out}")
        return
    if options.kind == "musique":
        parts, passages = from_musique([options.train, options.test])
    else:
        parts, passages = from_parquet(options.questions), read_passages(options.passages)
    for name, part in zip(("train", "test"), parts, strict=True):
        write_lines(out / f"{name}.jsonl", part)
    write_lines(out / "passages.jsonl", ({"contents": passage} for passage in passages))
    print(f"{len(parts[0])} and {len(parts[1])} questions, {len(passages)} passages in {out}")


if __name__ == "__main__":
    main()
