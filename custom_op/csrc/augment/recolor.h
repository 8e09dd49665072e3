// Operations that mix the channels of a pixel.
#pragma once

#include "augment/canvas.h"

namespace custom_op {

void grayscale(Canvas& canvas);
void saturate(Canvas& canvas, float factor);
// `turn`: a share of the color circle.
void shift_hue(Canvas& canvas, float turn);

}  // namespace custom_op
