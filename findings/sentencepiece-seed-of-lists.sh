#!/usr/bin/env bash
# A seed does not make SentencePiece's sampling of a list of texts repeatable.
#
# Expected: after set_random_generator_seed, the same call returns the same segmentations, as for one text after the other.
# Seen: most segmentations differ between two calls after the same seed, on news as well. With num_threads=1 they are equal.
# Versions: sentencepiece 0.2.3.
# Source: encode of a list runs a pool of threads (num_threads=-1), each with a generator of its own: GetRandomGenerator in
#       util.cc is local to a thread. Which thread takes which text is a matter of timing, so no seed can repair it.
# Met by: subword regularization in batches, whose resumed or repeated training then reads other data.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="sentencepiece==0.2.3"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
"$environment/bin/python" - <<'END'
import io

import sentencepiece

words = ["translation", "translator", "sentence", "sentences", "piece", "pieces", "sampling", "sampler", "garden"]
lines = [f"the {a} of one {b} and another {c}" for a in words for b in words for c in words]
written = io.BytesIO()
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(lines), model_writer=written, vocab_size=32, minloglevel=2, num_threads=1
)
model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
sampling = {"enable_sampling": True, "alpha": 0.1, "nbest_size": -1}


def differences(encode):
    runs = []
    for _ in range(2):
        sentencepiece.set_random_generator_seed(7)
        runs.append(encode())
    return sum(first != second for first, second in zip(*runs))


counts = {
    "one by one": differences(lambda: [model.encode(line, **sampling) for line in lines]),
    "a list, one thread": differences(lambda: model.encode(lines, num_threads=1, **sampling)),
    "a list": max(differences(lambda: model.encode(lines, num_threads=16, **sampling)) for _ in range(5)),
}
for way, count in counts.items():
    print(f"{way}: {count} of {len(lines)} segmentations differ after the same seed")
assert counts["one by one"] == counts["a list, one thread"] == 0
assert counts["a list"] > 0, "lists are repeatable now"
END
