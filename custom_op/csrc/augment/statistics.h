// Look-up tables that depend on the whole crop.
#pragma once

#include "augment/lookup.h"

namespace custom_op {

// The mean of the gray pixels, each rounded down.
double mean_gray(const Canvas& canvas);

std::array<LookupTable, 3> autocontrast_tables(const Canvas& canvas);
std::array<LookupTable, 3> equalize_tables(const Canvas& canvas);

}  // namespace custom_op
