/* An array library, as the binding sees it: a row of functions, one file of this folder per
 * library. A new library is a file with its row, and a place in the list of libraries.c. Path of a
 * call: every operand carries the row of its library; the result is made by that of A. */
#ifndef MMF_LIBRARY_H
#define MMF_LIBRARY_H

#include "binding/output.h"
#include "binding/stream.h"

typedef struct mmf_library {
    /* --- operands --- */

    /* If objects of this type are the library's: set facts->library (and facts->api). An error for
     * those that have no meaning here; nothing for those of other libraries. NULL: not by type. */
    mmf_status (*recognise)(mmf_state *state, PyObject *object, const char *name,
                            mmf_type_facts *facts);
    /* All that may run Python: checks, and without view() the tensor. NULL: nothing. */
    mmf_status (*import)(mmf_state *state, mmf_import *import, mmf_stream *stream);
    /* Fill import->tensor of memory that the Python object alone holds, and may let go of while
     * Python runs: it is called again then, with asked NULL. Else *asked becomes true if Python may
     * have run here. NULL: import() took a share of the memory. */
    mmf_status (*view)(mmf_state *state, mmf_import *import, bool *asked);
    bool trusted;      /* its arrays lie where they say: no driver is asked about their memory */
    bool no_unordered; /* its __dlpack__ knows no stream -1; None: the host may wait */

    /* --- streams of a GPU --- */

    /* The library's current stream, in whose order it makes arrays and hands out their memory.
     * *ran_python is true unless it is set to false. NULL: it has none. */
    mmf_status (*stream)(mmf_state *state, const mmf_import *of, mmf_device device, void **handle,
                         bool *ran_python);
    /* Before the launch, where another library chose the stream: tell the owner of an array's
     * memory that the stream uses it. NULL: its own stream waits for the call's instead. */
    mmf_status (*record)(const mmf_stream *stream, PyObject *array);
    /* Before the launch: let the stream wait for earlier uses of an operand's memory. NULL: the
     * library did that when it exported it. */
    mmf_status (*wait)(const mmf_stream *stream, PyObject *array);
    /* After the launch: the stream uses an array's memory from now on. */
    mmf_status (*used)(const mmf_stream *stream, PyObject *array);

    /* --- results where A is the library's --- */

    /* New memory for tensor (all but data is set), on a GPU for work on stream; sets data. */
    mmf_status (*new_output)(mmf_state *state, const mmf_import *a, mmf_tensor *tensor,
                             void *stream, mmf_output *output);
    /* The object that is returned for that memory, which it takes over. It may run Python (a
     * garbage collection). NULL with an exception. */
    PyObject *(*finish)(mmf_state *state, const mmf_import *a, mmf_output *output);
    const struct mmf_library *owner; /* of that memory until finish() */
} mmf_library;

extern const mmf_library mmf_library_numpy, mmf_library_torch, mmf_library_exchange,
    mmf_library_cupy, mmf_library_jax, mmf_library_dlpack, mmf_library_array;

/* The row and the exchange API of a type, found out; remembered for mmf_known_type(). */
mmf_status mmf_find_type(mmf_state *state, PyObject *object, const char *name,
                         mmf_type_facts *facts);

/* --- what several rows share --- */

/* Is type a subclass of module.attribute, for a module that somebody else may have imported? 1, 0,
 * or -1 with an exception. */
int mmf_is_subclass(PyTypeObject *type, const char *module, const char *attribute);

/* New reference to an attribute of the type, or NULL without an exception if there is none. */
PyObject *mmf_type_attribute(PyTypeObject *type, PyObject *name);

/* An int that was asked of an operand's library into *handle. Takes value over; NULL without an
 * exception: the library is not laid out as we know it. */
mmf_status mmf_take_handle(PyObject *value, const mmf_import *of, void **handle);

/* TypeError for what is no array, and, whether or not it has __dlpack__, for tables, expressions
 * and the like (refuse.c). */
mmf_status mmf_check_kind(PyObject *object, const char *name);
mmf_status mmf_refuse_type(PyObject *object, const char *name);

/* import() through __dlpack__ (dlpack.c). */
mmf_status mmf_dlpack_import(mmf_state *state, mmf_import *import, mmf_stream *stream);

/* The exchange API of a type into facts->api, if it has a usable one; and with it (exchange.c): the
 * current stream, results. */
mmf_status mmf_exchange_find(mmf_state *state, mmf_type_facts *facts);
mmf_status mmf_exchange_stream(mmf_state *state, const mmf_import *of, mmf_device device,
                               void **handle, bool *ran_python);
mmf_status mmf_exchange_allocate(mmf_state *state, const mmf_import *a, mmf_tensor *tensor,
                                 mmf_output *output);
PyObject *mmf_exchange_finish(mmf_state *state, const mmf_import *a, mmf_output *output);

/* Results that are mf.Arrays (array.c). */
mmf_status mmf_array_new_output(mmf_state *state, const mmf_import *a, mmf_tensor *tensor,
                                void *stream, mmf_output *output);

/* finish() where the memory's object is what is returned. */
PyObject *mmf_output_object(mmf_state *state, const mmf_import *a, mmf_output *output);

#endif
