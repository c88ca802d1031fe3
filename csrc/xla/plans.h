/* The plans of calls under jax.jit, which XLA makes again and again. Path of a call: between the
 * frame and the launches; problem/ and plan/ behind it where a call is new. */
#ifndef MMF_XLA_PLANS_H
#define MMF_XLA_PLANS_H

#include "plan/cache.h"

/* Check a request and plan it, or find both done; *buffers gets its addresses. */
mmf_status mmf_xla_prepare(const mmf_request *request, mmf_buffers *buffers,
                           mmf_prepared *prepared);

/* Plan every call anew: what plans are made by has changed. */
void mmf_xla_forget_plans(void);

#endif
