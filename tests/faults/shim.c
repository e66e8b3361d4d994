/*
 * Stands between a process and its files: loaded with LD_PRELOAD, it counts the calls that reach files below the
 * watched folders and makes the n-th of them fail, or kills the process there. Everything else passes through.
 *
 * Python reaches it through ctypes, see shim.py. Calls are counted under a few names: what libc calls open, open64 and
 * openat differs between versions of Python and SQLite, what it means does not.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_CALLS 65536
#define NAME_BYTES 16
#define PATH_BYTES 512

enum { OFF = 0, FAIL = 1, KILL_BEFORE = 2, KILL_AFTER = 3, FAIL_ON = 4, SHORT = 5 };

struct record {
    char name[NAME_BYTES];
    char path[PATH_BYTES];
};

static struct record calls[MAX_CALLS];
static char roots[8][PATH_MAX];
static int root_count;
static int watching, mode, error_number;
static long counter, target;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

#define REAL(result, function, ...)                                   \
    static result (*real)(__VA_ARGS__);                               \
    if (!real) real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #function)

/* --- what ctypes calls ------------------------------------------------------------------------------------------- */

void shim_watch(const char *folder) {
    if (root_count < 8) snprintf(roots[root_count++], PATH_MAX, "%s", folder);
}

void shim_unwatch(void) { root_count = 0; }

/* Counts from zero; the call number `n` (from 1) meets `what`, with `error` where it fails. n = 0 only counts. */
void shim_start(long n, int what, int error) {
    pthread_mutex_lock(&mutex);
    counter = 0;
    target = n;
    mode = what;
    error_number = error;
    watching = 1;
    pthread_mutex_unlock(&mutex);
}

long shim_stop(void) {
    watching = 0;
    return counter;
}

/* Lets everything through for a while, uncounted. */
void shim_pause(int paused) { watching = !paused; }

long shim_count(void) { return counter; }
const char *shim_name(long n) { return n >= 1 && n <= counter && n <= MAX_CALLS ? calls[n - 1].name : ""; }
const char *shim_path(long n) { return n >= 1 && n <= counter && n <= MAX_CALLS ? calls[n - 1].path : ""; }

/* --- deciding ---------------------------------------------------------------------------------------------------- */

static int below(const char *path) {
    for (int i = 0; i < root_count; i++) {
        size_t length = strlen(roots[i]);
        if (!strncmp(path, roots[i], length) && (path[length] == '/' || !path[length])) return 1;
    }
    return 0;
}

static const char *of_descriptor(int descriptor, char *buffer) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, buffer, PATH_MAX - 1);
    if (length < 0) return NULL;
    buffer[length] = 0;
    return buffer;
}

static const char *of_name(int folder, const char *path, char *buffer) {
    if (!path) return NULL;
    if (path[0] == '/') return path;
    char base[PATH_MAX];
    if (folder == AT_FDCWD) {
        if (!getcwd(base, sizeof base)) return NULL;
    } else if (!of_descriptor(folder, base)) {
        return NULL;
    }
    if (snprintf(buffer, PATH_MAX, path[0] ? "%s/%s" : "%s", base, path) >= PATH_MAX) return NULL;
    return buffer;
}

/* What happens to this call: OFF lets it through. */
static int decide(const char *name, const char *path) {
    if (!path || !below(path)) return OFF;
    pthread_mutex_lock(&mutex);
    long n = ++counter;
    int decision = OFF;
    if (n <= MAX_CALLS) {
        snprintf(calls[n - 1].name, NAME_BYTES, "%s", name);
        snprintf(calls[n - 1].path, PATH_BYTES, "%s", path);
    }
    if (target && (n == target || (mode == FAIL_ON && n > target))) decision = mode;
    pthread_mutex_unlock(&mutex);
    if (decision == KILL_BEFORE) kill(getpid(), SIGKILL);
    return decision;
}

#define AROUND(name, path, failed, call)                              \
    do {                                                              \
        char buffer[PATH_MAX];                                        \
        int saved = errno;                                            \
        int decision = watching ? decide(name, path) : OFF;           \
        errno = saved;                                                \
        (void)buffer;                                                 \
        if (decision == FAIL || decision == FAIL_ON) {                \
            errno = error_number;                                     \
            return failed;                                            \
        }                                                             \
        if (decision == KILL_AFTER) {                                 \
            (void)!(call);                                            \
            kill(getpid(), SIGKILL);                                  \
        }                                                             \
        return call;                                                  \
    } while (0)

/* --- opening ------------------------------------------------------------------------------------------------------ */

#define TAKE_MODE(flags)                                              \
    mode_t permissions = 0;                                           \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {                          \
        va_list arguments;                                            \
        va_start(arguments, flags);                                   \
        permissions = va_arg(arguments, mode_t);                      \
        va_end(arguments);                                            \
    }

int open(const char *path, int flags, ...) {
    REAL(int, open, const char *, int, ...);
    TAKE_MODE(flags)
    AROUND("open", of_name(AT_FDCWD, path, buffer), -1, real(path, flags, permissions));
}

int open64(const char *path, int flags, ...) {
    REAL(int, open64, const char *, int, ...);
    TAKE_MODE(flags)
    AROUND("open", of_name(AT_FDCWD, path, buffer), -1, real(path, flags, permissions));
}

int openat(int folder, const char *path, int flags, ...) {
    REAL(int, openat, int, const char *, int, ...);
    TAKE_MODE(flags)
    AROUND("open", of_name(folder, path, buffer), -1, real(folder, path, flags, permissions));
}

int openat64(int folder, const char *path, int flags, ...) {
    REAL(int, openat64, int, const char *, int, ...);
    TAKE_MODE(flags)
    AROUND("open", of_name(folder, path, buffer), -1, real(folder, path, flags, permissions));
}

int creat(const char *path, mode_t permissions) {
    REAL(int, creat, const char *, mode_t);
    AROUND("open", of_name(AT_FDCWD, path, buffer), -1, real(path, permissions));
}

FILE *fopen(const char *path, const char *how) {
    REAL(FILE *, fopen, const char *, const char *);
    AROUND("open", of_name(AT_FDCWD, path, buffer), NULL, real(path, how));
}

FILE *fopen64(const char *path, const char *how) {
    REAL(FILE *, fopen64, const char *, const char *);
    AROUND("open", of_name(AT_FDCWD, path, buffer), NULL, real(path, how));
}

DIR *opendir(const char *path) {
    REAL(DIR *, opendir, const char *);
    AROUND("list", of_name(AT_FDCWD, path, buffer), NULL, real(path));
}

DIR *fdopendir(int folder) {
    REAL(DIR *, fdopendir, int);
    AROUND("list", of_descriptor(folder, buffer), NULL, real(folder));
}

struct dirent *readdir(DIR *folder) {
    REAL(struct dirent *, readdir, DIR *);
    AROUND("list", of_descriptor(dirfd(folder), buffer), NULL, real(folder));
}

struct dirent64 *readdir64(DIR *folder) {
    REAL(struct dirent64 *, readdir64, DIR *);
    AROUND("list", of_descriptor(dirfd(folder), buffer), NULL, real(folder));
}

/* --- reading and writing ------------------------------------------------------------------------------------------ */

ssize_t read(int descriptor, void *data, size_t size) {
    REAL(ssize_t, read, int, void *, size_t);
    AROUND("read", of_descriptor(descriptor, buffer), -1, real(descriptor, data, size));
}

ssize_t pread64(int descriptor, void *data, size_t size, off64_t offset) {
    REAL(ssize_t, pread64, int, void *, size_t, off64_t);
    AROUND("read", of_descriptor(descriptor, buffer), -1, real(descriptor, data, size, offset));
}

ssize_t pread(int descriptor, void *data, size_t size, off_t offset) {
    REAL(ssize_t, pread, int, void *, size_t, off_t);
    AROUND("read", of_descriptor(descriptor, buffer), -1, real(descriptor, data, size, offset));
}

ssize_t write(int descriptor, const void *data, size_t size) {
    REAL(ssize_t, write, int, const void *, size_t);
    if (watching && mode == SHORT && size > 1) {
        char path[PATH_MAX];
        const char *found = of_descriptor(descriptor, path);
        if (found && below(found)) size = (size + 1) / 2;
    }
    AROUND("write", of_descriptor(descriptor, buffer), -1, real(descriptor, data, size));
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t offset) {
    REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t);
    AROUND("write", of_descriptor(descriptor, buffer), -1, real(descriptor, data, size, offset));
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t offset) {
    REAL(ssize_t, pwrite, int, const void *, size_t, off_t);
    AROUND("write", of_descriptor(descriptor, buffer), -1, real(descriptor, data, size, offset));
}

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    REAL(ssize_t, writev, int, const struct iovec *, int);
    AROUND("write", of_descriptor(descriptor, buffer), -1, real(descriptor, parts, count));
}

int fsync(int descriptor) {
    REAL(int, fsync, int);
    AROUND("flush", of_descriptor(descriptor, buffer), -1, real(descriptor));
}

int fdatasync(int descriptor) {
    REAL(int, fdatasync, int);
    AROUND("flush", of_descriptor(descriptor, buffer), -1, real(descriptor));
}

int ftruncate64(int descriptor, off64_t size) {
    REAL(int, ftruncate64, int, off64_t);
    AROUND("truncate", of_descriptor(descriptor, buffer), -1, real(descriptor, size));
}

int ftruncate(int descriptor, off_t size) {
    REAL(int, ftruncate, int, off_t);
    AROUND("truncate", of_descriptor(descriptor, buffer), -1, real(descriptor, size));
}

/* --- names -------------------------------------------------------------------------------------------------------- */

int rename(const char *from, const char *to) {
    REAL(int, rename, const char *, const char *);
    AROUND("rename", of_name(AT_FDCWD, to, buffer), -1, real(from, to));
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    REAL(int, renameat, int, const char *, int, const char *);
    AROUND("rename", of_name(to_folder, to, buffer), -1, real(from_folder, from, to_folder, to));
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    REAL(int, renameat2, int, const char *, int, const char *, unsigned);
    AROUND("rename", of_name(to_folder, to, buffer), -1, real(from_folder, from, to_folder, to, flags));
}

int link(const char *from, const char *to) {
    REAL(int, link, const char *, const char *);
    AROUND("link", of_name(AT_FDCWD, to, buffer), -1, real(from, to));
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    REAL(int, linkat, int, const char *, int, const char *, int);
    AROUND("link", of_name(to_folder, to, buffer), -1, real(from_folder, from, to_folder, to, flags));
}

int mkdir(const char *path, mode_t permissions) {
    REAL(int, mkdir, const char *, mode_t);
    AROUND("mkdir", of_name(AT_FDCWD, path, buffer), -1, real(path, permissions));
}

int mkdirat(int folder, const char *path, mode_t permissions) {
    REAL(int, mkdirat, int, const char *, mode_t);
    AROUND("mkdir", of_name(folder, path, buffer), -1, real(folder, path, permissions));
}

int unlink(const char *path) {
    REAL(int, unlink, const char *);
    AROUND("remove", of_name(AT_FDCWD, path, buffer), -1, real(path));
}

int unlinkat(int folder, const char *path, int flags) {
    REAL(int, unlinkat, int, const char *, int);
    AROUND("remove", of_name(folder, path, buffer), -1, real(folder, path, flags));
}

int rmdir(const char *path) {
    REAL(int, rmdir, const char *);
    AROUND("remove", of_name(AT_FDCWD, path, buffer), -1, real(path));
}

/* --- facts about files -------------------------------------------------------------------------------------------- */

#define STAT(function, type)                                                                              \
    int function(const char *path, struct type *found) {                                                  \
        REAL(int, function, const char *, struct type *);                                                 \
        AROUND("stat", of_name(AT_FDCWD, path, buffer), -1, real(path, found));                           \
    }
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)

int fstat(int descriptor, struct stat *found) {
    REAL(int, fstat, int, struct stat *);
    AROUND("stat", of_descriptor(descriptor, buffer), -1, real(descriptor, found));
}

int fstat64(int descriptor, struct stat64 *found) {
    REAL(int, fstat64, int, struct stat64 *);
    AROUND("stat", of_descriptor(descriptor, buffer), -1, real(descriptor, found));
}

int fstatat(int folder, const char *path, struct stat *found, int flags) {
    REAL(int, fstatat, int, const char *, struct stat *, int);
    AROUND("stat", of_name(folder, path, buffer), -1, real(folder, path, found, flags));
}

int fstatat64(int folder, const char *path, struct stat64 *found, int flags) {
    REAL(int, fstatat64, int, const char *, struct stat64 *, int);
    AROUND("stat", of_name(folder, path, buffer), -1, real(folder, path, found, flags));
}

/* What libc before 2.33 exports in their place. */
#define OLD_STAT(function, type)                                                                          \
    int function(int version, const char *path, struct type *found) {                                     \
        REAL(int, function, int, const char *, struct type *);                                            \
        AROUND("stat", of_name(AT_FDCWD, path, buffer), -1, real(version, path, found));                  \
    }
OLD_STAT(__xstat, stat)
OLD_STAT(__xstat64, stat64)
OLD_STAT(__lxstat, stat)
OLD_STAT(__lxstat64, stat64)

int __fxstat64(int version, int descriptor, struct stat64 *found) {
    REAL(int, __fxstat64, int, int, struct stat64 *);
    AROUND("stat", of_descriptor(descriptor, buffer), -1, real(version, descriptor, found));
}

int __fxstat(int version, int descriptor, struct stat *found) {
    REAL(int, __fxstat, int, int, struct stat *);
    AROUND("stat", of_descriptor(descriptor, buffer), -1, real(version, descriptor, found));
}

int statvfs64(const char *path, struct statvfs64 *found) {
    REAL(int, statvfs64, const char *, struct statvfs64 *);
    AROUND("statvfs", of_name(AT_FDCWD, path, buffer), -1, real(path, found));
}

int statvfs(const char *path, struct statvfs *found) {
    REAL(int, statvfs, const char *, struct statvfs *);
    AROUND("statvfs", of_name(AT_FDCWD, path, buffer), -1, real(path, found));
}

int access(const char *path, int how) {
    REAL(int, access, const char *, int);
    AROUND("stat", of_name(AT_FDCWD, path, buffer), -1, real(path, how));
}

int chmod(const char *path, mode_t permissions) {
    REAL(int, chmod, const char *, mode_t);
    AROUND("chmod", of_name(AT_FDCWD, path, buffer), -1, real(path, permissions));
}

int fchmod(int descriptor, mode_t permissions) {
    REAL(int, fchmod, int, mode_t);
    AROUND("chmod", of_descriptor(descriptor, buffer), -1, real(descriptor, permissions));
}

int fchmodat(int folder, const char *path, mode_t permissions, int flags) {
    REAL(int, fchmodat, int, const char *, mode_t, int);
    AROUND("chmod", of_name(folder, path, buffer), -1, real(folder, path, permissions, flags));
}

/* --- locks -------------------------------------------------------------------------------------------------------- */

int flock(int descriptor, int operation) {
    REAL(int, flock, int, int);
    AROUND(operation & LOCK_UN ? "unlock" : "lock", of_descriptor(descriptor, buffer), -1, real(descriptor, operation));
}

#define FCNTL(function)                                                                                   \
    int function(int descriptor, int command, ...) {                                                      \
        REAL(int, function, int, int, ...);                                                               \
        va_list arguments;                                                                                \
        va_start(arguments, command);                                                                     \
        void *argument = va_arg(arguments, void *);                                                       \
        va_end(arguments);                                                                                \
        int locks = command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK ||                \
                    command == F_OFD_SETLKW;                                                              \
        if (!locks) return real(descriptor, command, argument);                                           \
        int gives_up = ((struct flock *)argument)->l_type == F_UNLCK;                                     \
        AROUND(gives_up ? "unlock" : "lock", of_descriptor(descriptor, buffer), -1,                       \
               real(descriptor, command, argument));                                                      \
    }
FCNTL(fcntl)
FCNTL(fcntl64)

/* --- a process that is to die ------------------------------------------------------------------------------------- */

__attribute__((constructor)) static void begin(void) {
    const char *folders = getenv("FAULT_FOLDERS"), *n = getenv("FAULT_KILL");
    if (!folders || !n) return;
    char copy[8 * PATH_MAX], *rest = NULL;
    snprintf(copy, sizeof copy, "%s", folders);
    for (char *one = strtok_r(copy, ":", &rest); one; one = strtok_r(NULL, ":", &rest)) shim_watch(one);
    long number = atol(n);
    shim_start(labs(number), number < 0 ? KILL_BEFORE : KILL_AFTER, 0);
}
