/* Uses a library from several threads and several times over, and everything that a file and a setting can do wrong.
   SMALL_* is of the step in tests/export/common.py, for batches of 4. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "small.h"

#define REQUIRE(x) do { if (!(x)) { fprintf(stderr, "line %d: %s\n", __LINE__, #x); exit(1); } } while (0)

enum { STEPS = 50, MODELS = 3 };
static float input[SMALL_TRAIN_X];
static const int64_t target[SMALL_TRAIN_TARGET] = {0, 1, 2, 1};
static const char *weights;
static double losses[MODELS + 1][STEPS];

static void *train(void *place) {
    double *told = place;
    small_model *model;
    int n;
    REQUIRE(small_create(weights, 3, &model) == SMALL_OK);
    for (n = 0; n < STEPS; n++)
        REQUIRE(small_train(model, input, target, &told[n]) == SMALL_OK);
    REQUIRE(small_steps(model) == STEPS);
    small_destroy(model);
    return NULL;
}

static small_model *shared;

static void *predict(void *place) {
    float *output = place;
    int n;
    for (n = 0; n < STEPS; n++)
        REQUIRE(small_predict(shared, input, output) == SMALL_OK);
    return NULL;
}

static void *read_all(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    void *data = malloc(1 << 20);
    REQUIRE(file && data);
    *bytes = fread(data, 1, 1 << 20, file);
    fclose(file);
    return data;
}

int main(int count, char **arguments) {
    static float outputs[MODELS][SMALL_PREDICT_OUTPUT];
    pthread_t threads[MODELS];
    small_model *model = (small_model *)&threads;
    size_t bytes;
    double loss = -1, value;
    void *data;
    float *bias, before;
    clock_t used;
    int n;
    REQUIRE(count == 3);
    weights = arguments[1];
    for (n = 0; n < SMALL_TRAIN_X; n++)
        input[n] = (float)sin(n + 1.0);

    REQUIRE(small_create("none", 0, &model) == SMALL_UNREADABLE && !model);
    REQUIRE(small_create(weights, -1, &model) == SMALL_BAD_NUMBER && !model);
    small_destroy(NULL);
    data = read_all(weights, &bytes);
    for (n = 0; n < (int)bytes; n += 97)
        REQUIRE(small_create_from(data, (size_t)n, 1, &model) != SMALL_OK && !model);
    REQUIRE(small_create_from(data, bytes, 2, &model) == SMALL_OK);

    for (n = 0; n < MODELS; n++) /* models side by side */
        REQUIRE(!pthread_create(&threads[n], NULL, train, losses[n]));
    for (n = 0; n < MODELS; n++)
        pthread_join(threads[n], NULL);
    train(losses[MODELS]);
    for (n = 0; n < MODELS; n++)
        REQUIRE(!memcmp(losses[n], losses[MODELS], sizeof losses[n]));

    shared = model; /* one model from several threads */
    for (n = 0; n < MODELS; n++)
        REQUIRE(!pthread_create(&threads[n], NULL, predict, outputs[n]));
    for (n = 0; n < MODELS; n++)
        pthread_join(threads[n], NULL);
    for (n = 1; n < MODELS; n++)
        REQUIRE(!memcmp(outputs[n], outputs[0], sizeof outputs[0]));

    for (n = 0; n < STEPS; n++) {
        REQUIRE(small_train(model, input, target, &loss) == SMALL_OK);
        REQUIRE(loss == losses[0][n]);
    }
    REQUIRE(small_save(model, arguments[2]) == SMALL_OK);
    before = input[0];
    input[0] = (float)HUGE_VAL;
    REQUIRE(small_train(model, input, target, &loss) == SMALL_NOT_FINITE && !(loss - loss == 0));
    input[0] = before;
    bias = small_tensor(model, "last.bias");
    before = bias[0];
    REQUIRE(small_evaluate(model, input, target, &loss) == SMALL_OK);
    bias[0] += 1;
    REQUIRE(small_evaluate(model, input, target, &value) == SMALL_OK && value != loss);
    REQUIRE(small_load(model, arguments[2]) == SMALL_OK && bias[0] == before);
    REQUIRE(small_evaluate(model, input, target, &value) == SMALL_OK && value == loss);
    REQUIRE(!small_tensor(model, "last") && !small_tensor(model, "number/0"));
    REQUIRE(small_set(model, "lr", 0.5) == SMALL_OK && small_get(model, "lr", &value) == SMALL_OK && value == 0.5);
    REQUIRE(small_set(model, "lr", NAN) == SMALL_BAD_NUMBER && small_get(model, "x", &value) == SMALL_UNKNOWN_NAME);
    REQUIRE(small_save(model, "/none/file") == SMALL_UNWRITABLE);
    for (n = -2; n < 20000; n++)
        REQUIRE(strlen(small_error(n)) > 5);

    usleep(300000); /* threads without work sleep */
    used = clock();
    usleep(1000000);
    REQUIRE(clock() - used < CLOCKS_PER_SEC / 20);
    small_destroy(model);
    free(data);
    return 0;
}
