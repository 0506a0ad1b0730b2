"""Compares our layers with torch.nn.TransformerEncoderLayer and TransformerDecoderLayer (extra `torch`):

pip install -e ".[dev,torch]" && pytest tests/extensions/interop/test_torch_parity.py
"""

import keras
import numpy as np
import pytest
from conftest import array, draw_weights, normal, value_and_gradients
from keras import ops

from tf_transformer.layers import DecoderLayer, EncoderLayer

torch = pytest.importorskip("torch")

B, T, S, d, d_ff, h = 3, 7, 11, 15, 23, 5
SOURCE_MASK = np.arange(S) < np.array([[11], [4], [8]])
TARGET_MASK = np.arange(T) < np.array([[5], [7], [3]])


def pair(ours, theirs):
    """Returns our layer and theirs with equal random weights. Theirs has attention biases of 0."""
    ours.build((None, None, d), *[(None, None, d)] * isinstance(ours, DecoderLayer))
    draw_weights(ours)
    theirs = theirs(d, h, d_ff, dropout=0.0, activation="relu", layer_norm_eps=1e-6, batch_first=True)

    def put(parameter, value):
        parameter.data = torch.tensor(value)

    def attention(module, layer):
        query, key, value, output = (
            array(dense.kernel).T
            for dense in (layer.query_projection, layer.key_projection, layer.value_projection, layer.output_projection)
        )
        put(module.in_proj_weight, np.concatenate([query, key, value]))
        put(module.out_proj.weight, output)
        put(module.in_proj_bias, np.zeros(3 * d, "float32"))
        put(module.out_proj.bias, np.zeros(d, "float32"))

    def linear(module, layer):
        put(module.weight, array(layer.kernel).T)
        put(module.bias, array(layer.bias))

    def norm(module, layer):
        put(module.weight, array(layer.norm.gamma))
        put(module.bias, array(layer.norm.beta))

    attention(theirs.self_attn, ours.self_attention)
    norms = [ours.self_attention_norm, ours.feed_forward_norm]
    if isinstance(ours, DecoderLayer):
        attention(theirs.multihead_attn, ours.cross_attention)
        norms.insert(1, ours.cross_attention_norm)
    linear(theirs.linear1, ours.feed_forward.hidden)
    linear(theirs.linear2, ours.feed_forward.output_projection)
    for i, layer in enumerate(norms, 1):
        norm(getattr(theirs, f"norm{i}"), layer)
    return ours, theirs.train()  # Its evaluation mode has no gradients.


def compare(ours, theirs, inputs):
    """Outputs, and the gradients of a random combination of them by the inputs."""
    variables = [keras.Variable(x) for x in inputs]
    tensors = [torch.tensor(x, requires_grad=True) for x in inputs]
    combination, outputs = normal(*inputs[0].shape, seed=9), []

    def combined():
        outputs.append(ours(*[ops.convert_to_tensor(variable) for variable in variables]))
        return ops.sum(outputs[0] * combination)

    _, gradients = value_and_gradients(combined, variables)
    expected = theirs(*tensors)
    (expected * torch.tensor(combination)).sum().backward()
    np.testing.assert_allclose(array(outputs[0]), expected.detach().numpy(), atol=1e-5)
    for gradient, tensor in zip(gradients, tensors, strict=True):
        np.testing.assert_allclose(array(gradient), tensor.grad.numpy(), atol=1e-5)
        assert np.abs(array(gradient)).max() > 0.1


@pytest.mark.parametrize("masked", [False, True])
def test_encoder_layer(masked):
    ours, theirs = pair(EncoderLayer(h, d_ff, dropout=0.0), torch.nn.TransformerEncoderLayer)
    mask = SOURCE_MASK if masked else None
    ignored = torch.tensor(~SOURCE_MASK) if masked else None  # True means ignored.
    compare(lambda x: ours(x, mask=mask), lambda x: theirs(x, src_key_padding_mask=ignored), [normal(B, S, d)])


@pytest.mark.parametrize("masked", [False, True])
def test_decoder_layer(masked):
    ours, theirs = pair(DecoderLayer(h, d_ff, dropout=0.0), torch.nn.TransformerDecoderLayer)
    masks = {"x_mask": TARGET_MASK, "memory_mask": SOURCE_MASK} if masked else {}
    ignored = {}
    if masked:
        ignored = {
            "tgt_key_padding_mask": torch.tensor(~TARGET_MASK),
            "memory_key_padding_mask": torch.tensor(~SOURCE_MASK),
        }
    future = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)
    compare(
        lambda x, memory: ours(x, memory, **masks),
        lambda x, memory: theirs(x, memory, tgt_mask=future, **ignored),
        [normal(B, T, d), normal(B, S, d, seed=1)],
    )
