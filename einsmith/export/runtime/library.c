/* ---- files, in the format of safetensors: the header's length in 8 bytes, the header in JSON, the tensors' bytes */

static uint64_t little(const unsigned char *at) {
    uint64_t x = 0;
    int k;
    for (k = 7; k >= 0; k--)
        x = x << 8 | at[k];
    return x;
}

/* Copies the tensors from a file's bytes, all or none. The header must have no blanks, and its keys the order of the
   safetensors library; other tensors in the file are ignored. */
static int take(struct model *m, const unsigned char *data, size_t bytes) {
    const struct library *l = m->library;
    const unsigned char **found;
    uint64_t head = bytes < 8 ? 0 : little(data);
    size_t n, left;
    char *text;
    int status = OK;
    if (bytes < 8 || head > bytes - 8)
        return FOREIGN_FILE;
    left = bytes - 8 - (size_t)head;
    found = calloc(l->count + 1, sizeof *found);
    text = malloc((size_t)head + 1);
    if (!found || !text)
        status = NO_MEMORY;
    else {
        memcpy(text, data + 8, (size_t)head);
        text[head] = 0;
    }
    for (n = 0; n < l->count && !status; n++) {
        const struct tensor *t = &l->tensors[n];
        unsigned long long begin, end;
        const char *at;
        if (!t->entry)
            continue;
        at = strstr(text, t->entry);
        if (!at || sscanf(at + strlen(t->entry), "%llu,%llu]", &begin, &end) != 2)
            status = MISSING + (int)n;
        else if (begin > end || end > left || end - begin != t->bytes)
            status = FOREIGN_FILE;
        else
            found[n] = data + 8 + head + begin;
    }
    for (n = 0; n < l->count && !status; n++)
        if (found[n])
            memcpy(m->places[TENSORS + n], found[n], l->tensors[n].bytes);
    free(text);
    free(found);
    return status;
}

/* Opens a path without waiting; a plain file to read, or whatever is no plain file to write. NULL where that fails. */
static FILE *open_at_once(const char *path, int reads) {
    struct stat status;
    int descriptor = open(path, (reads ? O_RDONLY : O_WRONLY) | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    FILE *file = NULL;
    if (descriptor < 0)
        return NULL;
    if (!fstat(descriptor, &status) && !S_ISREG(status.st_mode) == !reads && !fcntl(descriptor, F_SETFL, 0))
        file = fdopen(descriptor, reads ? "rb" : "wb");
    if (!file)
        close(descriptor);
    return file;
}

static int load(struct model *m, const char *path) {
    FILE *file = open_at_once(path, 1);
    unsigned char *data = NULL;
    long size = -1;
    int status = OK;
    if (!file)
        return UNREADABLE;
    if (!fseek(file, 0, SEEK_END))
        size = ftell(file);
    if (size < 0 || fseek(file, 0, SEEK_SET))
        status = UNREADABLE;
    else if (!(data = malloc((size_t)size + 1)))
        status = NO_MEMORY;
    else if (fread(data, 1, (size_t)size, file) != (size_t)size)
        status = UNREADABLE;
    fclose(file);
    if (!status) {
        pthread_mutex_lock(&m->lock);
        status = take(m, data, (size_t)size);
        pthread_mutex_unlock(&m->lock);
    }
    free(data);
    return status;
}

/* Writes all tensors; the caller checks the file for errors afterwards. */
static void put(const struct model *m, FILE *file) {
    const struct library *l = m->library;
    size_t n, written = 1;
    int k;
    for (k = 0; k < 8; k++)
        fputc((int)(l->header >> 8 * k & 255), file);
    fputc('{', file);
    for (n = 0; n < l->count; n++)
        if (l->tensors[n].entry) {
            fprintf(file, "%s%s%s", written > 1 ? "," : "", l->tensors[n].entry, l->tensors[n].place);
            written += (written > 1) + strlen(l->tensors[n].entry) + strlen(l->tensors[n].place);
        }
    fprintf(file, "}%*s", (int)(l->header - written - 1), "");
    for (n = 0; n < l->count; n++)
        if (l->tensors[n].entry)
            fwrite(m->places[TENSORS + n], 1, l->tensors[n].bytes, file);
}

/* Creates a file next to `place` that was not there, not even as a link, and puts its name into `beside`. */
static FILE *create_beside(const char *place, char *beside) {
    int descriptor = -1, n;
    FILE *file;
    for (n = 0; n < 1000 && descriptor < 0; n++) {
        sprintf(beside, "%s.%ld-%d.new", place, (long)getpid(), n);
        descriptor = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor < 0 && errno != EEXIST)
            return NULL;
    }
    file = descriptor < 0 ? NULL : fdopen(descriptor, "wb");
    if (!file && descriptor >= 0) {
        close(descriptor);
        remove(beside);
    }
    return file;
}

/* Writes a temporary file next to `path` and renames it, so that `path` is complete at any moment. A link is followed,
   and stays; what is no plain file is written to, and stays. */
static int save(struct model *m, const char *path) {
    char *place = realpath(path, NULL); /* NULL where there is nothing yet */
    const char *to = place ? place : path;
    char *beside = malloc(strlen(to) + 48);
    struct stat status;
    FILE *file;
    int fine = 0, is_replaced = stat(path, &status) || S_ISREG(status.st_mode);
    if (!beside) {
        free(place);
        return NO_MEMORY;
    }
    pthread_mutex_lock(&m->lock);
    file = is_replaced ? create_beside(to, beside) : open_at_once(path, 0);
    if (file) {
        put(m, file);
        fine = !fflush(file) && (!is_replaced || !fsync(fileno(file))) && !ferror(file);
        fine = !fclose(file) && fine && (!is_replaced || !rename(beside, to));
        if (!fine && is_replaced)
            remove(beside);
    }
    pthread_mutex_unlock(&m->lock);
    free(beside);
    free(place);
    return fine ? OK : UNWRITABLE;
}

/* ---- creating and destroying a model */

static int create(
    const struct library *l, const char *path, const void *data, size_t bytes, int threads, struct model **made
) {
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
    if (!status)
        status = path ? load(m, path) : take(m, data, bytes);
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
    r.table = table;
    r.count = p->steps;
    r.pool = m->pool;
    r.threads = m->owner == getpid() ? (uint64_t)m->threads : 1;
    r.scratch = (char *)m->places[ARENA] + p->scratch;
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
