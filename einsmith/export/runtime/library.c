/* ---- creating a model */

static int begin(const struct library *l, int threads, struct model **made) {
    struct model *m;
    int status = check_processor(l);
    *made = NULL;
    if (status)
        return status;
    if (threads < 0 || threads > 4096)
        return BAD_NUMBER;
    m = calloc(1, sizeof *m);
    if (!m)
        return NO_MEMORY;
    m->library = l;
    if (pthread_mutex_init(&m->lock, NULL)) {
        free(m);
        return NO_THREADS;
    }
    status = make(m, threads);
    if (status)
        destroy(m);
    else
        *made = m;
    return status;
}

static void *tensor(const struct model *m, const char *name) {
    size_t n;
    for (n = 0; n < m->library->count; n++)
        if (m->library->tensors[n].entry && !strcmp(m->library->tensors[n].name, name))
            return m->places[TENSORS + n];
    return NULL;
}

static const char *error(const struct library *l, int status) {
    static const char *const texts[] = {
        "no error", "the loss is not finite; nothing was updated", "there is not enough memory",
        "a thread cannot be started", "the file cannot be read", "the file cannot be written",
        "the file is not a safetensors file, or is truncated",
        "a setting's table has no value for this step: set a value", "there is no setting of this name",
        "a number is out of its range",
    };
    if (status >= MISSING && status - MISSING < (int)l->count && l->tensors[status - MISSING].missing)
        return l->tensors[status - MISSING].missing;
    if (status >= VIOLATED && status - VIOLATED < (int)l->checks)
        return l->violations[status - VIOLATED];
    if (status >= LACKING && status - LACKING < (int)l->featured)
        return l->features[status - LACKING].missing;
    return status >= 0 && status < (int)(sizeof texts / sizeof *texts) ? texts[status] : "no such code";
}

/* ---- running */

static int run(struct model *m, size_t n, const void *const *arguments) {
    const struct program *p = &m->library->programs[n];
    uint64_t *table = m->tables[n];
    struct run r;
    size_t k;
    for (k = 0; k < p->patched; k++)
        table[p->patches[k].word] = (uint64_t)(uintptr_t)arguments[p->patches[k].argument] + p->patches[k].offset;
    memset(&r, 0, sizeof r);
    r.steps = (uint64_t)(uintptr_t)table;
    r.count = p->steps;
    r.pool = (uint64_t)(uintptr_t)m->pool;
    r.threads = m->owner == getpid() ? (uint64_t)m->threads : 1;
    r.scratch = (uint64_t)(uintptr_t)m->places[ARENA] + p->scratch;
    r.stride = p->stride;
    return (int)m->library->run(&r);
}

static const void *result(const struct model *m, size_t n, const void *const *arguments, size_t k) {
    const struct result *r = &m->library->programs[n].results[k];
    return (const char *)(r->region < 0 ? arguments[-1 - r->region] : m->places[r->region]) + r->offset;
}

/* Runs a program and copies its results. */
static int call(struct model *m, size_t n, const void *const *arguments, void *const *results) {
    size_t k;
    int status;
    pthread_mutex_lock(&m->lock);
    status = run(m, n, arguments);
    for (k = 0; !status && k < m->library->programs[n].outputs; k++)
        memcpy(results[k], result(m, n, arguments, k), m->library->programs[n].results[k].bytes);
    pthread_mutex_unlock(&m->lock);
    return status;
}
