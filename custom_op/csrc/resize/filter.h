// The two inner loops of the resizer.
#pragma once

#include <cstdint>

#include "types.h"

namespace custom_op {

// Padding of a row in values: vector code may read and write past the end of the row.
constexpr int64_t kRowPadding = 32;

// Fractional bits of a vertically filtered value: 255 << kLineBits fits into int16.
constexpr int kLineBits = 7;

// line[i] = the weighted sum of rows[k][i]. `taps` is even.
void filter_vertically(const uint8_t* const* rows, const int16_t* weights, int64_t taps,
                       int64_t values, int16_t* line);

// The horizontal filter computes 4 output pixels at a time and writes 4 bytes past them.
constexpr int64_t kPixelsAtOnce = 4, kPixelPadding = 4;

// How many output pixels a row of `size` takes.
inline int64_t pixels_for(int64_t size) { return divide_up(size, kPixelsAtOnce) * kPixelsAtOnce; }

// Each pair of taps has 16 weights for two output pixels: the pair of the first pixel four times,
// then the pair of the second pixel four times.
constexpr int64_t kWeightsPerTapPair = 16;

// Output pixel x is the weighted sum of the `taps` pixels that start at line + starts[x]. `taps`
// is even, `pixels` a multiple of kPixelsAtOnce. Reads up to `taps` pixels past the end of the
// line.
void filter_horizontally(const int16_t* line, const int32_t* starts, const int16_t* weights,
                         int64_t taps, int64_t pixels, uint8_t* out);

}  // namespace custom_op
