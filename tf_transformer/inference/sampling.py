"""Random translations of texts, of which `Translator.sample` returns a list."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tf_transformer.decoding.beams import RULES, Hypotheses
from tf_transformer.decoding.primitives import ON_TENSORFLOW, with_rows
from tf_transformer.decoding.sampling import sample, uniforms_of
from tf_transformer.decoding.search import FixedShapes
from tf_transformer.inference.engine import Hypothesis, Request, TranslationResult, in_batches, warned
from tf_transformer.utils.terminal import Progress
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import MOST


def sampled(
    translator: Any, texts: list[str | bytes], request: Request, seed: int, temperature: float, k: int | None
) -> list[str]:
    """Returns a random translation of each text. The arguments are those of `Translator.sample`."""
    tokenizer = translator.tokenizer_of(request)
    settings = [np.float32(temperature), *([] if k is None else [np.int32(min(k, tokenizer.vocab_size))])]
    widest = None if k is None or ON_TENSORFLOW else 1 << (k - 1).bit_length()  # few functions for all k

    def draw(columns: list[Tensor], start: Tensor, temperature: Tensor, k: Tensor = None) -> Hypotheses:
        source, length, uniforms = columns
        fixed = None if ON_TENSORFLOW else FixedShapes(1, uniforms.shape[1])
        problem = translator.problem(source, length, MOST, start, fixed)
        rules = {name: translator.options[name] for name in RULES}
        return sample(problem, uniforms, temperature=temperature, k=k, widest=widest, **rules)

    def translate(indices: list[int]) -> Iterator[TranslationResult]:
        batch = [texts[i] for i in indices]
        read = source, length, _ = translator.read(with_rows(batch, translator.batch_size), tokenizer)
        fixed = translator.fixed_shapes(source, 1)
        longest = fixed.steps if fixed else int(np.max(translator.limit(length, MOST)))
        columns, name = [uniforms_of(seed, indices, longest)], f"sample, {len(settings)}, {widest}"
        rows = translator.outputs(name, draw, len(batch), 1, tokenizer, read, columns, *settings)
        for text, (length, truncated, outputs, scores, *_) in zip(batch, rows, strict=True):
            yield TranslationResult(text, (Hypothesis(outputs[0], scores[0]),), length, truncated)

    with Progress(len(texts), "texts") as progress:
        replies = in_batches(translate, texts, translator.batch_size, progress.add)
    return [reply.text for reply in warned(replies)]
