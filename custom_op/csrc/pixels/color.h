// The color conversion that libjpeg does not do.
#pragma once

#include <cstdint>

namespace custom_op {

// Converts inverted CMYK, as Adobe programs store it and Pillow always assumes.
void cmyk_to_rgb(const uint8_t* cmyk, int64_t pixels, uint8_t* rgb);

}  // namespace custom_op
