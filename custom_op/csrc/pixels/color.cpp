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

}  // namespace

void cmyk_to_rgb(const uint8_t* cmyk, int64_t pixels, uint8_t* rgb) {
  for (int64_t i = 0; i < pixels; ++i, cmyk += 4, rgb += 3) {
    const int light = cmyk[3];
    for (int c = 0; c < 3; ++c) rgb[c] = clamp(light - scale(255 - cmyk[c], light));
  }
}

}  // namespace custom_op
