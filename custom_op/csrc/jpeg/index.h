// Gives a JPEG restart markers: the same coefficients, written once more.
#pragma once

#include <vector>

#include "types.h"

namespace custom_op {

struct NotIndexable : JpegError {
  using JpegError::JpegError;
};

// Writes `jpeg` as a baseline file with a restart marker every k MCUs, k the largest divisor of the
// MCUs per row that is at most `interval`, else every row. APPn and COM segments are kept. The
// result's pixels were compared with the original's. Throws NotIndexable when there is none.
std::vector<uint8_t> with_restart_markers(Bytes jpeg, int64_t interval, int64_t max_pixels);

}  // namespace custom_op
