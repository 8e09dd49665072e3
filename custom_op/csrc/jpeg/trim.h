// Cuts a small JPEG out of one with restart markers, without decoding anything.
#pragma once

#include <vector>

#include "jpeg/restarts.h"

namespace custom_op {

struct Trimmed {
  std::vector<uint8_t> jpeg;
  int64_t top, left;  // of the crop in it
};

// The box lies inside the image. Files whose restart markers are missing or cannot be trusted come
// back whole. Metadata (EXIF, ICC, comments) is left out of what is cut.
Trimmed trim(Bytes jpeg, const Header& header, const Box& box);

}  // namespace custom_op
