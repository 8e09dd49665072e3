#include "pixels/color.h"

#include <algorithm>

namespace custom_op {
namespace {

// a * b / 255, rounded.
int scale(int a, int b) {
  const int product = a * b + 128;
  return ((product >> 8) + product) >> 8;
}

uint8_t clamp(int value) { return static_cast<uint8_t>(std::clamp(value, 0, 255)); }

// Rounds a value with 16 fractional bits.
int rounded(int value) { return (value + 32768) >> 16; }

}  // namespace

void cmyk_to_rgb(const uint8_t* cmyk, int64_t pixels, uint8_t* rgb) {
  for (int64_t i = 0; i < pixels; ++i, cmyk += 4, rgb += 3) {
    const int light = cmyk[3];
    for (int c = 0; c < 3; ++c) rgb[c] = clamp(light - scale(255 - cmyk[c], light));
  }
}

void rgb_to_ycbcr(const uint8_t* rgb, int64_t pixels, uint8_t* ycbcr) {
  for (int64_t i = 0; i < pixels; ++i, rgb += 3, ycbcr += 3) {
    const int r = rgb[0], g = rgb[1], b = rgb[2];
    ycbcr[0] = clamp(rounded(19595 * r + 38470 * g + 7471 * b));
    ycbcr[1] = clamp(rounded(-11059 * r - 21709 * g + 32768 * b) + 128);
    ycbcr[2] = clamp(rounded(32768 * r - 27439 * g - 5329 * b) + 128);
  }
}

}  // namespace custom_op
