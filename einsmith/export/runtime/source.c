/* {{ name }}: the source of a library that Einsmith has exported. Compiled and linked with the object file of its kernels. */
{% if is_alone %}
typedef struct {{ name }}_model {{ name }}_model;
{% else %}
#define _XOPEN_SOURCE 700
#pragma GCC visibility push(default)
#include "{{ name }}.h"
#pragma GCC visibility pop
{% endif %}
{% set has_reports = training and training.reports %}
{% if has_reports %}
#define REPORTS
{% endif %}

{% filter replace("struct model", "struct " ~ name ~ "_model") %}
{% include system %}

{{ records }}
{% for part in parts %}
{% include part %}

{% endfor %}
{% endfilter %}
/* ---- this library */

{% for kind, table, rows in tables %}
static const {{ kind }} {{ table }}[] = {
    {{ rows | join(",\n    ") }}
};
{% endfor %}
extern void (*const {{ name }}_functions[])(void **, void *, int64_t);
extern const char {{ name }}_constants[];
int64_t {{ name }}_run(void *);
void {{ name }}_worker(void *, int64_t, int64_t);
void {{ name }}_stop(void *);
static const struct library library = {{ library }};

{% if is_alone %}
int {{ name }}_create({{ name }}_model **made) {
    return begin(&library, 1, made);
}

void *{{ name }}_allocate(size_t bytes) {
    return allocate(bytes);
}

{% else %}
int {{ name }}_create(const char *weights, int threads, {{ name }}_model **made) {
    return create(&library, weights, NULL, 0, threads, made);
}

int {{ name }}_create_from(const void *weights, size_t bytes, int threads, {{ name }}_model **made) {
    return create(&library, NULL, weights, bytes, threads, made);
}

void {{ name }}_destroy({{ name }}_model *model) {
    destroy(model);
}

int {{ name }}_load({{ name }}_model *model, const char *path) {
    return load(model, path);
}

int {{ name }}_save({{ name }}_model *model, const char *path) {
    return save(model, path);
}

{% endif %}
void *{{ name }}_tensor({{ name }}_model *model, const char *name) {
    return tensor(model, name);
}

const char *{{ name }}_error(int code) {
    return error(&library, code);
}

{% if training %}
int64_t {{ name }}_steps({{ name }}_model *model) {
    return steps(model);
}

int {{ name }}_set({{ name }}_model *model, const char *name, double value) {
    return set(model, name, value);
}

int {{ name }}_get({{ name }}_model *model, const char *name, double *value) {
    return get(model, name, value);
}

{% endif %}
{% if has_reports %}
const double *{{ name }}_reports({{ name }}_model *model) {
    return reports(model);
}

{% endif %}
{% for call in calls %}
{{ call.prototype(name) }} {
    const void *arguments[] = {{ "{" }}{{ call.arguments | join(", ", attribute="name") or "NULL" }}};
{% if call.role == "train" %}
    return train(model, {{ call.program }}, {{ call.gather }}, arguments, loss);
{% elif call.role == "evaluate" %}
    return evaluate(model, {{ call.program }}, arguments, loss);
{% else %}
    void *results[] = {{ "{" }}{{ call.results | join(", ", attribute="name") or "NULL" }}};
    return call(model, {{ call.program }}, arguments, results);
{% endif %}
}

{% endfor %}
const char *{{ name }}_identity(void) {
    return "{{ identity }}";
}
