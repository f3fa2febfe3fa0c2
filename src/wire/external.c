// SPDX-License-Identifier: Apache-2.0
// external.c - finds and maps tensor data in external files.
//
// The numbers of external_data are parsed strictly; a duplicate key is an error, and unknown keys
// are ignored. The file is opened inside the model's folder, and the range is compared with the
// size of the file before it is read.
//
//     Example: external_data {location "w.bin", offset "4096", length "192"} in m/model.onnx:
//         bytes 4096 .. 4287 of m/w.bin
//     without offset: from the start; without length: to the end of the file
//     "../w.bin", "/etc/passwd", a link that leads out of m/: rejected by tsr__folder_file
#include "wire/internal.h"

// ONNX Runtime marks data in its own memory with this location. In a file it is an attack or a
// leaked address.
#define MEMORY_MARKER "*/_ORT_MEM_ADDR_/*"

// Reports a duplicate key. It is an error, because readers differ in which of the two values they
// use.
static tsr_status bad_key(tsr_session *session, const struct place *at, struct str key,
                          struct str value)
{
    return tsr__fail(session, TSR_MALFORMED, DIAG_external_key, at,
                     "write each of location, offset, length and checksum once",
                     "external data: the key \"" STR_FMT
                     "\" is given twice (the second time as \"" STR_FMT "\")",
                     STR_ARG(key), STR_ARG(value));
}

// Parses a plain decimal number from 0 to 2^63 - 1.
static tsr_status take_number(tsr_session *session, const struct place *at, struct str key,
                              struct str value, uint64_t *out)
{
    int64_t v;
    if (value.n == 0 || value.p[0] == '-' || !tsr__str_int(value, &v))
        return tsr__fail(session, TSR_MALFORMED, DIAG_external_number, at,
                         "use a decimal number, digits only",
                         "external data: " STR_FMT " is \"" STR_FMT "\", not a number of bytes",
                         STR_ARG(key), STR_ARG(value));
    *out = (uint64_t)v;
    return TSR_OK;
}

// Checks the location of external data. Opening the file later checks whether the name leads out of
// the folder.
static tsr_status check_location(tsr_session *session, const struct place *at, struct str location)
{
    struct str marker = STR(MEMORY_MARKER);
    if (location.n == 0)
        return tsr__fail(session, TSR_MALFORMED, DIAG_external_location, at,
                         "save the model with its data again",
                         "external data: the location is missing");
    if (location.n >= marker.n && memcmp(location.p, marker.p, marker.n) == 0)
        return tsr__fail(
            session, TSR_MALFORMED, DIAG_external_location, at,
            "save the model with its data in a file",
            "external data: the location is an address in the memory of another program");
    return TSR_OK;
}

// Reads where the external data of a tensor is. The location points into the tensor. The checksum
// is not used.
tsr_status tsr__external_parse(tsr_session *session, struct str tensor, const struct place *at,
                               struct wire_external *out)
{
    enum { LOCATION, OFFSET, LENGTH, CHECKSUM, KEYS };
    static const char *const names[KEYS] = {"location", "offset", "length", "checksum"};
    struct str values[KEYS] = {{0}};
    bool has[KEYS] = {false};
    struct wire_cursor cursor = wire_over(tensor);
    struct wire_field field;
    while (tsr__wire_next_of(&cursor, F_TENSOR_EXTERNAL_DATA, &field)) {
        struct str key = tsr__wire_bytes(field.bytes, F_STRING_PAIR_KEY, NULL);
        struct str value = tsr__wire_bytes(field.bytes, F_STRING_PAIR_VALUE, NULL);
        int k = 0;
        while (k < KEYS && !str_is(key, names[k]))
            k++;
        if (k == KEYS)
            continue;
        if (has[k])
            return bad_key(session, at, key, value);
        has[k] = true;
        values[k] = value;
    }
    struct wire_external external = {.location = values[LOCATION]};
    TRY(check_location(session, at, external.location));
    if (has[OFFSET])
        TRY(take_number(session, at, str_of(names[OFFSET]), values[OFFSET], &external.offset));
    if (has[LENGTH])
        TRY(take_number(session, at, str_of(names[LENGTH]), values[LENGTH], &external.length));
    external.has_length = has[LENGTH];
    *out = external;
    return TSR_OK;
}

// Checks that the range is inside the file, which has `size` bytes, and sets *length_out to the
// length of the range.
static tsr_status check_window(tsr_session *session, const struct wire_external *external,
                               const struct place *at, uint64_t size, uint64_t *length_out)
{
    uint64_t length = 0;
    if (external->has_length)
        length = external->length;
    else if (external->offset <= size)
        length = size - external->offset;
    if (external->offset > size || length > size - external->offset)
        return tsr__fail(session, TSR_MALFORMED, DIAG_external_window, at,
                         "copy the complete data file, or save the model again",
                         "external data: bytes %llu to %llu of \"" STR_FMT
                         "\" are needed, it has %llu",
                         (unsigned long long)external->offset,
                         (unsigned long long)external->offset + (unsigned long long)length,
                         STR_ARG(external->location), (unsigned long long)size);
    *length_out = length;
    return TSR_OK;
}

// Opens the file of external data and checks its size. The caller closes the descriptor.
tsr_status tsr__external_open(tsr_session *session, const struct folder *folder,
                              const struct wire_external *external, const struct place *at,
                              int *fd_out, uint64_t *length_out)
{
    int fd = -1;
    tsr_status st = tsr__folder_file(session, folder, external->location, at, &fd);
    if (st != TSR_OK)
        return st;
    uint64_t size;
    if (tsr__fault(session, FAULT_READ) || !tsr__fd_size(fd, &size)) {
        tsr__diag(session, DIAG_io_read, at, NULL,
                  "external data: the size of \"" STR_FMT "\" is unknown",
                  STR_ARG(external->location));
        st = TSR_IO;
    } else {
        st = check_window(session, external, at, size, length_out);
    }
    if (st != TSR_OK) {
        tsr__fd_close(fd);
        return st;
    }
    *fd_out = fd;
    return TSR_OK;
}

// Maps external data into memory.
tsr_status tsr__external_map(tsr_session *session, const struct folder *folder,
                             const struct wire_external *external, const struct place *at,
                             struct mapped_range *out)
{
    int fd = -1;
    uint64_t length = 0;
    TRY(tsr__external_open(session, folder, external, at, &fd, &length));
    const char *why = tsr__fd_map(session, fd, external->offset, length, out);
    tsr__fd_close(fd);
    if (!why)
        return TSR_OK;
    return tsr__fail(session, TSR_IO, DIAG_io_read, at, NULL,
                     "external data: \"" STR_FMT "\" cannot be mapped: %s",
                     STR_ARG(external->location), why);
}
