/* The templates for double accumulators and packed elements: T(name) is name_double. Close with
 * real_end.h. Not on the path of a call: sets up the .inc files that follow. */
#define T(name) name##_double
#define MMF_REAL double
#define MMF_REAL_DTYPE MMF_FLOAT64
#define MMF_ELEMENT double /* what panels and strips hold */
#define MMF_ELEMENT_DTYPE MMF_FLOAT64
#define MMF_TO_F16 mmf_double_to_f16
#define MMF_TO_BF16 mmf_double_to_bf16
#define MMF_NR 8       /* columns of a panel: 64 bytes */
#define MMF_SUFFIX "d" /* of instructions */
#define MMF_BYTES "8"
