"""Translation corpora of TensorFlow Datasets."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tf_transformer.config import BadInput
from tf_transformer.data.corpus import Corpus
from tf_transformer.data.sources import Pair, PairsOfPart, Part, Source, even_parts
from tf_transformer.utils.files import user_path
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.values import check_fields, checked

tfds = lazily("tensorflow_datasets", "a corpus of TensorFlow Datasets")


@dataclass(frozen=True)
class TfdsSource(Source):
    """A translation corpus of TensorFlow Datasets, downloaded at first use.

    Attributes:
        name: Name of the corpus, for example "wmt14_translate/de-en".
        split: Split, such as "train"; a range of it, such as "train[200:300]" or "train[:10%]"; or several, with "+".
        languages: Languages of source and target, for example ("en", "de").
        data_dir: Directory of the corpora. `None` means the default of TFDS.
    """

    name: str
    split: str = "train"
    languages: tuple[str, str] = ("en", "de")
    data_dir: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.data_dir is not None:
            object.__setattr__(self, "data_dir", str(user_path(self.data_dir, "data_dir")))

    def describe(self) -> dict[str, Any]:
        version = str(self._named().info.version)
        return {"train": self.name, "version": version, "split": self.split, "languages": list(self.languages)}

    def pairs(self) -> Iterator[Pair]:
        return self._pairs(self.split)

    @checked
    def parts(self, pairs: PairsOfPart, folder: str | os.PathLike[str]) -> list[Part]:
        return even_parts(sum(len(indices) for _, indices in self._ranges(self._builder())), pairs)

    def read(self, part: Part) -> Iterator[Pair]:
        # TFDS reads a range of a split from its first file on. Skipping examples would read all files before it.
        first, last = part.first, part.first + part.count
        for split, indices in self._ranges(self._builder()):
            if part_of_split := indices[max(first, 0) : max(last, 0)]:
                yield from self._pairs(f"{split}[{part_of_split.start}:{part_of_split.stop}]")
            first, last = first - len(indices), last - len(indices)

    def _pairs(self, split: str) -> Iterator[Pair]:
        texts = self._builder().as_dataset(split=split, shuffle_files=False)
        return (tuple(text[name] for name in self.languages) for text in texts.as_numpy_iterator())

    def _ranges(self, builder: Any) -> list[tuple[str, range]]:
        """Returns the name and the indices of each range in `split`, such as "train[:10%]+test"."""
        sizes = {name: info.num_examples for name, info in builder.info.splits.items()}
        try:
            ranges = tfds.core.ReadInstruction.from_spec(self.split).to_absolute(builder.info.splits)
        except (ValueError, NotImplementedError) as error:
            expected = f"expected one of the splits {', '.join(sizes)}, or a range of one such as train[:10%]"
            raise BadInput(f"{self.name}: {expected}, got {self.split!r}") from error
        return [(part.splitname, range(sizes[part.splitname])[part.from_ : part.to]) for part in ranges]

    def is_prepared(self) -> bool:
        """Returns whether the corpus was downloaded. Raises `BadInput` if it has another name or other languages."""
        return bool(self._in_languages().is_prepared())

    def _builder(self) -> Any:
        builder = self._in_languages()
        try:
            builder.download_and_prepare()
        except ImportError as error:  # TFDS does not install the packages of all corpora.
            raise BadInput(f"{self.name}: expected the packages that TFDS needs for it, got {error}") from error
        self._ranges(builder)
        return builder

    def _in_languages(self) -> Any:
        builder = self._named()
        if missing := set(self.languages) - set(builder.info.features):
            languages = ", ".join(builder.info.features)
            raise BadInput(f"{self.name}: expected languages among {languages}, got {', '.join(sorted(missing))}")
        return builder

    def _named(self) -> Any:
        try:
            return tfds.builder(self.name, data_dir=self.data_dir)
        except ValueError as error:  # its message ends with a list of all corpora
            reason = re.split(r"\n| Here are ", str(error))[0]
            raise BadInput(f"{self.name}: expected a corpus of TensorFlow Datasets, got none: {reason}") from error


@checked
def TfdsCorpus(
    name: str, languages: tuple[str, str] = ("en", "de"), data_dir: str | os.PathLike[str] | None = None
) -> Corpus:
    """Returns the splits "train", "validation" and "test" of a translation corpus of TensorFlow Datasets.

        corpus = tt.TfdsCorpus("ted_hrlr_translate/pt_to_en", languages=("pt", "en"))

    Args:
        name: Name of the corpus, for example "wmt14_translate/de-en".
        languages: Languages of source and target.
        data_dir: Directory of the corpora. `None` means the default of TFDS.

    Raises:
        BadInput: If the corpus does not have the languages or splits.
    """
    train, dev, test = (TfdsSource(name, split, languages, data_dir) for split in ("train", "validation", "test"))
    return Corpus(train, dev.texts(), test.texts(), languages)
