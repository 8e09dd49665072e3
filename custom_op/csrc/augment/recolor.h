// Operations that mix the channels of a pixel, and the mixture of two images.
#pragma once

#include "augment/canvas.h"

namespace custom_op {

// torchvision's: white becomes 254.
constexpr float kRedWeight = 0.2989F, kGreenWeight = 0.587F, kBlueWeight = 0.114F;

inline int gray_of(float red, float green, float blue) {
  return static_cast<int>(kRedWeight * red + kGreenWeight * green + kBlueWeight * blue);
}

// out = base + (other - base) * factor, truncated. `out` may be one of the two.
void blend(const uint8_t* base, const uint8_t* other, float factor, int64_t values, uint8_t* out);

void grayscale(Canvas& canvas);
void saturate(Canvas& canvas, float factor);
// `turn`: a share of the color circle.
void shift_hue(Canvas& canvas, float turn);

}  // namespace custom_op
