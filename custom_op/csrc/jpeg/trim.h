// Cuts a small JPEG out of a JPEG with restart markers, without decoding.
#pragma once

#include <vector>

#include "jpeg/restarts.h"

namespace custom_op {

struct Trimmed {
  std::vector<uint8_t> jpeg;
  int64_t top, left;  // of the crop in the small JPEG
};

// The box must lie inside the image. Returns the whole file if its restart markers are missing or
// cannot be trusted. A small JPEG has no metadata (EXIF, ICC, comments).
Trimmed trim(Bytes jpeg, const Header& header, const Box& box);

}  // namespace custom_op
