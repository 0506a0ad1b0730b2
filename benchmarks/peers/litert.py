"""Our export to LiteRT with the weights and strings of our benchmark, one sentence after the other."""

from benchmarks import common
from benchmarks.translation import exported, source_sentences


def translation(work, args):
    path = exported(work, args.dtype, args.work, kind="litert")
    from tf_transformer.extensions.interop.engines.litert_client import LiteRTTranslator  # without TensorFlow

    translator = LiteRTTranslator(path, args.threads)
    sentences = source_sentences(work, args.sentences, args.work)

    def request():
        outputs = [translator.ids(sentence, 1)[0] for sentence in sentences]
        for ids in outputs:
            translator.text(ids)
        return min(map(len, outputs))

    return request


if __name__ == "__main__":
    common.run_peer("litert", ["ai-edge-litert"], {"translation": translation}, ("float32", "int8"))
