"""Compares a MarianMT checkpoint here and in Hugging Face's `transformers`: ids, outputs, log-probabilities and BLEU.

Both search greedily and with beams, without length penalty and up to the same maximum length. Padding has no
probability, as in the checkpoints of OPUS-MT. For outputs that differ, a JSON line has the log-probabilities of both in
both models: of the first two tokens that differ for greedy search, of the outputs for beam search. A `tie` is a gap of
at most --tolerance. `rounding` is an output that our search also finds if its logits change by at most --tolerance.
Anything else, such as other ids of a text, is `unexplained`, and makes the exit status 1.

--run also compares the run that the checkpoint was exported from.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import common

COLUMNS = ("check", "lines", "same", "tie", "rounding", "unexplained")
COLUMNS += ("max_log_prob_difference", "max_difference_per_symbol", "bleu", "bleu_there")


class Output(NamedTuple):
    """Best output for a sentence."""

    ids: list[int]  # our ids, with EOS
    log_prob: float
    text: str


def main(argv=None) -> list[dict]:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks.marian", None, __doc__, formatter_class=formatter)
    add = parser.add_argument
    add("checkpoint", type=Path, metavar="CHECKPOINT", help="its directory")
    add("--source", required=True, metavar="FILE", help="sentences to translate")
    add("--reference", required=True, metavar="FILE", help="their references, for BLEU and the target's ids")
    add("--run", type=Path, metavar="DIR", help="directory of the run that the checkpoint was exported from")
    add("--beam-size", type=int, default=4, help="(4)")
    add("--longest", type=int, default=200, help="maximum tokens per output (200)")
    add("--tolerance", type=float, default=1e-4, help="tolerance of log-probabilities (1e-4)")
    add("--threads", type=int, default=2, help="threads of PyTorch and TensorFlow (2)")
    args = parser.parse_args(argv)

    common.prepare_tensorflow(args)
    import tf_transformer as tt

    sources, references = tt.data.read_text_pairs(args.source, args.reference)
    options = {"length_penalty": 0.0, "extra_length": 10_000, "patience": math.inf}
    ours = Ours(tt.Translator.from_pretrained(args.checkpoint, **options), args.longest)
    checks = Comparison(ours, Transformers(args), args)
    lines = checks.texts(sources, references)
    lines += [checks.outputs(sources, references, beam_size) for beam_size in (1, args.beam_size)]
    if args.run:
        run = Comparison(ours, Ours(tt.load(args.run, **options), args.longest), args)
        lines += [run.outputs(sources, references, beam_size) for beam_size in (1, args.beam_size)]
        for line in lines[-2:]:
            line["check"] += ", the run"
    print(table(lines))
    return lines


class Ours:
    """A `Translator` without length penalty."""

    def __init__(self, translator, longest: int):
        import tensorflow as tf

        self.translator, self.longest = translator, longest
        self.graph = tf.function(
            self._search, input_signature=[tf.TensorSpec([None], tf.string), tf.TensorSpec([], tf.int32)]
        )

    def _search(self, text, beam_size):
        source, length, _ = self.translator.source(text)
        outputs = self.translator.search(source, length, beam_size=beam_size, max_length=self.longest)
        texts = self.translator.texts(outputs.ids)
        return outputs.ids[:, 0], outputs.lengths[:, 0], outputs.log_probs[:, 0], texts[:, 0]

    def ids(self, texts: list[str], target: bool) -> list[list[int]]:
        tokenizer = self.translator.tokenizer
        return (tokenizer.tokenize_target if target else tokenizer.tokenize)(texts).to_list()

    def decoded(self, ids: list[list[int]]) -> list[str]:
        import tensorflow as tf

        return [text.decode() for text in self.translator.tokenizer.detokenize(tf.ragged.constant(ids)).numpy()]

    def search(self, texts: list[str], beam_size: int) -> list[Output]:
        import tensorflow as tf

        rows = zip(*(part.numpy() for part in self.graph(tf.constant(texts), beam_size)), strict=True)
        return [Output(ids[:n].tolist(), log_prob, text.decode()) for ids, n, log_prob, text in rows]

    def log_probs(self, text: str, ids: list[int]) -> np.ndarray:
        """Returns the log-probability of each token of an output [T]."""
        import tensorflow as tf

        source, *_ = self.translator.source(tf.constant([text]))
        return self.translator.score_targets(source, tf.constant([ids]))[0].numpy()


class Transformers:
    """The checkpoint in `transformers`, in float32. Its methods take and return our ids."""

    def __init__(self, args):
        import torch
        import transformers

        from tf_transformer.extensions.interop.families.marian.family import checkpoint_in

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        torch.set_num_threads(args.threads)
        self.longest = args.longest
        # Control tokens in a text are plain text.
        self.tokenizer = transformers.MarianTokenizer.from_pretrained(args.checkpoint, split_special_tokens=True)
        self.model = transformers.MarianMTModel.from_pretrained(args.checkpoint, dtype=torch.float32).eval()
        self.rows = checkpoint_in(args.checkpoint).target.rows
        self.ours = {row: id for id, row in enumerate(self.rows) if id != 1}  # Padding is 0.

    def ids(self, texts: list[str], target: bool) -> list[list[int]]:
        encoding = self.tokenizer(**{"text_target" if target else "text": texts}, add_special_tokens=False)
        return [[self.ours[id] for id in row] for row in encoding["input_ids"]]

    def decoded(self, ids: list[list[int]]) -> list[str]:
        return self.tokenizer.batch_decode([[self.rows[id] for id in row] for row in ids], skip_special_tokens=True)

    def search(self, texts: list[str], beam_size: int) -> list[Output]:
        import torch

        padding, end = self.rows[0], self.rows[2]
        with torch.inference_mode():
            generated = self.model.generate(
                **self.tokenizer(texts, padding=True, return_tensors="pt"),
                num_beams=beam_size,
                length_penalty=0.0,
                early_stopping=False,
                do_sample=False,
                max_length=self.longest + 1,  # BOS included
                forced_eos_token_id=None,  # unlike ours
                bad_words_ids=[[padding]],
                renormalize_logits=True,
                return_dict_in_generate=True,
                output_scores=True,
            )
        sequences = generated.sequences[:, 1:].tolist()
        outputs = [row[: row.index(end) + 1] if end in row else row for row in sequences]
        if beam_size > 1:
            log_probs = generated.sequences_scores.tolist()
        else:
            scores = self.model.compute_transition_scores(generated.sequences, generated.scores).tolist()
            log_probs = [sum(row[: len(ids)]) for row, ids in zip(scores, outputs, strict=True)]
        outputs = [[self.ours[id] for id in ids] for ids in outputs]
        return [Output(*row) for row in zip(outputs, log_probs, self.decoded(outputs), strict=True)]

    def log_probs(self, text: str, ids: list[int]) -> np.ndarray:
        import torch

        padding = self.rows[0]
        target = torch.tensor([[self.rows[id] for id in ids]])
        start = torch.full([1, 1], self.model.config.decoder_start_token_id)
        with torch.inference_mode():
            inputs = self.tokenizer([text], return_tensors="pt")
            logits = self.model(**inputs, decoder_input_ids=torch.cat([start, target[:, :-1]], dim=1)).logits
            logits[..., padding] = -torch.inf
            return logits.log_softmax(-1).gather(-1, target[..., None])[0, :, 0].numpy()


class Comparison:
    """Comparison of two engines with the methods of `Ours`.

    Args:
        ours: The checkpoint here.
        other: The other engine.
        args: Namespace of longest and tolerance.
    """

    def __init__(self, ours: Ours, other, args):
        self.ours, self.other, self.args = ours, other, args

    def texts(self, sources: list[str], references: list[str]) -> list[dict]:
        """Compares ids of both sides, and the texts decoded from the target's ids."""
        checks = []
        for check, texts, target in (("source ids", sources, False), ("target ids", references, True)):
            checks.append((check, self.ours.ids(texts, target), self.other.ids(texts, target)))
        ids = checks[-1][1]
        checks.append(("texts of target ids", self.ours.decoded(ids), self.other.decoded(ids)))
        return [counted(*parts) for parts in checks]

    def outputs(self, sources: list[str], references: list[str], beam_size: int) -> dict:
        from tf_transformer.evaluation.bleu import bleu

        pairs: list = [None] * len(sources)
        for batch in batches(list(range(len(sources))), key=lambda i: len(sources[i])):
            texts = [sources[i] for i in batch]
            both = zip(self.ours.search(texts, beam_size), self.other.search(texts, beam_size), strict=True)
            for i, pair in zip(batch, both, strict=True):
                pairs[i] = pair
        counts = dict.fromkeys(("same", "tie", "rounding", "unexplained"), 0)
        largest = per_symbol = 0.0
        for source, (output, other) in zip(sources, pairs, strict=True):
            if output.ids == other.ids and output.text == other.text:
                counts["same"] += 1
                difference = abs(output.log_prob - other.log_prob)
                largest, per_symbol = max(largest, difference), max(per_symbol, difference / len(output.ids))
                continue
            why = self.why(source, output, other, beam_size)
            counts[why["kind"]] += 1
            print(json.dumps({"source": source, "beam_size": beam_size, **why}, ensure_ascii=False), flush=True)
        scores = [bleu([output.text for output in side], references).value for side in zip(*pairs, strict=True)]
        return {
            "check": "greedy" if beam_size == 1 else f"{beam_size} beams",
            "lines": len(sources),
            **counts,
            "max_log_prob_difference": float(largest),
            "max_difference_per_symbol": float(per_symbol),
            "bleu": scores[0],
            "bleu_there": scores[1],
        }

    def why(self, source: str, output: Output, other: Output, beam_size: int) -> dict:
        """Returns the kind of a difference, with the log-probabilities of both outputs in both models."""
        both = (output.ids, other.ids)
        first = next((i for i, pair in enumerate(zip(*both, strict=False)) if pair[0] != pair[1]), None)
        details: dict = {"here": output.text, "there": other.text}
        if first is None:  # Equal ids have other texts, or one output starts with the other.
            return {"kind": "unexplained", **details}
        part = slice(first, first + 1) if beam_size == 1 else slice(None)
        gaps = []
        for name, engine in (("log_probs_here", self.ours), ("log_probs_there", self.other)):
            pair = [float(engine.log_probs(source, ids)[part].sum()) for ids in both]
            details[name] = [round(value, 6) for value in pair]
            gaps.append(abs(pair[0] - pair[1]))
        if max(gaps) <= self.args.tolerance:
            kind = "tie"
        elif beam_size > 1 and self.noise_finds(source, other.ids, beam_size):
            kind = "rounding"
        else:
            kind = "unexplained"
        return {"kind": kind, **details}

    def noise_finds(self, source: str, ids: list[int], beam_size: int) -> bool:
        search = self.ours.translator.source([source])[0], beam_size, self.args.longest
        return noise_finds(self.ours.translator, search, ids, self.args.tolerance)


def noise_finds(translator, search, output: list[int], tolerance: float, tries: int = 20) -> bool:
    """Returns whether our search finds `output` if logits change randomly by at most the tolerance.

    Args:
        translator: A `Translator`.
        search: Source ids [1, S], beam size and maximum length.
        output: Ids of the output.
        tolerance: Maximum change of logits.
        tries: Number of searches.
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
            outputs = translator.search(source, length, beam_size=beam_size, max_length=longest)
            if outputs.ids[0, 0, : outputs.lengths[0, 0]].numpy().tolist() == output:
                return True
        return False
    finally:
        del translator.model.decode_step


def batches(items: list, size: int = 32, key=len):
    ordered = sorted(items, key=key)
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def counted(check: str, ours: list, others: list) -> dict:
    """Counts equal rows."""
    same = sum(one == other for one, other in zip(ours, others, strict=True))
    return {"check": check, "lines": len(ours), "same": same, "unexplained": len(ours) - same}


def table(lines: list[dict]) -> str:
    """Returns the table in Markdown."""

    def cell(value) -> str:
        if isinstance(value, float):
            return f"{value:.1e}" if value < 1e-2 else f"{value:.2f}"
        return str(value)

    rows = [COLUMNS, ["---"] * len(COLUMNS), *([cell(line.get(name, "")) for name in COLUMNS] for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |".replace("_", " ") for row in rows)


if __name__ == "__main__":
    sys.exit(any(line["unexplained"] for line in main()))
