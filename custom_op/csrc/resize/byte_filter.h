// The inner loops of LateColorResizer: like those in resize/filter.h, with weights of 7 bits on
// rows of bytes. Rows need kRowPadding values of padding. See ByteWeights for the weights.
#pragma once

#include <cstdint>

namespace custom_op {

// out[i] = the weighted sum of rows[k][i], for values from rows[k][0] on; `taps` is even.
void filter_bytes_vertically(const uint8_t* const* rows, const int8_t* weights, int64_t taps,
                             int64_t values, uint8_t* out);

// The same times 4.
void filter_sums_vertically(const uint8_t* const* rows, const int8_t* weights, int64_t taps,
                            int64_t values, uint16_t* out);

// Each group of 4 taps has 32 weights for two output pixels: the first pair of the first pixel
// three times, for its channels, and two zeros; the same for the second pair; then both for the
// second pixel.
constexpr int64_t kWeightsPerGroup = 32;

// Output pixel x is the weighted sum of the 4 * `groups` pixels of 3 bytes that start at
// line + starts[x]. `pixels` is a multiple of kPixelsAtOnce. Reads up to 4 * `groups` + 2 pixels
// past the end of the line and writes kPixelPadding bytes past the last output pixel.
void filter_bytes_horizontally(const uint8_t* line, const int32_t* starts, const int8_t* weights,
                               int64_t groups, int64_t pixels, uint8_t* out);

}  // namespace custom_op
