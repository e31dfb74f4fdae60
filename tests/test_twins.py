"""Every module has a twin test, tests/<same path>/test_<module>.py, or is named here."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "magneto"

# Module without a twin: the test file that covers it.
COVERED_BY = {
    # The command line and what it starts.
    "__init__": "test_imports.py",
    "__main__": "test_cli.py",
    "mistakes": "test_cli.py",
    "names_elsewhere": "test_config.py",
    "commands.arguments": "test_cli.py",
    "commands.columns": "commands/test_vision_table.py",
    "commands.feature_scores": "vision/classification/test_frozen_features.py",
    "commands.vision": "commands/test_vision_table.py",
    "commands.vision_runs": "commands/test_vision_table.py",
    "commands.evaluate": "test_cli.py",
    "commands.generate": "test_cli.py",
    "commands.glue": "commands/test_glue_table.py",
    "commands.plan_table": "commands/test_plan.py",
    "commands.predict_images": "commands/test_predict.py",
    "commands.probe_tables": "commands/test_probe.py",
    "commands.tokenizer": "data/test_tokenizer_training.py",
    "commands.validation_scores": "test_toy_task.py",
    # The lab: a report is tested whole, a sweep by running one.
    "analysis.probe.first_step": "analysis/probe/test_short_run.py",
    "analysis.probe.diagnosis": "analysis/probe/test_short_run.py",
    "analysis.report.axes": "analysis/report/test_figures.py",
    "analysis.report.captions": "analysis/report/test_report.py",
    "analysis.report.curve_figures": "analysis/report/test_figures.py",
    "analysis.report.score_figure": "analysis/report/test_figures.py",
    "analysis.report.tables": "analysis/report/test_report.py",
    "analysis.report.stability_figures": "analysis/report/test_report.py",
    "analysis.sweep.workers": "analysis/sweep/test_sweep.py",
    "analysis.sweep.answer": "analysis/sweep/test_compare.py",
    "analysis.sweep.judged": "analysis/sweep/test_compare.py",
    "analysis.sweep.summary": "analysis/sweep/test_compare.py",
    # The backbone: parts that make sense in a whole stack only.
    "nn.attention": "nn/test_multiway.py",
    "nn.config": "nn/test_transformer.py",
    "nn.layer": "nn/test_transformer.py",
    "nn.stack": "analysis/probe/test_recorders.py",
    "nn.embedding": "hf/formats/test_conversion.py",
    "theory.depth": "theory/test_gains.py",
    "theory.scales": "theory/test_bounds.py",
    # The loop, which every run goes through.
    "analysis.sweep.cells": "analysis/sweep/test_sweep.py",
    "training.checkpoint": "training/test_loop.py",
    "training.config": "training/test_schedule.py",
    "training.environment": "training/test_metrics_logger.py",
    "training.hooks": "training/test_loop.py",
    "training.task": "training/toy.py",
    "training.batch_stream": "training/toy.py",
    "training.peaks": "training/test_throughput.py",
    "training.state": "training/test_loop.py",
    # Data.
    "data.batching": "language/test_text.py",
    "data.builtin": "language/test_text.py",
    "data.splits": "language/test_text.py",
    "data.frequencies": "test_trivial_baselines.py",
    "data.records": "data/test_readers.py",
    "vision.builtin": "vision/test_data.py",
    "vision.folders": "vision/test_data.py",
    "vision.hub": "vision/test_data.py",
    "vision.images": "vision/test_data.py",
    "vision.listing": "vision/test_data.py",
    "vision.scenes": "vision/test_data.py",
    "vision.shards": "vision/test_data.py",
    "vision.sources": "vision/test_data.py",
    "vision.tables": "vision/test_data.py",
    "vision.colour": "vision/test_transforms.py",
    "vision.erasing": "vision/test_transforms.py",
    "vision.geometry": "vision/test_transforms.py",
    "vision.config": "test_tasks.py",
    "vision.modelling.config": "vision/modelling/test_model.py",
    "vision.tokenizer.config": "vision/tokenizer/test_model.py",
    "vision.image_task": "vision/classification/test_task.py",
    "vision.classification.config": "vision/classification/test_task.py",
    "vision_language.fine_tuned_task": "vision_language/reasoning/test_task.py",
    "vision_language.caption_config": "vision_language/test_caption_sources.py",
    "vision_language.captioned_task": "vision_language/captioning/test_task.py",
    "vision_language.captioning.batches": "vision_language/captioning/test_task.py",
    "vision_language.captioning.config": "vision_language/captioning/test_task.py",
    "vision_language.captioning.model": "vision_language/captioning/test_left_to_right.py",
    "vision_language.retrieval.batches": "vision_language/retrieval/test_task.py",
    "vision_language.retrieval.config": "vision_language/retrieval/test_task.py",
    "vision_language.retrieval.model": "vision_language/retrieval/test_task.py",
    "vision_language.reasoning.config": "vision_language/reasoning/test_sources.py",
    "vision_language.reasoning.statements": "vision_language/reasoning/test_sources.py",
    "commands.answer_scores": "vision_language/question_answering/test_task.py",
    "vision_language.question_answering.batches": "vision_language/question_answering/test_task.py",
    "vision_language.question_answering.data": "vision_language/question_answering/test_task.py",
    "vision_language.question_answering.model": "vision_language/question_answering/test_task.py",
    "vision_language.question_answering.questions": (
        "vision_language/question_answering/test_easy_vqa.py"
    ),
    "vision_language.question_answering.config": "vision_language/question_answering/test_task.py",
    "vision_language.question_answering.figures": "vision_language/question_answering/test_task.py",
    "language.causal_lm": "test_tasks.py",
    "language.config": "language/test_text.py",
    "language.pretrained": "language/classification/test_model.py",
    "language.text_task": "test_tasks.py",
    "language.classification.prediction": "commands/test_predict_texts.py",
    "language.classification.config": "language/classification/test_data.py",
    "language.classification.glue": "language/classification/test_data.py",
    "language.classification.sources": "language/classification/test_data.py",
    "translation.references": "commands/test_translation_scores.py",
    "translation.sources": "translation/test_config.py",
    "translation.splits": "translation/test_config.py",
    "translation.translator": "commands/test_translate.py",
    "translation.vocabulary": "translation/test_task.py",
    "speech.beam": "speech/test_beam_search.py",
    "commands.recognition_scores": "commands/test_librispeech.py",
    "speech.data_config": "speech/test_config.py",
    "speech.phones": "speech/test_synthesiser.py",
    "speech.sources": "speech/test_splits.py",
    "speech.utterances": "speech/test_splits.py",
    "vision_language.config": "vision_language/test_model.py",
    "vision_language.pair_sources": "vision_language/test_pairs.py",
    "vision_language.shapes": "vision_language/test_scenes.py",
    "vision_language.modelling.config": "vision_language/modelling/test_task.py",
    "vision_language.modelling.data": "vision_language/modelling/test_task.py",
    "vision_language.modelling.model": "vision_language/modelling/test_task.py",
    "vision_language.modelling.scores": "vision_language/modelling/test_task.py",
    "vision_language.modelling.sources": "vision_language/modelling/test_task.py",
    # The Hugging Face edge: every format goes through one table of conversions.
    "hf.__init__": "hf/test_wrapper.py",
    "hf.attention": "hf/test_wrapper.py",
    "hf.cache": "hf/test_modeling.py",
    "hf.generation": "hf/test_modeling.py",
    "hf.losses": "hf/test_trainer.py",
    "hf.registration": "hf/test_modeling.py",
    "hf.vision_language_configuration": "hf/test_vision_language_heads.py",
    "hf.vision_language_wrappers": "hf/test_vision_language_saving.py",
    "hf.tokenizer": "hf/test_sentencepiece_tokenizer.py",
    "hf.formats.beit3_heads": "hf/formats/test_beit3_multiway.py",
    "hf.formats.bart": "hf/formats/test_conversion.py",
    "hf.formats.beit": "hf/formats/test_conversion.py",
    "hf.formats.bert": "hf/formats/test_conversion.py",
    "hf.formats.deit": "hf/formats/test_conversion.py",
    "hf.formats.gpt2": "hf/formats/test_conversion.py",
    "hf.formats.kosmos2": "hf/formats/test_conversion.py",
    "hf.formats.layout": "hf/formats/test_conversion.py",
    "hf.formats.model_classes": "hf/formats/test_conversion.py",
    "hf.formats.timm": "hf/formats/test_timm_vit.py",
    "hf.formats.torch_encoder": "hf/formats/test_conversion.py",
    "hf.formats.torchscale_config": "hf/formats/test_torchscale.py",
    "hf.formats.vit": "hf/formats/test_conversion.py",
    "hf.formats.weight_files": "commands/test_convert.py",
}

# Tests of what several modules do together.
ABOUT_MANY = {
    "test_damaged_weights.py",
    "analysis/report/test_figures.py",
    "data/test_readers.py",
    "data/test_unchanged.py",
    "hf/formats/test_placements.py",
    "hf/test_arguments.py",
    "hf/test_trainer.py",
    "nn/test_options.py",
    "nn/test_placement_equations.py",
    "speech/test_espeak.py",
    "training/test_sharding.py",
    "vision_language/test_chain.py",
}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def holds_code(path: Path) -> bool:
    """Return whether a file has more than a docstring."""
    return len(ast.parse(path.read_text(encoding="utf-8")).body) > 1


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py")) if holds_code(path)}


def twin(path: Path) -> Path:
    return TESTS / path.relative_to(SOURCE).with_name(f"test_{path.name}")


def names_of(path: Path) -> set[str]:
    """Return what a module defines at its top: classes, functions and constants."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            names.update({target.id} if isinstance(target, ast.Name) else ())
    return names


def imported_by(path: Path) -> set[str]:
    """Return the modules of this package that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("magneto"):
            base = node.module.removeprefix("magneto").strip(".")
            found |= {base, *(f"{base}.{alias.name}".strip(".") for alias in node.names)}
    return found & MODULES.keys()


IMPORTS = {module: imported_by(path) for module, path in MODULES.items()}
NAMES = {module: names_of(path) - {"main", "parser"} for module, path in MODULES.items()}


def names(text: str, module: str) -> bool:
    """Return whether a test's text names a module, a thing it defines, or its command."""
    if module == "__init__":
        return "import magneto\n" in text
    if module == "__main__":
        return '"-m", "magneto"' in text
    room, _, last = module.rpartition(".")
    if room == "commands" and f'"{last}"' in text:
        return True
    dotted = re.escape(f"magneto.{module}".removesuffix(".__init__"))
    return bool(re.search(rf"\b{dotted}\b", text) or set(re.findall(r"\w+", text)) & NAMES[module])


def covers(test: Path, module: str) -> bool:
    """Return whether a test names a module, or one that imports it."""
    text = test.read_text(encoding="utf-8")
    users = [user for user, imported in IMPORTS.items() if module in imported]
    return any(names(text, name) for name in (module, *users))


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_a_twin_or_is_named(module: str) -> None:
    wanted = twin(MODULES[module]).relative_to(TESTS)
    assert twin(MODULES[module]).is_file() or module in COVERED_BY, (
        f"magneto.{module} has no tests/{wanted}: write it, or name in COVERED_BY what covers it"
    )


@pytest.mark.parametrize("module", COVERED_BY)
def test_what_is_named_is_true(module: str) -> None:
    assert module in MODULES, f"there is no magneto.{module} any more: take it from COVERED_BY"
    assert not twin(MODULES[module]).is_file(), f"{module} has a twin: take it from COVERED_BY"
    assert covers(TESTS / COVERED_BY[module], module)


def test_the_check_can_fail() -> None:
    assert not covers(TESTS / "test_progress.py", "nn.attention")
    assert not names("import magneto.nn", "nn.attention")
    assert names("from magneto.nn.attention import Attention", "nn.attention")


def test_every_test_has_its_module() -> None:
    """A twin of a module that has moved is in the wrong folder."""
    twins = {twin(path) for path in MODULES.values()}
    rooms = [path for path in TESTS.iterdir() if (SOURCE / path.name).is_dir()]
    lost = {str(t.relative_to(TESTS)) for room in rooms for t in room.rglob("test_*.py")
            if t not in twins}  # fmt: skip
    assert lost <= ABOUT_MANY, "move it to its module's place, or name it in ABOUT_MANY"
