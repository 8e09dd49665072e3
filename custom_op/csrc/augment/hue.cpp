#include "augment/hue.h"

#include <algorithm>
#include <cstring>

namespace custom_op {
namespace {

// Pixels that are changed at once; the canvas has room for as many past the last one.
constexpr int kHueTile = 16;
using Pixels = std::array<int32_t, kHueTile>;  // red, green and blue in the lowest three bytes

// Reads one byte more.
Pixels load_pixels(const uint8_t* at) {
  Pixels pixels;
  for (size_t i = 0; i < kHueTile; ++i) std::memcpy(&pixels[i], at + 3 * i, 4);
  return pixels;
}

void store_pixels(const Pixels& pixels, uint8_t* at) {
  // The fourth byte is written again by the next pixel, which the last one does not have.
  for (size_t i = 0; i < kHueTile - 1; ++i) std::memcpy(at + 3 * i, &pixels[i], 4);
  std::memcpy(at + 3 * (kHueTile - 1), &pixels.back(), 3);
}

// The conversion to HSV and back in one: with V the largest value and C the range of the values, a
// channel is V - C * clamp(min(k, 4 - k), 0, 1), where k is the hue's distance on a circle of
// length 6 from 5, 3 and 1 for red, green and blue.
int32_t shifted(int32_t pixel, float shift) {
  const auto red = static_cast<float>(pixel & 255);
  const auto green = static_cast<float>(pixel >> 8 & 255);
  const auto blue = static_cast<float>(pixel >> 16 & 255);
  const float largest = std::max(std::max(red, green), blue);
  const float range = largest - std::min(std::min(red, green), blue);
  const float unit = 1 / std::max(range, 1.F);
  const float of_red = (green - blue) * unit;
  const float of_green = (blue - red) * unit + 2, of_blue = (red - green) * unit + 4;
  const float hue = (largest == red ? of_red : largest == green ? of_green : of_blue) + shift;
  const auto channel = [=](float offset) {  // hue + offset: from 0 to 16
    float k = hue + offset;
    k -= k >= 12 ? 12.F : k >= 6 ? 6.F : 0.F;
    const float low = std::min(std::max(std::min(k, 4 - k), 0.F), 1.F);
    return static_cast<int32_t>((largest - range * low) * (255.999F / 255));
  };
  return channel(5) | channel(3) << 8 | channel(1) << 16;
}

}  // namespace

void shift_hue(Canvas& canvas, float turn) {
  const float shift = 6 * (turn < 0 ? turn + 1 : turn);
  uint8_t* const values = canvas.row(0);
  const int64_t count = canvas.values();
  for (int64_t i = 0; i < count; i += 3 * kHueTile) {
    Pixels pixels = load_pixels(values + i);
    // Compilers vectorize this loop.
    for (int32_t& pixel : pixels) pixel = shifted(pixel, shift);
    store_pixels(pixels, values + i);
  }
}

}  // namespace custom_op
