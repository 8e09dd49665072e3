// The color conversions that libjpeg does not do.
#pragma once

#include <cstdint>

namespace custom_op {

// Converts inverted CMYK, as Adobe programs store it and Pillow always assumes.
void cmyk_to_rgb(const uint8_t* cmyk, int64_t pixels, uint8_t* rgb);

// Converts to full-range YCbCr (JFIF). `ycbcr` may equal `rgb`.
void rgb_to_ycbcr(const uint8_t* rgb, int64_t pixels, uint8_t* ycbcr);

}  // namespace custom_op
