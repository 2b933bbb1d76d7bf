"""Write the C header of a library, with documentation of its functions."""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.export import exported
from einsmith.export.calls import LibraryCall
from einsmith.export.exported import ExportSubject
from einsmith.export.processors import Processor
from einsmith.export.source import prototype
from einsmith.ir.nodes import size

_ROLES = {
    exported.TRAIN: "Trains on a batch, and tells its loss. Where the loss is not finite, or a check of the data fails,"
    "\n   the code says so and nothing is updated.",
    exported.EVALUATE: "The loss of a batch, in evaluation mode.",
    exported.PREDICT: "The model's output, in evaluation mode.",
    exported.CALL: "The function.",
}  # fmt: skip

_LIFE = """\
/* Makes a {what} with the tensors of a file such as weights.safetensors, in memory of its own, and starts its
   threads: so many in all, with the caller's, or 0 for {threads} (fewer where there are fewer processors). Several may
   be made; any thread may call, and calls of one wait for each other. `*made` is NULL unless the code is {NAME}_OK. */
int {name}_create(const char *weights, int threads, {name}_model **made);

/* The same, with the bytes of such a file, which are copied. */
int {name}_create_from(const void *weights, size_t bytes, int threads, {name}_model **made);

/* Ends its threads and frees its memory. NULL is allowed. */
void {name}_destroy({name}_model *model);

/* Takes all tensors from a file, or leaves all as they are where one is missing or of another type or shape. */
int {name}_load({name}_model *model, const char *path);

/* Writes all tensors to a file, which is replaced as a whole. */
int {name}_save({name}_model *model, const char *path);

/* Where a tensor of the file lies, to be read and written between calls; NULL for an unknown name. Valid until
   {name}_destroy. */
void *{name}_tensor({name}_model *model, const char *name);

/* What a code means. */
const char *{name}_error(int code);

/* What tells this library from others, as manifest.json has it. */
const char *{name}_identity(void);
"""

_TRAINING = """\
/* How many updates were made. */
int64_t {name}_steps({name}_model *model);

/* Sets a setting for all steps that come, and tells the one of the next step: {settings}.
   NaN: what its table has for each step, where it has one (see manifest.json). */
int {name}_set({name}_model *model, const char *name, double value);
int {name}_get({name}_model *model, const char *name, double *value);
"""


def header(
    name: str,
    subject: ExportSubject,
    calls: Sequence[LibraryCall],
    processor: Processor,
    version: str,
    violations: Sequence[str],
) -> str:
    """Return the text of NAME.h."""
    upper = name.upper()
    fields = {
        "name": name, "NAME": upper, "threads": subject.threads,
        "what": "training step" if subject.training else "function",
    }  # fmt: skip
    first = f"/* {name}: {subject.name}, compiled by Einsmith {version} for {processor.triple} ({processor.cpu})."
    lines = [
        first, "   Arrays are C-contiguous; they neither overlap nor lie in a model's memory. Functions that return "
        "int return a code. */",
        f"#ifndef {upper}_H", f"#define {upper}_H", "#include <stddef.h>", "#include <stdint.h>", "",
        "#ifdef __cplusplus", 'extern "C" {', "#endif", "", f"typedef struct {name}_model {name}_model;", "", "enum {",
        *(f"    {upper}_{code}, /* {meaning} */" for code, meaning in CODES.items()),
        f"    {upper}_LACKING = 1000, /* and above: the processor lacks what the library is compiled for */",
    ]  # fmt: skip
    if violations:
        lines.append(f"    {upper}_VIOLATED = 2000, /* and above: the data fails a check; nothing was updated */")
        lines += [f"    /* 2000 + {n}: {v.replace('*/', '* /')} */" for n, v in enumerate(violations)]
    lines += [
        f"    {upper}_MISSING = 10000 /* and above: a file lacks a tensor, or has it in another shape or type */",
        "};", "", _LIFE.format(**fields),
    ]  # fmt: skip
    for call in calls:
        arrays = (*call.arguments, *call.results)
        lines += [f"/* {_ROLES[call.role]}", *(f"   {a.name}: {a.meaning}" for a in arrays)]
        lines[-1] += " */"
        lines += [f"{prototype(name, call)};"]
        lines += [f"#define {call.function.upper()}_{a.name.upper()} {size(a.shape)} /* elements */" for a in arrays]
        lines.append("")
    if subject.training:
        settings = ", ".join(f'"{s.name}"' for s in subject.training.settings) or "there are none"
        lines.append(_TRAINING.format(settings=settings, **fields))
        if subject.training.reports:
            told = ", ".join(subject.training.reports)
            lines += [f"/* What the last training step told beside its loss: {told}. */",
                      f"const double *{name}_reports({name}_model *model);", ""]  # fmt: skip
    return "\n".join([*lines, "#ifdef __cplusplus", "}", "#endif", "#endif", ""])


CODES = {
    "OK": "0", "NOT_FINITE": "the loss is not finite; nothing was updated", "NO_MEMORY": "there is not enough memory",
    "NO_THREADS": "a thread cannot be started", "UNREADABLE": "a file cannot be read",
    "UNWRITABLE": "a file cannot be written", "FOREIGN_FILE": "a file is no safetensors file, or it is truncated",
    "SCHEDULE_ENDED": "a setting's table has no value for this step: give it one", "UNKNOWN_NAME": "no such setting",
    "BAD_NUMBER": "a number is out of its range",
}  # fmt: skip
"""Return codes and their meanings, in the order of runtime/machine.c."""
