"""CTranslate2 with the weights and strings of our benchmark. It runs where this project is installed."""

from benchmarks import common
from benchmarks.translation import exported, source_sentences, tokenizer_path

COMPUTE_TYPES = {"float32": "float32", "int8": "int8_float32", "bfloat16": "bfloat16"}


def translation(work, args):
    import ctranslate2
    import sentencepiece

    path = exported(work, "float32", args.work, kind="ctranslate2")
    engine = ctranslate2.Translator(
        str(path), compute_type=COMPUTE_TYPES[args.dtype], inter_threads=1, intra_threads=args.threads
    )
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer_path(work, args.work)))
    sentences = source_sentences(work, args.sentences, args.work)

    def request():
        results = engine.translate_batch(
            tokenizer.encode(sentences, out_type=str),
            beam_size=work.beam_size,
            length_penalty=work.length_penalty,
            min_decoding_length=work.steps,
            max_decoding_length=work.steps,
            max_batch_size=0,
        )
        tokens = [result.hypotheses[0] for result in results]
        tokenizer.decode(tokens)
        return min(map(len, tokens))

    return request


if __name__ == "__main__":
    common.run_peer("ctranslate2_cpp", ["ctranslate2"], {"translation": translation}, tuple(COMPUTE_TYPES))
