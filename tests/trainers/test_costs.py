"""Costs compared with the paper's Table 2, the matmuls of a model's graph and the sizes of models."""

import dataclasses

import pytest
import tensorflow as tf

import tf_transformer as tt
from trainers import costs

ODD = tt.TransformerConfig(2, 14, 34, 7, d_k=3, d_v=5, vocab_size=53)


def test_table_2():
    """3.3e18 and 2.3e19, from 12 hours and 3.5 days on 8 P100 of 9.5 TFLOP/s."""
    assert f"{costs.training_cost(12, 8, 9.5):.1e}" == "3.3e+18"
    assert f"{costs.training_cost(3.5 * 24, 8, 9.5):.1e}" == "2.3e+19"
    assert {name: f"{cost:.1e}" for name, cost in costs.PAPER.items()} == {"base": "3.3e+18", "big": "2.3e+19"}


@pytest.mark.parametrize("name", ["B_dk16", "E_learned", "norm first"])
def test_parameters_are_the_model_s(name):
    """The widths are a sixteenth of the paper's."""
    config = tt.PRESETS.get(name) or tt.TransformerConfig(5, num_decoder_layers=2, norm_first=True)
    sizes = {"d_model": config.d_model // 16, "d_ff": config.d_ff // 16, "max_length": 31, "vocab_size": 101}
    config = dataclasses.replace(config, d_k=config.d_k and config.d_k // 16, **sizes)
    model = tt.Transformer(config)
    model.build()
    assert costs.parameters(config) == model.count_params()


@pytest.mark.parametrize(
    "config", [ODD, dataclasses.replace(ODD, d_k=None, d_v=None, num_layers=3, num_decoder_layers=1)]
)
def test_operations_are_those_of_the_graph(config):
    """The matmuls of the model's graph are counted, for one pair of 11 and 13 tokens."""
    model = tt.Transformer(config)
    model.build()
    ids = [tf.TensorSpec([1, length], tf.int32) for length in (11, 13)]
    graph = tf.function(lambda source, target: model((source, target))).get_concrete_function(*ids).graph
    counted = 0
    for operation in graph.get_operations():
        if operation.type in ("MatMul", "BatchMatMulV2"):
            left = operation.inputs[0].shape
            turned = operation.get_attr("transpose_a" if operation.type == "MatMul" else "adj_x")
            inner = left[-2] if turned else left[-1]
            rows = operation.outputs[0].shape.num_elements()
            counted += 2 * rows * inner
    assert counted == costs.forward_flops(config, 11, 13)


def test_a_plan_counts_devices_and_their_rate():
    training = costs.Training(steps=100_000, batch_tokens=25_000)
    lines = [
        costs.plan(tt.PRESETS["base"], training, devices).splitlines()[-1] for devices in ("8x9.5", "8 x 9.5", "76")
    ]
    assert lines[0] == lines[1] and lines[0].split(": ")[1] == lines[2].split(": ")[1]
    assert "time on 8 x 9.5 TFLOP/s: " in lines[0] and "; 12.0 with the 29% that" in lines[0]  # the paper's hours
    assert "time on 1 x 76 TFLOP/s: " in lines[2]
    for wrong in ("", "8x", "x9.5", "0x9.5", "8x0", "-8", "8xP100", "nan"):
        with pytest.raises(tt.BadInput, match=f"devices: expected .*, such as 8x9.5, got '{wrong}'"):
            costs.plan(tt.PRESETS["base"], training, wrong)
