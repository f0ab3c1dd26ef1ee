"""Checks of a training: sizes that must divide one another, length, batches, schedule, input files, compiled layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from pretrain.recipe.checks.installed import name_problems
from pretrain.recipe.problem import Problem
from pretrain.recipe.sections.optimizer import OPTIMIZERS, OptimizerName, installed_optimizers
from pretrain.recipe.sections.precision import COMPILED
from pretrain.recipe.stages import StagesError
from pretrain.stores.address import is_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.recipe.recipe import Recipe
    from pretrain.recipe.sections.data import DataSection
    from pretrain.recipe.sections.model import ModelSection


def model_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield sizes of the model that do not fit each other."""
    model = recipe.model
    given = model.model_fields_set
    if "kv_channels" not in given and model.hidden_size % model.num_attention_heads:
        yield Problem(
            "model.num_attention_heads",
            f"{model.num_attention_heads} does not divide model.hidden_size {model.hidden_size}.",
        )
    if model.num_attention_heads % model.num_query_groups:
        yield Problem(
            "model.num_query_groups",
            f"{model.num_query_groups} does not divide model.num_attention_heads {model.num_attention_heads}.",
        )
    if model.max_position_embeddings < model.seq_length:
        yield Problem(
            "model.max_position_embeddings",
            f"{model.max_position_embeddings} is less than model.seq_length {model.seq_length}.",
        )
    yield from _rope_problems(model)
    if model.apply_query_key_layer_scaling and not model.attention_softmax_in_fp32:
        yield Problem("model.attention_softmax_in_fp32", "must be true with model.apply_query_key_layer_scaling.")


def _rope_problems(model: ModelSection) -> Iterator[Problem]:
    size, kind = model.rotary_size, model.rope_scaling_type if model.use_rope_scaling else None
    is_rope = model.position_embedding_type == "rope"
    if is_rope and (size < 2 or size % 2):
        yield Problem(
            "model.rotary_percent",
            f"{model.rotary_percent} of head size {model.head_size} is {size}; rope needs an even number.",
        )
    for lower, higher in (("rope_low_freq_factor", "rope_high_freq_factor"), ("yarn_beta_slow", "yarn_beta_fast")):
        low, high = getattr(model, lower), getattr(model, higher)
        if high <= low:
            yield Problem(f"model.{higher}", f"{high} is not more than model.{lower} {low}.")
    if is_rope and kind == "dynamic" and size == 2:
        yield Problem("model.rope_scaling_type", "dynamic needs more than 2 dimensions of a head that rope rotates.")
    if kind == "yarn" and model.rotary_base <= 1:
        yield Problem("model.rotary_base", f"{model.rotary_base} must be more than 1 with rope_scaling_type yarn.")


def indivisible_by_tensor_size(recipe: Recipe, size: int) -> list[str]:
    """Return the keys of section model that `size` tensor-parallel ranks cannot share."""
    model = recipe.model
    keys = ["num_attention_heads", "hidden_size"]
    # Where these two are not given they follow from the others, which are then the ones to report.
    keys += [key for key in ("num_query_groups", "ffn_hidden_size") if key in model.model_fields_set]
    if recipe.parallel.sequence_parallel:
        keys.append("seq_length")
    indivisible = [key for key in keys if getattr(model, key) % size]
    if not indivisible and model.ffn_hidden_size % size:
        indivisible = ["ffn_hidden_size"]
    return indivisible


def tensor_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield sizes that the tensor-parallel ranks cannot share."""
    size = recipe.parallel.tensor_model_parallel_size
    for key in indivisible_by_tensor_size(recipe, size):
        why = ", along which sequence_parallel splits" if key == "seq_length" else ""
        yield Problem(
            "parallel.tensor_model_parallel_size",
            f"{size} does not divide model.{key} {getattr(recipe.model, key)}{why}.",
        )


def context_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield what context-parallel ranks cannot share."""
    parallel, model = recipe.parallel, recipe.model
    size, tensor = parallel.context_parallel_size, parallel.tensor_model_parallel_size
    if size == 1:
        return
    path, pieces = "parallel.context_parallel_size", 2 * size * (tensor if parallel.sequence_parallel else 1)
    if model.seq_length % pieces:
        more = f" x tensor_model_parallel_size {tensor}" if parallel.sequence_parallel else ""
        yield Problem(
            path, f"{size}: model.seq_length {model.seq_length} is not a multiple of 2 x {size}{more} = {pieces}."
        )
    if model.moe_expert_capacity_factor is not None:
        yield Problem(path, f"{size} conflicts with model.moe_expert_capacity_factor: other tokens would be dropped.")


def stage_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield problems of the division into stages and of recomputation in their chunks."""
    try:
        layers = recipe.layers_of_chunks
    except StagesError as error:
        yield Problem(error.path, error.text)
        return
    if recipe.recompute.granularity == "full":
        yield from _recomputed(recipe, layers)


def _recomputed(recipe: Recipe, layers: tuple[int, ...]) -> Iterator[Problem]:
    """Yield a problem if num_layers does not divide a chunk: megatron-core's uniform method would exceed it."""
    path, recomputed = "recompute.num_layers", recipe.recompute.num_layers
    odd = next((number for number in layers if number % recomputed), None)
    if recomputed > max(layers):
        yield Problem(path, f"{recomputed} is more than the {max(layers)} layers of one stage.")
    elif recipe.recompute.method == "uniform" and odd is not None:
        yield Problem(
            path, f"{recomputed} does not divide the {odd} layers of a stage; recompute.method: block takes any number."
        )


SLOWEST_IN_BF16 = 1 - 2**-8
"""Decay from which on a running mean in bf16 stands still where nothing comes in: numbers differ by 2^-7 of the lower
end of their power of two, and rounding to nearest takes back a step of less than half of that."""


def optimizer_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield an optimizer that is not there, and what it cannot do."""
    own = get_args(OptimizerName)
    yield from name_problems("optimizer.name", recipe.optimizer.name, own, installed_optimizers(), OPTIMIZERS)
    if recipe.optimizer.own not in {"adam", "adamw"} and recipe.parallel.use_distributed_optimizer:
        yield Problem(
            "parallel.use_distributed_optimizer",
            "true cuts weights anywhere over data-parallel ranks, which adam and adamw alone can update so; "
            f"optimizer.name is {recipe.optimizer.name}. Give false.",
        )
    for state, decay in (("exp_avg", "adam_beta1"), ("exp_avg_sq", "adam_beta2")):
        beta = getattr(recipe.optimizer, decay)
        if getattr(recipe.optimizer, f"{state}_dtype") == "bf16" and beta >= SLOWEST_IN_BF16:
            yield Problem(
                f"optimizer.{state}_dtype",
                f"bf16 with optimizer.{decay} {beta} would never fall: a step's part of it is rounded away. Give fp32, "
                f"or a {decay} below {SLOWEST_IN_BF16} (1 - 2^-8).",
            )


def batch_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield what is wrong with the length, the batch, and its ramp-up."""
    train = recipe.train
    if train.train_iters is None and train.train_samples is None:
        yield Problem("train.train_iters", "required, or train.train_samples.")
    if train.train_iters is not None and train.train_samples is not None:
        yield Problem("train.train_samples", "given together with train.train_iters; choose one.")
    if train.global_batch_size % train.micro_batch_size:
        yield Problem(
            "train.global_batch_size",
            f"{train.global_batch_size} is not a multiple of train.micro_batch_size {train.micro_batch_size}.",
        )
    if train.calculate_per_token_loss and recipe.engine.name == "megatron":
        yield from _per_token(recipe)
    if train.rampup_batch_size is not None:
        yield from _rampup(recipe, train.rampup_batch_size)
    if train.loss_spike.threshold is not None and train.loss_spike.action == "rollback":
        yield from _rollback(recipe)
    if recipe.checkpoint.local_interval > 0 and recipe.checkpoint.local_dir is None:
        yield Problem(
            "checkpoint.local_dir",
            "is missing, and checkpoint.local_interval is set. Name a folder on each node's disk, or in /dev/shm.",
        )


def _per_token(recipe: Recipe) -> Iterator[Problem]:
    """Yield a problem for fp16 or bf16 gradients: megatron-core sums them over all tokens before it divides."""
    precision = recipe.precision
    if precision.dtype != "fp32" and not precision.grad_reduce_in_fp32:
        yield Problem(
            "train.calculate_per_token_loss",
            f"true needs precision.grad_reduce_in_fp32: true with {precision.dtype}: gradients are summed over tokens "
            "before they are divided by the number of tokens.",
        )


def _rollback(recipe: Recipe) -> Iterator[Problem]:
    checkpoint = recipe.checkpoint
    if checkpoint.save is False or checkpoint.save_interval == 0:
        path = "checkpoint.save" if checkpoint.save is False else "checkpoint.save_interval"
        yield Problem(
            path,
            "train.loss_spike.action: rollback loads the last checkpoint. Save some: set checkpoint.save, and "
            "checkpoint.save_interval above 0.",
        )


def _rampup(recipe: Recipe, rampup: tuple[int, int, int]) -> Iterator[Problem]:
    path, last, micro = "train.rampup_batch_size", recipe.train.global_batch_size, recipe.train.micro_batch_size
    start, increment, samples = rampup
    if start < 1 or increment < 1 or samples < 1:
        yield Problem(path, f"{list(rampup)}: start, increment and samples must be greater than 0.")
    elif start >= last or (last - start) % increment:
        yield Problem(path, f"this does not reach train.global_batch_size {last} from {start} in steps of {increment}.")
    elif start % micro or increment % micro:
        yield Problem(path, f"{start} and {increment} must be multiples of train.micro_batch_size {micro}.")
    if recipe.train.train_iters is not None:
        yield Problem(path, "this counts samples: give train.train_samples instead of train.train_iters.")


def schedule_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield what is wrong with warm-up, decay and the lowest learning rate."""
    schedule = recipe.schedule
    if schedule.min_lr > recipe.optimizer.lr:
        yield Problem("schedule.min_lr", f"{schedule.min_lr} is more than optimizer.lr {recipe.optimizer.lr}.")
    least, most = schedule.lowest_decoupled_lr, recipe.optimizer.decoupled_lr
    if most is not None and least > most:
        default = " (schedule.min_lr, if not given)" if schedule.decoupled_min_lr is None else ""
        text = f"{least}{default} is more than optimizer.decoupled_lr {most}."
        yield Problem("schedule.decoupled_min_lr", text)
    warmups = ("lr_warmup_iters", "lr_warmup_samples", "lr_warmup_fraction")
    for key in [key for key in warmups if getattr(schedule, key) is not None][1:]:
        yield Problem(f"schedule.{key}", "this gives the warm-up a second time; choose one key.")
    if schedule.override_opt_param_scheduler and schedule.use_checkpoint_opt_param_scheduler:
        yield Problem(
            "schedule.use_checkpoint_opt_param_scheduler",
            "conflicts with override_opt_param_scheduler; set only one of them to true.",
        )
    train = recipe.train
    if (train.train_iters is None) != (train.train_samples is None):
        unit, other = ("iters", "samples") if train.train_samples is None else ("samples", "iters")
        for name in ("lr_warmup", "lr_decay", "lr_wsd_decay"):
            if getattr(schedule, f"{name}_{other}") is not None:
                text = f"this conflicts with train.train_{unit}; give schedule.{name}_{unit} instead."
                yield Problem(f"schedule.{name}_{other}", text)
        yield from _order(recipe, unit)


def _order(recipe: Recipe, unit: str) -> Iterator[Problem]:
    schedule = recipe.schedule
    decay = getattr(schedule, f"lr_decay_{unit}") or getattr(recipe.train, f"train_{unit}")
    warmup = getattr(schedule, f"lr_warmup_{unit}") or 0
    last_part = getattr(schedule, f"lr_wsd_decay_{unit}")
    is_wsd = schedule.lr_decay_style == "WSD"
    if is_wsd and last_part is None:
        yield Problem(f"schedule.lr_wsd_decay_{unit}", "required with schedule.lr_decay_style: WSD.")
    if decay == 0:  # train.train_iters: 0, where no step follows the schedule
        return
    if warmup >= decay:
        yield Problem(
            f"schedule.lr_warmup_{unit}",
            f"{warmup} must be less than schedule.lr_decay_{unit}, which is {decay} (train.train_{unit} if not given).",
        )
    elif is_wsd and last_part is not None and last_part > decay - warmup:
        text = f"{last_part} is more than the {decay - warmup} {unit} after the warm-up."
        yield Problem(f"schedule.lr_wsd_decay_{unit}", text)


_FILES_OF_TYPE = {"gpt2": ("vocab_file", "merge_file"), "huggingface": ("file",), "bytes": ()}


def tokenizer_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield missing keys of the tokenizer."""
    tokenizer = recipe.tokenizer
    for key in _FILES_OF_TYPE[tokenizer.type]:
        if getattr(tokenizer, key) is None:
            yield Problem(f"tokenizer.{key}", f"required with tokenizer.type: {tokenizer.type}.")
    if tokenizer.type == "huggingface" and recipe.data.corpus is not None and tokenizer.vocab_size is None:
        yield Problem("tokenizer.vocab_size", "required with data.corpus, on which the tokenizer is trained.")


def data_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield missing and superfluous keys of the data."""
    data = recipe.data
    if not data.token_files:
        yield Problem("data.path", "required, or data.train_data_path, or data.blend: [{weight: 1, path: ...}, ...].")
    if data.path is not None and data.blend is not None:
        yield Problem("data.blend", "given together with data.path; choose one.")
    if data.own_files is not None:
        yield from _common_beside_own(data)
    if data.corpus is not None and (data.blend is not None or data.own_files is not None):
        given = "data.train_data_path" if data.blend is None else "data.blend"
        yield Problem("data.corpus", f"this builds one token file: give data.path instead of {given}.")
    if data.corpus is not None and data.path is not None and is_address(data.path):
        yield Problem("data.path", "with data.corpus it is built here: give a local path, not an address.")
    if data.split_by == "tokens" and data.index != "native":
        yield Problem("data.split_by", "tokens needs data.index: native; megatron divides between documents.")
    if data.token_files:
        yield from _missing_text(recipe)


def _common_beside_own(data: DataSection) -> Iterator[Problem]:
    for key in ("path", "blend"):
        if getattr(data, key) is not None:
            yield Problem(f"data.{key}", "given together with files for one split (data.train_data_path, ...).")


def _missing_text(recipe: Recipe) -> Iterator[Problem]:
    data = recipe.data
    train, valid, _ = data.splits
    is_split = data.own_files is None
    if not train and recipe.train.train_iters != 0:
        yield (
            Problem("data.split", f"{data.split} leaves no document for training.")
            if is_split
            else Problem("data.train_data_path", "required where validation or test have files of their own.")
        )
    if not valid and recipe.evaluation.interval > 0:
        to_do = "or set evaluation.interval: 0."
        yield (
            Problem("data.split", f"{data.split} leaves no document for validation. Change it, {to_do}")
            if is_split
            else Problem("data.valid_data_path", f"required where training has files of its own, {to_do}")
        )


_KEY = "kernels.compile"


def compilation_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield what conflicts with `kernels.compile: layer`."""
    if recipe.kernels.compile == "none":
        return
    if recipe.engine.name != "megatron":
        yield Problem(_KEY, f"layer needs engine.name: megatron; with {recipe.engine.name} it was not tested.")
    if recipe.train.deterministic_mode:
        yield Problem(_KEY, "layer conflicts with train.deterministic_mode: compiled sums may not be reproducible.")
    if recipe.parallel.overlap_param_gather:
        yield Problem(_KEY, "layer conflicts with parallel.overlap_param_gather, which hooks into every module.")
    yield from _compiled_sequences(recipe)
    for key in ("hidden_dropout", "attention_dropout"):
        if getattr(recipe.model, key):
            yield Problem(
                _KEY, f"layer needs model.{key}: 0. Compiled code draws its own random numbers, not the ranks'."
            )
    for operation in COMPILED:
        if getattr(recipe.kernels, operation) not in {None, "auto", "reference"}:
            yield Problem(f"kernels.{operation}", "must be auto or reference with kernels.compile: layer.")


def _compiled_sequences(recipe: Recipe) -> Iterator[Problem]:
    if recipe.data.reset_attention_mask:
        yield Problem(_KEY, "layer conflicts with data.reset_attention_mask: documents' lengths change at every step.")
    if recipe.parallel.context_parallel_size > 1:
        yield Problem(_KEY, "layer conflicts with parallel.context_parallel_size over 1; no layout test covers both.")


def profile_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield a profile that never comes."""
    profile, iterations = recipe.profile, recipe.train.train_iters
    if profile.steps and iterations and profile.start > iterations:
        yield Problem("profile.start", f"{profile.start} is past the last iteration, train.train_iters {iterations}.")
