"""Outputs of Hugging Face's `transformers` for a checkpoint, in a process without this package and TensorFlow.

    python tests/by_transformers.py FOLDER < request.json > response.json

The request has texts, beams, extra (maximum tokens of an output beyond its source), split (whether special and added
tokens in texts are plain text) and, of a model of several languages, the names of source and target and the target's
token.
"""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path


def asked(folder, texts, beams, extra, languages=None, split=True):
    """Returns the subwords of each text with EOS, and the texts and log-probabilities of the best outputs."""
    request = {"texts": texts, "beams": beams, "extra": extra, "languages": languages, "split": split}
    command = [sys.executable, __file__, str(folder)]
    environment = os.environ | {"TEMPORARILY_DISABLE_PROTOBUF_VERSION_CHECK": "true"}  # TensorFlow's protobuf
    done = subprocess.run(command, input=json.dumps(request).encode(), capture_output=True, env=environment)
    assert not done.returncode, done.stderr.decode()
    result = json.loads(done.stdout)
    return result["pieces"], result["texts"], result["log_probs"]


def main() -> None:
    warnings.simplefilter("ignore")
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    folder, request = Path(sys.argv[1]), json.load(sys.stdin)
    tokenizer_options, search, codes = {"split_special_tokens": request["split"]}, {}, 0
    if request["languages"]:
        source, target, token = request["languages"]
        tokenizer_options |= {"src_lang": source, "tgt_lang": target}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **tokenizer_options)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    if request["languages"]:
        search, codes = {"forced_bos_token_id": tokenizer.convert_tokens_to_ids(token)}, 1
    names = {}
    if getattr(tokenizer, "separate_vocabs", False):  # convert_ids_to_tokens has only names of targets
        names = {id: piece for piece, id in tokenizer.encoder.items()}
    result = {"pieces": [], "texts": [], "log_probs": []}
    for text in request["texts"]:
        batch = tokenizer([text], return_tensors="pt", split_special_tokens=request["split"])
        ids = batch["input_ids"][0].tolist()
        result["pieces"].append([names[id] if names else tokenizer.convert_ids_to_tokens(id) for id in ids])
        length = batch["input_ids"].shape[1] - 1 - codes + request["extra"]
        with torch.inference_mode():
            output = model.generate(
                **batch,
                **search,
                num_beams=request["beams"],
                do_sample=False,
                length_penalty=0.0,
                early_stopping="never" if request["beams"] > 1 else False,
                max_length=None,
                max_new_tokens=length + codes,
                forced_eos_token_id=None,
                renormalize_logits=True,
                return_dict_in_generate=True,
                output_scores=True,
            )
        if request["beams"] > 1:
            log_prob = output.sequences_scores[0].item()
        else:
            chosen = zip(output.scores, output.sequences[0, 1:], strict=True)
            log_prob = sum(scores[0, id].item() for scores, id in chosen)
        result["log_probs"].append(log_prob)
        result["texts"].append(tokenizer.decode(output.sequences[0], skip_special_tokens=True))
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
