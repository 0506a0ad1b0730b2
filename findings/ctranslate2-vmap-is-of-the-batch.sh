#!/usr/bin/env bash
# With a vocabulary map, CTranslate2's translation of a sentence depends on the other sentences of its batch.
#
# Expected: the candidates of a sentence come from its own tokens, since the map has a line per source token, so that a
#   text has one translation.
# Seen: the candidates are those of all sentences of the batch. A sentence gets a word that only its neighbor's tokens
#   have in the map, and another word when it is translated by itself.
# Versions: ctranslate2 4.8.5.
# Source: VocabularyMap::get_candidates in src/vocabulary_map.cc takes the tokens of the whole batch.
# Met by: who translates batches with `use_vmap=True`, and compares with single sentences or another batch size.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="ctranslate2==4.8.5 numpy==2.4.6"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
"$environment/bin/python" - <<'END'
import ctranslate2
import numpy as np
from ctranslate2.specs import TransformerDecoderSpec, TransformerEncoderSpec, TransformerSpec

# A Transformer of one layer, whose softmax prefers later ids, whatever the source is.
random, d, words = np.random.default_rng(0), 8, [f"w{i}" for i in range(6)]
vocabulary = ["<unk>", "<s>", "</s>", *words]
spec = TransformerSpec(TransformerEncoderSpec(1, 1), TransformerDecoderSpec(1, 1))


def linear(layer, rows, columns):
    layer.weight = random.normal(0, 0.1, (rows, columns)).astype("float32")
    layer.bias = np.zeros(rows, "float32")


def norm(layer):
    layer.gamma, layer.beta = np.ones(d, "float32"), np.zeros(d, "float32")


for side in (spec.encoder, spec.decoder):
    for layer in side.layer:
        for attention in [layer.self_attention] + ([layer.attention] if side is spec.decoder else []):
            norm(attention.layer_norm)
            widths = {2: (3 * d, d), 3: (d, 2 * d, d)}[len(attention.linear)]
            for part, rows in zip(attention.linear, widths):
                linear(part, rows, d)
        linear(layer.ffn.linear_0, 2 * d, d)
        linear(layer.ffn.linear_1, d, 2 * d)
        norm(layer.ffn.layer_norm)
    norm(side.layer_norm)
    side.position_encodings.encodings = np.zeros((32, d), "float32")
    side.scale_embeddings = False
table = random.normal(size=(len(vocabulary), d)).astype("float32")
spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = table
spec.decoder.projection.weight = np.zeros_like(table)
spec.decoder.projection.bias = np.arange(len(vocabulary), dtype="float32")
spec.decoder.projection.bias[2] = -9
spec.register_source_vocabulary(vocabulary)
spec.register_target_vocabulary(vocabulary)
# w0 may become w1, and w5 may become w4.
with open("vmap", "w") as file:
    file.write("w0\tw1\nw5\tw4\n")
spec.register_vocabulary_mapping("vmap")
spec.validate()
spec.save(".")

engine = ctranslate2.Translator(".")
options = {"use_vmap": True, "beam_size": 1, "max_decoding_length": 2}
alone, together = (
    engine.translate_batch(batch, **options)[0].hypotheses[0] for batch in ([["w0"]], [["w0"], ["w5"]])
)
print("w0 alone:           ", *alone)
print("w0 in a batch with w5:", *together)
assert alone == ["w1", "w1"] and together == ["w4", "w4"], "the candidates are no longer those of the batch"
END
