// Rewrites a JPEG with restart markers; the coefficients stay the same.
#pragma once

#include <vector>

#include "types.h"

namespace custom_op {

struct NotIndexable : JpegError {
  using JpegError::JpegError;
};

// Rewrites `jpeg` as a baseline file with a restart marker every k MCUs. k is the largest divisor
// of the MCUs per row that is at most `interval`; if that is 1 and `interval` is not, k is one row.
// While the file would grow by more than `max_growth` (0.01: 1 %), a longer interval is used.
// APPn and COM segments are kept. The pixels of the result are compared with the original. Throws
// NotIndexable if the file cannot be rewritten without loss.
std::vector<uint8_t> with_restart_markers(Bytes jpeg, int64_t interval, double max_growth,
                                          int64_t max_pixels);

}  // namespace custom_op
