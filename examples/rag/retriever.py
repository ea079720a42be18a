"""Finds the passages that a query is about: by words, or by vectors of a language model."""

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

INDEX = "passages.index"
"""A FAISS index over the vectors of the passages, in their order; beside ``passages.jsonl``."""
ENCODER = "BAAI/bge-large-en-v1.5"
ENCODER_FILE = "encoder.json"


class Retriever(Protocol):
    """What the tool asks."""

    def search(self, query: str, count: int) -> list[str]:
        """The best passages, the best one first; fewer where there are fewer."""
        ...


class WordRetriever:
    """Scores passages by the words that they share with the query, rare ones more: BM25.

    Args:
        passages: What is searched.
        k1: How soon a word that comes again stops to count.
        b: How much longer passages are held down.

    Source: Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond (2009).
    """

    def __init__(self, passages: Sequence[str], k1: float = 1.2, b: float = 0.75) -> None:
        self._passages = list(passages)
        self._counts = [Counter(words_of(passage)) for passage in passages]
        mean = sum(sum(counts.values()) for counts in self._counts) / max(1, len(passages))
        self._norms = [k1 * (1 - b + b * sum(c.values()) / mean) for c in self._counts]
        self._k1 = k1
        found_in = Counter(word for counts in self._counts for word in counts)
        self._weights = {
            word: math.log(1 + (len(passages) - count + 0.5) / (count + 0.5))
            for word, count in found_in.items()
        }

    def search(self, query: str, count: int) -> list[str]:
        """Those that share no word with the query are left out."""
        return [self._passages[number] for number, _ in self.rank([query], count)[0]]

    def rank(self, queries: Sequence[str], count: int) -> list[list[tuple[int, float]]]:
        """Numbers and scores of the best passages of each query, the best one first."""
        return [self._rank(query, count) for query in queries]

    def _rank(self, query: str, count: int) -> list[tuple[int, float]]:
        words = [word for word in words_of(query) if word in self._weights]
        scores = [
            sum(
                self._weights[word] * counts[word] * (self._k1 + 1) / (counts[word] + norm)
                for word in words
            )
            for counts, norm in zip(self._counts, self._norms, strict=True)
        ]
        order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
        return [(index, scores[index]) for index in order[:count] if scores[index] > 0]


def words_of(text: str) -> list[str]:
    """In lower case, without punctuation."""
    return re.findall(r"\w+", text.lower())


class VectorRetriever:
    """Searches a FAISS index with the vector of the query.

    Args:
        passages: In the order of the index.
        index: Of FAISS.
        encode: Texts -> an array of their vectors, (texts, dimensions), as those of the index.

    Raises:
        ValueError: Index and passages are not of the same number.
    """

    def __init__(self, passages: Sequence[str], index: Any, encode: Any) -> None:
        if index.ntotal != len(passages):
            raise ValueError(
                f"the index has {index.ntotal} vectors and there are {len(passages)} passages; "
                "they must be of one preparation. Run prepare_data.py again"
            )
        self._passages, self._index, self._encode = list(passages), index, encode

    def search(self, query: str, count: int) -> list[str]:
        """The nearest passages."""
        _, numbers = self._index.search(self._encode([query]), count)
        return [self._passages[number] for number in numbers[0] if number >= 0]


def build_index(passages: Sequence[str], folder: Path, encoder: str = ENCODER) -> None:
    """Write the index of the passages, an HNSW graph, and which encoder made the vectors."""
    import faiss

    vectors = sentence_encoder(encoder)(list(passages))
    index = faiss.IndexHNSWFlat(vectors.shape[1], 32)
    index.hnsw.efConstruction = 40
    index.add(vectors)
    faiss.write_index(index, str(folder / INDEX))
    (folder / ENCODER_FILE).write_text(json.dumps({"encoder": encoder}), encoding="utf-8")


def sentence_encoder(name: str) -> Any:
    """Texts -> vectors of length 1, (texts, dimensions); by a model of sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(name)
    return lambda texts: model.encode(texts, normalize_embeddings=True)


def load_retriever(passages: Sequence[str], folder: Path | None) -> Retriever:
    """By vectors where the folder has an index, else by words."""
    if folder is None or not (folder / INDEX).is_file():
        return WordRetriever(passages)
    import faiss

    index = faiss.read_index(str(folder / INDEX))
    encoder = json.loads((folder / ENCODER_FILE).read_text(encoding="utf-8"))["encoder"]
    return VectorRetriever(passages, index, sentence_encoder(encoder))
