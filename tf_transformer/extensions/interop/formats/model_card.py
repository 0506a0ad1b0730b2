"""README.md of a model for the Hugging Face hub: the fields that the hub reads, how to use the model, and its facts."""

import contextlib
import json
from typing import Any

from tf_transformer.config import BadInput
from tf_transformer.decoding.text_model import TextModel
from tf_transformer.tokenizers.languages import LANGUAGES
from tf_transformer.utils.version import __version__

SAID = {
    "license",
    "languages",
    "n_best",
    "max_beam_size",
    "max_length",
    *LANGUAGES,
}  # elsewhere, or of no interest here


def card(translator: TextModel, name: str) -> str:
    """The text of README.md.

    Args:
        translator: whose model it is; its `export_options` are the facts, such as origin, license, step and bleu.
        name: the model's.
    """
    facts, known, model = translator.export_options, translator.tokenizer.languages, translator.model
    config: Any = model.config
    pair = [str(facts[side]) for side in LANGUAGES if facts.get(side)]
    listed = [code.strip() for code in str(facts.get("languages", "")).split(",") if code.strip()]
    codes = sorted({code.partition("_")[0] for code in known or pair or listed})  # "eng" of "eng_Latn"
    origin = str(facts.get("origin", ""))
    head = {
        "language": codes,
        "license": facts.get("license"),
        "base_model": origin if "/" in origin else None,
        "library_name": "transformers",
        "pipeline_tag": "translation",
    }
    what = f"{config.num_layers} + {config.decoder_layers} layers, d_model={config.d_model}"
    between = f" between {len(known)} languages" if known else f" from {pair[0]} to {pair[1]}" if len(pair) == 2 else ""
    table = {"made by": f"tf_transformer {__version__}", **{key: facts[key] for key in facts if key not in SAID}}
    lines = [
        "---",
        *(f"{field}: {json.dumps(value)}" for field, value in head.items() if value),
        "---",
        "",
        f"# {name}",
        "",
        f"A Transformer that translates{between}: {what}, vocab_size={config.vocab_size}.",
        "",
        "```python",
        *_use(translator, name),
        "```",
        "",
        "`tt.load` of tf_transformer opens it, too.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {key} | {_plain(value)} |" for key, value in table.items()),
    ]
    return "\n".join(lines) + "\n"


def _use(translator: TextModel, name: str) -> list[str]:
    """Lines of Python that translate a sentence in `transformers`."""
    tokenizer, options, target = translator.tokenizer, "", ""
    if tokenizer.languages:
        spoken: tuple[Any, ...] = (tokenizer.languages[0], tokenizer.languages[-1])
        with contextlib.suppress(BadInput):  # one is not chosen
            spoken = tokenizer.spoken()
        (symbol,) = tokenizer.tokens(tokenizer.for_languages(*spoken).start_ids()[1:])
        options = f", src_lang={json.dumps(spoken[0])}"
        target = f", forced_bos_token_id=tokenizer.convert_tokens_to_ids({json.dumps(symbol)})"
    return [
        "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer",
        "",
        f"name = {json.dumps(name)}  # the folder, or the model's name on the hub",
        f"tokenizer = AutoTokenizer.from_pretrained(name{options})",
        "model = AutoModelForSeq2SeqLM.from_pretrained(name)",
        'batch = tokenizer(["Two doors."], padding=True, return_tensors="pt")',
        f"tokenizer.batch_decode(model.generate(**batch{target}), skip_special_tokens=True)",
    ]


def _plain(value: object) -> str:
    """A value in a cell of a table."""
    return str(value).replace("|", "\\|").replace("\n", " ")
