/* The environment variables, one table: read once at import, printed by info, tested against the
 * README. Not on the path of a call: read once, at import. */
#ifndef MMF_ENVIRONMENT_H
#define MMF_ENVIRONMENT_H

typedef enum mmf_variable {
    MMF_ENV_NUM_THREADS,
    MMF_ENV_KERNEL,
    MMF_ENV_DISABLE,
    MMF_ENV_HIP_LIBRARY,
    MMF_ENV_CUDA_LIBRARY,
    MMF_ENV_CACHE_DIR,
    MMF_ENV_TUNE,
    MMF_ENV_LOG,
    MMF_ENV_COUNT
} mmf_variable;

typedef struct mmf_variable_row {
    const char *name;
    const char *meaning;
} mmf_variable_row;

extern const mmf_variable_row mmf_variables[MMF_ENV_COUNT];

/* Take a copy of every variable. Called at import, before anything reads one; later calls do
 * nothing. */
void mmf_environment_load(void);

/* Say why a value, or a part of it, is ignored: the reader's verdict on it, for info. At import
 * only. */
__attribute__((format(printf, 2, 3))) void mmf_environment_complain(mmf_variable variable,
                                                                    const char *format, ...);

/* What was said of the variable, or NULL. */
const char *mmf_environment_complaint(mmf_variable variable);

/* The value at import, or NULL if unset or empty. */
const char *mmf_environment(mmf_variable variable);

#endif
