"""One configuration is one row of Table 3."""

import json

import pytest

from tf_transformer import PRESETS, BadInput, TransformerConfig
from tf_transformer.config import current_fields

# Table 3: the differences of each row from `base`.
TABLE_3 = {
    "base": {},
    "A_h1": {"num_heads": 1},
    "A_h4": {"num_heads": 4},
    "A_h16": {"num_heads": 16},
    "A_h32": {"num_heads": 32},
    "B_dk16": {"d_k": 16},
    "B_dk32": {"d_k": 32},
    "C_N2": {"num_layers": 2},
    "C_N4": {"num_layers": 4},
    "C_N8": {"num_layers": 8},
    "C_d256": {"d_model": 256},
    "C_d1024": {"d_model": 1024},
    "C_ff1024": {"d_ff": 1024},
    "C_ff4096": {"d_ff": 4096},
    "D_drop0": {"dropout": 0.0},
    "D_drop2": {"dropout": 0.2},
    "D_ls0": {"label_smoothing": 0.0},
    "D_ls2": {"label_smoothing": 0.2},
    "E_learned": {"positions": "learned"},
    "big": {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3},
}


def test_base_is_the_first_row_of_table_3():
    base = PRESETS["base"]
    assert base == TransformerConfig()
    assert (base.num_layers, base.d_model, base.d_ff, base.num_heads) == (6, 512, 2048, 8)
    assert (base.dropout, base.label_smoothing) == (0.1, 0.1)
    assert (base.positions, base.attention_dropout) == ("sinusoidal", 0.0)


@pytest.mark.parametrize("name", TABLE_3)
def test_a_preset_differs_from_base_as_its_row_does(name):
    base, row = PRESETS["base"].to_dict(), PRESETS[name].to_dict()
    assert {field: row[field] for field in row if row[field] != base[field]} == TABLE_3[name]


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_config_survives_json(name):
    assert TransformerConfig(**json.loads(json.dumps(PRESETS[name].to_dict()))) == PRESETS[name]


@pytest.mark.parametrize("field, other", [("d_k", "d_v"), ("d_v", "d_k")])
def test_a_head_width_is_needed_where_d_model_is_not_a_multiple_of_the_heads(field, other):
    with pytest.raises(BadInput, match=f"{field}=None.*d_model=512.*num_heads=7"):
        TransformerConfig(num_heads=7, **{other: 64})
    assert TransformerConfig(num_heads=7, d_k=64, d_v=64).d_k == 64


def test_a_stored_configuration_of_an_earlier_version():
    values = PRESETS["tiny"].to_dict()
    assert current_fields(values | {"attention_window": None}) == values
    with pytest.raises(BadInput, match="^attention_window: this version has no such option. Override"):
        current_fields(values | {"attention_window": 7})
