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

// Two output pixels are computed side by side. Their weights come as 16 numbers for every two taps:
// the pair of taps of the first pixel four times, then that of the second.
constexpr int64_t kWeightsPerTapPair = 16;

// Output pixel x is the weighted sum of `taps` pixels from line + 3 * first[x] on; `taps` is even
// and may lead up to `taps` pixels behind the line. `pixels` is even. Writes a byte behind the last
// one.
void filter_horizontally(const int16_t* line, const int32_t* first, const int16_t* weights,
                         int64_t taps, int64_t pixels, uint8_t* out);

}  // namespace custom_op
