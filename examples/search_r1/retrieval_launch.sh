#!/usr/bin/env bash
# Serve the passages that data_process.sh got, at http://127.0.0.1:8000; needs 70 GB of memory.
set -euo pipefail
cd "$(dirname "$0")"
exec retriever/bin/python retrieval_server.py --index_path data/e5_Flat.index \
    --corpus_path data/wiki-18.jsonl --topk 3 --retriever_model intfloat/e5-base-v2 "$@"
