/* Functions that tell or set how calls run: explain, info, threads, force_kernel. Not on the path
 * of a call. */
#ifndef MMF_REPORT_H
#define MMF_REPORT_H

#include "binding/state.h"

/* explain(...): a dict; see python/matmul_fused/report.py. */
PyObject *mmf_explain(PyObject *module, PyObject *const *arguments, Py_ssize_t count,
                      PyObject *keywords);
PyObject *mmf_activation_table(PyObject *module, PyObject *unused);
PyObject *mmf_info(PyObject *module, PyObject *unused);
PyObject *mmf_set_num_threads(PyObject *module, PyObject *threads);
PyObject *mmf_use_num_threads(PyObject *module, PyObject *threads);
PyObject *mmf_get_num_threads(PyObject *module, PyObject *unused);
PyObject *mmf_force_kernel(PyObject *module, PyObject *name);

#endif
