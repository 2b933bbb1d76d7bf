/* {{ name }}: {{ subject.name }}, compiled by Einsmith {{ version }} for {{ processor.triple }} ({{ processor.cpu }}).
   Arrays are C-contiguous; they must neither overlap nor lie in a model's memory. Functions of type int return a code. */
#ifndef {{ NAME }}_H
#define {{ NAME }}_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {{ name }}_model {{ name }}_model;

enum {
{% for code, meaning in codes.items() %}
    {{ NAME }}_{{ code }}, /* {{ meaning }} */
{% endfor %}
    {{ NAME }}_LACKING = 1000, /* and above: the processor lacks a feature that the library is compiled for */
{% if violations %}
    {{ NAME }}_VIOLATED = 2000, /* and above: the data fails a check; nothing was updated */
{% for violation in violations %}
    /* 2000 + {{ loop.index0 }}: {{ violation | replace("*/", "* /") }} */
{% endfor %}
{% endif %}
    {{ NAME }}_MISSING = 10000 /* and above: a file lacks a tensor, or the tensor has another shape or type */
};

/* Creates a {{ "training step" if subject.training else "function" }} with the tensors of a file such as weights.safetensors, in memory of its own, and starts its
   threads. `threads` counts all threads, the caller's included; 0 means {{ subject.threads }}, or fewer on fewer processors.
   Several models may be created. Any thread may call; calls on the same model wait for each other. `*made` is NULL
   unless the code is {{ NAME }}_OK. */
int {{ name }}_create(const char *weights, int threads, {{ name }}_model **made);

/* Does what {{ name }}_create does, with the bytes of such a file, which are copied. */
int {{ name }}_create_from(const void *weights, size_t bytes, int threads, {{ name }}_model **made);

/* Ends the threads of a model and frees its memory. NULL is allowed. */
void {{ name }}_destroy({{ name }}_model *model);

/* Loads all tensors from a file; if one is missing or has another type or shape, none is changed. */
int {{ name }}_load({{ name }}_model *model, const char *path);

/* Saves all tensors to a file, which is replaced atomically. */
int {{ name }}_save({{ name }}_model *model, const char *path);

/* Returns the address of a tensor of the file, which may be read and written between calls; NULL for an unknown name.
   Valid until {{ name }}_destroy. */
void *{{ name }}_tensor({{ name }}_model *model, const char *name);

/* Returns the meaning of a code. */
const char *{{ name }}_error(int code);

/* Returns the identity of this library, as in manifest.json. */
const char *{{ name }}_identity(void);

{% set roles = {
    "train": "Trains on a batch and stores its loss. If the loss is not finite, or a check of the data fails,
   nothing is updated and the code says why.",
    "evaluate": "Computes the loss of a batch, in evaluation mode.",
    "predict": "Computes the model's output, in evaluation mode.",
    "call": "Calls the function.",
} %}
{% for call in calls %}
/* {{ roles[call.role] }}{% for a in call.arrays %}

   {{ a.name }}: {{ a.meaning }}
{%- endfor %} */
{{ call.prototype(name) }};
{% for a in call.arrays %}
#define {{ call.function | upper }}_{{ a.name | upper }} {{ size(a.shape) }} /* elements */
{% endfor %}

{% endfor %}
{% if subject.training %}
/* Returns the number of updates so far. */
int64_t {{ name }}_steps({{ name }}_model *model);

/* Sets a setting for all further steps, and gets its value at the next step. The settings: {% for s in subject.training.settings %}"{{ s.name }}"{{ ", " if not loop.last }}{% else %}none{% endfor %}.
   Setting NaN returns to the setting's table of values by step, if it has one (see manifest.json). */
int {{ name }}_set({{ name }}_model *model, const char *name, double value);
int {{ name }}_get({{ name }}_model *model, const char *name, double *value);

{% if subject.training.reports %}
/* Returns the further results of the last training step: {{ subject.training.reports | join(", ") }}. */
const double *{{ name }}_reports({{ name }}_model *model);

{% endif %}
{% endif %}
#ifdef __cplusplus
}
#endif
#endif
