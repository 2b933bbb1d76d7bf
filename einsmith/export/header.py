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
    exported.TRAIN: "Trains on a batch and stores its loss. If the loss is not finite, or a check of the data fails,"
    "\n   nothing is updated and the code says why.",
    exported.EVALUATE: "Computes the loss of a batch, in evaluation mode.",
    exported.PREDICT: "Computes the model's output, in evaluation mode.",
    exported.CALL: "Calls the function.",
}

_LIFE = """\
/* Creates a {what} with the tensors of a file such as weights.safetensors, in memory of its own, and starts its
   threads. `threads` counts all threads, the caller's included; 0 means {threads}, or fewer on fewer processors.
   Several models may be created. Any thread may call; calls on the same model wait for each other. `*made` is NULL
   unless the code is {NAME}_OK. */
int {name}_create(const char *weights, int threads, {name}_model **made);

/* Does what {name}_create does, with the bytes of such a file, which are copied. */
int {name}_create_from(const void *weights, size_t bytes, int threads, {name}_model **made);

/* Ends the threads of a model and frees its memory. NULL is allowed. */
void {name}_destroy({name}_model *model);

/* Loads all tensors from a file; if one is missing or has another type or shape, none is changed. */
int {name}_load({name}_model *model, const char *path);

/* Saves all tensors to a file, which is replaced atomically. */
int {name}_save({name}_model *model, const char *path);

/* Returns the address of a tensor of the file, which may be read and written between calls; NULL for an unknown name.
   Valid until {name}_destroy. */
void *{name}_tensor({name}_model *model, const char *name);

/* Returns the meaning of a code. */
const char *{name}_error(int code);

/* Returns the identity of this library, as in manifest.json. */
const char *{name}_identity(void);
"""

_TRAINING = """\
/* Returns the number of updates so far. */
int64_t {name}_steps({name}_model *model);

/* Sets a setting for all further steps, and gets its value at the next step. The settings: {settings}.
   Setting NaN returns to the setting's table of values by step, if it has one (see manifest.json). */
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
        "name": name,
        "NAME": upper,
        "threads": subject.threads,
        "what": "training step" if subject.training else "function",
    }
    first = f"/* {name}: {subject.name}, compiled by Einsmith {version} for {processor.triple} ({processor.cpu})."
    lines = [
        first,
        "   Arrays are C-contiguous; they must neither overlap nor lie in a model's memory. Functions of type "
        "int return a code. */",
        f"#ifndef {upper}_H",
        f"#define {upper}_H",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        f"typedef struct {name}_model {name}_model;",
        "",
        "enum {",
        *(f"    {upper}_{code}, /* {meaning} */" for code, meaning in CODES.items()),
        f"    {upper}_LACKING = 1000, /* and above: the processor lacks a feature that the library is compiled for */",
    ]
    if violations:
        lines.append(f"    {upper}_VIOLATED = 2000, /* and above: the data fails a check; nothing was updated */")
        lines += [f"    /* 2000 + {n}: {v.replace('*/', '* /')} */" for n, v in enumerate(violations)]
    lines += [
        f"    {upper}_MISSING = 10000 /* and above: a file lacks a tensor, or the tensor has another shape or type */",
        "};",
        "",
        _LIFE.format(**fields),
    ]
    for call in calls:
        arrays = (*call.arguments, *call.results)
        lines += [f"/* {_ROLES[call.role]}", *(f"   {a.name}: {a.meaning}" for a in arrays)]
        lines[-1] += " */"
        lines += [f"{prototype(name, call)};"]
        lines += [f"#define {call.function.upper()}_{a.name.upper()} {size(a.shape)} /* elements */" for a in arrays]
        lines.append("")
    if subject.training:
        settings = ", ".join(f'"{s.name}"' for s in subject.training.settings) or "none"
        lines.append(_TRAINING.format(settings=settings, **fields))
        if subject.training.reports:
            reports = ", ".join(subject.training.reports)
            lines += [
                f"/* Returns the further results of the last training step: {reports}. */",
                f"const double *{name}_reports({name}_model *model);",
                "",
            ]
    return "\n".join([*lines, "#ifdef __cplusplus", "}", "#endif", "#endif", ""])


CODES = {
    "OK": "0",
    "NOT_FINITE": "the loss is not finite; nothing was updated",
    "NO_MEMORY": "there is not enough memory",
    "NO_THREADS": "a thread cannot be started",
    "UNREADABLE": "a file cannot be read",
    "UNWRITABLE": "a file cannot be written",
    "FOREIGN_FILE": "a file is not a safetensors file, or is truncated",
    "SCHEDULE_ENDED": "a setting's table has no value for this step: set a value",
    "UNKNOWN_NAME": "there is no setting of this name",
    "BAD_NUMBER": "a number is out of its range",
}
"""Return codes and their meanings, in the order of runtime/machine.c."""
