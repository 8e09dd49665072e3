#include "augment/recolor.h"

#include <algorithm>
#include <cmath>

namespace custom_op {
namespace {

// Calls each(pixel) with 3 values; compilers vectorize it if `each` does not branch.
template <typename Each>
void for_each_pixel(Canvas& canvas, Each each) {
  uint8_t* values = canvas.row(0);
  const int64_t count = canvas.values();
  for (int64_t i = 0; i < count; i += 3) each(values + i);
}

uint8_t truncated(float value) {
  return static_cast<uint8_t>(static_cast<int>(std::min(std::max(value, 0.F), 255.F)));
}

}  // namespace

void grayscale(Canvas& canvas) {
  for_each_pixel(canvas, [](uint8_t* pixel) {
    const auto gray = static_cast<uint8_t>(gray_of(pixel[0], pixel[1], pixel[2]));
    pixel[0] = pixel[1] = pixel[2] = gray;
  });
}

void saturate(Canvas& canvas, float factor) {
  for_each_pixel(canvas, [=](uint8_t* pixel) {
    const float red = pixel[0], green = pixel[1], blue = pixel[2];
    const auto gray = static_cast<float>(gray_of(red, green, blue));
    // In this form, a large factor gives no infinity minus infinity.
    pixel[0] = truncated(gray + (red - gray) * factor);
    pixel[1] = truncated(gray + (green - gray) * factor);
    pixel[2] = truncated(gray + (blue - gray) * factor);
  });
}

// The conversion to HSV and back in one: with V the largest value and C the range of the values, a
// channel is V - C * clamp(min(k, 4 - k), 0, 1), where k is the hue's distance on a circle of
// length 6 from 5, 3 and 1 for red, green and blue.
void shift_hue(Canvas& canvas, float turn) {
  const float shift = 6 * (turn < 0 ? turn + 1 : turn);
  for_each_pixel(canvas, [=](uint8_t* pixel) {
    const float red = pixel[0], green = pixel[1], blue = pixel[2];
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
      return truncated((largest - range * low) * (255.999F / 255));
    };
    pixel[0] = channel(5);
    pixel[1] = channel(3);
    pixel[2] = channel(1);
  });
}

}  // namespace custom_op
