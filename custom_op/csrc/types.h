// What every part of the operator speaks: byte ranges, crop boxes, errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace custom_op {

struct Bytes {
  const uint8_t* data;
  size_t size;
};

// In stored (unrotated) pixels.
struct Box {
  int64_t top, left, height, width;
};

struct JpegError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace custom_op
