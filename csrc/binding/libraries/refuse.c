/* What is no array, with the one line that helps. Path of a call: where no row of libraries/ takes
 * an operand. */
#include "binding/libraries/library.h"

#include "binding/errors.h"
#include "binding/objects.h"

#include <stdio.h>
#include <string.h>

typedef struct kind {
    const char *module, *type; /* how the type's names begin; NULL: any type of the module */
    const char *what;          /* with a %s for the operand's name */
} kind;

static const kind kinds[] = {
    {"scipy.sparse", NULL, "is sparse; pass %s.toarray()"},
    {"torch.fx.", "Proxy", "stands for %s while torch.fx traces; call matmul_fused on tensors"},
    {"jax.", "ShapeDtypeStruct", "is the shape of %s without its values; pass an array"},
    {"pandas.", NULL, "has labels, which would be lost; pass %s.to_numpy()"},
    {"xarray.", NULL, "has labels, which would be lost; pass %s.to_numpy()"},
    {"polars.", NULL, "has labels, which would be lost; pass %s.to_numpy()"},
    {"pyarrow.", NULL, "has nulls, which would be lost; pass %s.to_numpy()"},
    {"dask.", NULL, "is not computed yet; pass %s.compute()"},
};

/* "module.name" begins with a kind's module, and its last part with the kind's type. */
static bool is_kind(const char *type, const kind *k)
{
    const char *last = strrchr(type, '.');
    return strncmp(type, k->module, strlen(k->module)) == 0 &&
           (!k->type || strncmp(last ? last + 1 : type, k->type, strlen(k->type)) == 0);
}

/* Would np.asarray() make an array of numbers of it? */
static bool converts(PyObject *object)
{
    PyObject *method = mmf_get_attribute((PyObject *)Py_TYPE(object), "__array__");
    PyErr_Clear(); /* lint: absence is an answer */
    Py_XDECREF(method);
    return method || PyList_Check(object) || PyTuple_Check(object) || PyObject_CheckBuffer(object);
}

mmf_status mmf_check_kind(PyObject *object, const char *name)
{
    char type[MMF_PRINTABLE], text[256];
    mmf_describe(object, type);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (is_kind(type, &kinds[i])) {
            snprintf(text, sizeof text, kinds[i].what, name);
            return mmf_fail(MMF_TYPE_ERROR, "%s is %s %s, which %s", name, mmf_article(type), type,
                            text);
        }
    return MMF_OK;
}

mmf_status mmf_refuse_type(PyObject *object, const char *name)
{
    char type[MMF_PRINTABLE];
    mmf_describe(object, type);
    const char *article = mmf_article(type);
    if (PyList_Check(object) && (strcmp(name, "B") == 0 || strcmp(name, "bias") == 0))
        return mmf_fail(MMF_TYPE_ERROR,
                        "%s is a list, not an array; pass a pair as a tuple (gate, up), one array "
                        "as np.asarray(%s)",
                        name, name);
    if (PyFloat_Check(object) || PyLong_Check(object) || PyComplex_Check(object))
        return mmf_fail(
            MMF_TYPE_ERROR,
            "%s is %s %s, not an array; bias, C and multiply may be real numbers, other "
            "operands have axes",
            name, article, type);
    if (converts(object))
        return mmf_fail(MMF_TYPE_ERROR, "%s is %s %s, not an array; pass np.asarray(%s)", name,
                        article, type, name);
    return mmf_fail(MMF_TYPE_ERROR,
                    "%s is %s %s, not an array; pass one of NumPy, torch, JAX or another library "
                    "with __dlpack__",
                    name, article, type);
}
