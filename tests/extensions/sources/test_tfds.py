"""A corpus of TensorFlow Datasets: its splits and ranges of them, in shards, in records and for a trainer."""

import gzip
import hashlib
from unittest.mock import Mock

import pytest
from programs import trainer_of

import tf_transformer as tt
from tf_transformer.data import toy_corpus
from tf_transformer.extensions.records.records import Records
from trainers import prepare, translation


def test_a_corpus_of_tensorflow_datasets(tmp_path, capsys):
    import tensorflow_datasets as tfds

    corpus = toy_corpus.corpus(train=300, dev=11, test=13)

    class GrammarTranslate(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.Translation(["de", "en"]))

        def _split_generators(self, dl_manager):
            names = {"train": "train", "validation": "dev", "test": "test"}
            return {name: self._generate_examples(split) for name, split in names.items()}

        def _generate_examples(self, split):
            for key, (en, de) in enumerate(corpus[split]):
                yield key, {"en": en, "de": de}

    def load(split, languages=("en", "de")):
        source = tt.sources.TfdsSource("grammar_translate", split, languages, tmp_path)
        return sorted(tuple(map(bytes.decode, pair)) for pair in source.pairs())

    argv = ["--tfds", "grammar_translate", "--tfds-dir", str(tmp_path)]
    translation.main([*argv, "--dry-run", "8x9.5"])
    assert "grammar_translate is not downloaded yet" in capsys.readouterr().out and not [*tmp_path.iterdir()]
    assert load("train") == sorted(corpus["train"])
    assert load("test", ("de", "en")) == sorted((german, english) for english, german in corpus["test"])
    with pytest.raises(tt.BadInput, match="expected languages among .*, got fr"):
        translation.main([*argv, "--languages", "en", "fr", "--dry-run"])
    with pytest.raises(tt.BadInput, match="expected languages among .*, got fr"):
        load("train", ("en", "fr"))
    with pytest.raises(tt.BadInput, match="expected one of the splits .*, got 'dev'"):
        load("dev")
    with pytest.raises(tt.BadInput, match=r"expected one of the splits .*, got 'train\[0:301\]'"):
        load("train[0:301]")

    for split in ("train[:10%]", "test+train[-7:]+validation[5:6]"):
        source = tt.sources.TfdsSource("grammar_translate", split, data_dir=tmp_path)
        builder = tfds.builder("grammar_translate", data_dir=tmp_path)
        datasets = (builder.as_dataset(split=name, shuffle_files=False) for name in split.split("+"))
        expected = [(pair["en"], pair["de"]) for dataset in datasets for pair in tfds.as_numpy(dataset)]
        pairs = [pair for part in source.parts(11, tmp_path) for pair in source.read(part)]
        assert pairs == expected and len(pairs) == len(list(source.pairs()))

    translation.main([*argv, "--dry-run", "8x9.5", "--run", str(tmp_path / "run")])
    assert "not downloaded" not in capsys.readouterr().out and not (tmp_path / "run").exists()
    loaded = tt.TfdsCorpus("grammar_translate", data_dir=str(tmp_path))
    assert [number for number, *_ in loaded.train.rows()] == list(range(1, 301))
    assert sorted(loaded.train.sentences()) == sorted(text for pair in corpus["train"] for text in pair)
    assert sorted(zip(*loaded.dev, strict=True)) == sorted(corpus["dev"])
    assert sorted(zip(*loaded.test, strict=True)) == sorted(corpus["test"])

    prepare.main([*argv, "--to", str(tmp_path / "records"), "--vocab-size", "400"])
    assert "300 pairs, " in capsys.readouterr().out
    assert Records(tmp_path / "records").tokenizer.vocab_size == 400

    trainer = trainer_of(translation, [*argv, "--prepared", tmp_path / "records"])
    assert (trainer.corpus.dev, trainer.corpus.test) == (loaded.dev, loaded.test)
    assert trainer.corpus.languages == ("en", "de") and trainer.config.vocab_size == 400


@pytest.mark.parametrize(("language", "subsets"), [("de", 3), ("fr", 5)])
def test_wmt_2014(language, subsets, tmp_path, monkeypatch):
    """From small files with the names of those in its archives, which TFDS downloads and reads."""
    import tensorflow_datasets as tfds
    import tree
    from tensorflow_datasets.translate import wmt

    lines = [f"sentence {number}" for number in range(5)]

    def extracted(url):
        folder = tmp_path / hashlib.sha256(url.encode()).hexdigest()
        of_language = (subset for subset in wmt.DATASET_MAP.values() if language in subset.sources)
        for subset in of_language:
            for name in filter(None, subset.get_path(language) if url in subset.get_url(language) else ()):
                file, segments = folder / name, (f'<seg id="{i}">{line}</seg>' for i, line in enumerate(lines))
                file.parent.mkdir(parents=True, exist_ok=True)
                text = "\n".join(segments if ".sgm" in name else lines).encode()
                file.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return folder

    monkeypatch.setattr(
        tfds.download.DownloadManager, "download_and_extract", lambda self, urls: tree.map_structure(extracted, urls)
    )
    corpus = tt.TfdsCorpus(f"wmt14_translate/{language}-en", ("en", language), tmp_path)
    assert sorted(corpus.train.sentences()) == sorted(2 * subsets * lines)
    assert [sorted(texts) for texts in (*corpus.dev, *corpus.test)] == [lines] * 4


def test_packages_that_a_corpus_needs(tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    lacks = Mock(side_effect=ImportError("Failed importing parser"))
    monkeypatch.setattr(tfds.download.DownloadManager, "download_and_extract", lacks)
    source = tt.sources.TfdsSource("wmt14_translate/de-en", data_dir=tmp_path)
    message = "^wmt14_translate/de-en: expected the packages that TFDS needs for it, got Failed importing parser$"
    with pytest.raises(tt.BadInput, match=message):
        list(source.pairs())
