// The colour conversions that libjpeg leaves to its callers.
#pragma once

#include <cstdint>

namespace custom_op {

// `pixels` of inverted CMYK, as Adobe's programs store it and Pillow always reads it.
void cmyk_to_rgb(const uint8_t* cmyk, int64_t pixels, uint8_t* rgb);

// JFIF's full-range YCbCr. `ycbcr` may be `rgb`.
void rgb_to_ycbcr(const uint8_t* rgb, int64_t pixels, uint8_t* ycbcr);

}  // namespace custom_op
