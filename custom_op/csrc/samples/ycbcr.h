// From separate rows of samples to rows of pixels.
#pragma once

#include <cstdint>

namespace custom_op {

// These read up to kSamplePadding samples past the end of a row, but write only its pixels.

// Converts JFIF YCbCr to RGB, bit-identical to libjpeg: 3 * width bytes.
void ycbcr_to_rgb(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int64_t width,
                  uint8_t* rgb);

// Only interleaves the three rows: 3 * width bytes.
void interleave(const uint8_t* first, const uint8_t* second, const uint8_t* third, int64_t width,
                uint8_t* out);

}  // namespace custom_op
