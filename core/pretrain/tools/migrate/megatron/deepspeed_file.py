"""Values that a DeepSpeed file states for a training of Megatron-DeepSpeed."""

# Source: setup_model_and_optimizer (megatron/training.py of both forks). Megatron makes the optimizer and the schedule
# and hands them to deepspeed.initialize. From its file DeepSpeed then reads no optimizer (_configure_optimizer of
# deepspeed/runtime/engine.py), and no schedule where _configure_lr_scheduler looks at its caller's first, as it does
# today. Clipping, fp16's loss scale and the dtype in which gradients are summed (get_data_types) are DeepSpeed's.

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pretrain.errors import MigrateError
from pretrain.recipe.deepspeed.translate import translate
from pretrain.tools.migrate.meaning import NotSupported
from pretrain.tools.migrate.megatron.engine import WITHOUT, is_on, place_in, stage, uses_deepspeed
from pretrain.tools.migrate.megatron.parallel import place_of
from pretrain.tools.migrate.megatron.training import data_parallel_size
from pretrain.tools.migrate.neox.objects import OBJECTS, OTHER_MODEL
from pretrain.tools.migrate.report import ReportLine
from pretrain.tools.migrate.setting import Derived

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.recipe.deepspeed.json_file import JsonFile
    from pretrain.recipe.deepspeed.translation import Given, KeyRemark
    from pretrain.tools.migrate.report import Fate
    from pretrain.tools.migrate.setting import Settings

_CLIP, _SUM = "optimizer.clip_grad", "precision.grad_reduce_in_fp32"
SCALES = ("loss_scale", "initial_loss_scale", "loss_scale_window", "hysteresis", "min_loss_scale")

OF_FILE = (_CLIP, _SUM, *(f"precision.{name}" for name in SCALES))
"""Keys that DeepSpeed takes from its file, whatever the flags say."""

_GLOBAL, _MICRO = "train.global_batch_size", "train.micro_batch_size"
_AGREE = (_GLOBAL, _MICRO, "precision.dtype")
_ACCUMULATION = "gradient_accumulation_steps"
_SCHEDULE = "scheduler.type"
_TWO_SCHEDULES = (
    "the schedule is that of the flags: DeepSpeed of today takes it too, but versions before took their file's instead"
)
_FROM_FILE = "DeepSpeed takes it from its file"
_OF_PROGRAM = {
    "optimizer": "Megatron-DeepSpeed makes the optimizer itself: DeepSpeed does not read its file's",
    "scheduler": "it belongs to scheduler.type",
    "activation_checkpointing": "Megatron-DeepSpeed sets it up by its own flags, such as --checkpoint-activations",
}
"""Objects of the file of which nothing is read, by the reason."""


def values_of_file(settings: Settings, worked: Mapping[str, Derived]) -> tuple[dict[str, Derived], list[ReportLine]]:
    """Return the keys that the file states, beside those that the flags give, and the outcome of each of its keys."""
    file = settings.deepspeed
    if not is_on(settings):
        return {}, [] if file is None else [_no_effect(file, path, WITHOUT) for path in file.values]
    if file is None:
        flag = place_of(settings, "deepspeed")
        msg = f"{flag} needs a file, and --deepspeed_config names none.\nName one, or leave it out."
        raise MigrateError(msg)
    _check_stage(settings, file)
    passed = {path: _OF_PROGRAM[name] for path in file.values if (name := path.partition(".")[0]) in _OF_PROGRAM}
    read = replace(file, values={path: value for path, value in file.values.items() if path not in passed})
    values, outcomes = _read(settings, read, worked)
    if file.has(_SCHEDULE):
        outcomes.append(ReportLine("not supported", _SCHEDULE, _TWO_SCHEDULES, place_in(file, _SCHEDULE)))
        del passed[_SCHEDULE]
    return values, outcomes + [_no_effect(file, path, why) for path, why in passed.items()]


def _no_effect(file: JsonFile, path: str, why: str) -> ReportLine:
    return ReportLine("no effect", path, why, place_in(file, path))


def _read(
    settings: Settings, file: JsonFile, flags: Mapping[str, Derived]
) -> tuple[dict[str, Derived], list[ReportLine]]:
    translation = translate(file)
    if wrong := translation.of("wrong"):
        raise MigrateError("\n".join(f"{file.place(remark.json_path)}: {remark.text}" for remark in wrong))
    taken = _Taken(settings, file, flags)
    for given in sorted(translation.given, key=lambda given: given.kind == "by default"):
        if given.kind == "by default":
            taken.take_default(given)
        else:
            taken.take(given)
    if not settings.as_meant:
        taken.clip_nothing()
        taken.sum_in_dtype_of_weights()
    outcomes = taken.outcomes({remark.json_path: _outcome(file, remark) for remark in translation.remarks})
    if translation.accumulation_steps is not None:
        outcomes.append(_accumulation(settings, file, translation.accumulation_steps.steps, flags))
    return taken.values, outcomes


@dataclass(slots=True)
class _Taken:
    """Keys that are taken from a file, while they are collected."""

    settings: Settings
    file: JsonFile
    flags: Mapping[str, Derived]
    values: dict[str, Derived] = field(default_factory=dict)
    became: dict[str, list[str]] = field(default_factory=dict)
    idle: dict[str, str] = field(default_factory=dict)

    def take(self, given: Given) -> None:
        """Take one key over, or say what becomes of it."""
        if given.path in _AGREE:
            _check_value(self.settings, self.file, given, self.flags.get(given.path))
            if given.kind == "is":
                self.became.setdefault(given.json_path, []).append(given.path)
        elif given.path.startswith("engine."):
            self._take_zero(given)
        else:
            self._set(given, given.path, given.value)

    def take_default(self, given: Given) -> None:
        """Take a default of DeepSpeed that comes with a key."""
        if given.path in OF_FILE and all(path not in self.values for path in (given.path, *given.unless)):
            self._put(given.path, given.value, f"default of DeepSpeed with {given.json_path}", _FROM_FILE)

    def clip_nothing(self) -> None:
        """Leave gradients as they are: DeepSpeed does not look at the flag."""
        why = f"DeepSpeed clips at gradient_clipping, which {self.file.name} does not have (--as-meant takes the flag)"
        if _CLIP not in self.values:
            self._put(_CLIP, 0.0, "DeepSpeed clips nothing without gradient_clipping", why)

    def sum_in_dtype_of_weights(self) -> None:
        """Sum gradients as they are: DeepSpeed does not look at the flag."""
        dtype = self.flags.get("precision.dtype")
        if _SUM not in self.values and dtype is not None and dtype.value in {"fp16", "bf16"}:
            why = "DeepSpeed sums in the dtype of the weights without data_types.grad_accum_dtype in its file"
            self._put(_SUM, False, why, why)

    def outcomes(self, remarks: Mapping[str, ReportLine]) -> list[ReportLine]:
        """Return one outcome for each key of the file: what it became, with a remark on it as its note."""
        found = dict(remarks)
        for path, keys in self.became.items():
            note = remarks[path].text if path in remarks else ""
            place = place_in(self.file, path)
            found[path] = ReportLine("carried over", path, ", ".join(keys), place, tuple(keys), note)
        for path, why in self.idle.items():
            if path not in self.became:
                found[path] = _no_effect(self.file, path, why)
        return list(found.values())

    def _take_zero(self, given: Given) -> None:
        """Take over a key of ZeRO: as it is, or for the engine megatron, whose distributed optimizer is ZeRO-1."""
        splits = stage(self.settings) == 1
        overlaps = self.file.values.get("zero_optimization.overlap_comm") is True
        if uses_deepspeed(self.settings):
            self._set(given, given.path, given.value)
        elif given.path == "engine.zero.stage":
            self._set(given, "parallel.use_distributed_optimizer", value=splits)
        elif given.path == "engine.zero.overlap_comm" and splits:
            self._set(given, "parallel.overlap_grad_reduce", given.value)
        elif given.path == "engine.zero.reduce_bucket_size" and splits and overlaps:
            self._set(given, "parallel.ddp_bucket_size", given.value)
        else:
            self.idle[given.json_path] = self._of_other_stages(given.path)

    def _of_other_stages(self, key: str) -> str:
        if stage(self.settings) == 0:
            return "stage 0 of ZeRO splits nothing"
        if "offload" in key:
            return "nothing is offloaded"
        if "stage3" in key or "sub_group" in key:
            return "only stage 3 of ZeRO reads it"
        return "gradients lie in contiguous buffers and go to the ranks that own them"

    def _set(self, given: Given, key: str, value: Any) -> None:
        place = place_in(self.file, given.json_path)
        before = self.values.get(key)
        if before is not None and before.value != value:
            msg = (
                f"{self.file.place(given.json_path)}: {key} would be {value}, but {before.place} says {before.value}.\n"
                "A recipe has one value for it: change one of the two."
            )
            raise MigrateError(msg)
        self._put(key, value, f"{given.json_path} ({place})", _FROM_FILE)
        self.values[key] = replace(self.values[key], place=place)
        self.became.setdefault(given.json_path, []).append(key)

    def _put(self, key: str, value: Any, note: str, why: str) -> None:
        """Set a key, and say of the flags that would give it that they have no effect."""
        flag = self.flags.get(key)
        names = () if flag is None else (*flag.names, *(name for name, _ in flag.idle))
        self.values[key] = Derived(value, (), note, idle=tuple((name, why) for name in dict.fromkeys(names)))


def _check_stage(settings: Settings, file: JsonFile) -> None:
    """Check --zero-stage, by which Megatron-DeepSpeed builds the model, against the stage of the file."""
    flag = settings.stated.get("zero_stage")
    if flag is None or flag.value is None or flag.value == stage(settings):
        return
    of_file = f"{file.place('zero_optimization.stage')} is {stage(settings)}"
    msg = (
        f"{flag.place}: {flag.written} {flag.value:g}, but {of_file}.\n"
        "The program needs both to be the same: change one of them."
    )
    raise MigrateError(msg)


def _check_value(settings: Settings, file: JsonFile, given: Given, flag: Derived | None) -> None:
    if flag is None or flag.value is None or (flag.value == given.value) == (given.kind == "is"):
        return
    stated: Any = given.value if given.kind == "is" else f"not {given.value}"
    msg = (
        f"{file.place(given.json_path)} says {given.path} {stated}, but {_written(settings, flag)} says {flag.value}.\n"
        "DeepSpeed and Megatron would not agree: change one of the two."
    )
    raise MigrateError(msg)


def _accumulation(settings: Settings, file: JsonFile, steps: int, flags: Mapping[str, Derived]) -> ReportLine:
    """Return the outcome of gradient_accumulation_steps, which follows from the batches and the devices."""
    place = place_in(file, _ACCUMULATION)
    replicas, whole, micro = data_parallel_size(settings), flags.get(_GLOBAL), flags.get(_MICRO)
    if replicas is None or whole is None or micro is None or not whole.value or not micro.value:
        why = "it follows from the two batch sizes and the number of devices"
        return ReportLine("no effect", _ACCUMULATION, why, place)
    if steps * micro.value * replicas != whole.value:
        msg = (
            f"{file.place(_ACCUMULATION)}: {steps} micro batches of {micro.value} on {replicas} replicas are no global "
            f"batch of {whole.value}, which {_written(settings, whole)} says.\nChange one of them."
        )
        raise MigrateError(msg)
    text = f"{_GLOBAL} ({steps} x {micro.value} x {replicas} replicas)"
    return ReportLine("carried over", _ACCUMULATION, text, place, (_GLOBAL,))


def _written(settings: Settings, flag: Derived) -> str:
    """Return the settings that a value comes from, with their lines."""
    found = [setting for setting in map(settings.setting, flag.names) if setting is not None]
    stated = [f"{setting.written} ({setting.place})" for setting in found if setting.place is not None]
    return ", ".join(stated) or ", ".join(f"the default of {setting.written}" for setting in found) or "the program"


def _outcome(file: JsonFile, remark: KeyRemark) -> ReportLine:
    fate, text = _fate(file, remark)
    name = remark.json_path.partition(".")[0]
    accept = name if fate == "not supported" and name in OTHER_MODEL else ""
    return ReportLine(fate, remark.json_path, text, place_in(file, remark.json_path), accept=accept)


def _fate(file: JsonFile, remark: KeyRemark) -> tuple[Fate, str]:
    match remark.kind:
        case "absent" | "removed" if file.values.get(f"{remark.json_path}.enabled") is False:
            return "no effect", "it is not enabled"
        case "absent" | "removed":  # the change is that of the same key in a file of GPT-NeoX
            found = OBJECTS.get(f"{remark.json_path}.enabled") or OBJECTS.get(remark.json_path)
            return "not supported", found.change if isinstance(found, NotSupported) else remark.text.rstrip(".")
        case "settled":
            return "no effect", f"{remark.text} is what always holds here"
        case "rounded":
            return "no effect", f"read as {remark.text}"
        case "not given":
            return "no effect", f"{remark.text.replace('None', 'null')} counts as not given"
    return "no effect", remark.text.rstrip(".")
