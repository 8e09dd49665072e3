// From separate rows of samples to rows of pixels.
#pragma once

#include <cstdint>

namespace custom_op {

// Writes `width` pixels, 3 * width bytes: JFIF YCbCr converted to RGB, bit-identical to libjpeg.
// Reads up to kSamplePadding samples past the end.
void write_pixels(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int64_t width,
                  uint8_t* out);

// A row of chroma at half of the width: sums of 4 samples, see Note [Triangle filter].
struct HalfRow {
  const uint16_t *cb, *cr;            // from the first pixel on; the value before it is read, too
  int rounding_left, rounding_right;  // of the sums of 16, for the two pixels of a sample
};

// The same; `starts_right`: the first pixel is the right one of its chroma sample.
void write_pixels(const uint8_t* y, const HalfRow& chroma, bool starts_right, int64_t width,
                  uint8_t* out);

}  // namespace custom_op
