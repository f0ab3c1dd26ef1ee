"""A model key as a newcomer adds it by the steps of CONTRIBUTING.md; tests/test_pages.py follows them."""

from __future__ import annotations

from pathlib import Path

from pages import Page

KEY = """    qk_layernorm: Annotated[Bool, replace(PART, before=False)] = False
    \"\"\"Whether the queries and keys of each head are normalized.\"\"\"
    hidden_dropout: """
HEADS = '{"kernel_of": norm_of, "is_of_heads": True}'
NORMS = f"ModuleSpec(module=Norm, params={HEADS}) if recipe.model.qk_layernorm else None"
PAGE = Page(
    heading="To add a model key",
    steps={
        "core/pretrain/recipe/sections/model.py": ("    hidden_dropout: ", KEY),
        "core/pretrain/model/build.py": (
            "linear_qkv=ColumnParallelLinear,",
            f"linear_qkv=ColumnParallelLinear, q_layernorm={NORMS}, k_layernorm={NORMS},",
        ),
        "core/pretrain/report/flops.py": (
            "    return count + model.num_layers * (",
            (
                "    count += 4 * model.num_layers * model.kv_channels if model.qk_layernorm else 0\n"
                "    return count + model.num_layers * ("
            ),
        ),
        "core/pretrain/tools/convert/model_keys.py": (
            '    "embedding_layernorm": ',
            (
                '    "qk_layernorm": Names(huggingface=None, megatron=None, neox=None, deepspeed=None),\n'
                '    "embedding_layernorm": '
            ),
        ),
        "core/pretrain/tools/migrate/to_megatron": (
            '    "model.embedding_layernorm": ',
            (
                '    "model.qk_layernorm": "queries and keys are not normalized: it is another model",\n'
                '    "model.embedding_layernorm": '
            ),
        ),
        "tests/model/test_keys.py": (
            '    "hidden_dropout": ',
            '    "qk_layernorm": ("true", ()),\n    "hidden_dropout": ',
        ),
        "tests/engine/test_keys_reach.py": (
            '        "model.embedding_layernorm",\n',
            '        "model.embedding_layernorm",\n        "model.qk_layernorm",\n',
        ),
        "docs/recipes.md": Path("docs/generate/recipes_page.py"),
    },
    sees={
        "core/pretrain/recipe/sections/model.py": "tests/model/test_keys.py::test_every_key_is_compared",
        "core/pretrain/model/build.py": "tests/model/test_keys.py::test_a_key_does_what_it_declares[qk_layernorm]",
        "core/pretrain/report/flops.py": "tests/model/test_keys.py::test_a_key_does_what_it_declares[qk_layernorm]",
        "core/pretrain/tools/convert/model_keys.py": "tests/tools/convert/test_model_keys.py",
        "core/pretrain/tools/migrate/to_megatron": (
            "tests/tools/migrate/to_megatron/test_every_key.py"
            "::test_a_key_changes_the_arguments_or_is_left_out_by_name[model.qk_layernorm]"
        ),
        "tests/model/test_keys.py": "tests/model/test_keys.py::test_every_key_is_compared",
        "tests/engine/test_keys_reach.py": "tests/engine/test_keys_reach.py::test_every_key_has_a_row_or_a_reader",
        "docs/recipes.md": "tests/docs/test_recipes_page.py",
    },
)
