"""Outputs of a translator or a parser as JSON, to compare backends."""

import json
import math
import sys
from pathlib import Path

from keras.ops import convert_to_numpy

import tf_transformer as tt
from tf_transformer.inference.translator import trained


def outputs_of(model, texts):
    """Returns nested lists of texts and numbers, by name."""
    attention = model.attention(texts[0])
    weights = convert_to_numpy(attention.scores.cross[-1]).tolist()
    outputs = {"attention": [attention.source, attention.target, weights]}
    if isinstance(model, tt.Parser):
        exact = model.replace(beam_size=3, patience=math.inf)
        return outputs | {"best": model.n_best(texts), "exact": exact.n_best(texts), "symbols": model.symbols(texts)}
    prefixes = [output[0].text[:2].strip() for output in model.n_best(texts)]
    outputs |= {
        "greedy": model.n_best(texts, beam_size=1),
        "best": model.n_best(texts, 3, beam_size=4),
        "lengths": model.n_best(texts, 2, min_length=5, max_length=7, length_penalty=1.5),
        "repeats": model.n_best(texts, no_repeat_ngram_size=2, min_length=9),
        "exact": model.replace(patience=math.inf, beam_size=3).n_best(texts, 2),
        "prefixes": model.n_best(texts, prefixes=prefixes),
        "samples": model.sample(texts, k=3, seed=2),
        "aligned": [[*output, output.words] for output in model.aligned(texts, beam_size=7)],
        "document": tt.documents.translate(
            model, ["\r\n  ".join(texts[:7]), "Two {dogs}! The woman sees."], beam_size=4
        ),
        "html": tt.documents.translate(
            model, "<p>The <b>old woman</b> sees <i>two <a>dogs</a></i>.</p>", "html", beam_size=7
        ),
        "all": model.sample(texts, temperature=0.7, seed=3),
    }
    if model.languages:
        source, target = (code for code in model.languages if code[:2] in ("de", "en", "deu_Latn", "eng_Latn"))
        outputs["languages"] = model.n_best(texts, source_language=source, target_language=target)
    return outputs


def close(mine, other):
    """Returns whether nested lists have the same texts, and numbers that differ only by rounding."""
    if isinstance(mine, list | tuple):
        return len(mine) == len(other) and all(map(close, mine, other))
    if isinstance(mine, float):
        return math.isclose(mine, other, rel_tol=1e-5, abs_tol=2e-5)
    return mine == other


if __name__ == "__main__":
    folder, file = sys.argv[1:]
    print(json.dumps(outputs_of(trained(folder), json.loads(Path(file).read_text()))))
