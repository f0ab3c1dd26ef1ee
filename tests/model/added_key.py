"""A model key as a newcomer adds it by the steps of CONTRIBUTING.md; tests/test_pages.py follows them."""

from __future__ import annotations

from pathlib import Path

from pages import Page

KEY = """    v_layernorm: Annotated[Bool, replace(PART, before=False)] = False
    \"\"\"Whether the values of each head are normalized.\"\"\"
    hidden_dropout: """
TAKEN = "        self.rotary = rotary\n"
MADE = f"""{TAKEN}        size, kernel = self.hidden_size_per_attention_head, value_norm
        self.v_layernorm = None if kernel is None else Norm(self.config, size, kernel=kernel, is_of_heads=True)
"""
SPLIT = "        query, key, value = self.get_query_key_value_tensors(hidden_states)\n"
CALLED = f"""{SPLIT}        if self.v_layernorm is not None:
            value = self.v_layernorm(value)
"""
PAGE = Page(
    heading="To add a model key",
    steps={
        "core/pretrain/recipe/sections/model.py": ("    hidden_dropout: ", KEY),
        "core/pretrain/model/requests.py": (
            "    if model.qk_layernorm:",
            "    if model.qk_layernorm or model.v_layernorm:",
        ),
        "core/pretrain/model/layer.py": [
            ("rotary: RotaryFn | None, **kwargs", "rotary: RotaryFn | None, value_norm: NormFn | None, **kwargs"),
            (TAKEN, MADE),
            (SPLIT, CALLED),
        ],
        "core/pretrain/model/build.py": (
            '                    "rotary": ',
            (
                '                    "value_norm": kernels.norm_of("head") if recipe.model.v_layernorm else None,\n'
                '                    "rotary": '
            ),
        ),
        "core/pretrain/report/flops.py": (
            "    return count + model.num_layers * (",
            (
                "    count += 2 * model.num_layers * model.kv_channels if model.v_layernorm else 0\n"
                "    return count + model.num_layers * ("
            ),
        ),
        "core/pretrain/tools/convert/model_keys.py": (
            '    "embedding_layernorm": ',
            (
                '    "v_layernorm": Names(huggingface=None, megatron=None, neox=None, deepspeed=None),\n'
                '    "embedding_layernorm": '
            ),
        ),
        "core/pretrain/tools/migrate/to_megatron": (
            '    "model.embedding_layernorm": ',
            (
                '    "model.v_layernorm": "values are not normalized: it is another model",\n'
                '    "model.embedding_layernorm": '
            ),
        ),
        "tests/model/test_keys.py": (
            '    "hidden_dropout": ',
            '    "v_layernorm": ("true", ()),\n    "hidden_dropout": ',
        ),
        "tests/engine/test_keys_reach.py": (
            '        "model.embedding_layernorm",\n',
            '        "model.embedding_layernorm",\n        "model.v_layernorm",\n',
        ),
        "docs/recipes.md": Path("docs/generate/recipes_page.py"),
    },
    sees={
        "core/pretrain/recipe/sections/model.py": "tests/model/test_keys.py::test_every_key_is_compared",
        "core/pretrain/model/requests.py": "tests/model/test_keys.py::test_a_key_does_what_it_declares[v_layernorm]",
        "core/pretrain/model/layer.py": "tests/model/test_keys.py::test_a_key_does_what_it_declares[v_layernorm]",
        "core/pretrain/model/build.py": "tests/model/test_keys.py::test_a_key_does_what_it_declares[v_layernorm]",
        "core/pretrain/report/flops.py": "tests/model/test_keys.py::test_a_key_does_what_it_declares[v_layernorm]",
        "core/pretrain/tools/convert/model_keys.py": "tests/tools/convert/test_model_keys.py",
        "core/pretrain/tools/migrate/to_megatron": (
            "tests/tools/migrate/to_megatron/test_every_key.py"
            "::test_a_key_changes_the_arguments_or_is_left_out_by_name[model.v_layernorm]"
        ),
        "tests/model/test_keys.py": "tests/model/test_keys.py::test_every_key_is_compared",
        "tests/engine/test_keys_reach.py": "tests/engine/test_keys_reach.py::test_every_key_has_a_row_or_a_reader",
        "docs/recipes.md": "tests/docs/test_recipes_page.py",
    },
)
