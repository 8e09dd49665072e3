// The two inner loops of resizing.
#pragma once

#include <cstdint>

namespace custom_op {

// Values a row is padded by, so that vector code may read and write past its end.
constexpr int64_t kRowPadding = 32;

// The bits behind the point in a vertically filtered value: 255 << kLineBits still fits.
constexpr int kLineBits = 7;

// line[i] = the weighted sum of rows[k][i]. `taps` is even.
void filter_vertically(const uint8_t* const* rows, const int16_t* weights, int64_t taps,
                       int64_t values, int16_t* line);

// One output pixel's three values: the weighted sum of `taps` pixels, a multiple of 4, from
// `pixels` on. Writes a fourth byte behind them.
void filter_horizontally(const int16_t* pixels, const int16_t* weights, int64_t taps, uint8_t* out);

}  // namespace custom_op
