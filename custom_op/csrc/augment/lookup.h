// Operations that map each value by a table of 256.
#pragma once

#include "augment/canvas.h"

namespace custom_op {

using LookupTable = std::array<uint8_t, 256>;

LookupTable brightness_table(float factor);
// `mean`: of the gray pixels, see mean_gray.
LookupTable contrast_table(float factor, double mean);
LookupTable posterize_table(int bits);
LookupTable solarize_table(float threshold);
LookupTable solarize_add_table(int addition);
LookupTable invert_table();

void look_up(const LookupTable& table, Canvas& canvas);
// One table per channel.
void look_up(const std::array<LookupTable, 3>& tables, Canvas& canvas);

}  // namespace custom_op
