/* Which functions there are, for the version of CUDA that is played. */
#include "calls.h"

/* The newest variant of a base name that `version` has, or NULL. `known`: there is one for some version. */
static const struct call_entry *newest(const char *base, int version, bool *known) {
    const struct call_entry *found = NULL;
    *known = false;
    for (int i = 0; i < CALLS; i++) {
        const struct call_entry *entry = &call_table[i];
        if (strcmp(entry->base, base) != 0 || entry->since > settings.version) {
            continue;
        }
        *known = true;
        if (entry->since <= version && (found == NULL || entry->since > found->since)) {
            found = entry;
        }
    }
    return found;
}

static CUresult find(const char *symbol, void **function, int version, cuuint64_t flags,
                     CUdriverProcAddressQueryResult *status) {
    if (symbol == NULL || function == NULL || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ||
        version > settings.version) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    /* From CUDA 12 on the name means the call with flags, whose parameters are others. */
    if (strcmp(symbol, "cuGraphInstantiate") == 0 && version >= 12000) {
        symbol = "cuGraphInstantiateWithFlags";
    }
    bool known;
    const struct call_entry *entry = newest(symbol, version, &known);
    *function = entry != NULL ? entry->function : NULL;
    *status = entry != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
              : known       ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                            : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}

/* The first of its kind has no status to tell with: what it does not find is an error. */
CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags) {
    ENTER(cuGetProcAddress);
    CUdriverProcAddressQueryResult status;
    TRY(find(symbol, function, version, flags, &status));
    LEAVE(*function != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    ENTER(cuGetProcAddress_v2);
    CUdriverProcAddressQueryResult unused;
    LEAVE(find(symbol, function, version, flags, status != NULL ? status : &unused));
}

CUresult cuDriverGetVersion(int *version) {
    ENTER(cuDriverGetVersion);
    REQUIRE(version != NULL, CUDA_ERROR_INVALID_VALUE);
    *version = settings.version;
    LEAVE(CUDA_SUCCESS);
}
