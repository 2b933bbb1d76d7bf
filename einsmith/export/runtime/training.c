/* ---- training: losses, settings, counters */

static double scalar(const struct model *m, size_t n, const void *const *arguments, size_t k) {
    float single;
    double wide;
    if (m->library->programs[n].results[k].bytes == sizeof wide) {
        memcpy(&wide, result(m, n, arguments, k), sizeof wide);
        return wide;
    }
    memcpy(&single, result(m, n, arguments, k), sizeof single);
    return single;
}

/* Runs a program and returns its first result, the loss; other results are ignored. */
static int evaluate(struct model *m, size_t n, const void *const *arguments, double *loss) {
    int status;
    pthread_mutex_lock(&m->lock);
    status = run(m, n, arguments);
    if (!status)
        *loss = scalar(m, n, arguments, 0);
    pthread_mutex_unlock(&m->lock);
    return status;
}

static int64_t *counter(const struct model *m, uint32_t which) {
    return m->places[TENSORS + which];
}

/* Finds the value of a setting at a step. */
static int value_of(const struct model *m, size_t which, int64_t step, double *value) {
    const struct setting *s = &m->library->settings[which];
    *value = ((double *)m->places[TENSORS + m->library->values])[which];
    if (!isnan(*value))
        return OK;
    if (step < 1 || step > s->count)
        return SCHEDULE_ENDED;
    *value = s->table[step - 1];
    return OK;
}

static size_t setting(const struct library *l, const char *name) {
    size_t n;
    for (n = 0; n < l->set && strcmp(l->settings[n].name, name); n++) {
    }
    return n;
}

/* Sets a setting from now on; NaN returns to the setting's table. */
static int set(struct model *m, const char *name, double value) {
    const struct library *l = m->library;
    size_t n = setting(l, name);
    if (n == l->set)
        return UNKNOWN_NAME;
    if (isnan(value) && !l->settings[n].table)
        return BAD_NUMBER;
    pthread_mutex_lock(&m->lock);
    ((double *)m->places[TENSORS + l->values])[n] = value;
    pthread_mutex_unlock(&m->lock);
    return OK;
}

/* Gets a setting's value at the next step. */
static int get(struct model *m, const char *name, double *value) {
    size_t n = setting(m->library, name);
    int status;
    if (n == m->library->set)
        return UNKNOWN_NAME;
    pthread_mutex_lock(&m->lock);
    status = value_of(m, n, *counter(m, m->library->steps) + 1, value);
    pthread_mutex_unlock(&m->lock);
    return status;
}

static int set_numbers(struct model *m, const struct program *p) {
    const struct library *l = m->library;
    int64_t step = *counter(m, l->steps) + 1, gathered = *counter(m, l->gathered);
    int64_t samples = *counter(m, l->gathered_samples);
    size_t n;
    int status = OK;
    for (n = 0; n < l->numbered && !status; n++) {
        const struct number *x = &l->numbers[n];
        double *value = m->places[x->region];
        switch (x->kind) {
        case COUNT: *value = (double)step; break;
        case UPDATES: *value = (double)(counter(m, l->updates)[x->which] + 1); break;
        case SETTING: status = value_of(m, (size_t)x->which, step, value); break;
        case DRAW: *value = (double)((step - 1) * l->accumulate + gathered + 1); break;
        case WEIGHT: *value = (double)p->samples; break;
        case BEGINS: *value = gathered == 0; break;
        case SAMPLES: *value = (double)(samples + p->samples); break;
        }
    }
    return status;
}

/* Trains on one batch: runs program `gather` if further batches precede the update, else program `update`. */
static int train(struct model *m, size_t update, size_t gather, const void *const *arguments, double *loss) {
    const struct library *l = m->library;
    int64_t *gathered = counter(m, l->gathered), *samples = counter(m, l->gathered_samples);
    size_t k, n;
    int status, last;
    pthread_mutex_lock(&m->lock);
    last = *gathered + 1 >= l->accumulate;
    n = last ? update : gather;
    status = set_numbers(m, &l->programs[n]);
    if (!status) {
        status = run(m, n, arguments);
        if (!status || status == NOT_FINITE)
            *loss = scalar(m, n, arguments, 0);
    }
    for (k = 0; !status && k < l->reported && k + 1 < l->programs[n].outputs; k++)
        ((double *)m->places[TENSORS + l->reports])[k] = scalar(m, n, arguments, k + 1);
    if (!status && last) {
        *counter(m, l->steps) += 1;
        for (k = 0; k < l->programs[n].updated; k++)
            counter(m, l->updates)[l->programs[n].groups[k]] += 1;
        *gathered = *samples = 0;
    } else if (!status) {
        *gathered += 1;
        *samples += l->programs[n].samples;
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

static int64_t steps(struct model *m) {
    int64_t n;
    pthread_mutex_lock(&m->lock);
    n = *counter(m, m->library->steps);
    pthread_mutex_unlock(&m->lock);
    return n;
}

#ifdef REPORTS
static const double *reports(struct model *m) {
    return m->places[TENSORS + m->library->reports];
}
#endif
