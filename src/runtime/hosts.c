// SPDX-License-Identifier: Apache-2.0
// hosts.c - lists of hosts with their numbers of devices, and files with the secret that the hosts
// share.
#include "runtime/remote.h"

#include <errno.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>

#define MOST_HOSTS  1024
#define MOST_NAME   255
#define MOST_SECRET 4096 // characters

// ---- lists --------------------------------------------------------------------------------------

// Reads an entry like "a", "a:4" or "[::1]:4". Refuses "-a", which a remote shell would read as an
// option.
static bool read_entry(struct str text, struct host_entry *out)
{
    struct str name = text, count = {"1", 1};
    const char *end = text.p + text.n;
    const char *close = memchr(text.p, ']', text.n), *colon = memchr(text.p, ':', text.n);
    int64_t ranks;
    if (text.n && *text.p == '[') {
        if (!close)
            return false;
        name = (struct str){text.p + 1, (size_t)(close - text.p) - 1};
        colon = close + 1 < end ? close + 1 : NULL;
    } else if (colon) {
        name.n = (size_t)(colon - text.p);
    }
    if (colon)
        count = (struct str){colon + 1, (size_t)(end - colon) - 1};
    if ((colon && *colon != ':') || name.n == 0 || name.n > MOST_NAME || *name.p == '-' ||
        !tsr__str_int(count, &ranks) || ranks < 1 || ranks > COMM_MAX_RANKS)
        return false;
    *out = (struct host_entry){name, (int)ranks};
    return true;
}

bool tsr__hosts_next(const char **list, struct host_entry *out)
{
    struct str text = {*list, strcspn(*list, ",")};
    *list = text.p[text.n] ? text.p + text.n + 1 : NULL;
    return read_entry(text, out);
}

int tsr_hosts_read(const char *list, char *topology, size_t n)
{
    struct host_entry entry;
    int hosts = 0, each = 0, all = 0;
    bool equal = true;
    while (list) {
        if (!tsr__hosts_next(&list, &entry) || hosts == MOST_HOSTS ||
            all > COMM_MAX_RANKS - entry.ranks)
            return 0;
        equal = equal && (hosts == 0 || each == entry.ranks);
        each = entry.ranks;
        all += each;
        hosts++;
    }
    if (topology && equal && hosts > 1)
        snprintf(topology, n, "hosts:%dx%d", hosts, each);
    else if (topology)
        snprintf(topology, n, "%d", all);
    return all;
}

// ---- secrets ------------------------------------------------------------------------------------

static tsr_status refuse_secret(tsr_session *session, const char *file, const char *text)
{
    return tsr__run_refuse(session, DIAG_run_options, file,
                           "give a file whose first line is the secret", text);
}

// Refuses a file that other users could have written: a session would then use their secret. Warns
// if they can read it. Containers mount such files, in which there are no other users.
static tsr_status check_access(tsr_session *session, const char *file, FILE *f)
{
    struct stat facts;
    if (fstat(fileno(f), &facts) != 0 || !S_ISREG(facts.st_mode)) // a pipe
        return TSR_OK;
    if (!tsr__is_private(&facts, S_IWOTH))
        return tsr__run_refuse(session, DIAG_run_options, file,
                               "use a file of this user and protect it with chmod 600",
                               "other users can write the file with the secret");
    if (!tsr__is_private(&facts, S_IROTH))
        tsr__diag(session, DIAG_secret_readable, &PLACE(.file = str_of(file)),
                  "protect the file with chmod 600",
                  "other users can read the file with the secret");
    return TSR_OK;
}

tsr_status tsr_secret_read(tsr_session *session, const char *file, char *out, size_t n)
{
    char line[MOST_SECRET + 2], text[128];
    FILE *f = fopen(file, "re");
    if (!f) {
        snprintf(text, sizeof text, "the file with the secret: %s", strerror(errno));
        return refuse_secret(session, file, text);
    }
    tsr_status st = check_access(session, file, f);
    bool read = fgets(line, sizeof line, f) != NULL;
    fclose(f);
    TRY(st);
    if (!read)
        line[0] = 0;
    line[strcspn(line, "\r\n")] = 0;
    size_t length = strlen(line);
    if (length == 0)
        return refuse_secret(session, file, "the first line of the file with the secret is empty");
    if (length > MOST_SECRET || length >= n)
        return refuse_secret(session, file, "the secret is too long: at most 4096 characters");
    memcpy(out, line, length + 1);
    return TSR_OK;
}

bool tsr_random_digits(char out[65])
{
    uint8_t bytes[32];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return false;
    tsr__hex(bytes, out);
    return true;
}
