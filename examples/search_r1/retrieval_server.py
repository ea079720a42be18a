"""The passages behind HTTP: ``POST /retrieve``.

    python retrieval_server.py                       # the small world, at http://127.0.0.1:8000
    python retrieval_server.py --index_path data/e5_Flat.index --corpus_path data/wiki-18.jsonl \
        --retriever_model intfloat/e5-base-v2

A request ``{"queries": ["..."], "topk": 3, "return_scores": true}`` is answered with
``{"result": [[{"document": {"contents": "..."}, "score": 1.5}, ...]]}``: for each query its best
passages; without ``return_scores`` the documents alone. The server is for this machine: it takes no
token.
"""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
from array import array
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, overload

from pydantic import BaseModel, ConfigDict, Field
from search_tasks import small_world

PORT = 8000


class LineFile(Sequence[str]):
    """The field ``contents`` of a file of JSON lines, read from the disk when it is asked for.

    Wikipedia in passages of a hundred words has 21 million lines: only where each begins is kept.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._starts = array("Q", [0])  # and the end of the last one
        for line in self._file:
            self._starts.append(self._starts[-1] + len(line))

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        start, end = self._starts[index], self._starts[index + 1]
        # Not seek and read: requests are answered in several threads.
        return str(json.loads(os.pread(self._file.fileno(), end - start, start))["contents"])


class Search(BaseModel):
    """A request."""

    model_config = ConfigDict(extra="forbid")

    queries: list[str] = Field(min_length=1, max_length=512)
    topk: int | None = Field(default=None, ge=1, le=100)
    return_scores: bool = False


def build_app(passages: Sequence[str], retriever: Any, topk: int) -> Any:
    """The ASGI application.

    Args:
        passages: Behind the retriever's numbers.
        retriever: ``rank(queries, count)`` gives a list of (number, score) for each query.
        topk: How many passages unless a request says it.
    """
    from fastapi import FastAPI

    app = FastAPI()

    @app.post("/retrieve")
    def retrieve(search: Search) -> dict[str, Any]:
        found: list[list[dict[str, Any]]] = []
        for ranked in retriever.rank(search.queries, search.topk or topk):
            documents = [
                ({"id": str(number), "contents": passages[number]}, score)
                for number, score in ranked
            ]
            found.append(
                [
                    {"document": document, "score": score} if search.return_scores else document
                    for document, score in documents
                ]
            )
        return {"result": found}

    return app


class DenseRetriever:
    """Searches a FAISS index with the vectors of an E5 model, which wants ``query:`` before them.

    Raises:
        ValueError: Index and passages are not of the same number.
    """

    def __init__(self, index: Any, encode: Any, num_passages: int) -> None:
        if index.ntotal != num_passages:
            raise ValueError(
                f"the index has {index.ntotal} vectors and the corpus {num_passages} passages; "
                "give the corpus that the index was made of"
            )
        self._index, self._encode = index, encode

    def rank(self, queries: list[str], count: int) -> list[list[tuple[int, float]]]:
        """The nearest passages of each query, the nearest first."""
        scores, numbers = self._index.search(
            self._encode([f"query: {query}" for query in queries]), count
        )
        return [
            [(int(n), float(s)) for n, s in zip(*row, strict=True) if n >= 0]
            for row in zip(numbers, scores, strict=True)
        ]


@contextlib.contextmanager
def retrieval_process() -> Generator[str]:
    """The server with the small world, at a free port, for as long as the block lasts.

    Yields:
        Its address.

    Raises:
        RuntimeError: It did not start; what it said stands on standard error.
    """
    command = [sys.executable, Path(__file__), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise RuntimeError(f"{Path(__file__).name} ended with {process.wait()}")
        yield url
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def main() -> None:
    """Serve until the process is ended."""
    import uvicorn

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--index_path", type=Path, help="of FAISS; without it: the small world")
    parser.add_argument("--corpus_path", type=Path, help="JSON lines with 'contents'")
    parser.add_argument("--retriever_model", default="intfloat/e5-base-v2")
    parser.add_argument("--topk", type=int, default=3)
    parser.add_argument("--port", type=int, default=PORT)
    options = parser.parse_args()
    if (options.index_path is None) != (options.corpus_path is None):
        parser.error("--index_path and --corpus_path belong together; give both, or neither")
    retriever: Any
    if options.index_path is None:
        from retriever import WordRetriever

        passages: Sequence[str] = small_world()[0]
        retriever = WordRetriever(passages)
    else:
        import faiss
        from retriever import sentence_encoder

        passages = LineFile(options.corpus_path)
        index = faiss.read_index(str(options.index_path))
        retriever = DenseRetriever(index, sentence_encoder(options.retriever_model), len(passages))
    app = build_app(passages, retriever, options.topk)
    with socket.create_server(("127.0.0.1", options.port)) as sock:
        print(f"http://127.0.0.1:{sock.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[sock])


if __name__ == "__main__":
    main()
