// Types that every part of the operator uses: byte ranges, crop boxes, errors.
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

// Requires the second FF, as Pillow does; libjpeg would skip other bytes in its place.
inline bool starts_like_jpeg(Bytes data) {
  return data.size >= 4 && data.data[0] == 0xFF && data.data[1] == 0xD8 && data.data[2] == 0xFF;
}

// In stored pixels (before any EXIF rotation), unless a comment says otherwise.
struct Box {
  int64_t top, left, height, width;
};

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct JpegError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace custom_op
