/*
 * An NVML driver for tests: the entry points that zeus-core calls, on devices that live in one mapped file.
 *
 * Every process that maps the file (its path is in ZEUS_TEST_NVML_STATE, or given to zeus_test_nvml_use) sees the same
 * devices. A robust, process-shared mutex guards them, so a process killed inside a call blocks nobody.
 *
 * The load of a device is a script of piecewise-constant power. Whenever the script or the limit changes, a new regime
 * begins and keeps the energy up to then, so the true energy at any moment is a sum over one script: no thread runs.
 * Times are nanoseconds of CLOCK_MONOTONIC, or of a clock that a test sets, powers milliwatts, so energies are whole picojoules and Python
 * (physics.py) computes the very same numbers. An int64_t of picojoules lasts for 3.6 hours at 700 W.
 *
 * state.py mirrors the structures; zeus_test_nvml_sizes lets it check that.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_DEVICES = 16,
    MAX_MIGS = 8,
    MAX_CLOCKS = 256,
    MAX_MEMORY_CLOCKS = 8,
    MAX_SEGMENTS = 64,
    MAX_REGIMES = 4096,
    MAX_PROFILES = 32,
    MAX_PROCESSES = 16,
    MAX_FAULTS = 64,
    MAX_FUNCTIONS = 64,
    MAX_CALLS = 16384,
    TEXT_SIZE = 96,
    LONGEST_WAIT_SECONDS = 60,
};

enum { NONE = -1, ANY = -1, FOREVER = -1 };

/* nvmlReturn_t, as far as the driver returns them by itself. */
enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    LIBRARY_NOT_FOUND = 12,
    FUNCTION_NOT_FOUND = 13,
    GPU_IS_LOST = 15,
    LIB_RM_VERSION_MISMATCH = 18,
    ARGUMENT_VERSION_MISMATCH = 25,
};

#define NANOSECONDS_PER_SECOND 1000000000LL
#define PICOJOULES_PER_MILLIJOULE 1000000000LL
#define WANDER_NANOSECONDS (20 * NANOSECONDS_PER_SECOND)

/* ---- The state: mirrored in state.py ------------------------------------------------------------------------- */

typedef struct {
    int64_t duration_nanoseconds;
    int64_t power_milliwatts;
} Segment;

typedef struct {
    int64_t begin_nanoseconds; /* in force from here to the next regime */
    int64_t begin_picojoules;  /* true energy of the device by then */
    int64_t start_nanoseconds; /* where the script starts; the device idles before */
    int64_t cap_milliwatts;    /* no more than this is drawn */
    int32_t repeats;
    int32_t segment_count;
    Segment segments[MAX_SEGMENTS];
} Regime;

typedef struct {
    uint32_t process_id;
    uint32_t gpu_instance; /* of MIG device i: i + 1; UINT32_MAX without MIG mode */
    uint32_t compute_instance;
} Process;

typedef struct {
    char name[TEXT_SIZE];
    char uuid[TEXT_SIZE];
    char mig_uuids[MAX_MIGS][TEXT_SIZE];
    uint32_t mig_count;
    uint32_t has_mig;
    uint32_t architecture;
    uint32_t pci_bus;
    uint32_t persistence_mode;
    uint32_t is_control_denied;
    uint32_t needs_root; /* to change anything */
    uint32_t has_power_limit;
    uint32_t limit_scopes; /* enum LimitScopes */
    uint32_t module_limit_milliwatts;
    uint32_t follows_limit;
    uint32_t has_energy_counter;
    uint32_t has_instant_power;
    uint32_t missing_field_code;
    uint32_t lowest_limit_milliwatts;
    uint32_t highest_limit_milliwatts;
    uint32_t default_limit_milliwatts;
    uint32_t limit_milliwatts;
    uint32_t enforced_cap_milliwatts;
    uint32_t idle_milliwatts;
    uint32_t locked_lowest_mhz;
    uint32_t locked_highest_mhz; /* 0: not locked */
    uint32_t clock_count;
    uint32_t memory_clock_count;
    uint32_t clocks_mhz[MAX_CLOCKS]; /* highest first */
    uint32_t memory_clocks_mhz[MAX_MEMORY_CLOCKS];
    uint64_t hung_functions; /* one bit each: their calls do not return */
    int64_t lost_nanoseconds;
    int64_t power_average_nanoseconds;
    int64_t counter_period_nanoseconds;
    int64_t counter_phase_nanoseconds;
    int64_t counter_jitter_nanoseconds; /* an update is up to so much early or late, each on its own */
    int64_t counter_wander_nanoseconds; /* and all together so much, back and forth in WANDER_NANOSECONDS */
    int64_t counter_age_nanoseconds;    /* an update shows the energy of so much earlier */
    int64_t counter_stuck_nanoseconds;
    int64_t counter_offset_picojoules;
    int64_t start_nanoseconds;
    int64_t rest_of_module_milliwatts; /* since the start, counted with the GPU; no reading of the GPU's power shows it */
    uint32_t power_gain_permille; /* of the sensor: what it shows of what is drawn */
    uint32_t spike_milliwatts; /* what readings of the power show that are spikes */
    uint32_t spike_every; /* every so many readings one is */
    int32_t spikes_left; /* FOREVER: without an end */
    uint32_t power_readings; /* since spikes were asked for */
    uint32_t limit_step_milliwatts; /* a limit is rounded to a multiple of it, unless it is 0 */
    uint32_t limit_floor_milliwatts; /* a lower limit is raised to it without an error */
    uint32_t limit_offset_milliwatts; /* so much less than requested is taken */
    uint32_t clock_step_mhz;
    uint32_t clock_floor_mhz;
    uint32_t rounds_up; /* limits and clocks; else down */
    uint32_t ignores_settings; /* limits and clocks: success, and nothing changes */
    uint64_t supported_profiles; /* workload power profiles, bit i for the id i; 0: the board has none */
    uint64_t requested_profiles;
    uint64_t blocked_profiles; /* never enforced, as the board decides */
    uint64_t refused_profiles; /* an invalid argument, to the functions that set them */
    uint64_t profile_conflicts[MAX_PROFILES]; /* by id: dropped while one of these, of a lower id, is enforced */
    uint32_t temperature_celsius; /* 0: not known */
    uint32_t utilization_percent;
    uint32_t lacks_profile_update; /* as drivers before 590 */
    uint32_t processes_need_root; /* to be read of all MIG devices together */
    uint32_t process_count;
    Process processes[MAX_PROCESSES]; /* those that compute */
    int64_t regime_count; /* ever; the latest MAX_REGIMES are kept */
    Regime regimes[MAX_REGIMES];
} Device;

typedef struct {
    int32_t function;
    int32_t device;
    int32_t code;
    int32_t remaining; /* 0: unused */
} Fault;

typedef struct {
    int64_t nanoseconds;
    int64_t argument;
    int32_t process_id;
    int32_t function;
    int32_t device;
    int32_t code;
} LogEntry;

typedef struct {
    uint64_t size; /* 0 until the file is complete */
    uint64_t mutex[8];
    char driver_version[TEXT_SIZE];
    uint32_t device_count;
    uint32_t epoch; /* a session opened in an earlier one is gone */
    int64_t clock_nanoseconds; /* the time; 0: that of CLOCK_MONOTONIC */
    int64_t latency_microseconds[MAX_FUNCTIONS];
    Fault faults[MAX_FAULTS];
    int64_t call_count; /* ever; the latest MAX_CALLS are kept */
    LogEntry calls[MAX_CALLS];
    Device devices[MAX_DEVICES];
} State;

_Static_assert(sizeof(pthread_mutex_t) <= sizeof(((State *)0)->mutex), "the mutex does not fit");

/* Of a board whose module holds a CPU too: functions without a scope then mean the module. */
enum LimitScopes { BOARD_ALONE, GPU_AND_MODULE, MODULE_ALONE };
enum { SCOPE_GPU, SCOPE_MODULE };

/* ---- Functions by number: names as in pynvml, without the version at the end of a symbol ----------------------- */

static const char *const FUNCTIONS[] = {
    "nvmlInit",
    "nvmlShutdown",
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetHandleByPciBusId",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetIndex",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetPowerManagementDefaultLimit",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetPowerManagementLimitConstraints",
    "nvmlDeviceSetPowerManagementLimit",
    "nvmlDeviceSetPowerManagementLimit_v2",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetSupportedMemoryClocks",
    "nvmlDeviceGetSupportedGraphicsClocks",
    "nvmlDeviceSetGpuLockedClocks",
    "nvmlDeviceResetGpuLockedClocks",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceSetPersistenceMode",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
    "nvmlDeviceIsMigDeviceHandle",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceWorkloadPowerProfileGetCurrentProfiles",
    "nvmlDeviceWorkloadPowerProfileSetRequestedProfiles",
    "nvmlDeviceWorkloadPowerProfileClearRequestedProfiles",
    "nvmlDeviceWorkloadPowerProfileUpdateProfiles",
};
#define FUNCTION_COUNT ((int)(sizeof(FUNCTIONS) / sizeof(FUNCTIONS[0])))
_Static_assert(FUNCTION_COUNT <= (int)MAX_FUNCTIONS, "latency_microseconds is too short");

static int32_t function_number(const char *symbol) {
    for (int32_t i = 0; i < FUNCTION_COUNT; i++)
        if (strcmp(FUNCTIONS[i], symbol) == 0) return i;
    const char *version = strstr(symbol, "_v");
    if (version == NULL) version = strstr(symbol, "WithFlags");
    size_t length = version == NULL ? strlen(symbol) : (size_t)(version - symbol);
    for (int32_t i = 0; i < FUNCTION_COUNT; i++)
        if (strlen(FUNCTIONS[i]) == length && strncmp(FUNCTIONS[i], symbol, length) == 0) return i;
    fprintf(stderr, "nvml_driver.c: %s is missing in FUNCTIONS\n", symbol);
    abort();
}

/* ---- Physics: the same as physics.py ------------------------------------------------------------------------- */

typedef __int128 Picojoules;

static int64_t now_nanoseconds(const State *state) {
    struct timespec now;
    if (state->clock_nanoseconds != 0) return state->clock_nanoseconds;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NANOSECONDS_PER_SECOND + now.tv_nsec;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b < 0); }

/* Energy of one pass through the script's first `elapsed` nanoseconds; the last segment is held. */
static Picojoules pass_energy(const Regime *regime, int64_t elapsed) {
    Picojoules energy = 0;
    for (int i = 0; i < regime->segment_count; i++) {
        const Segment *segment = &regime->segments[i];
        int is_last = i == regime->segment_count - 1;
        int64_t slice = is_last ? elapsed : smaller(elapsed, segment->duration_nanoseconds);
        energy += (Picojoules)slice * smaller(segment->power_milliwatts, regime->cap_milliwatts);
        elapsed -= slice;
    }
    return energy;
}

static int64_t script_period(const Regime *regime) {
    int64_t period = 0;
    for (int i = 0; i < regime->segment_count; i++) period += regime->segments[i].duration_nanoseconds;
    return period;
}

/* Energy from the start of the script, negative before it: the device idles then. */
static Picojoules script_energy(const Device *device, const Regime *regime, int64_t moment) {
    int64_t elapsed = moment - regime->start_nanoseconds;
    if (elapsed < 0) return (Picojoules)elapsed * smaller(device->idle_milliwatts, regime->cap_milliwatts);
    if (!regime->repeats) return pass_energy(regime, elapsed);
    int64_t period = script_period(regime);
    return (elapsed / period) * pass_energy(regime, period) + pass_energy(regime, elapsed % period);
}

/* The regime in force at a moment; the oldest one kept for a moment before it. */
static const Regime *regime_at(const Device *device, int64_t moment) {
    int64_t oldest = device->regime_count > MAX_REGIMES ? device->regime_count - MAX_REGIMES : 0;
    int64_t i = device->regime_count - 1;
    while (i > oldest && device->regimes[i % MAX_REGIMES].begin_nanoseconds > moment) i--;
    return &device->regimes[i % MAX_REGIMES];
}

/* True energy since the device was made. */
static int64_t energy_until(const Device *device, int64_t moment) {
    const Regime *regime = regime_at(device, moment);
    Picojoules drawn = script_energy(device, regime, moment) - script_energy(device, regime, regime->begin_nanoseconds);
    Picojoules energy = regime->begin_picojoules + drawn;
    if (energy != (int64_t)energy) {
        fprintf(stderr, "nvml_driver.c: the energy from %lld to %lld ns is more than the 9.2 MJ that are counted\n",
                (long long)regime->begin_nanoseconds, (long long)moment);
        abort();
    }
    return (int64_t)energy;
}

static int64_t power_at(const Device *device, int64_t moment) {
    return energy_until(device, moment + 1) - energy_until(device, moment);
}

static int64_t average_power(const Device *device, int64_t moment) {
    int64_t span = device->power_average_nanoseconds;
    if (span == 0) return power_at(device, moment);
    return (energy_until(device, moment) - energy_until(device, moment - span)) / span;
}

/* From -1 to 1 in 2^-31, as splitmix64 has it. */
static int64_t scatter_of(int64_t number) {
    uint64_t bits = ((uint64_t)number + 1) * 0x9E3779B97F4A7C15ULL;
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9ULL;
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EBULL;
    return (int64_t)((bits ^ bits >> 31) >> 32) - (1LL << 31);
}

/* When the counter is updated for the n-th time. The wander is a triangle. */
static int64_t update_at(const Device *device, int64_t number) {
    int64_t due = device->counter_phase_nanoseconds + number * device->counter_period_nanoseconds;
    int64_t place = due - WANDER_NANOSECONDS * floor_divide(due, WANDER_NANOSECONDS);
    int64_t from_middle = place < WANDER_NANOSECONDS / 2 ? place : WANDER_NANOSECONDS - place;
    int64_t wander = floor_divide(device->counter_wander_nanoseconds * (from_middle / 1000), WANDER_NANOSECONDS / 4000);
    int64_t jitter = floor_divide(device->counter_jitter_nanoseconds * scatter_of(number), 1LL << 31);
    return due + wander - device->counter_wander_nanoseconds + jitter;
}

/* The moment of the energy that the counter shows. */
static int64_t counted_until(const Device *device, int64_t moment) {
    int64_t period = device->counter_period_nanoseconds;
    moment = smaller(moment, device->counter_stuck_nanoseconds);
    if (period == 0) return moment;
    int64_t off = device->counter_jitter_nanoseconds + device->counter_wander_nanoseconds;
    int64_t number = floor_divide(moment + off - device->counter_phase_nanoseconds, period);
    while (update_at(device, number) > moment) number--;
    return update_at(device, number) - device->counter_age_nanoseconds;
}

static int64_t counter_millijoules(const Device *device, int64_t moment) {
    moment = counted_until(device, moment);
    int64_t energy = energy_until(device, moment) + device->counter_offset_picojoules;
    energy += device->rest_of_module_milliwatts * (moment - device->start_nanoseconds);
    return energy < 0 ? 0 : energy / PICOJOULES_PER_MILLIJOULE;
}

static uint32_t enforced_limit(const Device *device) {
    uint32_t cap = device->enforced_cap_milliwatts;
    return cap != 0 && cap < device->limit_milliwatts ? cap : device->limit_milliwatts;
}

/* A new regime from now on, under the present limit. It is complete before it counts. */
static void begin_regime(Device *device, const Regime *script, int64_t now) {
    Regime regime = *script;
    regime.begin_nanoseconds = now;
    regime.begin_picojoules = device->regime_count == 0 ? 0 : energy_until(device, now);
    regime.cap_milliwatts = device->follows_limit ? enforced_limit(device) : INT64_MAX;
    if (device->regime_count == 0) device->start_nanoseconds = now;
    device->regimes[device->regime_count % MAX_REGIMES] = regime;
    __atomic_add_fetch(&device->regime_count, 1, __ATOMIC_RELEASE);
}

static void set_limit(Device *device, uint32_t limit_milliwatts, uint32_t cap_milliwatts, int64_t now) {
    device->limit_milliwatts = limit_milliwatts;
    device->enforced_cap_milliwatts = cap_milliwatts;
    begin_regime(device, regime_at(device, now), now);
}

/* ---- The mapped file and its lock ------------------------------------------------------------------------------ */

static struct {
    State *state;
    uint32_t generation; /* of the file in use: handles of another file are invalid */
    char path[4096];
} mapped;

static pthread_mutex_t mapping_mutex = PTHREAD_MUTEX_INITIALIZER;

static struct {
    int count;
    pid_t process_id;
    uint32_t generation;
    uint32_t epoch;
} session;

/* A lock nobody gives back (a stopped process has it, or one that took its map away) ends the test, with a message. */
void zeus_test_nvml_lock(State *state) {
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += LONGEST_WAIT_SECONDS;
    int code = pthread_mutex_timedlock((pthread_mutex_t *)state->mutex, &deadline);
    if (code == EOWNERDEAD) {
        pthread_mutex_consistent((pthread_mutex_t *)state->mutex);
    } else if (code != 0) {
        fprintf(stderr, "nvml_driver.c: the lock of %s: %s\n", mapped.path, strerror(code));
        abort();
    }
}

void zeus_test_nvml_unlock(State *state) { pthread_mutex_unlock((pthread_mutex_t *)state->mutex); }

static State *map_file(const char *path, int flags, int is_new) {
    int file = open(path, flags | O_RDWR | O_CLOEXEC, 0666);
    if (file < 0) return NULL;
    struct stat status;
    /* Also for processes of other users. */
    int is_open = is_new ? ftruncate(file, sizeof(State)) == 0 && fchmod(file, 0666) == 0 : 1;
    int is_sized = is_open && fstat(file, &status) == 0;
    void *address = MAP_FAILED;
    if (is_sized && status.st_size == sizeof(State))
        address = mmap(NULL, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return address == MAP_FAILED ? NULL : address;
}

/* Take the file at `path` from now on, or none with NULL. Earlier maps stay: another thread may be in a call. */
static int use_file(const char *path) {
    State *state = path == NULL ? NULL : map_file(path, 0, 0);
    if (state != NULL && state->size != sizeof(State)) state = NULL;
    mapped.generation++;
    snprintf(mapped.path, sizeof(mapped.path), "%s", state == NULL ? "" : path);
    __atomic_store_n(&mapped.state, state, __ATOMIC_RELEASE);
    return state != NULL || path == NULL ? SUCCESS : LIB_RM_VERSION_MISMATCH;
}

/* The state in use; at first, the file that ZEUS_TEST_NVML_STATE names. */
static State *mapped_state(void) {
    State *state = __atomic_load_n(&mapped.state, __ATOMIC_ACQUIRE);
    const char *path = getenv("ZEUS_TEST_NVML_STATE");
    if (state != NULL || path == NULL) return state;
    pthread_mutex_lock(&mapping_mutex);
    if (mapped.state == NULL) use_file(path);
    pthread_mutex_unlock(&mapping_mutex);
    return mapped.state;
}

/* ---- One call -------------------------------------------------------------------------------------------------- */

typedef void *Handle;

/* Which device a call is for, or why that is unknown. */
typedef struct {
    int code;
    int device;
    int mig;
} Target;

typedef enum {
    NEEDS_NOTHING,
    NEEDS_SESSION,
    NEEDS_DEVICE,  /* a GPU or a MIG device */
    NEEDS_GPU,     /* MIG devices do not support it */
    NEEDS_CONTROL, /* changes the GPU: needs the permission */
} Needs;

typedef struct {
    State *state;
    Device *device;
    Target target;
    int64_t now;
    LogEntry entry;
} Call;

static const Target NO_TARGET = {SUCCESS, NONE, NONE};

#define HANDLE_TAG 0x4E564D4CULL /* "NVML": a handle is tag, generation, MIG index + 1 and device index */

static Handle handle_of(int device, int mig) {
    uint64_t low = (uint64_t)(mapped.generation & 0xFFFF) << 16 | (uint64_t)(mig + 1) << 8 | (uint64_t)device;
    return (Handle)(uintptr_t)(HANDLE_TAG << 32 | low);
}

static Target target_of(Handle handle) {
    int device = (uintptr_t)handle & 0xFF;
    int mig = (int)((uintptr_t)handle >> 8 & 0xFF) - 1;
    if (handle_of(device, mig) != handle) return (Target){INVALID_ARGUMENT, NONE, NONE};
    return (Target){SUCCESS, device, mig};
}

static Target target_at(unsigned index) {
    const State *state = mapped_state();
    if (state == NULL || index >= state->device_count) return (Target){INVALID_ARGUMENT, NONE, NONE};
    return (Target){SUCCESS, (int)index, NONE};
}

static Target target_with_uuid(const char *uuid) {
    const State *state = mapped_state();
    for (int i = 0; state != NULL && i < (int)state->device_count; i++) {
        const Device *device = &state->devices[i];
        if (strcmp(device->uuid, uuid) == 0) return (Target){SUCCESS, i, NONE};
        for (int mig = 0; mig < (int)device->mig_count; mig++)
            if (strcmp(device->mig_uuids[mig], uuid) == 0) return (Target){SUCCESS, i, mig};
    }
    return (Target){NOT_FOUND, NONE, NONE};
}

static Target target_on_bus(const char *bus_id) {
    const State *state = mapped_state();
    for (int i = 0; state != NULL && i < (int)state->device_count; i++) {
        char long_id[TEXT_SIZE], *short_id = long_id + 4; /* the domain has eight digits or four */
        snprintf(long_id, sizeof(long_id), "00000000:%02X:00.0", state->devices[i].pci_bus);
        if (strcasecmp(long_id, bus_id) == 0 || strcasecmp(short_id, bus_id) == 0) return (Target){SUCCESS, i, NONE};
    }
    return (Target){NOT_FOUND, NONE, NONE};
}

static int is_session_open(const State *state) {
    return session.count > 0 && session.process_id == getpid() && session.generation == mapped.generation &&
           session.epoch == state->epoch;
}

static int take_fault(State *state, int function, int device) {
    for (Fault *fault = state->faults; fault < state->faults + MAX_FAULTS; fault++) {
        int matches_function = fault->function == ANY || fault->function == function;
        int matches_device = fault->device == ANY || fault->device == device;
        if (fault->remaining == 0 || !matches_function || !matches_device) continue;
        if (fault->remaining != FOREVER) fault->remaining--;
        return fault->code;
    }
    return SUCCESS;
}

static int first_objection(const Call *call, Needs needs) {
    const Device *device = call->device;
    if (needs != NEEDS_NOTHING && !is_session_open(call->state)) return UNINITIALIZED;
    int fault = take_fault(call->state, call->entry.function, call->target.device);
    if (fault != SUCCESS) return fault;
    if (call->target.code != SUCCESS) return call->target.code;
    if (device != NULL && call->now >= device->lost_nanoseconds) return GPU_IS_LOST;
    if (needs >= NEEDS_GPU && call->target.mig != NONE) return NOT_SUPPORTED;
    if (needs != NEEDS_CONTROL) return SUCCESS;
    return device->is_control_denied || (device->needs_root && geteuid() != 0) ? NO_PERMISSION : SUCCESS;
}

static Call begin(const char *symbol, Needs needs, Target target, int64_t argument) {
    Call call = {.state = mapped_state(), .target = target};
    call.entry = (LogEntry){.argument = argument, .process_id = getpid(), .device = target.device};
    call.entry.function = function_number(symbol);
    if (call.state == NULL) {
        call.entry.code = needs == NEEDS_NOTHING ? LIBRARY_NOT_FOUND : UNINITIALIZED;
        return call;
    }
    int64_t latency = __atomic_load_n(&call.state->latency_microseconds[call.entry.function], __ATOMIC_RELAXED);
    if (latency > 0) usleep((useconds_t)latency);
    if (target.device != NONE) {
        const uint64_t *hung = &call.state->devices[target.device].hung_functions;
        while (__atomic_load_n(hung, __ATOMIC_RELAXED) >> call.entry.function & 1) usleep(1000);
    }
    zeus_test_nvml_lock(call.state);
    call.now = call.entry.nanoseconds = now_nanoseconds(call.state);
    if (target.device != NONE) call.device = &call.state->devices[target.device];
    call.entry.code = first_objection(&call, needs);
    return call;
}

static int finish(Call *call) {
    State *state = call->state;
    if (state == NULL) return call->entry.code;
    state->calls[state->call_count % MAX_CALLS] = call->entry;
    state->call_count++;
    zeus_test_nvml_unlock(state);
    return call->entry.code;
}

/* The body of an entry point: `result` is an nvmlReturn_t, computed under the lock if nothing objects. */
#define CALL(needs, target, argument, result)                            \
    do {                                                                 \
        Call call = begin(__func__, needs, target, (int64_t)(argument)); \
        Device *device = call.device;                                    \
        (void)device;                                                    \
        if (call.entry.code == SUCCESS) call.entry.code = (result);      \
        return finish(&call);                                            \
    } while (0)

#define SYSTEM_CALL(result) CALL(NEEDS_SESSION, NO_TARGET, 0, result)
#define DEVICE_CALL(result) CALL(NEEDS_DEVICE, target_of(handle), 0, result)
#define GPU_CALL(argument, result) CALL(NEEDS_GPU, target_of(handle), argument, result)
#define CONTROL_CALL(argument, result) CALL(NEEDS_CONTROL, target_of(handle), argument, result)
#define OPEN_CALL(found, argument) \
    CALL(NEEDS_DEVICE, found, argument, put_handle(opened, call.target.device, call.target.mig))

static int put(unsigned *where, int64_t value) {
    *where = (unsigned)value;
    return SUCCESS;
}

static int put_if(int is_supported, unsigned *where, int64_t value) {
    return is_supported ? put(where, value) : NOT_SUPPORTED;
}

static int put_handle(Handle *where, int device, int mig) {
    *where = handle_of(device, mig);
    return SUCCESS;
}

static int put_text(char *where, unsigned length, const char *text) {
    if (strlen(text) >= length) return INSUFFICIENT_SIZE;
    memcpy(where, text, strlen(text) + 1);
    return SUCCESS;
}

static int put_clocks(unsigned *count, unsigned *where, const uint32_t *clocks_mhz, uint32_t clock_count) {
    int has_room = *count >= clock_count;
    *count = clock_count;
    if (!has_room || (where == NULL && clock_count > 0)) return INSUFFICIENT_SIZE;
    if (clock_count > 0) memcpy(where, clocks_mhz, clock_count * sizeof(uint32_t));
    return SUCCESS;
}

/* ---- NVML: library and system ---------------------------------------------------------------------------------- */

static int open_session(const State *state) {
    int count = is_session_open(state) ? session.count + 1 : 1;
    session.process_id = getpid();
    session.generation = mapped.generation;
    session.epoch = state->epoch;
    session.count = count;
    return SUCCESS;
}

static int close_session(void) {
    session.count--;
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) { CALL(NEEDS_NOTHING, NO_TARGET, flags, open_session(call.state)); }

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlInit(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) { SYSTEM_CALL(close_session()); }

const char *nvmlErrorString(int code) {
    static const char *const TEXTS[] = {
        [SUCCESS] = "Success",
        [UNINITIALIZED] = "Uninitialized",
        [INVALID_ARGUMENT] = "Invalid Argument",
        [NOT_SUPPORTED] = "Not Supported",
        [NO_PERMISSION] = "Insufficient Permissions",
        [NOT_FOUND] = "Not Found",
        [INSUFFICIENT_SIZE] = "Insufficient Size",
        [LIBRARY_NOT_FOUND] = "NVML Shared Library Not Found",
        [GPU_IS_LOST] = "GPU is lost",
        [LIB_RM_VERSION_MISMATCH] = "Driver/library version mismatch",
    };
    int is_known = code >= 0 && code < (int)(sizeof(TEXTS) / sizeof(TEXTS[0])) && TEXTS[code] != NULL;
    return is_known ? TEXTS[code] : "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    SYSTEM_CALL(put_text(version, length, call.state->driver_version));
}

/* ---- NVML: devices --------------------------------------------------------------------------------------------- */

int nvmlDeviceGetCount_v2(unsigned *count) { SYSTEM_CALL(put(count, call.state->device_count)); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle *opened) { OPEN_CALL(target_at(index), index); }

int nvmlDeviceGetHandleByUUID(const char *uuid, Handle *opened) { OPEN_CALL(target_with_uuid(uuid), 0); }

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, Handle *opened) { OPEN_CALL(target_on_bus(bus_id), 0); }

int nvmlDeviceGetUUID(Handle handle, char *uuid, unsigned length) {
    DEVICE_CALL(put_text(uuid, length, call.target.mig == NONE ? device->uuid : device->mig_uuids[call.target.mig]));
}

int nvmlDeviceGetName(Handle handle, char *name, unsigned length) { DEVICE_CALL(put_text(name, length, device->name)); }

int nvmlDeviceGetIndex(Handle handle, unsigned *index) {
    DEVICE_CALL(put(index, call.target.mig == NONE ? call.target.device : call.target.mig));
}

int nvmlDeviceGetArchitecture(Handle handle, unsigned *architecture) {
    DEVICE_CALL(put(architecture, device->architecture));
}

typedef struct {
    char legacy_bus_id[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} PciInfo;

static int put_pci_info(PciInfo *info, unsigned bus) {
    memset(info, 0, sizeof(*info));
    info->bus = bus;
    info->pci_device_id = 0x233510DE;
    snprintf(info->legacy_bus_id, sizeof(info->legacy_bus_id), "0000:%02X:00.0", bus & 0xFF);
    snprintf(info->bus_id, sizeof(info->bus_id), "00000000:%02X:00.0", bus & 0xFF);
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(Handle handle, PciInfo *info) { GPU_CALL(0, put_pci_info(info, device->pci_bus)); }

int nvmlDeviceGetPersistenceMode(Handle handle, unsigned *mode) { GPU_CALL(0, put(mode, device->persistence_mode)); }

int nvmlDeviceSetPersistenceMode(Handle handle, unsigned mode) {
    CONTROL_CALL(mode, mode > 1 ? INVALID_ARGUMENT : put(&device->persistence_mode, mode));
}

/* ---- NVML: energy and power ------------------------------------------------------------------------------------ */

static int put_energy(const Device *device, unsigned long long *millijoules, int64_t now) {
    if (!device->has_energy_counter) return NOT_SUPPORTED;
    *millijoules = (unsigned long long)counter_millijoules(device, now);
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(Handle handle, unsigned long long *millijoules) {
    GPU_CALL(0, put_energy(device, millijoules, call.now));
}

/* What the sensor shows for a power: each call is a reading. */
static int64_t shown_power(Device *device, int64_t milliwatts) {
    if (device->spikes_left != 0 && ++device->power_readings % device->spike_every == 0) {
        if (device->spikes_left != FOREVER) device->spikes_left--;
        return device->spike_milliwatts;
    }
    return milliwatts * device->power_gain_permille / 1000;
}

int nvmlDeviceGetPowerUsage(Handle handle, unsigned *milliwatts) {
    GPU_CALL(0, put(milliwatts, shown_power(device, average_power(device, call.now))));
}

int nvmlDeviceGetTemperature(Handle handle, unsigned sensor, unsigned *celsius) {
    GPU_CALL(sensor, put_if(device->temperature_celsius != 0, celsius, device->temperature_celsius));
}

typedef struct {
    unsigned gpu, memory;
} Utilization;

static int put_utilization(Utilization *where, unsigned percent) {
    if (where == NULL) return INVALID_ARGUMENT;
    *where = (Utilization){percent, percent / 2};
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Handle handle, Utilization *where) {
    GPU_CALL(0, put_utilization(where, device->utilization_percent));
}

typedef struct {
    unsigned long long total, free, used;
} Memory;

/* As much as the processes have, by put_processes. */
static int put_memory(Memory *where, uint64_t processes) {
    if (where == NULL) return INVALID_ARGUMENT;
    *where = (Memory){(uint64_t)80 << 30, (80 - processes) << 30, processes << 30};
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(Handle handle, Memory *where) { GPU_CALL(0, put_memory(where, device->process_count)); }

enum {
    FIELD_ENERGY = 83,
    FIELD_POWER_AVERAGE = 185,
    FIELD_POWER_INSTANT = 186,
    FIELD_LOWEST_LIMIT = 187,
    FIELD_HIGHEST_LIMIT = 188,
    FIELD_DEFAULT_LIMIT = 189,
    FIELD_ENFORCED_LIMIT = 190,
    FIELD_REQUESTED_LIMIT = 192
};
enum { TYPE_UNSIGNED_INT = 1, TYPE_UNSIGNED_LONG_LONG = 3 };

typedef struct {
    unsigned field_id, scope_id;
    long long timestamp_microseconds, latency_microseconds;
    unsigned value_type;
    int code;
    union {
        unsigned unsigned_int;
        unsigned long long unsigned_long_long;
    } value;
} FieldValue;

static int put_power_field(Device *device, FieldValue *field, int64_t milliwatts) {
    field->value_type = TYPE_UNSIGNED_INT;
    if (field->scope_id != SCOPE_GPU && (field->scope_id != SCOPE_MODULE || device->limit_scopes == BOARD_ALONE))
        return NOT_SUPPORTED;
    int64_t rest_milliwatts = field->scope_id == SCOPE_MODULE ? device->rest_of_module_milliwatts : 0;
    field->value.unsigned_int = (unsigned)shown_power(device, milliwatts + rest_milliwatts);
    return device->has_instant_power ? SUCCESS : (int)device->missing_field_code;
}

static uint32_t highest_limit(const Device *device, unsigned scope) {
    return (scope == SCOPE_MODULE ? 2 : 1) * device->highest_limit_milliwatts; /* the CPU takes as much as the GPU */
}

static int put_limit_field(const Device *device, FieldValue *field, uint32_t of_gpu, uint32_t of_module) {
    int has_gpu = device->has_power_limit && device->limit_scopes != MODULE_ALONE;
    int has_module = device->has_power_limit && device->limit_scopes != BOARD_ALONE;
    field->value_type = TYPE_UNSIGNED_INT;
    field->value.unsigned_int = field->scope_id == SCOPE_GPU ? of_gpu : of_module;
    return (field->scope_id == SCOPE_GPU ? has_gpu : has_module) ? SUCCESS : NOT_SUPPORTED;
}

static int put_field(Device *device, FieldValue *field, int64_t now) {
    field->timestamp_microseconds = now / 1000;
    switch (field->field_id) {
    case FIELD_ENERGY:
        field->value_type = TYPE_UNSIGNED_LONG_LONG;
        return put_energy(device, &field->value.unsigned_long_long, now);
    case FIELD_POWER_AVERAGE:
        return put_power_field(device, field, average_power(device, now));
    case FIELD_POWER_INSTANT:
        return put_power_field(device, field, power_at(device, now));
    case FIELD_LOWEST_LIMIT:
        return put_limit_field(device, field, device->lowest_limit_milliwatts, 0);
    case FIELD_HIGHEST_LIMIT:
        return put_limit_field(device, field, highest_limit(device, SCOPE_GPU), highest_limit(device, SCOPE_MODULE));
    case FIELD_DEFAULT_LIMIT:
        return put_limit_field(device, field, device->default_limit_milliwatts, highest_limit(device, SCOPE_MODULE));
    case FIELD_ENFORCED_LIMIT:
        return put_limit_field(device, field, enforced_limit(device), device->module_limit_milliwatts);
    case FIELD_REQUESTED_LIMIT:
        return put_limit_field(device, field, device->limit_milliwatts, device->module_limit_milliwatts);
    default:
        return NOT_SUPPORTED;
    }
}

static int put_fields(Device *device, int count, FieldValue *fields, int64_t now) {
    for (int i = 0; i < count; i++) fields[i].code = put_field(device, &fields[i], now);
    return count > 0 ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetFieldValues(Handle handle, int count, FieldValue *fields) {
    GPU_CALL(count > 0 ? fields[0].field_id : 0, put_fields(device, count, fields, call.now));
}

/* ---- NVML: power limits ---------------------------------------------------------------------------------------- */

static uint32_t limit_without_scope(const Device *device) {
    return device->limit_scopes == BOARD_ALONE ? device->limit_milliwatts : device->module_limit_milliwatts;
}

int nvmlDeviceGetPowerManagementLimit(Handle handle, unsigned *milliwatts) {
    GPU_CALL(0, put_if(device->has_power_limit, milliwatts, limit_without_scope(device)));
}

int nvmlDeviceGetPowerManagementDefaultLimit(Handle handle, unsigned *milliwatts) {
    GPU_CALL(0, put_if(device->has_power_limit, milliwatts, device->default_limit_milliwatts));
}

int nvmlDeviceGetEnforcedPowerLimit(Handle handle, unsigned *milliwatts) {
    GPU_CALL(0, put_if(device->has_power_limit, milliwatts, enforced_limit(device)));
}

static int put_limit_range(const Device *device, unsigned *lowest, unsigned *highest) {
    put(lowest, device->lowest_limit_milliwatts);
    return put_if(device->has_power_limit, highest, highest_limit(device, device->limit_scopes != BOARD_ALONE));
}

int nvmlDeviceGetPowerManagementLimitConstraints(Handle handle, unsigned *lowest, unsigned *highest) {
    GPU_CALL(0, put_limit_range(device, lowest, highest));
}

static unsigned rounded(const Device *device, unsigned value, unsigned step) {
    if (step == 0) return value;
    return (value + (device->rounds_up ? step - 1 : 0)) / step * step;
}

/* The limit that the board takes for the one requested. */
static unsigned taken_limit(const Device *device, unsigned milliwatts) {
    if (device->ignores_settings) return device->limit_milliwatts;
    unsigned taken = rounded(device, milliwatts, device->limit_step_milliwatts) - device->limit_offset_milliwatts;
    return taken < device->limit_floor_milliwatts ? device->limit_floor_milliwatts : taken;
}

static int request_limit(Device *device, unsigned scope, unsigned milliwatts, int64_t now) {
    if (!device->has_power_limit) return NOT_SUPPORTED;
    if (scope == SCOPE_MODULE) return put(&device->module_limit_milliwatts, milliwatts);
    if (milliwatts < device->lowest_limit_milliwatts || milliwatts > device->highest_limit_milliwatts)
        return INVALID_ARGUMENT;
    set_limit(device, taken_limit(device, milliwatts), device->enforced_cap_milliwatts, now);
    return SUCCESS;
}

int nvmlDeviceSetPowerManagementLimit(Handle handle, unsigned milliwatts) {
    CONTROL_CALL(milliwatts, request_limit(device, device->limit_scopes == BOARD_ALONE ? SCOPE_GPU : SCOPE_MODULE,
                                           milliwatts, call.now));
}

typedef struct {
    unsigned version;
    unsigned char scope;
    unsigned milliwatts;
} PowerValue;

static int request_scoped_limit(Device *device, const PowerValue *value, int64_t now) {
    if (value->version != (2u << 24 | sizeof(PowerValue)) || value->scope > SCOPE_MODULE) return INVALID_ARGUMENT;
    if (device->limit_scopes == (value->scope == SCOPE_GPU ? MODULE_ALONE : BOARD_ALONE)) return NOT_SUPPORTED;
    return request_limit(device, value->scope, value->milliwatts, now);
}

int nvmlDeviceSetPowerManagementLimit_v2(Handle handle, const PowerValue *value) {
    CONTROL_CALL(value->milliwatts, request_scoped_limit(device, value, call.now));
}

/* ---- NVML: clocks ---------------------------------------------------------------------------------------------- */

enum { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEMORY, CLOCK_VIDEO, CLOCK_TYPE_COUNT };

static int put_clock(const Device *device, unsigned type, unsigned *clock_mhz, uint32_t highest_sm_mhz) {
    if (type >= CLOCK_TYPE_COUNT) return INVALID_ARGUMENT;
    if (type == CLOCK_MEMORY) return put_if(device->memory_clock_count > 0, clock_mhz, device->memory_clocks_mhz[0]);
    uint32_t top = device->clocks_mhz[0];
    return put_if(device->clock_count > 0, clock_mhz, highest_sm_mhz != 0 ? smaller(top, highest_sm_mhz) : top);
}

int nvmlDeviceGetClockInfo(Handle handle, unsigned type, unsigned *clock_mhz) {
    GPU_CALL(type, put_clock(device, type, clock_mhz, device->locked_highest_mhz));
}

int nvmlDeviceGetMaxClockInfo(Handle handle, unsigned type, unsigned *clock_mhz) {
    GPU_CALL(type, put_clock(device, type, clock_mhz, 0));
}

int nvmlDeviceGetSupportedMemoryClocks(Handle handle, unsigned *count, unsigned *clocks_mhz) {
    GPU_CALL(0, put_clocks(count, clocks_mhz, device->memory_clocks_mhz, device->memory_clock_count));
}

static int is_memory_clock(const Device *device, unsigned clock_mhz) {
    for (unsigned i = 0; i < device->memory_clock_count; i++)
        if (device->memory_clocks_mhz[i] == clock_mhz) return 1;
    return 0;
}

int nvmlDeviceGetSupportedGraphicsClocks(Handle handle, unsigned memory_mhz, unsigned *count, unsigned *clocks_mhz) {
    GPU_CALL(memory_mhz, is_memory_clock(device, memory_mhz)
                             ? put_clocks(count, clocks_mhz, device->clocks_mhz, device->clock_count)
                             : NOT_FOUND);
}

/* The clock that the board takes for the one requested; 0 lets it move freely. */
static unsigned taken_clock(const Device *device, unsigned clock_mhz) {
    unsigned taken = rounded(device, clock_mhz, device->clock_step_mhz);
    return clock_mhz != 0 && taken < device->clock_floor_mhz ? device->clock_floor_mhz : taken;
}

static int lock_clocks(Device *device, unsigned lowest_mhz, unsigned highest_mhz) {
    if (device->clock_count == 0) return NOT_SUPPORTED;
    if (lowest_mhz > highest_mhz) return INVALID_ARGUMENT;
    if (device->ignores_settings) return SUCCESS;
    device->locked_lowest_mhz = taken_clock(device, lowest_mhz);
    return put(&device->locked_highest_mhz, taken_clock(device, highest_mhz));
}

int nvmlDeviceSetGpuLockedClocks(Handle handle, unsigned lowest_mhz, unsigned highest_mhz) {
    CONTROL_CALL(highest_mhz, lock_clocks(device, lowest_mhz, highest_mhz));
}

int nvmlDeviceResetGpuLockedClocks(Handle handle) { CONTROL_CALL(0, lock_clocks(device, 0, 0)); }

/* ---- NVML: MIG ------------------------------------------------------------------------------------------------- */

static int put_mig_mode(const Device *device, unsigned *current, unsigned *pending) {
    put(current, device->mig_count > 0);
    return put_if(device->has_mig, pending, device->mig_count > 0);
}

int nvmlDeviceGetMigMode(Handle handle, unsigned *current, unsigned *pending) {
    GPU_CALL(0, put_mig_mode(device, current, pending));
}

int nvmlDeviceGetMaxMigDeviceCount(Handle handle, unsigned *count) {
    GPU_CALL(0, put(count, device->mig_count > 0 ? MAX_MIGS - 1 : 0));
}

int nvmlDeviceGetMigDeviceHandleByIndex(Handle handle, unsigned index, Handle *opened) {
    GPU_CALL(index, index < device->mig_count ? put_handle(opened, call.target.device, (int)index) : NOT_FOUND);
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle handle, Handle *opened) {
    DEVICE_CALL(call.target.mig == NONE ? INVALID_ARGUMENT : put_handle(opened, call.target.device, NONE));
}

int nvmlDeviceIsMigDeviceHandle(Handle handle, unsigned *is_mig) { DEVICE_CALL(put(is_mig, call.target.mig != NONE)); }

int nvmlDeviceGetGpuInstanceId(Handle handle, unsigned *id) {
    DEVICE_CALL(put_if(call.target.mig != NONE, id, call.target.mig + 1));
}

int nvmlDeviceGetComputeInstanceId(Handle handle, unsigned *id) { DEVICE_CALL(put_if(call.target.mig != NONE, id, 0)); }

/* ---- NVML: workload power profiles ----------------------------------------------------------------------------- */

typedef struct {
    unsigned mask[8];
} Mask;

typedef struct {
    unsigned version;
    Mask supported, requested, enforced;
} CurrentProfiles;

typedef struct {
    unsigned head; /* a version; the operation of an update, which has none */
    Mask mask;
} RequestedProfiles;

_Static_assert(sizeof(CurrentProfiles) == 100 && sizeof(RequestedProfiles) == 36, "nvml.h of CUDA 13");

static Mask mask_of(uint64_t bits) { return (Mask){{(unsigned)bits, (unsigned)(bits >> 32)}}; }

static uint64_t bits_of(const Mask *mask) { return mask->mask[0] | (uint64_t)mask->mask[1] << 32; }

/* What the board keeps to: of two profiles that conflict, the one with the lower id, as if that were its priority. */
static uint64_t enforced_profiles(const Device *device) {
    uint64_t enforced = 0;
    for (int id = 0; id < MAX_PROFILES; id++) {
        uint64_t wanted = device->requested_profiles & ~device->blocked_profiles;
        if (wanted >> id & 1 && !(device->profile_conflicts[id] & enforced)) enforced |= 1ull << id;
    }
    return enforced;
}

static int put_profiles(const Device *device, CurrentProfiles *current) {
    if (current->version != 0x1000064) return ARGUMENT_VERSION_MISMATCH;
    if (device->supported_profiles == 0) return NOT_SUPPORTED;
    current->supported = mask_of(device->supported_profiles);
    current->requested = mask_of(device->requested_profiles);
    current->enforced = mask_of(enforced_profiles(device));
    return SUCCESS;
}

enum { CLEAR, SET, OVERWRITE };

static int change_profiles(Device *device, unsigned operation, const Mask *mask) {
    uint64_t bits = bits_of(mask), before = device->requested_profiles;
    if (device->supported_profiles == 0) return NOT_SUPPORTED;
    if (operation > OVERWRITE) return INVALID_ARGUMENT;
    if (operation != CLEAR && bits & (~device->supported_profiles | device->refused_profiles)) return INVALID_ARGUMENT;
    device->requested_profiles = operation == CLEAR ? before & ~bits : operation == SET ? before | bits : bits;
    return SUCCESS;
}

static int change_requested(Device *device, unsigned operation, const RequestedProfiles *change) {
    return change->head != 0x1000024 ? ARGUMENT_VERSION_MISMATCH : change_profiles(device, operation, &change->mask);
}

int nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(Handle handle, CurrentProfiles *current) {
    GPU_CALL(0, put_profiles(device, current));
}

int nvmlDeviceWorkloadPowerProfileSetRequestedProfiles(Handle handle, const RequestedProfiles *change) {
    CONTROL_CALL(bits_of(&change->mask), change_requested(device, SET, change));
}

int nvmlDeviceWorkloadPowerProfileClearRequestedProfiles(Handle handle, const RequestedProfiles *change) {
    CONTROL_CALL(bits_of(&change->mask), change_requested(device, CLEAR, change));
}

int nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1(Handle handle, const RequestedProfiles *update) {
    CONTROL_CALL(bits_of(&update->mask), device->lacks_profile_update
                                             ? FUNCTION_NOT_FOUND
                                             : change_profiles(device, update->head, &update->mask));
}

/* ---- NVML: processes ------------------------------------------------------------------------------------------- */

typedef struct {
    unsigned process_id;
    unsigned long long used_bytes;
    unsigned gpu_instance, compute_instance;
} ProcessInfo;

static int put_processes(const Device *device, int mig, unsigned *count, ProcessInfo *where) {
    int is_whole_of_parts = mig == NONE && device->mig_count > 0;
    if (is_whole_of_parts && device->processes_need_root && geteuid() != 0) return NO_PERMISSION;
    unsigned room = where == NULL ? 0 : *count;
    *count = 0;
    for (unsigned i = 0; i < device->process_count; i++) {
        const Process *process = &device->processes[i];
        if (mig != NONE && process->gpu_instance != (uint32_t)mig + 1) continue;
        if (*count < room)
            where[*count] =
                (ProcessInfo){process->process_id, 1 << 30, process->gpu_instance, process->compute_instance};
        ++*count;
    }
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, unsigned *count, ProcessInfo *where) {
    DEVICE_CALL(put_processes(device, call.target.mig, count, where));
}

/* ---- For the Python side: what only a test can do --------------------------------------------------------------- */

void zeus_test_nvml_sizes(uint64_t sizes[4]) {
    sizes[0] = sizeof(State);
    sizes[1] = sizeof(Device);
    sizes[2] = sizeof(Regime);
    sizes[3] = sizeof(LogEntry);
}

/* The functions' names, by number; NULL after the last. */
const char *zeus_test_nvml_function(int number) {
    return number >= 0 && number < FUNCTION_COUNT ? FUNCTIONS[number] : NULL;
}

/* Make the file, with a mutex that outlives its owners and with no device. */
int zeus_test_nvml_create(const char *path) {
    State *state = map_file(path, O_CREAT | O_EXCL, 1);
    if (state == NULL) return errno;
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    int code = pthread_mutex_init((pthread_mutex_t *)state->mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
    state->size = sizeof(State);
    munmap(state, sizeof(State));
    return code;
}

/* From now on this process sees the devices in this file; with NULL, none. Its session is closed by that. */
int zeus_test_nvml_use(const char *path) {
    pthread_mutex_lock(&mapping_mutex);
    int code = use_file(path);
    pthread_mutex_unlock(&mapping_mutex);
    return code;
}

/* The file in use, or "". */
const char *zeus_test_nvml_used(void) { return mapped.path; }

void zeus_test_nvml_set_load(State *state, int index, const Regime *script) {
    zeus_test_nvml_lock(state);
    begin_regime(&state->devices[index], script, now_nanoseconds(state));
    zeus_test_nvml_unlock(state);
}

void zeus_test_nvml_set_limit(State *state, int index, uint32_t limit_milliwatts, uint32_t cap_milliwatts) {
    zeus_test_nvml_lock(state);
    set_limit(&state->devices[index], limit_milliwatts, cap_milliwatts, now_nanoseconds(state));
    zeus_test_nvml_unlock(state);
}

int64_t zeus_test_nvml_energy_until(State *state, int index, int64_t moment) {
    zeus_test_nvml_lock(state);
    int64_t energy = energy_until(&state->devices[index], moment);
    zeus_test_nvml_unlock(state);
    return energy;
}

int64_t zeus_test_nvml_counted_until(State *state, int index, int64_t moment) {
    zeus_test_nvml_lock(state);
    int64_t counted = counted_until(&state->devices[index], moment);
    zeus_test_nvml_unlock(state);
    return counted;
}
