// Operations that mix the channels of a pixel.
#pragma once

#include "augment/canvas.h"

namespace custom_op {

// With torchvision's weights: white becomes 254.
inline int gray_of(float red, float green, float blue) {
  return static_cast<int>(0.2989F * red + 0.587F * green + 0.114F * blue);
}

void grayscale(Canvas& canvas);
void saturate(Canvas& canvas, float factor);
// `turn`: a share of the color circle.
void shift_hue(Canvas& canvas, float turn);

}  // namespace custom_op
