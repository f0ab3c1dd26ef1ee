"""An optimizer as a newcomer adds it by the steps of CONTRIBUTING.md; tests/test_pages.py follows them."""

from __future__ import annotations

from pathlib import Path

from pages import Page

FILE = """from pretrain.engine.optimizers.optimizer import Optimizer


class Halved(Optimizer):
    def for_megatron(self, recipe, kernels, ranks):
        class HalvedAdam(kernels.adam):
            def step(self, closure=None):
                rates = [group["lr"] for group in self.param_groups]
                for group in self.param_groups:
                    group["lr"] /= 2
                super().step(closure)
                for group, rate in zip(self.param_groups, rates, strict=True):
                    group["lr"] = rate

        return HalvedAdam
"""
CHOICE = "tests/engine/optimizers/test_choice.py"
TRAINS = f"{CHOICE}::test_it_goes_on_from_the_state_it_declares[halved-megatron]"
PAGE = Page(
    heading="To add an optimizer",
    steps={
        "core/pretrain/recipe/sections/optimizer.py": (
            'OptimizerName = Literal["adam", "adamw", "muon"]',
            'OptimizerName = Literal["adam", "adamw", "muon", "halved"]',
        ),
        "core/pretrain/engine/optimizers/NAME.py": FILE,
        "core/pretrain/engine/optimizers/choice.py": (
            "        case None:\n",
            (
                '        case "halved":\n'
                "            from pretrain.engine.optimizers.NAME import Halved\n\n"
                "            return Halved()\n"
                "        case None:\n"
            ),
        ),
        "core/pretrain/model/requests.py": (
            '        case "muon" | None:',
            '        case "muon" | "halved" | None:',
        ),
        "core/pretrain/recipe/checks/deepspeed.py": (
            "        case None:\n",
            (
                '        case "halved":\n'
                '            yield Problem("optimizer.name", "halved needs engine.name: megatron.")\n'
                "        case None:\n"
            ),
        ),
        "core/pretrain/tools/align/comparing/adam_update.py": (
            '            case "adamw":\n',
            '            case "adamw" | "halved":\n',
        ),
        "docs/recipes.md": Path("docs/generate/recipes_page.py"),
    },
    sees={
        "core/pretrain/recipe/sections/optimizer.py": TRAINS,
        "core/pretrain/engine/optimizers/NAME.py": TRAINS,
        "core/pretrain/engine/optimizers/choice.py": TRAINS,
        "core/pretrain/model/requests.py": TRAINS,
        "core/pretrain/recipe/checks/deepspeed.py": TRAINS.replace("megatron", "deepspeed"),
        "core/pretrain/tools/align/comparing/adam_update.py": f"{CHOICE}::test_align_knows_its_weight_decay[halved]",
        "docs/recipes.md": "tests/docs/test_recipes_page.py",
    },
)
