"""Makes a checkpoint with two vocabularies of the trained one, and writes the outputs of Hugging Face's `transformers`.

    pip install torch "transformers<6" && python tests/marian/separate.py FOLDER

separate.json is by transformers 5.24.0 and torch 2.13.0. The tests only make the checkpoint.
"""

import json
import shutil
import sys
from pathlib import Path

import sentencepiece
from safetensors.numpy import load_file, save_file

HERE = Path(__file__).parent
TRAINED = HERE / "trained"
CODES = [">>deu<<", ">>eng<<"]
PAD = 150  # an id of both vocabularies, which `transformers` requires, but the last of neither


def split(folder: Path) -> None:
    """Write a checkpoint whose source has the pieces of source.spm and codes, and whose target has those of target.spm,
    in another order, each with its rows of the embeddings that the trained one shares."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((TRAINED / "config.json").read_text())
    ids = json.loads((TRAINED / "vocab.json").read_text())
    tensors = load_file(TRAINED / "model.safetensors")
    shared, bias = tensors.pop("model.shared.weight"), tensors.pop("final_logits_bias")
    sizes = {}
    for side, file, stack in (("source", "vocab.json", "encoder"), ("target", "target_vocab.json", "decoder")):
        engine = sentencepiece.SentencePieceProcessor(model_file=str(TRAINED / f"{side}.spm"))
        pieces = [engine.id_to_piece(id) for id in range(engine.vocab_size())]
        pieces = [piece for piece in pieces if piece in ids and piece not in ("</s>", "<unk>", "<pad>")]
        pieces = [*CODES, *pieces] if side == "source" else pieces[::-1]
        pieces = ["</s>", "<unk>", *pieces[: PAD - 2], "<pad>", *pieces[PAD - 2 :]]
        rows = [ids[piece] for piece in pieces]
        (folder / file).write_text(json.dumps({piece: id for id, piece in enumerate(pieces)}))
        tensors[f"model.{stack}.embed_tokens.weight"] = shared[rows]
        sizes[side] = len(pieces)
    tensors["final_logits_bias"] = bias[:, rows]
    save_file(tensors, folder / "model.safetensors")
    config |= {"share_encoder_decoder_embeddings": False, "pad_token_id": PAD, "decoder_start_token_id": PAD}
    config |= {"vocab_size": sizes["source"], "decoder_vocab_size": sizes["target"]}
    (folder / "config.json").write_text(json.dumps(config))
    settings = json.loads((TRAINED / "generation_config.json").read_text())
    settings |= {"pad_token_id": PAD, "decoder_start_token_id": PAD, "bad_words_ids": [[PAD]]}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    (folder / "tokenizer_config.json").write_text(json.dumps({"separate_vocabs": True, "model_max_length": 512}))
    for side in ("source", "target"):
        shutil.copy(TRAINED / f"{side}.spm", folder)


def write_answers(folder: Path) -> None:
    """Writes the outputs of `transformers` in float64."""
    import torch
    from transformers import MarianMTModel, MarianTokenizer

    tokenizer = MarianTokenizer.from_pretrained(folder, split_special_tokens=True)
    model = MarianMTModel.from_pretrained(folder, dtype=torch.float32).double().eval()
    trained = json.loads((TRAINED / "answers.json").read_text(encoding="utf-8"))
    inputs = tokenizer(trained["sentences"], padding=True, return_tensors="pt")
    scored = {"return_dict_in_generate": True, "output_scores": True}
    with torch.no_grad():
        generated = model.generate(**inputs, num_beams=4, length_penalty=0.0, max_length=128, **scored)
    outputs = {
        "beam": tokenizer.batch_decode(generated.sequences, skip_special_tokens=True),
        "log_probs": [round(score, 6) for score in generated.sequences_scores.tolist()],
        "source_ids": tokenizer(trained["texts"])["input_ids"],
        "target_ids": tokenizer(text_target=trained["texts"])["input_ids"],
    }
    outputs["of_target"] = tokenizer.batch_decode(outputs["target_ids"], skip_special_tokens=True)
    (HERE / "separate.json").write_text(json.dumps(outputs, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    split(Path(sys.argv[1]))
    write_answers(Path(sys.argv[1]))
