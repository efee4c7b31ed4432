/* What the test programs share. A check that fails says where, and ends the program. */
#ifndef CHECK_H
#define CHECK_H

#include <inttypes.h>
#include <scatter_ring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROW_BYTES 264u
#define ROWS 1000u

static scatter_ring_error error;

#define CHECK(condition)                                                                    \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);         \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

/* A call that must succeed. */
#define DO(call)                                                                            \
    do {                                                                                    \
        int32_t status_ = (call);                                                           \
        if (status_ < 0) {                                                                  \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, error.message);   \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

/* A call that must be refused with this status, and a message that has this text in it. */
#define REFUSED(call, expected, text)                                                       \
    do {                                                                                    \
        memset(&error, 0xee, sizeof error);                                                 \
        int32_t status_ = (call);                                                           \
        if (status_ != (expected)) {                                                        \
            fprintf(stderr, "%s:%d: %s gives %d\n", __FILE__, __LINE__, #call, status_);    \
            exit(1);                                                                        \
        }                                                                                   \
        CHECK(error.status == (expected));                                                  \
        if (strstr(error.message, text) == NULL) {                                          \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, error.message);   \
            exit(1);                                                                        \
        }                                                                                   \
        printf("%-22s %s\n", scatter_ring_status_name(status_), error.message);             \
    } while (0)

/* Byte j of row i is i + j. */
static inline void fill_rows(unsigned char *table, uint32_t rows) {
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t j = 0; j < ROW_BYTES; j++)
            table[i * ROW_BYTES + j] = (unsigned char)(i + j);
}

static inline int is_row(const unsigned char *row, uint32_t number) {
    for (uint32_t j = 0; j < ROW_BYTES; j++)
        if (row[j] != (unsigned char)(number + j))
            return 0;
    return 1;
}

#endif
