#!/usr/bin/env bash
# EarlyStopping(restore_best_weights=True) ends fit without the moving average that use_ema=True has trained.
#
# Expected: After fit, the weights are averages, as without the callback, or the best epoch's averages.
# Seen: fit copies the averages into the model, then EarlyStopping restores weights that it copied in an epoch, which
# are no averages. Validation in fit measures those, too, so val_loss is not the loss of the model that a fit without
# the callback returns.
# Versions: keras 3.15.1 on TensorFlow 2.21.0.
# Source: `fit` in keras/src/backend/tensorflow/trainer.py: `finalize_variable_values` comes before `on_train_end`.
# EarlyStopping.on_train_end in keras/src/callbacks/early_stopping.py.
# Met by: training with use_ema and early stopping. SwapEMAWeights swaps at each epoch instead.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="tensorflow-cpu==2.21.0 keras==3.15.1"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
export TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
"$environment/bin/python" - <<'END'
import keras
import numpy as np

x, y = np.ones((8, 4), "float32"), np.ones((8, 3), "float32")
is_average = {}
for stops in (False, True):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9), "mse")
    callbacks = [keras.callbacks.EarlyStopping(patience=9, restore_best_weights=True)] if stops else []
    history = model.fit(x, y, validation_data=(x, y), epochs=4, verbose=0, callbacks=callbacks).history
    average = model.optimizer._model_variables_moving_average[0].numpy()
    is_average[stops] = np.allclose(model.layers[0].kernel.numpy(), average)
    loss = model.evaluate(x, y, verbose=0)
    print(f"EarlyStopping {stops}: weights are averages: {is_average[stops]}")
    print(f"  last val_loss {history['val_loss'][-1]:.4f}, loss of the model {loss:.4f}")
assert is_average[False], "fit does not leave averages"
assert not is_average[True], "EarlyStopping keeps averages now"
END
