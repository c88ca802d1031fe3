/* Shared by the three files that turn code bytes into operations: llvm.c (bytes to text), parse.c
 * (text to operands) and decode.c (the walk over the code, and the cache of programs). */
#ifndef HIPSIM_DECODE_H
#define HIPSIM_DECODE_H

#include "internal.h"

void *disassembler_open(const char *cpu, char *sentence, size_t bytes);
/* Bytes of the instruction at `code`, its text written; 0 if it is none. */
size_t disassemble(void *context, const uint8_t *code, size_t left, char *text, size_t bytes);
void disassembler_close(void *context);

/* Memory that lives as long as the program; NULL if there is none left. */
void *program_allocate(struct hipsim_program *program, size_t bytes);
/* 64 lanes of the low half of `value`, then 64 of the high one. */
const uint32_t *program_splat(struct hipsim_program *program, uint64_t value);

const struct opcode *opcode_find(const char *name);

/* Fill `o` from the text of one instruction; false with a reason. */
bool parse_instruction(struct hipsim_program *program, struct op *o, const char *text, char *reason,
                       size_t bytes);
/* A token after the operands, as offset:16; parse_modifiers.c. */
bool parse_modifier(struct hipsim_program *program, struct op *o, const char *token);
/* The last pass: constants ready to read, register ranges, wrappers. */
bool finish_instruction(struct hipsim_program *program, struct op *o, char *reason, size_t bytes);
void add_ranges(struct op *o);

#endif
