#include "faults.h"

enum { ANY = -1 };

struct fault {
    struct fault *next;
    const char *base; /* every variant of this base name; NULL: `call` alone */
    int call;         /* or ANY */
    bool always;
    uint64_t left; /* comes when this many more of its calls have been made */
    CUresult result;
    uint64_t microseconds;
};

static pthread_mutex_t faults_lock = PTHREAD_MUTEX_INITIALIZER;
static struct fault *faults;
static uint64_t counts[CALLS];
static uint64_t count_of_all;

static void must_be_known(const char *name, int found) {
    if (!found) {
        fprintf(stderr, "standin: there is no call %s\n", name);
        abort();
    }
}

/* The exported name means that function; a base name that is not exported, or that has variants, means all. */
static void resolve(const char *name, int *call, const char **base) {
    int exported = ANY, variants = 0;
    *call = ANY;
    *base = NULL;
    for (int i = 0; i < CALLS; i++) {
        if (strcmp(call_table[i].name, name) == 0) {
            exported = i;
        }
        if (strcmp(call_table[i].base, name) == 0) {
            *base = call_table[i].base;
            variants++;
        }
    }
    must_be_known(name, exported != ANY || variants > 0);
    if (variants == 0) {
        *call = exported;
    }
}

static bool is_meant(const struct fault *fault, enum call call) {
    if (fault->base != NULL) {
        return strcmp(fault->base, call_table[call].base) == 0;
    }
    return fault->call == (int)call || (fault->call == ANY && !(call_table[call].traits & TELLS));
}

CUresult faults_of(enum call call, uint64_t *microseconds) {
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&faults_lock);
    counts[call]++;
    count_of_all += !(call_table[call].traits & TELLS);
    for (struct fault **at = &faults; *at != NULL;) {
        struct fault *fault = *at;
        if (!is_meant(fault, call) || (!fault->always && --fault->left > 0)) {
            at = &fault->next;
            continue;
        }
        if (fault->microseconds > 0) {
            *microseconds += fault->microseconds;
        }
        if (fault->result != CUDA_SUCCESS && result == CUDA_SUCCESS) {
            result = fault->result;
        }
        if (fault->always) {
            at = &fault->next;
        } else {
            *at = fault->next;
            free(fault);
        }
    }
    pthread_mutex_unlock(&faults_lock);
    return result;
}

static void add(const char *name, uint64_t nth, CUresult result, uint64_t microseconds) {
    struct fault *fault = must_alloc(sizeof *fault);
    fault->call = ANY;
    if (name != NULL) {
        resolve(name, &fault->call, &fault->base);
    }
    fault->always = nth == 0;
    fault->left = nth;
    fault->result = result;
    fault->microseconds = microseconds;
    pthread_mutex_lock(&faults_lock);
    fault->next = faults;
    faults = fault;
    pthread_mutex_unlock(&faults_lock);
}

void standin_fail(const char *call, uint64_t nth, int result) {
    driver_prepare();
    add(call, nth, (CUresult)result, 0);
}

void standin_fail_any(uint64_t nth, int result) {
    driver_prepare();
    add(NULL, nth, (CUresult)result, 0);
}

void standin_delay(const char *call, uint64_t nth, uint64_t microseconds) {
    driver_prepare();
    add(call, nth, CUDA_SUCCESS, microseconds);
}

uint64_t standin_calls(const char *name) {
    driver_prepare();
    int call = ANY;
    const char *base = NULL;
    if (name != NULL) {
        resolve(name, &call, &base);
    }
    pthread_mutex_lock(&faults_lock);
    uint64_t sum = name == NULL ? count_of_all : call != ANY ? counts[call] : 0;
    for (int i = 0; base != NULL && i < CALLS; i++) {
        sum += strcmp(call_table[i].base, base) == 0 ? counts[i] : 0;
    }
    pthread_mutex_unlock(&faults_lock);
    return sum;
}

uint64_t standin_faults_left(void) {
    driver_prepare();
    uint64_t left = 0;
    pthread_mutex_lock(&faults_lock);
    for (struct fault *fault = faults; fault != NULL; fault = fault->next) {
        left += !fault->always;
    }
    pthread_mutex_unlock(&faults_lock);
    return left;
}

void standin_reset_faults(void) {
    driver_prepare();
    pthread_mutex_lock(&faults_lock);
    while (faults != NULL) {
        struct fault *next = faults->next;
        free(faults);
        faults = next;
    }
    memset(counts, 0, sizeof counts);
    count_of_all = 0;
    pthread_mutex_unlock(&faults_lock);
}

static void list_from(const char *variable, bool delays) {
    const char *text = getenv(variable);
    while (text != NULL && *text != '\0') {
        char name[64];
        unsigned long long nth, what;
        int length;
        if (sscanf(text, "%63[^:]:%llu:%llu%n", name, &nth, &what, &length) != 3) {
            fprintf(stderr, "standin: %s: %s is not understood\n", variable, text);
            abort();
        }
        add(strcmp(name, "any") == 0 ? NULL : name, nth, delays ? CUDA_SUCCESS : (CUresult)what, delays ? what : 0);
        text += length;
        text += *text == ',';
    }
}

void faults_from_environment(void) {
    list_from("WEIR_STANDIN_FAIL", false);
    list_from("WEIR_STANDIN_DELAY", true);
}

void faults_end(void) {
    while (faults != NULL) {
        struct fault *next = faults->next;
        free(faults);
        faults = next;
    }
}

void faults_fork_before(void) { pthread_mutex_lock(&faults_lock); }
void faults_fork_after(void) { pthread_mutex_unlock(&faults_lock); }
