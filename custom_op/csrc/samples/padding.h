// The padding that vector code needs around a row of samples.
#pragma once

#include <cstdint>

namespace custom_op {

// Loops over a row of samples read, and write to scratch rows, up to so many samples past its end.
constexpr int64_t kSamplePadding = 32;

}  // namespace custom_op
