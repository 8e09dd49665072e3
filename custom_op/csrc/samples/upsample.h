// Upsamples chroma, bit-identical to libjpeg's "fancy" upsampling.
#pragma once

#include <cstdint>

namespace custom_op {

// Note [Triangle filter]
// Chroma samples lie in the middle of the pixels that they cover. Each result is 3/4 of the nearest
// sample and 1/4 of the next nearest, per axis. libjpeg alternates the rounding from result to
// result, so that it adds no bias. If both axes are upsampled, it rounds only once: so the vertical
// step gives sums of 4 samples, and the horizontal step, in ycbcr.cpp, gives sums of 16 and rounds.
//
// These functions read and write up to kSamplePadding values past the end.

// The row between `near` and `far`, closer to `near`; `below`: on the lower side of it.
void double_height(const uint8_t* near, const uint8_t* far, bool below, int64_t count,
                   uint8_t* out);

// The same without rounding: sums of 4 samples, from index -1 to `count`.
void sum_rows(const uint8_t* near, const uint8_t* far, int64_t count, uint16_t* out);

}  // namespace custom_op
