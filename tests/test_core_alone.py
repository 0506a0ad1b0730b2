"""The core trains, saves, opens and exports without a module of `tf_transformer.extensions`.

`.ci/core_alone` runs it where these modules are missing."""

import json

import pytest
from conftest import HAS_EXTENSIONS
from programs import run_python

import tf_transformer as tt
from tf_transformer import registry

WALK = """
import json, os, sys
os.chdir(sys.argv[1])
import tf_transformer as tt

config = tt.TransformerConfig(num_layers=1, d_model=16, d_ff=24, num_heads=2, vocab_size=320)
import keras, tensorflow as tf
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})  # It would take a third of the time.
tt.toy_corpus.write_corpus("text", train=60, dev=3, test=3)
sides = [[f"text/{part}.{side}" for side in ("en", "de")] for part in ("train", "dev")]
recipe = tt.Recipe(steps=2, batch_tokens=256, warmup_steps=2, eval_every=2, dev_sentences=2)
trainer = tt.Trainer("runs/mine", config, tt.TextCorpus(*sides), recipe)
trainer.fit()
translator = trainer.translator(beam_size=2, extra_length=3)
translator.save("models/mine/1")
texts = ["Two doors.", "The dog."]
aligned = translator.aligned(texts)
assert aligned[0].words[0] and tt.load("models/mine")(texts) == [one.text for one in aligned]
again = tt.load("runs/mine", beam_size=2, extra_length=3), tt.Translator.from_pretrained("models/mine")
assert [one.options for one in again] == [translator.options] * 2
assert translator.sample(texts, seed=1) and tt.Ensemble([translator.model] * 2)
translator.model.save("mine.keras")
keras.models.load_model("mine.keras")
family = json.load(open("runs/mine/config.json"))["family"]
print(json.dumps([family, sorted(name for name in sys.modules if name.startswith("tf_transformer.extensions"))]))
"""


@pytest.mark.program
def test_train_save_and_open_load_no_extension(tmp_path):
    family, extensions = json.loads(run_python(WALK, tmp_path).splitlines()[-1])
    assert family == "transformer" and extensions == []


def test_the_core_names_its_own():
    for kind in ("engines", "formats", "families", "tasks"):
        for name, path in registry.core[kind].items():
            assert path.startswith("tf_transformer.") and not path.startswith("tf_transformer.extensions")
            assert registry.find(kind, name) is registry.everything(kind)[name]


@pytest.mark.skipif(HAS_EXTENSIONS, reason="extensions are here")
def test_what_is_missing_raises_one_line(translator, tmp_path):
    with pytest.raises(tt.BadInput, match="^format: expected one of savedmodel, got 'litert'$"):
        translator.save(tmp_path / "1", format="litert")
    with pytest.raises(tt.BadInput, match="^expected a SavedModel or a run, found no config.json in"):
        tt.load(tmp_path)
    with pytest.raises(tt.BadInput, match="^checked: expected a check of exports, .* found none$"):
        translator.save(tmp_path / "name/1", checked=True)
