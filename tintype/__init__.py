"""tintype trains text-to-image models from scratch and measures which training decisions pay off.

The names in `__all__` are the library; all other modules are private and may change. A name is loaded on first use, so
`import tintype` alone does not import torch.
"""

import sys
from importlib import import_module
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tintype.audit.run import Audit
    from tintype.bench.record import Measurement
    from tintype.contract.run import Checked
    from tintype.data.presets import DataPreset
    from tintype.data.recaption.work import Recaptioned
    from tintype.data.store.export import Exported
    from tintype.data.store.importing import Imported
    from tintype.data.store.inspect import Inspection
    from tintype.data.store.layout import AboutStore, StoreShown
    from tintype.errors import DivergedError, StoppedError, UserError
    from tintype.evaluation.results import EvaluationResult
    from tintype.evaluation.train_scene_encoder import TrainedEncoder
    from tintype.export.import_run import ImportedModel
    from tintype.export.mirror import Mirrored
    from tintype.export.model_card import Card
    from tintype.export.push import Pushed
    from tintype.judge.verdicts import Judgement
    from tintype.library.data import (
        CaptionPrompt,
        Shapes,
        choose_shapes,
        data_presets,
        export_store,
        import_images,
        inspect_store,
        recaption_store,
        show_store,
    )
    from tintype.library.judge import estimate, judge
    from tintype.library.lists import ListedRecipe, ListedStudy, ListedTechnique, recipes, studies, techniques
    from tintype.library.measure import audit, bench
    from tintype.library.plans import (
        PlanDiff,
        PlanEstimate,
        apply,
        diff_plans,
        load_plan,
        plan_cost,
        plan_schema,
        show_plan,
    )
    from tintype.library.plugins import check, load_plugins, new_technique
    from tintype.library.publish import ExportedRun, SyncUnit, export_run, import_model, push, sync, write_card
    from tintype.library.runs import Run, Sampled, ema, evaluate, load_run, sample, train
    from tintype.library.serve import Served, serve
    from tintype.library.studies import (
        Results,
        Worked,
        compare,
        launch,
        load_results,
        load_study,
        make_study,
        pool,
        power,
        propose,
        replicate,
        report,
        run_study,
        status,
        work,
    )
    from tintype.library.tokenizers import (
        TrainedTokenizer,
        cache_latents,
        compare_tokenizers,
        save_tokenizer,
        train_encoder,
        train_tokenizer,
    )
    from tintype.plan import Plan
    from tintype.study.pooling import Pooled
    from tintype.study.power import PowerPlan
    from tintype.study.preview import PlannedReplication, PlannedStudy
    from tintype.study.propose import Proposal
    from tintype.study.side_by_side import SideBySide
    from tintype.study.status import StudyStatus
    from tintype.study.study import Study
    from tintype.tokenizer_lab.fill_cache import CachedLatents
    from tintype.tokenizer_lab.report import TokenizerReport
    from tintype.tokenizer_lab.save_tuned import SavedTokenizer

__version__ = "0.1.0"
NUMERICS = 1
"""Version of the numerics, raised whenever the losses in tests/golden change.

A worker with another number cannot join a study.
"""
__all__ = [
    "AboutStore",
    "Audit",
    "CachedLatents",
    "CaptionPrompt",
    "Card",
    "Checked",
    "DataPreset",
    "DivergedError",
    "EvaluationResult",
    "Exported",
    "ExportedRun",
    "Imported",
    "ImportedModel",
    "Inspection",
    "Judgement",
    "ListedRecipe",
    "ListedStudy",
    "ListedTechnique",
    "Measurement",
    "Mirrored",
    "Plan",
    "PlanDiff",
    "PlanEstimate",
    "PlannedReplication",
    "PlannedStudy",
    "Pooled",
    "PowerPlan",
    "Proposal",
    "Pushed",
    "Recaptioned",
    "Results",
    "Run",
    "Sampled",
    "SavedTokenizer",
    "Served",
    "Shapes",
    "SideBySide",
    "StoppedError",
    "StoreShown",
    "Study",
    "StudyStatus",
    "SyncUnit",
    "TokenizerReport",
    "TrainedEncoder",
    "TrainedTokenizer",
    "UserError",
    "Worked",
    "apply",
    "audit",
    "bench",
    "cache_latents",
    "check",
    "choose_shapes",
    "compare",
    "compare_tokenizers",
    "data_presets",
    "diff_plans",
    "ema",
    "estimate",
    "evaluate",
    "export_run",
    "export_store",
    "import_images",
    "import_model",
    "inspect_store",
    "judge",
    "launch",
    "load_plan",
    "load_plugins",
    "load_results",
    "load_run",
    "load_study",
    "make_study",
    "new_technique",
    "plan_cost",
    "plan_schema",
    "pool",
    "power",
    "propose",
    "push",
    "recaption_store",
    "recipes",
    "replicate",
    "report",
    "run_study",
    "sample",
    "save_tokenizer",
    "serve",
    "show_plan",
    "show_store",
    "status",
    "studies",
    "sync",
    "techniques",
    "train",
    "train_encoder",
    "train_tokenizer",
    "work",
    "write_card",
]
_MODULES = {
    "audit.run": ("Audit",),
    "bench.record": ("Measurement",),
    "contract.run": ("Checked",),
    "data.presets": ("DataPreset",),
    "data.recaption.work": ("Recaptioned",),
    "data.store.export": ("Exported",),
    "data.store.importing": ("Imported",),
    "data.store.inspect": ("Inspection",),
    "data.store.layout": ("AboutStore", "StoreShown"),
    "errors": ("DivergedError", "StoppedError", "UserError"),
    "evaluation.results": ("EvaluationResult",),
    "evaluation.train_scene_encoder": ("TrainedEncoder",),
    "export.import_run": ("ImportedModel",),
    "export.mirror": ("Mirrored",),
    "export.model_card": ("Card",),
    "export.push": ("Pushed",),
    "judge.verdicts": ("Judgement",),
    "library.data": (
        "CaptionPrompt",
        "Shapes",
        "choose_shapes",
        "data_presets",
        "export_store",
        "import_images",
        "inspect_store",
        "recaption_store",
        "show_store",
    ),
    "library.judge": ("estimate", "judge"),
    "library.lists": ("ListedRecipe", "ListedStudy", "ListedTechnique", "recipes", "studies", "techniques"),
    "library.measure": ("audit", "bench"),
    "library.plans": (
        "PlanDiff",
        "PlanEstimate",
        "apply",
        "diff_plans",
        "load_plan",
        "plan_cost",
        "plan_schema",
        "show_plan",
    ),
    "library.plugins": ("check", "load_plugins", "new_technique"),
    "library.publish": ("ExportedRun", "SyncUnit", "export_run", "import_model", "push", "sync", "write_card"),
    "library.runs": ("Run", "Sampled", "ema", "evaluate", "load_run", "sample", "train"),
    "library.serve": ("Served", "serve"),
    "library.studies": (
        "Results",
        "Worked",
        "compare",
        "launch",
        "load_results",
        "load_study",
        "make_study",
        "pool",
        "power",
        "propose",
        "replicate",
        "report",
        "run_study",
        "status",
        "work",
    ),
    "library.tokenizers": (
        "TrainedTokenizer",
        "cache_latents",
        "compare_tokenizers",
        "save_tokenizer",
        "train_encoder",
        "train_tokenizer",
    ),
    "plan": ("Plan",),
    "study.pooling": ("Pooled",),
    "study.power": ("PowerPlan",),
    "study.preview": ("PlannedReplication", "PlannedStudy"),
    "study.propose": ("Proposal",),
    "study.side_by_side": ("SideBySide",),
    "study.status": ("StudyStatus",),
    "study.study": ("Study",),
    "tokenizer_lab.fill_cache": ("CachedLatents",),
    "tokenizer_lab.report": ("TokenizerReport",),
    "tokenizer_lab.save_tuned": ("SavedTokenizer",),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # with it, a type checker would take any name for one of ours

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        value = getattr(import_module(_HOMES[name]), name)
        if isinstance(value, FunctionType):
            from tintype.library import for_python

            value = for_python(value)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """The type of the package's module object. `tintype.train` stays the function `train`.

    With the usual type, an import of the subpackage `tintype/train` would replace the function.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
