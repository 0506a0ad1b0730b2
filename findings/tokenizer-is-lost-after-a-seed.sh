#!/usr/bin/env bash
# `tf.random.set_seed` and `keras.utils.set_random_seed` break each tensorflow-text tokenizer that exists.
#
# Expected: A random seed has no influence on a tokenizer without sampling.
# Seen: The seed clears the cache of eager kernels, which owns the tokenizer's model. The next call raises
# NotFoundError, for a resource that does not exist.
# Versions: tensorflow-text 2.21.1, tensorflow 2.21.0.
# Source: `SentencepieceTokenizer.__init__` in tensorflow_text/python/ops/sentencepiece_tokenizer.py and
# `set_random_seed` in tensorflow/python/framework/random_seed.py; tensorflow/text#570.
# Met by: programs that load a tokenizer, and then set a seed for the training.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="tensorflow==2.21.0 keras==3.15.1 tensorflow-text==2.21.1 sentencepiece==0.2.3"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
export TF_CPP_MIN_LOG_LEVEL=3
"$environment/bin/python" - <<'END'
import io

import sentencepiece
import tensorflow as tf
import tensorflow_text

model = io.BytesIO()
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(["a small house", "a big tree", "the house and the tree"] * 5),
    model_writer=model,
    vocab_size=40,
    hard_vocab_limit=False,
    minloglevel=2,
)
tokenizer = tensorflow_text.SentencepieceTokenizer(model.getvalue())
print("before the seed:", tokenizer.tokenize("the big house").numpy().tolist())
tf.random.set_seed(1)
try:
    tokenizer.tokenize("the big house")
except tf.errors.NotFoundError as error:
    print("after it, NotFoundError:", error.message[-80:])
else:
    raise SystemExit("the tokenizer works after a seed now")
END
