// What a decoder produces: the rows of a crop.
#pragma once

#include <array>

#include "types.h"

namespace custom_op {

enum class Color { kRgb, kYcbcr };

// Takes the rows of a crop, top to bottom, 3 bytes per pixel.
class RowSink {
 public:
  virtual ~RowSink() = default;
  // Called before the first row, and again if the decoder must restart from the first row.
  virtual void begin() = 0;
  // Where the decoder must write the next row: memory for exactly one row.
  virtual uint8_t* next() = 0;
  // Called when the row is written.
  virtual void written() = 0;
};

// The samples of one component around a crop. Only the newest rows are there.
struct SamplePlane {
  const uint8_t* first;  // of row 0, in the crop's first column
  int64_t stride, mask;  // rows y and y + mask + 1 share their place

  // Row y of the component's samples in the image. The sample before it may be read, and
  // kSamplePadding samples past the crop's last one.
  const uint8_t* row(int64_t y) const { return first + (y & mask) * stride; }
};

struct SamplePlanes {
  std::array<SamplePlane, 3> components;  // Y, Cb, Cr
  bool has_chroma, half_width, half_height;
  int64_t chroma_rows;  // of the image
};

// Takes a crop as samples of YCbCr, which need no full row of pixels.
class SampleSink {
 public:
  virtual ~SampleSink() = default;
  // Called before the first row.
  virtual void begin(const SamplePlanes& planes) = 0;
  // How many rows of pixels above the newest one must stay.
  virtual int64_t rows_kept() const = 0;
  // Called when the samples of pixel rows above `end` of the image are decoded.
  virtual void decoded(int64_t end) = 0;
};

}  // namespace custom_op
