#!/usr/bin/env bash
# Get questions, passages and index of Search-R1 into data/: 60 GB on the way, 80 GB in the end.
#
#   bash data_process.sh
#
# Makes a virtual environment for the retrieval server, retriever/, as FAISS with a GPU and vLLM
# do not always want the same packages. What is there already is not fetched again.
set -euo pipefail
cd "$(dirname "$0")"

python -m venv retriever
retriever/bin/pip install --quiet faiss-cpu sentence-transformers fastapi uvicorn "huggingface_hub>=1"
hf=retriever/bin/hf

mkdir -p data
# Wikipedia of 2018 in passages of a hundred words, and its vectors by E5, in two parts.
$hf download PeterJinGo/wiki-18-corpus wiki-18.jsonl.gz --repo-type dataset --local-dir data
$hf download PeterJinGo/wiki-18-e5-index part_aa part_ab --repo-type dataset --local-dir data
[ -f data/e5_Flat.index ] || cat data/part_aa data/part_ab > data/e5_Flat.index
[ -f data/wiki-18.jsonl ] || gunzip --keep data/wiki-18.jsonl.gz

# Learned from: Natural Questions and HotpotQA. Measured on: these and five others.
for name in nq hotpotqa; do
    $hf download RUC-NLPIR/FlashRAG_datasets "$name/train.jsonl" --repo-type dataset --local-dir data
done
tests=(nq/test triviaqa/test popqa/test hotpotqa/dev 2wikimultihopqa/dev musique/dev bamboogle/test)
for name in "${tests[@]}"; do
    $hf download RUC-NLPIR/FlashRAG_datasets "$name.jsonl" --repo-type dataset --local-dir data
done
cat data/nq/train.jsonl data/hotpotqa/train.jsonl > data/train.jsonl
for name in "${tests[@]}"; do head -n 125 "data/$name.jsonl"; done > data/test.jsonl
