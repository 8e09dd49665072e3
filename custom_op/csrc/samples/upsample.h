// Doubles the width or height of chroma, bit-identical to libjpeg's "fancy" upsampling.
#pragma once

#include <cstdint>

namespace custom_op {

// Note [Triangle filter]
// Chroma samples lie in the middle of the pixels that they cover. Each result is 3/4 of the nearest
// sample and 1/4 of the next nearest, per axis. libjpeg alternates the rounding from result to
// result, so that it adds no bias.
//
// Both results of one sample are written as one value, the left one in the low byte: then compilers
// vectorize the loops without shuffles. Processors are little-endian.
//
// These functions read and write up to kSamplePadding values past the end.

// From `count` samples to 2 * count. Reads the samples before and after them, too.
void double_width(const uint8_t* samples, int64_t count, uint16_t* out);

// The row between `near` and `far`, closer to `near`; `below`: on the lower side of it.
void double_height(const uint8_t* near, const uint8_t* far, bool below, int64_t count,
                   uint8_t* out);

// Both at once, with one rounding. Reads the samples before and after.
void double_both(const uint8_t* near, const uint8_t* far, int64_t count, uint16_t* out);

}  // namespace custom_op
