/* What a call on GPU operands does besides one on the CPU. Path of a call: around problem/, and
 * after the run. */
#ifndef MMF_DEVICE_ORDER_H
#define MMF_DEVICE_ORDER_H

#include "binding/call.h"
#include "binding/output.h"

/* Before anything is computed: device usable, stream found, memory where its producer says.
 * Enqueues nothing: explain comes here too. */
mmf_status mmf_device_prepare(mmf_state *state, mmf_call *call);

/* Before the launch: the stream waits for earlier uses of mf.Arrays and of prepacked weights, for
 * the streams of libraries whose memory is only viewed, and for that of the new result's library
 * (result is NULL with out=), whose memory's user before may still be at work; torch hears of the
 * stream. */
mmf_status mmf_device_await(mmf_state *state, mmf_call *call, PyObject *result);

/* After the launch: mf.Arrays, the new result (NULL with out=) included, are in use until the
 * stream has come this far, and so are prepacked weights, which other streams may read meanwhile.
 * Of libraries that cannot be told, their own stream waits (torch was told before). */
mmf_status mmf_device_finish(mmf_state *state, mmf_call *call, PyObject *result);

/* --- scratch memory of one call on a GPU, from the allocator of A's library, else our own --- */

/* May the call have some? Not always from our own allocator. */
mmf_status mmf_workspace_possible(const mmf_call *call, mmf_no_workspace *why_not);

/* Uninitialised, at *data, for what is put on the call's stream from now on. May run Python:
 * imports are to be rechecked if the stream's ran_python says so. Zero bytes: none, *data is NULL.
 */
mmf_status mmf_workspace_new(mmf_state *state, mmf_call *call, int64_t bytes, mmf_output *workspace,
                             void **data);

/* Give it back, behind the launch if there was one: after mmf_device_finish(), also where that
 * failed. */
mmf_status mmf_workspace_drop(mmf_state *state, mmf_call *call, bool launched,
                              mmf_output *workspace);

#endif
