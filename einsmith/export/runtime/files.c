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

static int create(
    const struct library *l, const char *path, const void *data, size_t bytes, int threads, struct model **made
) {
    int status = begin(l, threads, made);
    if (status)
        return status;
    status = path ? load(*made, path) : take(*made, data, bytes);
    if (status) {
        destroy(*made);
        *made = NULL;
    }
    return status;
}
