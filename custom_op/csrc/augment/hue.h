// Turns the hues of all pixels.
#pragma once

#include "augment/canvas.h"

namespace custom_op {

// `turn`: a share of the color circle.
void shift_hue(Canvas& canvas, float turn);

}  // namespace custom_op
