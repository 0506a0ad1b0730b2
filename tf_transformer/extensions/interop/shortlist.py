"""Lexical shortlists: files of translation probabilities, in Marian's text format, and how they are learned.

Each line has a target token, a source token and a probability, such as `▁Haus ▁house 0.83`.
"""

import gzip
import os
import re
import warnings
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.decoding.shortlist import Shortlist
from tf_transformer.decoding.tensor_translator import TensorTranslator
from tf_transformer.tokenizers.tokenizer import FIRST_ID, Tokenizer
from tf_transformer.utils.files import new_file, user_path
from tf_transformer.utils.lines import lines_of
from tf_transformer.utils.values import Count, Natural, checked, shown

BYTE = re.compile(r"<0x[0-9A-F]{2}>")
PAIRS = 10_000  # pairs of sentences whose links are in memory
NULL = "NULL"  # Marian's token for no token
SHARE = 0.99  # Below this share of lines with known tokens, a file may be another model's.
LEAST = 1e-3  # lower probabilities are not written


@checked
def read_shortlist(
    path: str | os.PathLike[str], translator: TensorTranslator, first: Natural = 100, best: Count = 50
) -> Shortlist:
    """Reads the shortlist of a translator, for `translator.replace(shortlist=)`.

    As in Marian, a source token's text is a candidate too, if the target's vocabulary has it. Lines of tokens outside
    of the vocabularies are ignored, with a warning if there are many.

    Args:
        path: File, plain or .gz.
        translator: A `Translator`, whose vocabularies the file is for.
        first: Number of tokens, the first of the target's vocabulary without bytes, that are always candidates.
        best: Number of candidates for each source token, those of the highest probability.

    Raises:
        FileNotFoundError: If the file is missing.
        BadInput: If a line has another form, or most lines have no tokens of the vocabularies.
    """
    tokenizer, config = translator.tokenizer, translator.model.config
    source_size = getattr(config, "source_vocab_size", None) or config.vocab_size
    source_tokens = tokenizer.source_tokens(range(source_size))
    target_tokens = tokenizer.tokens(range(config.vocab_size))
    sources, targets = (
        {token: id for id, token in enumerate(tokens) if id >= FIRST_ID} for tokens in (source_tokens, target_tokens)
    )
    columns: tuple[Any, ...] = array("i"), array("i"), array("d")
    number = known = null = 0
    for number, line in enumerate(lines_of(path), 1):
        try:
            target, source, text = (part.decode() for part in line.split())
            probability = float(text)
            if not 0 <= probability <= 1:
                raise ValueError("no probability")
        except ValueError as error:
            expected, got = "a target, a source and a probability", shown(line.decode("utf-8", "replace"))
            raise BadInput(f"{path}: line {number}: expected {expected}, got {got}") from error
        known += source in sources and target in targets
        null += NULL in (source, target)
        if source in sources and target in targets and probability > 0:
            for column, value in zip(columns, (sources[source], targets[target], probability), strict=True):
                column.append(value)
    # A file of another model has tokens in common with this one, and its candidates are wrong.
    if 2 * known < number - null or not columns[0]:
        raise BadInput(f"{path}: expected lines with tokens of the vocabularies, got {known:,} of {number - null:,}")
    if known < SHARE * (number - null):
        ignored = f"{number - null - known:,} of {number - null:,} lines have other tokens than this model"
        warnings.warn(f"{path}: {ignored}, and are ignored. Is it another model's?", stacklevel=3)
    source_ids, target_ids, probabilities = map(np.array, columns)
    order = np.lexsort((target_ids, -probabilities, source_ids))
    source_ids, target_ids = source_ids[order], target_ids[order]
    rank = np.arange(len(order)) - np.searchsorted(source_ids, source_ids)
    best = min(best, int(rank.max()) + 1)
    lists = np.zeros((source_size, best + 1), np.int32)
    used = rank < best
    lists[source_ids[used], rank[used]] = target_ids[used]
    lists[:, best] = [targets.get(token, 0) if id >= FIRST_ID else 0 for id, token in enumerate(source_tokens)]
    frequent = [id for id, token in enumerate(target_tokens) if id >= FIRST_ID and not BYTE.fullmatch(token)]
    always = np.array([*range(FIRST_ID), *frequent[:first]], np.int32)
    lists = -np.sort(-np.where(np.isin(lists, always), 0, lists), axis=1)
    return Shortlist(always, lists[:, : max(1, np.count_nonzero(lists, axis=1).max())])


@checked
def write_lexicon(
    path: str | os.PathLike[str],
    tokenizer: Tokenizer,
    sources: Iterable[str],
    targets: Iterable[str],
    iterations: Count = 5,
) -> None:
    """Learns translation probabilities from parallel sentences by IBM Model 1, and writes them atomically.

    Args:
        path: New file, plain or .gz.
        tokenizer: The translator's tokenizer.
        sources: Sentences.
        targets: Their translations.
        iterations: Number of iterations of expectation maximization (Brown et al. 1993, section 4.1).

    Raises:
        BadInput: If they are not texts, their numbers differ, or both are empty.
    """
    sources, targets = list(sources), list(targets)
    for name, texts in (("sources", sources), ("targets", targets)):
        if wrong := [text for text in texts if not isinstance(text, str)]:
            raise BadInput(f"{name}: expected texts, got {shown(wrong[0])}")
    if not sources or len(sources) != len(targets):
        raise BadInput(f"targets: expected one for each of {len(sources)} sources, at least one, got {len(targets)}")
    skipped, path = tokenizer.num_language_tokens, user_path(path)
    rows = (encode(texts) for encode, texts in ((tokenizer.encode, sources), (tokenizer.encode_target, targets)))
    source_ids, target_ids = ([np.array(row[skipped:], np.int64) for row in side] for side in rows)

    def links() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the pairs of tokens of many sentences, and for each of them the number of its target token."""
        for start in range(0, len(source_ids), PAIRS):
            pairs, numbers, count = list[np.ndarray](), list[np.ndarray](), 0
            several = (side[start : start + PAIRS] for side in (source_ids, target_ids))
            for source, target in zip(*several, strict=True):
                source = np.append(source, 0)  # the empty cept
                pairs.append(np.tile(source, len(target)) * tokenizer.vocab_size + np.repeat(target, len(source)))
                numbers.append(count + np.repeat(np.arange(len(target)), len(source)))
                count += len(target)
            yield np.concatenate(pairs), np.concatenate(numbers)

    known = np.zeros(0, np.int64)
    for pairs, _ in links():
        known = np.union1d(known, pairs)
    probabilities = np.ones(len(known))
    of_source, of_target = np.divmod(known, tokenizer.vocab_size)
    for _ in range(iterations):
        counts = np.zeros(len(known))
        for pairs, numbers in links():
            indices = np.searchsorted(known, pairs)
            weights = probabilities[indices]
            weights /= np.bincount(numbers, weights)[numbers]
            counts += np.bincount(indices, weights, minlength=len(known))
        probabilities = counts / np.bincount(of_source, counts)[of_source]
    order = np.lexsort((-probabilities, of_source))
    order = order[(probabilities[order] >= LEAST) & (of_source[order] >= FIRST_ID) & (of_target[order] >= FIRST_ID)]
    columns = tokenizer.tokens(of_target[order].tolist()), tokenizer.source_tokens(of_source[order].tolist())
    lines = zip(*columns, probabilities[order], strict=True)
    text = "".join(f"{target} {source} {probability:.6f}\n" for target, source, probability in lines).encode()
    with new_file(path) as temporary:
        temporary.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def vocabulary_map(shortlist: Shortlist, tokenizer: Tokenizer) -> str:
    """Returns a shortlist in the format of CTranslate2's vmap.txt."""
    rows: dict[str, Any] = {"": shortlist.always}
    rows |= zip(tokenizer.source_tokens(range(len(shortlist.lists))), shortlist.lists, strict=True)
    return "".join(f"{token}\t{' '.join(tokenizer.tokens(ids[ids > 0].tolist()))}\n" for token, ids in rows.items())
