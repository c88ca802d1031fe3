/* Ends what real_float.h or real_double.h began. Not on the path of a call. */
#undef T
#undef MMF_REAL
#undef MMF_REAL_IS_FLOAT
#undef MMF_REAL_DTYPE
#undef MMF_ELEMENT
#undef MMF_ELEMENT_DTYPE
#undef MMF_TO_F16
#undef MMF_TO_BF16
#undef MMF_NR
#undef MMF_SUFFIX
#undef MMF_BYTES
