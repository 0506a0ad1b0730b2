"""A trained run in TensorFlow and in CTranslate2: the same outputs and log-probabilities, sentence by sentence?

A line of JSON each for greedy search, for beams without length penalty, and for the scores of the references. Outputs
that differ are looked into: a `tie` is two outputs, or at the first difference of greedy search two symbols, whose
log-probabilities are equal to --tolerance; `rounding` is a beam that our own search finds, too, when what it adds up is
changed by no more than --tolerance; `limit` is an output that one of the two cut at the greatest length. Anything else
is `unexplained`, and the exit status 1.
"""

import argparse
import json
import math
import os
import sys
import tempfile
from pathlib import Path


def main(argv=None) -> list[dict]:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks.ctranslate2_parity", None, __doc__, formatter_class=formatter
    )
    add = parser.add_argument
    add("--run", type=Path, required=True, metavar="DIR", help="the run's folder")
    add("--average-last", type=int, default=5, metavar="N", help="average so many checkpoints, the last ones (5)")
    add("--source", required=True, metavar="FILE", help="sentences to translate")
    add("--target", required=True, metavar="FILE", help="their references, to score")
    add("--beam-size", type=int, default=4, help="(4)")
    add("--longest", type=int, default=200, help="greatest number of symbols of an output in both (200)")
    add("--tolerance", type=float, default=1e-4, help="of log-probabilities (1e-4)")
    args = parser.parse_args(argv)

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # or CTranslate2's threads burn the cores that ours need
    import tf_transformer as tt

    sources, targets = tt.data.read_text_pairs(args.source, args.target)
    with tempfile.TemporaryDirectory() as folder:
        translator = tt.Translator.from_pretrained(
            args.run, args.average_last, length_penalty=0.0, extra_length=10_000, patience=math.inf
        )
        both = Both(translator, Path(folder) / "ctranslate2", args)
        lines = [both.compare_outputs(sources, beam_size) for beam_size in (1, args.beam_size)]
        lines.append(both.compare_scores(sources, targets))
    for line in lines:
        print(json.dumps(line), flush=True)
    return lines


class Both:
    """One model in the two engines.

    Args:
        translator: a `Translator`, length_penalty = 0.
        folder: where to write it for CTranslate2.
        args: longest and tolerance.
    """

    def __init__(self, translator, folder: Path, args):
        import ctranslate2
        import sentencepiece
        import tensorflow as tf

        from tf_transformer.exports.ctranslate2 import save as save_ctranslate2

        save_ctranslate2(translator, folder)
        self.ours, self.args = translator, args
        self.theirs = ctranslate2.Translator(str(folder))
        self.pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
        self.search = tf.function(
            lambda text, beam_size: self._search(*translator.source(text)[:2], beam_size),
            input_signature=[tf.TensorSpec([None], tf.string), tf.TensorSpec([], tf.int32)],
        )

    def _search(self, source, length, beam_size):
        found = self.ours.search(source, length, beam_size=beam_size, max_length=self.args.longest)
        return found.ids[:, 0], found.lengths[:, 0], found.log_probs[:, 0]

    def split(self, texts):
        return self.pieces.encode(texts, out_type=str)

    def compare_outputs(self, texts: list[str], beam_size: int) -> dict:
        import tensorflow as tf

        counts = dict.fromkeys(("same", "tie", "rounding", "limit", "unexplained"), 0)
        largest = per_symbol = 0.0
        for batch in batches(texts):
            ours = zip(*(part.numpy() for part in self.search(tf.constant(batch), beam_size)), strict=True)
            theirs = self.theirs.translate_batch(
                self.split(batch),
                beam_size=beam_size,
                length_penalty=0,
                min_decoding_length=0,
                max_decoding_length=self.args.longest,
                return_scores=True,
                return_end_token=True,
            )
            for text, (ids, length, log_prob), found in zip(batch, ours, theirs, strict=True):
                output, other = ids[:length].tolist(), self.pieces.piece_to_id(found.hypotheses[0])
                if output == other:
                    counts["same"] += 1
                    difference = abs(log_prob - found.scores[0])
                    largest, per_symbol = max(largest, difference), max(per_symbol, difference / length)
                    continue
                why = self.why(text, output, other, beam_size)
                counts[why["kind"]] += 1
                print(json.dumps({"source": text, "beam_size": beam_size, **why}), flush=True)
        return {
            "check": "outputs",
            "beam_size": beam_size,
            "sentences": len(texts),
            **counts,
            "max_log_prob_difference": round(float(largest), 7),
            "max_difference_per_symbol": round(float(per_symbol), 7),
        }

    def why(self, text: str, output: list[int], other: list[int], beam_size: int) -> dict:
        """Of which kind a difference is, with the log-probabilities that both outputs have in our model."""
        import numpy as np
        import tensorflow as tf

        source, tolerance = self.ours.source(tf.constant([text]))[0], self.args.tolerance
        log_probs = [self.ours.force(source, tf.constant([ids]))[0].numpy() for ids in (output, other)]
        said = {
            "ours": self.pieces.decode(output),
            "theirs": self.pieces.decode(other),
            "log_probs": [round(float(part.sum()), 5) for part in log_probs],
        }
        first = next(i for i, pair in enumerate(zip(output, other, strict=False)) if pair[0] != pair[1])
        gap = log_probs[0].sum() - log_probs[1].sum()
        if beam_size == 1:
            gap = log_probs[0][first] - log_probs[1][first]
        if max(len(output), len(other)) >= self.args.longest:
            kind = "limit"
        elif abs(gap) < tolerance:
            kind = "tie"
        elif beam_size > 1 and noise_finds(self.ours, (source, beam_size, self.args.longest), other, tolerance):
            kind = "rounding"
        else:
            kind = "unexplained"
        return {"kind": kind, "gap": round(float(np.abs(gap)), 7), **said}

    def compare_scores(self, sources: list[str], targets: list[str]) -> dict:
        """`score_batch` against the function that the signature `score` is made of."""
        import numpy as np
        import tensorflow as tf

        symbols = token = sentence = 0
        pairs = list(zip(sources, targets, strict=True))
        for batch in batches(pairs, key=lambda pair: len(pair[0])):
            texts = list(zip(*batch, strict=True))
            ids = [self.ours.source(tf.constant(side))[0] for side in texts]
            ours = self.ours.force(*ids).numpy()
            theirs = self.theirs.score_batch(*(self.split(list(side)) for side in texts))
            for row, target, found in zip(ours, ids[1].numpy(), theirs, strict=True):
                expected = row[target > 0]
                symbols += len(expected)
                token = max(token, np.abs(expected - found.log_probs).max())
                sentence = max(sentence, abs(expected.sum() - np.sum(found.log_probs)))
        return {
            "check": "score_batch",
            "sentences": len(sources),
            "symbols": symbols,
            "max_symbol_difference": round(float(token), 7),
            "max_sentence_difference": round(float(sentence), 7),
            "unexplained": int(token > self.args.tolerance),
        }


def noise_finds(translator, search, output: list[int], tolerance: float, tries: int = 20) -> bool:
    """Whether our search gives `output` when logits change by at most the tolerance, at random.

    Args:
        translator: a `Translator`.
        search: the source's ids [1, S], the beam size and the greatest length.
        output: ids.
        tolerance: of logits.
        tries: how often to try.
    """
    import tensorflow as tf

    source, beam_size, longest = search
    exact, random = translator.model.decode_step, tf.random.Generator.from_seed(1)

    def noisy(*args, **kwargs):
        logits, *others = exact(*args, **kwargs)
        return logits + random.uniform(tf.shape(logits), -tolerance, tolerance), *others

    translator.model.decode_step = noisy
    try:
        length = tf.reduce_sum(tf.cast(source > 0, tf.int32), axis=1) - 1
        for _ in range(tries):
            found = translator.search(source, length, beam_size=beam_size, max_length=longest)
            if found.ids[0, 0, : found.lengths[0, 0]].numpy().tolist() == output:
                return True
        return False
    finally:
        del translator.model.decode_step


def batches(items: list, size: int = 32, key=len):
    ordered = sorted(items, key=key)
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


if __name__ == "__main__":
    sys.exit(any(line["unexplained"] for line in main()))
