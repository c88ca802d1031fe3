/* The templates for float accumulators of bfloat16 elements that are packed in pairs along k, as
 * matrix units take them, or of float16 elements that are two such each (MMF_SPLIT): T(name) is
 * name_float. Close with real_end.h. Not on the path of a call: sets up the .inc files that
 * follow. */
#define T(name) name##_float
#define MMF_REAL float
#define MMF_REAL_IS_FLOAT
#define MMF_REAL_DTYPE MMF_FLOAT32
#ifdef MMF_SPLIT
#define MMF_ELEMENT uint32_t
#else
#define MMF_ELEMENT uint16_t
#endif
#define MMF_TO_F16 mmf_float_to_f16
#define MMF_TO_BF16 mmf_float_to_bf16
#define MMF_NR 16      /* columns of a panel: 64 bytes of sums, or of pairs */
#define MMF_SUFFIX "s" /* of instructions */
#define MMF_BYTES "4"
